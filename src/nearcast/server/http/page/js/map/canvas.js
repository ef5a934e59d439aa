// The map as an element: canvases, the loop that draws, and what fingers, mouse and keys do to the view.

import { h } from "../dom.js";
import { onTheme } from "../theme.js";
import { Base } from "./base.js";
import { Camera } from "./camera.js";
import { contains, drawAreas, drawDraft, drawPlan, drawRegions } from "./ground.js";
import { Dots, drawClients, drawHappenings, drawRanges, palette, Trails } from "./paint.js";

const REACH_PX = 12; // a click this near hits
const MANY = 4_000; // clients, from which on a view that rests is drawn some thirty times a second
const MANY_MS = 33;

/** Tell whether to draw now, rather than with the browser's next frame: whichever is nearer to `MANY_MS`. */
export const isDue = (sinceMs, everyMs) => sinceMs + everyMs / 2 >= MANY_MS;

/**
 * Draws a scene: {crowd, happenings, layers, plan, regions, ranges, areas, nodes, draft, selected,
 * past: null or {instant, spots}}. Calls `onPick(what, place)`, `onMove(camera)`.
 */
export class MapCanvas {
  constructor(scene) {
    this.scene = scene;
    this.camera = new Camera();
    this.layers = ["ground", "trails", "dots", "moving"].map((name) => h(`canvas.map-${name}`));
    this.element = h("div.map-canvas", {
      tabindex: 0, role: "application",
      "aria-label": "Map. Arrow keys move it, plus and minus zoom, Tab goes on; clients are listed in the view Clients.",
    }, this.layers);
    this.base = new Base(() => this.redraw());
    this.trails = new Trails(this.layers[1], this.camera);
    this.dots = new Dots(this.layers[2]);
    scene.crowd.onFix = (...line) => scene.layers.trails && this.trails.add(...line);
    [this.ground, this.moving] = [this.layers[0].getContext("2d", { alpha: false }), this.layers[3].getContext("2d")];
    this.frames = { count: 0, since: Date.now(), perSecond: 0 };
    this.drawn = -1;
    [this.drawnAt, this.calledAt, this.everyMs] = [0, 0, 16]; // `everyMs`: from one frame of the browser to the next
    this.inView = [];
    this.pool = [];
    this.onPick = this.onMove = this.onDraw = () => {};
    this.colours = palette();
    onTheme(() => { this.colours = palette(); this.trails.stroke = null; this.camera.version++; });
    new ResizeObserver(() => this.resize()).observe(this.element);
    listen(this);
    this.frame = this.frame.bind(this);
    requestAnimationFrame(this.frame);
  }

  redraw() { this.drawn = -1; }

  resize() {
    const { clientWidth, clientHeight } = this.element;
    if (!clientWidth || !clientHeight) return;
    this.ratio = this.dots.ratio = Math.min(2, devicePixelRatio || 1);
    for (const canvas of this.layers) {
      [canvas.width, canvas.height] = [clientWidth * this.ratio, clientHeight * this.ratio];
      canvas.getContext("2d").setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    }
    this.camera.resize(clientWidth, clientHeight);
    this.dots.hide(); // a canvas whose size is set is empty
    this.drawFrame(Date.now());
  }

  frame() {
    requestAnimationFrame(this.frame);
    const now = Date.now();
    this.everyMs += 0.1 * (Math.min(200, now - this.calledAt) - this.everyMs);
    this.calledAt = now;
    const rests = this.drawn === this.camera.version && !this.camera.flight;
    if (rests && this.scene.crowd.size > MANY && !isDue(now - this.drawnAt, this.everyMs)) return;
    this.drawnAt = now;
    if (this.element.isConnected && this.camera.width > 1 && !document.hidden) this.drawFrame(now);
  }

  drawFrame(now) {
    const { camera, scene } = this;
    camera.step(now);
    if (this.drawn !== camera.version) {
      this.drawn = camera.version;
      this.drawGround();
      this.onMove(camera);
    }
    this.layers[1].hidden = !scene.layers.trails || scene.past !== null;
    if (!this.layers[1].hidden) this.trails.step(scene.crowd, now, this.ratio);
    this.drawMoving(scene.past ? scene.past.instant : now);
    this.count(now);
  }

  count(now) {
    const { frames } = this;
    frames.count++;
    if (now - frames.since < 1000) return;
    Object.assign(frames, { perSecond: (frames.count * 1000) / (now - frames.since), count: 0, since: now });
  }

  drawGround() {
    const { ground: context, camera, scene, colours } = this;
    this.base.draw(context, camera);
    if (scene.layers.plan) drawPlan(context, camera, scene.plan, scene.nodes, colours);
    if (scene.layers.regions) drawRegions(context, camera, scene.regions, colours);
    if (scene.layers.areas) drawAreas(context, camera, scene.areas, colours, scene.selected?.id);
  }

  drawMoving(instant) {
    const { moving: context, camera, scene, colours } = this;
    context.clearRect(0, 0, camera.width, camera.height);
    const spots = this.spots(instant);
    const spotOf = this.finder(spots, instant);
    if (scene.layers.ranges) drawRanges(context, camera, this.shownRanges(), spotOf, colours, scene.selected?.id);
    const seen = scene.layers.events ? scene.happenings.seen(instant) : [];
    const touched = drawHappenings(context, camera, seen, instant, spotOf, colours);
    if (scene.layers.clients) drawClients(context, camera, spots, colours, this.inView, { dots: this.dots, selected: scene.selected, hovered: this.hovered, touched, spotOf });
    else {
      this.inView = [];
      this.dots.hide();
    }
    if (scene.draft) drawDraft(context, camera, scene.draft, colours);
    this.onDraw(context, camera, spotOf, colours);
  }

