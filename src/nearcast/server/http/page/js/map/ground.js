// What lies on the ground: the leaves of the plan, slow regions, areas of subscriptions, what is drawn.

import { label, nodeColour } from "./paint.js";

const TOP_PX = 44; // above it are the facts

/** Trace a GeoJSON geometry as a path. */
export function trace(context, camera, geometry) {
  context.beginPath();
  for (const part of polygonsOf(geometry))
    for (const ring of part) {
      ring.forEach(([lon, lat], i) => context[i ? "lineTo" : "moveTo"](...camera.toScreen(lon, lat)));
      context.closePath();
    }
}

function polygonsOf(geometry) {
  if (!geometry) return [];
  if (geometry.type === "Polygon") return [geometry.coordinates];
  if (geometry.type === "MultiPolygon") return geometry.coordinates;
  if (geometry.type === "GeometryCollection") return geometry.geometries.flatMap(polygonsOf);
  return [];
}

/** Tell whether a place lies in a GeoJSON geometry (even-odd, in degrees). */
export function contains(geometry, lon, lat) {
  let isIn = false;
  for (const part of polygonsOf(geometry))
    for (const ring of part)
      for (let i = 0, j = ring.length - 1; i < ring.length; j = i++) {
        const [[x, y], [x2, y2]] = [ring[i], ring[j]];
        if (y > lat !== y2 > lat && lon < ((x2 - x) * (lat - y)) / (y2 - y) + x) isIn = !isIn;
      }
  return isIn;
}

/** Return west, south, east, north of features, or null where there are none. */
export function boundsOf(features) {
  const places = features.flatMap(({ geometry }) => polygonsOf(geometry).flat(2));
  if (!places.length) return null;
  const [lons, lats] = [places.map(([lon]) => lon), places.map(([, lat]) => lat)];
  return { west: Math.min(...lons), east: Math.max(...lons), south: Math.min(...lats), north: Math.max(...lats) };
}

/** Draw the leaves of a plan, each in the colour of its node, darker with its load. */
export function drawPlan(context, camera, features, nodes, colours) {
  const most = Math.max(1, ...features.map(({ properties }) => properties.load ?? 0));
  for (const feature of features) {
    const { node, broker, load } = feature.properties;
    const number = nodes.indexOf(node);
    const fill = nodeColour(number >= 0 ? number : broker ?? 0);
    trace(context, camera, feature.geometry);
    context.fillStyle = context.strokeStyle = fill;
    context.globalAlpha = 0.07 + 0.2 * ((load ?? 0) / most);
    context.fill();
    context.globalAlpha = 0.55;
    context.lineWidth = 1;
    context.stroke();
    context.globalAlpha = 1;
    const bounds = boundsOf([feature]);
    if (bounds) labelLeaf(context, camera, bounds, node ?? `broker ${broker}`, colours);
  }
}

function labelLeaf(context, camera, { west, east, south, north }, text, colours) {
  const [x0, y0] = camera.toScreen(west, north);
  const [x1, y1] = camera.toScreen(east, south);
  const [left, top] = [Math.max(x0, 0), Math.max(y0, TOP_PX)];
  if (x1 - left < 70 || y1 - top < 34) return;
  context.globalAlpha = 0.7;
  label(context, left + 7, top + 13, text, colours);
  context.globalAlpha = 1;
}

/** Draw slow regions: hatched, so that they are told from leaves without colour. */
export function drawRegions(context, camera, features, colours) {
  for (const feature of features) {
    trace(context, camera, feature.geometry);
    context.save();
    context.clip();
    context.strokeStyle = colours.event;
    context.globalAlpha = 0.35;
    context.lineWidth = 1;
    hatch(context, camera, boundsOf([feature]));
    context.restore();
    trace(context, camera, feature.geometry);
    context.strokeStyle = colours.event;
    context.globalAlpha = 0.7;
    context.stroke();
    context.globalAlpha = 1;
  }
}

function hatch(context, camera, bounds) {
  if (!bounds) return;
  const [x0, y0] = camera.toScreen(bounds.west, bounds.north).map((value) => Math.max(value, -50));
  const [x1, y1] = camera.toScreen(bounds.east, bounds.south);
  const [right, bottom] = [Math.min(x1, camera.width + 50), Math.min(y1, camera.height + 50)];
  context.beginPath();
  for (let x = x0 - (bottom - y0); x < right; x += 7) {
    context.moveTo(x, bottom);
    context.lineTo(x + (bottom - y0), y0);
  }
  context.stroke();
}

/** Draw the areas that clients subscribe to. */
export function drawAreas(context, camera, areas, colours, selectedId) {
  for (const { client, geometry } of areas) {
    const isSelected = client === selectedId;
    trace(context, camera, geometry);
    context.fillStyle = context.strokeStyle = isSelected ? colours.event : colours["client-near"];
    context.globalAlpha = isSelected ? 0.14 : 0.05;
    context.fill();
    context.globalAlpha = isSelected ? 0.95 : 0.5;
    context.setLineDash([6, 4]);
    context.lineWidth = isSelected ? 2 : 1.2;
    context.stroke();
    context.setLineDash([]);
  }
  context.globalAlpha = 1;
}

/** Draw the shape that somebody draws in "Try it". */
export function drawDraft(context, camera, shape, colours) {
  context.strokeStyle = context.fillStyle = colours.event;
  context.lineWidth = 2;
  context.beginPath();
  if (shape.kind === "circle") {
    const [x, y] = camera.toScreen(...shape.centre);
    context.arc(x, y, shape.radiusM * camera.perMetre(shape.centre[1]), 0, 7);
  } else {
    const places = shape.kind === "box" ? corners(shape) : shape.places;
    places.forEach((place, i) => context[i ? "lineTo" : "moveTo"](...camera.toScreen(...place)));
    if (shape.kind === "box" || shape.isClosed) context.closePath();
  }
  context.globalAlpha = 0.12;
  context.fill();
  context.globalAlpha = 1;
  context.stroke();
  const points = shape.kind === "circle" ? [shape.centre] : shape.kind === "polygon" ? shape.places : [];
  for (const place of points) {
    const [x, y] = camera.toScreen(...place);
    context.beginPath();
    context.arc(x, y, 4, 0, 7);
    context.fill();
  }
}

const corners = ({ a, b }) => [a, [b[0], a[1]], b, [a[0], b[1]]];

