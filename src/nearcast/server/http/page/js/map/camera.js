// The view: which part of the world is where on the screen (Mercator; the world is the unit square).

const MAX_LAT = 85.05;
const SMALLEST = 200; // pixels that the world is wide
const LARGEST = 4e10; // a metre is then a thousand pixels wide
const M_AROUND = 40_075_016.686;

/** Return the place in the unit square of a longitude and latitude. */
export function project(lon, lat) {
  const sin = Math.sin((Math.max(-MAX_LAT, Math.min(MAX_LAT, lat)) * Math.PI) / 180);
  return [(lon + 180) / 360, 0.5 - Math.log((1 + sin) / (1 - sin)) / (4 * Math.PI)];
}

/** Return the longitude and latitude of a place in the unit square. */
export function unproject(x, y) {
  return [x * 360 - 180, (Math.atan(Math.sinh(Math.PI * (1 - 2 * y))) * 180) / Math.PI];
}

/** Return the metres between two places, on the sphere. */
export function distanceM([lon, lat], [lon2, lat2]) {
  const rad = Math.PI / 180;
  const a = Math.sin(((lat2 - lat) * rad) / 2) ** 2
    + Math.cos(lat * rad) * Math.cos(lat2 * rad) * Math.sin(((lon2 - lon) * rad) / 2) ** 2;
  return 2 * 6_371_008.8 * Math.asin(Math.min(1, Math.sqrt(a)));
}

/** What is in the middle, and how many pixels the world is wide. */
export class Camera {
  constructor() {
    [this.x, this.y] = project(10, 25);
    this.scale = 900;
    this.width = this.height = 1;
    this.version = 0; // grows with every change
    this.flight = null;
  }

  changed() {
    this.scale = Math.max(SMALLEST, Math.min(LARGEST, this.scale));
    this.y = Math.max(0, Math.min(1, this.y));
    this.x -= Math.floor(this.x);
    this.version++;
  }

  resize(width, height) {
    [this.width, this.height] = [width, height];
    this.changed();
  }

  screenX(x) { return (x - this.x) * this.scale + this.width / 2; }
  screenY(y) { return (y - this.y) * this.scale + this.height / 2; }
  toScreen(lon, lat) {
    const [x, y] = project(lon, lat);
    return [this.screenX(x), this.screenY(y)];
  }
  toWorld(px, py) {
    return [(px - this.width / 2) / this.scale + this.x, (py - this.height / 2) / this.scale + this.y];
  }
  toPlace(px, py) { return unproject(...this.toWorld(px, py)); }

  /** Pixels per metre at a latitude. */
  perMetre(lat) { return this.scale / (M_AROUND * Math.cos((lat * Math.PI) / 180)); }

  /** Return west, south, east, north of what is seen. */
  bounds() {
    const [west, north] = this.toPlace(0, 0);
    const [east, south] = this.toPlace(this.width, this.height);
    return { west: Math.max(-180, west), south, east: Math.min(180, east), north };
  }

  pan(dx, dy) {
    this.flight = null;
    this.x -= dx / this.scale;
    this.y -= dy / this.scale;
    this.changed();
  }

  zoom(factor, px = this.width / 2, py = this.height / 2) {
    this.flight = null;
    const [x, y] = this.toWorld(px, py);
    const before = this.scale;
    this.scale = Math.max(SMALLEST, Math.min(LARGEST, before * factor));
    this.x = x - (px - this.width / 2) / this.scale;
    this.y = y - (py - this.height / 2) / this.scale;
    this.changed();
  }

  /** Return the centre and scale at which bounds fill the view, with a margin for panels. */
  framing({ west, south, east, north }, margin = { left: 40, right: 40, top: 40, bottom: 40 }) {
    const [x0, y0] = project(west, north);
    const [x1, y1] = project(east, south);
    const wide = Math.max(80, this.width - margin.left - margin.right);
    const high = Math.max(80, this.height - margin.top - margin.bottom);
    const scale = Math.min(wide / Math.max(x1 - x0, 1e-9), high / Math.max(y1 - y0, 1e-9), 3e8);
    return {
      x: (x0 + x1) / 2 + (margin.right - margin.left) / 2 / scale,
      y: (y0 + y1) / 2 + (margin.bottom - margin.top) / 2 / scale,
      scale,
    };
  }

  jump(target) {
    Object.assign(this, target, { flight: null });
    this.changed();
  }

  /** Fly to a target in some 700 ms; `step` moves. */
  fly(target, now, quick = matchMedia("(prefers-reduced-motion: reduce)").matches) {
    if (quick) return this.jump(target);
    this.flight = { from: { x: this.x, y: this.y, scale: this.scale }, to: target, begun: now, ms: 700 };
  }

  step(now) {
    const flight = this.flight;
    if (!flight) return;
    const part = Math.min(1, (now - flight.begun) / flight.ms);
    const eased = part < 0.5 ? 4 * part ** 3 : 1 - (-2 * part + 2) ** 3 / 2;
    const { from, to } = flight;
    this.scale = from.scale * (to.scale / from.scale) ** eased;
    // so that the target moves straight over the screen while the scale changes
    const moved = to.scale === from.scale ? eased : (1 / from.scale - 1 / this.scale) / (1 / from.scale - 1 / to.scale);
    this.x = from.x + (to.x - from.x) * moved;
    this.y = from.y + (to.y - from.y) * moved;
    this.changed();
    if (part === 1) this.flight = null;
    else this.flight = flight;
  }
}
