// Where the clients are, live and in the last minutes. Between two fixes a client moves smoothly.

import { project } from "./camera.js";

const KEPT_MS = 5 * 60_000;
const BLOCK = 65_536; // fixes
const TRAIL = 24; // fixes per client
const LONGEST_MS = 6_000; // a client is drawn at most this far behind

/** All clients that the page knows, and their fixes of the last five minutes. */
export class Crowd {
  constructor() {
    this.clients = new Map();
    this.list = []; // the same, by number; numbers are not used again
    this.blocks = [];
    this.onFix = () => {};
  }

  get size() { return this.clients.size; }

  /** Take what a node says has moved or gone; `full` says that it has no other clients. */
  take({ moved = [], gone = [], full = false }, node, now) {
    const before = full ? [...this.clients.values()].filter((one) => one.node === node) : [];
    const there = new Set(full ? moved.map(([id]) => id) : []);
    for (const { id } of before) if (!there.has(id)) this.forget(id, now);
    for (const [id, lon, lat] of moved) this.move(id, lon, lat, now, node);
    for (const id of gone) if (this.clients.get(id)?.node === node) this.forget(id, now);
  }

  move(id, lon, lat, now, node) {
    const [x, y] = project(lon, lat);
    let one = this.clients.get(id);
    if (!one) {
      one = { id, number: this.list.length, lon, lat, x, y, fromX: x, fromY: y, at: now, span: 1000, trail: [] };
      this.clients.set(id, one);
      this.list.push(one);
    } else {
      const part = Math.min(1, (now - one.at) / one.span);
      one.fromX += (one.x - one.fromX) * part;
      one.fromY += (one.y - one.fromY) * part;
      one.span = Math.max(200, Math.min(LONGEST_MS, 0.5 * one.span + 0.6 * (now - one.at)));
      this.onFix(one.x, one.y, x, y);
      Object.assign(one, { lon, lat, x, y, at: now });
    }
    one.node = node;
    one.trail.push(x, y);
    if (one.trail.length > 2 * TRAIL) one.trail.splice(0, 2);
    this.keep(one.number, x, y, now);
  }

  forget(id, now) {
    const one = this.clients.get(id);
    if (!one) return;
    this.clients.delete(id);
    this.keep(one.number, NaN, NaN, now);
  }

  clear() {
    this.clients.clear();
    this.list = [];
    this.blocks = [];
  }

  /** Return where a client is drawn: between its last two fixes. */
  at(one, now) {
    const part = Math.min(1, (now - one.at) / one.span);
    return [one.fromX + (one.x - one.fromX) * part, one.fromY + (one.y - one.fromY) * part];
  }

  // --- the last minutes -----------------------------------------------------------------

  keep(number, x, y, now) {
    let block = this.blocks.at(-1);
    if (!block || block.count === BLOCK) {
      block = { count: 0, first: now, who: new Uint32Array(BLOCK), when: new Float64Array(BLOCK), x: new Float64Array(BLOCK), y: new Float64Array(BLOCK) };
      this.blocks.push(block);
      while (this.blocks.length > 1 && this.blocks[1].first < now - KEPT_MS) this.blocks.shift();
    }
    const place = block.count++;
    [block.who[place], block.when[place], block.x[place], block.y[place]] = [number, now, x, y];
  }

  /** Return the instant of the oldest fix that is kept, or `now`. */
  oldest(now) {
    const first = this.blocks[0];
    return first ? Math.max(first.when[0], now - KEPT_MS) : now;
  }

  /** Return a function of an instant: the clients that were there then, as [client, x, y]. O(fixes) once. */
  past() {
    const tracks = new Map();
    for (const { count, who, when, x, y } of this.blocks)
      for (let i = 0; i < count; i++) {
        let track = tracks.get(who[i]);
        if (!track) tracks.set(who[i], (track = { when: [], x: [], y: [] }));
        track.when.push(when[i]);
        track.x.push(x[i]);
        track.y.push(y[i]);
      }
    return (instant) => [...tracks].flatMap(([number, track]) => this.then(number, track, instant));
  }

  then(number, { when, x, y }, instant) {
    let [low, high] = [0, when.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (when[middle] <= instant) low = middle + 1;
      else high = middle;
    }
    const i = low - 1;
    if (i < 0 || Number.isNaN(x[i])) return [];
    const next = i + 1 < when.length && !Number.isNaN(x[i + 1]) ? i + 1 : i;
    const part = next === i ? 0 : Math.max(0, 1 - (when[next] - instant) / Math.min(LONGEST_MS, when[next] - when[i]));
    return [[this.list[number], x[i] + (x[next] - x[i]) * part, y[i] + (y[next] - y[i]) * part]];
  }
}
