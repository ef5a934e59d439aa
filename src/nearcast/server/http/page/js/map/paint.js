// Draws what moves: clients, trails, ranges, events. All of it on plain canvases.

import { colour } from "../theme.js";
import { LASTS_MS } from "./happenings.js";

const SMALL_FROM = 1_500; // clients in view, from which on they are squares
const MANY = 4_000; // clients, from which on trails grow five times a second: a canvas that changes costs
const MANY_MS = 200;

/** The colours of the style sheet that are needed per frame; read again when the theme changes. */
export function palette() {
  const names = ["client", "client-near", "chosen", "event", "halo", "text", "accent", "dim", "surface", "line-strong", "bad"];
  return Object.fromEntries(names.map((name) => [name, colour(`--${name}`)]));
}

/** Return the colour of a node by its number. */
export const nodeColour = (number) => colour(`--node-${((number % 8) + 8) % 8}`);

/**
 * Draw the clients; `spots` are [client, x, y] in the world. Those in view are written to `inView`, as
 * [client, x, y] on the screen.
 */
export function drawClients(context, camera, spots, colours, inView, { dots, selected, hovered, touched, spotOf }) {
  let count = 0;
  for (let i = 0; i < spots.length; i++) {
    const spot = spots[i];
    const px = camera.screenX(spot[1]);
    const py = camera.screenY(spot[2]);
    if (px < -8 || py < -8 || px > camera.width + 8 || py > camera.height + 8) continue;
    const seen = (inView[count++] ??= [spot[0], 0, 0]);
    seen[0] = spot[0];
    seen[1] = px;
    seen[2] = py;
  }
  inView.length = count;
  context.fillStyle = colours.client;
  if (count > SMALL_FROM) dots.draw(inView, colours.client);
  else {
    dots.hide();
    const radius = inView.length > 400 ? 3 : 4.5;
    context.strokeStyle = colours.halo;
    context.lineWidth = 1.5;
    for (const [, px, py] of inView) {
      context.beginPath();
      context.arc(px, py, radius, 0, 7);
      context.fill();
      if (radius > 4) context.stroke();
    }
  }
  // few of many: each is looked up, instead of all being asked
  const pixelOf = (id) => {
    const spot = spotOf(id);
    return spot && [camera.screenX(spot[0]), camera.screenY(spot[1])];
  };
  for (const [id, touch] of touched) {
    const at = pixelOf(id);
    if (at) dot(context, ...at, 6, touch === "chosen" ? colours.chosen : colours["client-near"], colours.halo);
  }
  for (const one of new Set([hovered, selected])) {
    const at = one && pixelOf(one.id);
    if (!at) continue;
    ring(context, ...at, 10, one === selected ? colours.event : colours.accent, 2.5);
    label(context, at[0] + 13, at[1], one.id, colours);
  }
}

/** Squares for many clients, written as pixels: a third of the work of as many shapes. */
export class Dots {
  constructor(canvas) {
    [this.canvas, this.context] = [canvas, canvas.getContext("2d", { willReadFrequently: true })];
    this.ratio = 1; // pixels of the canvas per pixel of the page
    this.drawn = new Float32Array(0); // where everybody is in the picture
    this.hide();
  }

  hide() { this.canvas.hidden = true; }

  /** Draw, unless nobody is a pixel away from where the picture has it: whole squares move by pixels. */
  draw(inView, fill) {
    if (!this.isStale(inView, fill)) return;
    this.paint(inView, fill);
    if (this.drawn.length !== 2 * inView.length) this.drawn = new Float32Array(2 * inView.length);
    for (let i = 0; i < inView.length; i++) [this.drawn[2 * i], this.drawn[2 * i + 1]] = [inView[i][1], inView[i][2]];
    this.fill = fill;
  }

  isStale(inView, fill) {
    const { canvas, drawn, image, ratio } = this;
    if (canvas.hidden || fill !== this.fill || drawn.length !== 2 * inView.length || image?.width !== canvas.width || image.height !== canvas.height) return true;
    const far = 1 / ratio;
    for (let i = 0; i < inView.length; i++)
      if (Math.abs(inView[i][1] - drawn[2 * i]) >= far || Math.abs(inView[i][2] - drawn[2 * i + 1]) >= far) return true;
    return false;
  }

