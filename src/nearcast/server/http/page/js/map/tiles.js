// Map tiles below the clients: images, or shapes that are drawn in the page's own colours.

import { colour, isDark } from "../theme.js";
import { readTile } from "./mvt.js";

const KEPT = 300; // tiles
const AGAIN_MS = 30_000; // until a tile that did not come is asked for once more
const ABOVE = 5; // zooms, of which the tiles stand in for one that is still to come
const SHAPES_PX = 512; // a tile of shapes is drawn this wide, one of an image half as wide

/** The tiles of one address: {tiles, min_zoom, max_zoom, vector} as the session has it. */
export class Tiles {
  constructor(source, changed) {
    Object.assign(this, { source, changed });
    this.known = new Map(); // name -> {content, isMissing, failedAt}
  }

  draw(context, camera) {
    const { min_zoom: least, max_zoom: most, vector } = this.source;
    const wanted = Math.log2(camera.scale / (vector ? SHAPES_PX : 256));
    const z = Math.max(least, Math.min(most, vector ? Math.floor(wanted + 0.3) : Math.round(wanted)));
    const many = 2 ** z;
    const size = camera.scale / many;
    const [x0, y0] = camera.toWorld(0, 0);
    const [x1, y1] = camera.toWorld(camera.width, camera.height);
    const found = [];
    for (let y = Math.max(0, Math.floor(y0 * many)); y <= Math.min(many - 1, Math.floor(y1 * many)); y++)
      for (let x = Math.floor(x0 * many); x <= Math.floor(x1 * many); x++) {
        const part = this.best(z, ((x % many) + many) % many, y);
        if (part) found.push({ ...part, left: camera.screenX(x / many), top: camera.screenY(y / many), size });
      }
    if (vector) drawShapes(context, found, wanted);
    else drawImages(context, found);
  }

  /** Return a tile, or the part of a larger one that is there already: {content, parts, column, row}. */
  best(z, x, y) {
    let asks = true; // for larger ones only where this one is missing
    for (let up = 0; up <= Math.min(ABOVE, z - this.source.min_zoom); up++) {
      const one = asks ? this.tile(z - up, x >> up, y >> up) : this.known.get(`${z - up}/${x >> up}/${y >> up}`);
      if (one?.content) return { content: one.content, parts: 2 ** up, column: x % 2 ** up, row: y % 2 ** up };
      asks &&= one.isMissing;
    }
    return null;
  }

  tile(z, x, y) {
    const name = `${z}/${x}/${y}`;
    const known = this.known.get(name);
    if (known) {
      this.known.delete(name);
      this.known.set(name, known); // the last used are kept
      if (!known.failedAt || Date.now() - known.failedAt < AGAIN_MS) return known;
    }
    const entry = { content: null, isMissing: false, failedAt: 0 };
    this.known.set(name, entry);
    if (this.known.size > KEPT) this.known.delete(this.known.keys().next().value);
    const address = this.source.tiles.replace("{z}", z).replace("{x}", x).replace("{y}", y);
    (this.source.vector ? shapesOf(address) : imageOf(address)).then(
      (content) => { Object.assign(entry, { content, isMissing: !content }); this.changed(); },
      () => { Object.assign(entry, { isMissing: true, failedAt: Date.now() }); this.changed(); });
    return entry;
  }
}

function imageOf(address) {
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => resolve(image);
    image.onerror = reject;
    image.src = address;
  });
}

async function shapesOf(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Error(response.statusText);
  return response.status === 204 ? null : styled(readTile(new Uint8Array(await response.arrayBuffer())));
}

function drawImages(context, found) {
  context.globalAlpha = isDark() ? 0.55 : 1; // maps are bright, as a rule
  for (const { content, parts, column, row, left, top, size } of found) {
    const [wide, high] = [content.naturalWidth / parts, content.naturalHeight / parts];
    context.drawImage(content, column * wide, row * high, wide, high, left, top, size + 0.5, size + 0.5);
  }
  context.globalAlpha = 1;
}

// --- shapes ----------------------------------------------------------------------------------

const LARGE_ROADS = new Set(["highway", "major_road", "motorway", "trunk", "primary", "secondary"]);
const GREEN = new Set(["park", "wood", "forest", "grass", "grassland", "scrub", "nature_reserve", "garden", "golf_course", "pitch", "cemetery", "meadow", "national_park", "green"]);
const kindOf = ({ kind, class: other, "kind_detail": detail }) => kind ?? other ?? detail;