  /** Return [client, x, y] of everybody at an instant. */
  spots(instant) {
    const { crowd, past } = this.scene;
    if (past) return past.spots;
    const found = this.pool; // the same arrays in each frame: ten thousand new ones would be garbage
    let count = 0;
    for (const one of crowd.clients.values()) {
      const part = Math.min(1, (instant - one.at) / one.span);
      const spot = (found[count++] ??= [one, 0, 0]);
      spot[0] = one;
      spot[1] = one.fromX + (one.x - one.fromX) * part;
      spot[2] = one.fromY + (one.y - one.fromY) * part;
    }
    found.length = count;
    return found;
  }

  finder(spots, instant) {
    const { crowd, past } = this.scene;
    if (past) {
      const known = new Map(spots.map(([one, x, y]) => [one.id, [x, y, one.lat]]));
      return (id) => known.get(id);
    }
    return (id) => {
      const one = crowd.clients.get(id);
      return one && [...crowd.at(one, instant), one.lat];
    };
  }

  /** All ranges where they are few enough to be seen apart; else those of the selected client. */
  shownRanges() {
    const { ranges, areTooMany, selected, selectedRanges } = this.scene;
    return areTooMany ? (selectedRanges ?? []).filter(([id]) => id === selected?.id) : ranges;
  }

  /** Return what is at a point of the screen: {client}, {event}, or {region, leaf} of the ground there. */
  hit(px, py) {
    let [best, nearest] = [null, REACH_PX ** 2];
    for (const [one, x, y] of this.inView) {
      const away = (x - px) ** 2 + (y - py) ** 2;
      if (away < nearest) [best, nearest] = [one, away];
    }
    if (best) return { client: best };
    const { camera, scene } = this;
    const instant = scene.past ? scene.past.instant : Date.now();
    const event = scene.happenings.seen(instant).find((one) =>
      Math.hypot(camera.screenX(one.x) - px, camera.screenY(one.y) - py) < 16);
    if (event) return { event };
    const place = camera.toPlace(px, py);
    const at = (features) => features.findLast(({ geometry }) => contains(geometry, ...place));
    return { region: scene.layers.regions ? at(scene.regions) : null, leaf: scene.layers.plan ? at(scene.plan) : null };
  }
}

/** Connect mouse, fingers and keys with the view; a tool that draws comes first. */
function listen(map) {
  const { element, camera } = map;
  const fingers = new Map();
  let moved = 0;
  const at = (event) => {
    const box = element.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  element.addEventListener("pointerdown", (event) => {
    element.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, at(event));
    moved = 0;
    if (fingers.size === 1 && map.tool?.down(camera.toPlace(...at(event)))) map.isDrawing = true;
  });
  element.addEventListener("pointermove", (event) => {
    const point = at(event);
    const before = fingers.get(event.pointerId);
    if (!before) return hover(map, point);
    moved += Math.hypot(point[0] - before[0], point[1] - before[1]);
    if (map.isDrawing) map.tool.move(camera.toPlace(...point));
    else if (fingers.size === 2) pinch(camera, fingers, event.pointerId, point);
    else if (moved > 3) camera.pan(point[0] - before[0], point[1] - before[1]);
    fingers.set(event.pointerId, point);
  });
  const lift = (event) => {
    const point = fingers.get(event.pointerId);
    fingers.delete(event.pointerId);
    if (map.isDrawing) {
      map.isDrawing = false;
      map.tool?.up(camera.toPlace(...(point ?? at(event))), moved);
    } else if (point && moved < 6 && event.type === "pointerup") map.onPick(map.hit(...point), camera.toPlace(...point));
  };
  element.addEventListener("pointerup", lift);
  element.addEventListener("pointercancel", lift);
  element.addEventListener("wheel", (event) => {
    event.preventDefault();
    camera.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0022)), ...at(event));
  }, { passive: false });
  element.addEventListener("dblclick", (event) => (map.tool ? map.tool.close?.() : camera.zoom(2, ...at(event))));
  element.addEventListener("keydown", (event) => key(map, event));
}

function hover(map, point) {
  const { client, event } = map.hit(...point);
  map.hovered = client;
  map.element.style.cursor = map.tool ? "crosshair" : client || event ? "pointer" : "grab";
}

function pinch(camera, fingers, id, point) {
  const [other] = [...fingers].filter(([key]) => key !== id).map(([, value]) => value);
  const before = fingers.get(id);
  const apart = (a, b) => Math.max(1, Math.hypot(a[0] - b[0], a[1] - b[1]));
  camera.zoom(apart(point, other) / apart(before, other), (point[0] + other[0]) / 2, (point[1] + other[1]) / 2);
  camera.pan((point[0] - before[0]) / 2, (point[1] - before[1]) / 2);
}

const MOVES = { ArrowLeft: [80, 0], ArrowRight: [-80, 0], ArrowUp: [0, 80], ArrowDown: [0, -80] };

function key(map, event) {
  const { camera } = map;
  if (MOVES[event.key]) camera.pan(...MOVES[event.key]);
  else if (event.key === "+" || event.key === "=") camera.zoom(1.5);
  else if (event.key === "-") camera.zoom(1 / 1.5);
  else if (event.key === "Enter") map.onPick(map.hit(camera.width / 2, camera.height / 2), camera.toPlace(camera.width / 2, camera.height / 2));
  else if (event.key === "Escape") map.onPick({}, null);
  else return;
  event.preventDefault();
}