  paint(inView, fill) {
    const { canvas: { width, height }, context, ratio } = this;
    if (this.image?.width !== width || this.image.height !== height) {
      this.image = context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    const { pixels } = this;
    const size = Math.round(4 * ratio);
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(fill.slice(at, at + 2), 16));
    const value = (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
    pixels.fill(0);
    for (let i = 0; i < inView.length; i++) {
      const [left, top] = [Math.round(inView[i][1] * ratio - size / 2), Math.round(inView[i][2] * ratio - size / 2)];
      if (left < 0 || top < 0 || left + size > width || top + size > height) continue;
      for (let row = 0, at = top * width + left; row < size; row++, at += width)
        for (let column = 0; column < size; column++) pixels[at + column] = value; // `fill` takes longer for so few
    }
    context.putImageData(this.image, 0, 0);
    this.canvas.hidden = false;
  }
}

function dot(context, x, y, radius, fill, halo) {
  context.beginPath();
  context.arc(x, y, radius, 0, 7);
  context.fillStyle = fill;
  context.fill();
  context.strokeStyle = halo;
  context.lineWidth = 1.5;
  context.stroke();
}

export function ring(context, x, y, radius, stroke, width = 1.5) {
  context.beginPath();
  context.arc(x, y, radius, 0, 7);
  context.strokeStyle = stroke;
  context.lineWidth = width;
  context.stroke();
}

/** Write a word beside a point, readable on any ground. */
export function label(context, x, y, text, colours) {
  context.font = "600 12px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.lineWidth = 3.5;
  context.lineJoin = "round";
  context.strokeStyle = colours.halo;
  context.strokeText(text.slice(0, 60), x, y);
  context.fillStyle = colours.text;
  context.fillText(text.slice(0, 60), x, y);
  context.textBaseline = "alphabetic";
}

/** Draw the events of an instant; return the clients that they reach just now: id -> "got" or "chosen". */
export function drawHappenings(context, camera, happenings, instant, spotOf, colours) {
  const touched = new Map();
  for (const one of happenings) {
    const age = (instant - one.at) / LASTS_MS;
    const [px, py] = [camera.screenX(one.x), camera.screenY(one.y)];
    const isFar = px < -500 || py < -500 || px > camera.width + 500 || py > camera.height + 500;
    if (isFar) continue;
    const how = one.chosen ? "chosen" : "got";
    context.strokeStyle = context.fillStyle = one.chosen ? colours.chosen : colours.event;
    const reach = Math.min(1, age * 4);
    context.globalAlpha = 0.85 * (1 - age);
    context.lineWidth = one.chosen ? 2.2 : 1.4;
    context.beginPath();
    for (const id of one.to) {
      const spot = spotOf(id);
      if (!spot) continue;
      const [qx, qy] = [camera.screenX(spot[0]), camera.screenY(spot[1])];
      context.moveTo(px, py);
      context.lineTo(px + (qx - px) * reach, py + (qy - py) * reach);
      if (reach === 1 && touched.get(id) !== "chosen") touched.set(id, how);
    }
    context.stroke();
    pulse(context, px, py, age);
  }
  context.globalAlpha = 1;
  return touched;
}

function pulse(context, x, y, age) {
  context.globalAlpha = 0.9 * (1 - age);
  context.beginPath();
  context.arc(x, y, 4, 0, 7);
  context.fill();
  context.globalAlpha = 0.55 * (1 - age) ** 2;
  context.lineWidth = 2.5;
  context.beginPath();
  context.arc(x, y, 5 + 30 * Math.sqrt(age), 0, 7);
  context.stroke();
}

/** Draw the circles of `$near` subscriptions around their clients. */
export function drawRanges(context, camera, ranges, spotOf, colours, selectedId) {
  context.lineWidth = 1;
  for (const [id, radiusM] of ranges) {
    const spot = spotOf(id);
    if (!spot) continue;
    const isSelected = id === selectedId;
    const radius = radiusM * camera.perMetre(spot[2]);
    const [px, py] = [camera.screenX(spot[0]), camera.screenY(spot[1])];
    if (radius < 3 || px + radius < 0 || py + radius < 0 || px - radius > camera.width || py - radius > camera.height) continue;
    context.beginPath();
    context.arc(px, py, radius, 0, 7);
    context.strokeStyle = isSelected ? colours.event : colours.client;
    context.globalAlpha = isSelected ? 0.95 : 0.22;
    context.lineWidth = isSelected ? 2 : 1;
    context.stroke();
    if (isSelected) {
      context.globalAlpha = 0.1;
      context.fillStyle = colours.event;
      context.fill();
    }
  }
  context.globalAlpha = 1;
}

/** Trails fade on a canvas of their own: a fix costs one line, and no frame draws them all. */
export class Trails {
  constructor(canvas, camera) {
    [this.canvas, this.camera, this.context] = [canvas, camera, canvas.getContext("2d")];
    [this.version, this.faded, this.grown, this.settles, this.lines] = [-1, 0, 0, 0, []];
  }

  /** Draw a line with the next frame. */
  add(...line) {
    if (this.version === this.camera.version) this.lines.push(line);
  }

  /** Draw the new lines as one path: a thousand of their own would take thirty times as long. */
  flush() {
    const { context, camera, lines } = this;
    if (!lines.length) return;
    context.strokeStyle = strokeOf(this);
    context.lineWidth = 1.6;
    context.beginPath();
    for (const [x0, y0, x1, y1] of lines) {
      context.moveTo(camera.screenX(x0), camera.screenY(y0));
      context.lineTo(camera.screenX(x1), camera.screenY(y1));
    }
    context.stroke();
    this.lines = [];
  }

  trace(points, stroke) {
    const { context, camera } = this;
    context.strokeStyle = stroke;
    context.lineWidth = 1.6;
    context.beginPath();
    for (let i = 0; i < points.length; i += 2)
      context[i ? "lineTo" : "moveTo"](camera.screenX(points[i]), camera.screenY(points[i + 1]));
    context.stroke();
  }

  clear() {
    this.context.clearRect(0, 0, this.camera.width, this.camera.height);
  }

  /** Fade, and draw everything anew once the view has come to rest. */
  step(crowd, now, ratio) {
    const { camera, context } = this;
    if (this.version !== camera.version) {
      this.lines = [];
      if (this.pending !== camera.version) {
        [this.pending, this.settles, this.version] = [camera.version, now + 150, -1];
        this.clear();
      }
      if (now < this.settles) return;
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      this.clear();
      context.globalAlpha = 0.5;
      if (crowd.size <= MANY) for (const one of crowd.clients.values()) this.trace(one.trail.slice(-12), strokeOf(this));
      context.globalAlpha = 1;
      this.version = camera.version;
      return;
    }
    if (crowd.size > MANY && now - this.grown < MANY_MS) return;
    this.grown = now;
    this.flush();
    if (now - this.faded < 400) return;
    this.faded = now;
    context.globalCompositeOperation = "destination-out";
    context.globalAlpha = 0.07;
    context.fillRect(0, 0, camera.width, camera.height);
    context.globalAlpha = 1;
    context.globalCompositeOperation = "source-over";
  }
}

function strokeOf(trails) {
  return (trails.stroke ??= colour("--client"));
}