/** What is drawn, in this order: layers of Protomaps' and of OpenMapTiles' basemaps. */
const STYLES = [
  { layers: ["earth"], fill: "--land" },
  { layers: ["landcover", "landuse", "park"], fill: "--map-green", only: (properties) => GREEN.has(kindOf(properties)) },
  { layers: ["water"], fill: "--sea", stroke: "--coast", width: 0.7 },
  { layers: ["waterway", "physical_line"], stroke: "--coast", width: 1 },
  { layers: ["buildings", "building"], fill: "--map-building" },
  { layers: ["roads", "transportation"], stroke: "--map-road", width: 1.2, only: (properties) => !LARGE_ROADS.has(kindOf(properties)) },
  { layers: ["roads", "transportation"], stroke: "--map-road", width: 3, only: (properties) => LARGE_ROADS.has(kindOf(properties)) },
  { layers: ["boundaries", "boundary"], stroke: "--border", width: 1 },
];

/** Return a tile as one path per style, in units of the tile's width, and its names. */
function styled(layers) {
  const paths = STYLES.map(({ layers: names, fill, only }) => {
    const path = new Path2D();
    let isEmpty = true;
    for (const { extent, features } of layers.filter(({ name }) => names.includes(name)))
      for (const { type, parts, properties } of features) {
        if (type === 1 || (fill && type !== 3) || (only && !only(properties))) continue;
        isEmpty = false;
        for (const points of parts) {
          for (let i = 0; i < points.length; i += 2) path[i ? "lineTo" : "moveTo"](points[i] / extent, points[i + 1] / extent);
          if (type === 3) path.closePath();
        }
      }
    return isEmpty ? null : path;
  });
  const names = layers.filter(({ name }) => name === "places" || name === "place").flatMap(({ extent, features }) =>
    features.filter(({ type, properties }) => type === 1 && typeof properties.name === "string").map(({ parts, properties }) =>
      ({ text: properties.name.slice(0, 60), x: parts[0][0] / extent, y: parts[0][1] / extent })));
  return { paths, names };
}

function drawShapes(context, found, zoom) {
  context.lineJoin = context.lineCap = "round";
  const scale = Math.max(0.5, Math.min(3, 2 ** ((zoom - 14) / 2)));
  STYLES.forEach(({ fill, stroke, width }, number) => {
    if (fill) context.fillStyle = colour(fill);
    if (stroke) [context.strokeStyle, context.lineWidth] = [colour(stroke), width * (width > 1 ? scale : 1)];
    for (const part of found) {
      const path = part.content.paths[number];
      if (path) within(context, part, path, (whole) => {
        if (fill) context.fill(whole, "evenodd");
        if (stroke) context.stroke(whole);
      });
    }
  });
  drawNames(context, found);
}

/** Draw a path of a tile on the part of the screen that it is for. */
function within(context, { parts, column, row, left, top, size }, path, draw) {
  const whole = new Path2D();
  const wide = size * parts;
  whole.addPath(path, new DOMMatrix([wide, 0, 0, wide, left - column * size, top - row * size]));
  context.save();
  context.beginPath();
  context.rect(left, top, size + 0.5, size + 0.5);
  context.clip();
  draw(whole);
  context.restore();
}

function drawNames(context, found) {
  const taken = [];
  context.font = "600 11px system-ui, sans-serif";
  context.textAlign = "center";
  [context.fillStyle, context.strokeStyle, context.lineWidth] = [colour("--label"), colour("--halo"), 3];
  for (const { content, parts, column, row, left, top, size } of found)
    for (const { text, x, y } of content.names) {
      const [px, py] = [left + (x * parts - column) * size, top + (y * parts - row) * size];
      if (px < left || py < top || px >= left + size || py >= top + size) continue;
      const half = context.measureText(text).width / 2 + 4;
      if (taken.some(([qx, qy, other]) => Math.abs(py - qy) < 15 && Math.abs(px - qx) < half + other)) continue;
      taken.push([px, py, half]);
      context.strokeText(text, px, py);
      context.fillText(text, px, py);
    }
  context.textAlign = "start";
}
