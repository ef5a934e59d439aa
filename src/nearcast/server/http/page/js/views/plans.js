// A plan as a small picture: rectangles in the colours of their nodes.

import { h } from "../dom.js";
import { boundsOf, trace } from "../map/ground.js";
import { Camera } from "../map/camera.js";
import { nodeColour } from "../map/paint.js";

const [WIDTH, HEIGHT] = [420, 300];

/** Return a canvas that shows the leaves of a plan (GeoJSON features). */
export function planPicture(features, width = WIDTH, height = HEIGHT) {
  const canvas = h("canvas.plan-picture", { width: width * 2, height: height * 2, role: "img", "aria-label": `A plan of ${features.length} leaves` });
  const context = canvas.getContext("2d");
  const bounds = boundsOf(features);
  if (!bounds) return canvas;
  const camera = new Camera();
  camera.resize(width, height);
  camera.jump(camera.framing(bounds, { left: 6, right: 6, top: 6, bottom: 6 }));
  context.setTransform(2, 0, 0, 2, 0, 0);
  const nodes = [...new Set(features.map(({ properties }) => properties.node ?? `broker ${properties.broker}`))].sort();
  for (const feature of features) {
    trace(context, camera, feature.geometry);
    context.fillStyle = context.strokeStyle = nodeColour(nodes.indexOf(feature.properties.node ?? `broker ${feature.properties.broker}`));
    context.globalAlpha = 0.35;
    context.fill();
    context.globalAlpha = 1;
    context.stroke();
  }
  return canvas;
}
