// The ground: coastlines, borders and a graticule (Natural Earth, shipped), or tiles where set.

import { colour } from "../theme.js";
import { project } from "./camera.js";
import { Tiles } from "./tiles.js";

const DEEP = 6000; // pixels that the world is wide, from which on the finer coast is drawn
const TOO_DEEP = 1.2e6; // and from which on it would be wrong by a hundred pixels: a kilometre
const STEPS = [45, 30, 15, 10, 5, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001];

/** Draws the ground of a view. `changed` is called when more of it has arrived. */
export class Base {
  constructor(changed) {
    this.changed = changed;
    this.coarse = this.fine = null;
    this.borders = [];
    this.asked = new Set();
    this.tiles = null;
  }

  /** Draw these tiles instead of the coast: the setting `map` of the session. */
  useTiles(source) {
    if (JSON.stringify(source) === JSON.stringify(this.tiles?.source)) return;
    this.tiles = source?.tiles ? new Tiles(source, this.changed) : null;
    this.changed();
  }

  load(name, take) {
    if (this.asked.has(name)) return;
    this.asked.add(name);
    fetch(`/assets/vendor/${name}.json`)
      .then((response) => response.json())
      .then((topology) => { take(new Topology(topology)); this.changed(); })
      .catch(() => this.asked.delete(name));
  }

  draw(context, camera) {
    this.load("countries-110m", (topology) => {
      this.coarse = topology.rings("land");
      this.borders = topology.inner("countries");
    });
    if (camera.scale > DEEP) this.load("land-50m", (topology) => { this.fine = topology.rings("land"); });
    context.fillStyle = colour(this.tiles ? "--land" : "--sea");
    context.fillRect(0, 0, camera.width, camera.height);
    if (this.tiles) this.tiles.draw(context, camera);
    else if (camera.scale > TOO_DEEP) drawPlain(context, camera);
    else this.drawLand(context, camera);
    drawGraticule(context, camera);
  }

  drawLand(context, camera) {
    const rings = (camera.scale > DEEP && this.fine) || this.coarse || [];
    context.fillStyle = colour("--land");
    context.strokeStyle = colour("--coast");
    context.lineWidth = 1;
    context.beginPath();
    eachCopy(camera, (shift) => {
      for (const ring of rings) traceRing(context, camera, ring, shift);
    });
    context.fill("evenodd");
    context.stroke();
    context.strokeStyle = colour("--border");
    context.beginPath();
    eachCopy(camera, (shift) => {
      for (const line of this.borders) traceLine(context, camera, line, shift);
    });
    context.stroke();
  }
}

/** Draw no coast where ours is too coarse: a wrong shore is worse than none. */
function drawPlain(context, camera) {
  context.fillStyle = colour("--land");
  context.fillRect(0, 0, camera.width, camera.height);
}

function eachCopy(camera, draw) {
  const half = camera.width / 2 / camera.scale;
  for (let shift = Math.floor(camera.x - half); shift <= Math.floor(camera.x + half); shift++) draw(shift);
}

/** Arcs of a TopoJSON file as lines and rings in the unit square, with their bounds. */
class Topology {
  constructor({ arcs, transform, objects }) {
    const { scale, translate } = transform;
    this.objects = objects;
    this.arcs = arcs.map((arc) => {
      let [x, y] = [0, 0];
      return arc.map(([dx, dy]) => project((x += dx) * scale[0] + translate[0], (y += dy) * scale[1] + translate[1]));
    });
  }

  arc(index) {
    return index >= 0 ? this.arcs[index] : this.arcs[~index].toReversed();
  }

  rings(name) {
    return polygons(this.objects[name]).flat().map((ring) => bounded(ring.flatMap((index) => this.arc(index))));
  }

  /** Return the lines that two of the polygons share. */
  inner(name) {
    const uses = new Map();
    for (const index of polygons(this.objects[name]).flat(2)) {
      const arc = index < 0 ? ~index : index;
      uses.set(arc, (uses.get(arc) ?? 0) + 1);
    }
    return [...uses].filter(([, times]) => times > 1).map(([arc]) => bounded(this.arcs[arc]));
  }
}

function polygons(object) {
  if (object.type === "GeometryCollection") return object.geometries.flatMap(polygons);
  return object.type === "Polygon" ? [object.arcs] : object.type === "MultiPolygon" ? object.arcs : [];
}

function bounded(points) {
  const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
  return { points, west: least(xs), east: -least(xs.map((x) => -x)), north: least(ys), south: -least(ys.map((y) => -y)) };
}

const least = (values) => values.reduce((a, b) => (b < a ? b : a), Infinity);

/** Return the part of the world that is seen and a little more, shifted by whole worlds. */
function seen(camera, shift) {
  const [west, north] = camera.toWorld(-60, -60);
  const [east, south] = camera.toWorld(camera.width + 60, camera.height + 60);
  return { west: west - shift, east: east - shift, north, south };
}

const apart = (a, b) => a.east < b.west || a.west > b.east || a.south < b.north || a.north > b.south;

function traceLine(context, camera, line, shift) {
  if (apart(line, seen(camera, shift))) return;
  line.points.forEach(([x, y], i) => context[i ? "lineTo" : "moveTo"](camera.screenX(x + shift), camera.screenY(y)));
}

function traceRing(context, camera, ring, shift) {
  const view = seen(camera, shift);
  if (apart(ring, view)) return;
  const isInside = ring.west >= view.west && ring.east <= view.east && ring.north >= view.north && ring.south <= view.south;
  const points = isInside ? ring.points : clipped(ring.points, view);
  points.forEach(([x, y], i) => context[i ? "lineTo" : "moveTo"](camera.screenX(x + shift), camera.screenY(y)));
  if (points.length) context.closePath();
}

/** Return a ring cut to a rectangle (Sutherland and Hodgman), so that no coordinate is huge. */
function clipped(points, { west, east, north, south }) {
  for (const [axis, edge, sign] of [[0, west, 1], [0, east, -1], [1, north, 1], [1, south, -1]]) {
    const kept = [];
    for (let i = 0; i < points.length; i++) {
      const [a, b] = [points[(i || points.length) - 1], points[i]];
      const [inA, inB] = [(a[axis] - edge) * sign >= 0, (b[axis] - edge) * sign >= 0];
      if (inA !== inB) {
        const part = (edge - a[axis]) / (b[axis] - a[axis]);
        kept.push([a[0] + part * (b[0] - a[0]), a[1] + part * (b[1] - a[1])]);
      }
      if (inB) kept.push(b);
    }
    points = kept;
  }
  return points;
}

function drawGraticule(context, camera) {
  const step = STEPS.findLast((degrees) => (degrees / 360) * camera.scale >= 100) ?? STEPS[0];
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const { west, east, south, north } = camera.bounds();
  context.strokeStyle = colour("--grid");
  context.fillStyle = colour("--label");
  context.lineWidth = 1;
  context.font = "10px system-ui, sans-serif";
  context.beginPath();
  for (let lon = Math.ceil(west / step) * step; lon <= east; lon += step) {
    const x = Math.round(camera.toScreen(lon, 0)[0]) + 0.5;
    context.moveTo(x, 0);
    context.lineTo(x, camera.height);
    context.fillText(degrees(lon, digits, "E", "W"), x + 3, camera.height - 5);
  }
  for (let lat = Math.ceil(south / step) * step; lat <= north; lat += step) {
    const y = Math.round(camera.toScreen(0, lat)[1]) + 0.5;
    context.moveTo(0, y);
    context.lineTo(camera.width, y);
    context.fillText(degrees(lat, digits, "N", "S"), 4, y - 3);
  }
  context.stroke();
}

function degrees(value, digits, positive, negative) {
  const rounded = Math.abs(value).toFixed(digits);
  return `${rounded}°${Number(rounded) === 0 ? "" : value > 0 ? positive : negative}`;
}

