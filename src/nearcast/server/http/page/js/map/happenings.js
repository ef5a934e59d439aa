// Events on the map: a pulse where each happens, and lines to the clients that it reached.

import { project } from "./camera.js";

export const LASTS_MS = 2_600;
const KEPT_MS = 5 * 60_000;
const MOST = 4_000;
const SAME_MS = 3_000; // two reports of one event are no further apart

/** The events of the last minutes. */
export class Happenings {
  constructor() {
    this.all = [];
    this.clear();
  }

  clear() {
    this.all.length = 0;
    this.total = 0;
  }

  /** Take an event; a later report of the same one adds the clients that it reached. */
  take(event, now) {
    const earlier = this.all.findLast((one) => one.at > now - SAME_MS && one.isSame(event));
    if (earlier) return earlier.add(event);
    const one = new Happening(event, now);
    this.all.push(one);
    this.total++;
    if (this.all.length > MOST || this.all[0].at < now - KEPT_MS) this.all.shift();
    return one;
  }

  /** Return the events that are seen at an instant. */
  seen(instant) {
    const found = [];
    for (let i = this.all.length - 1; i >= 0 && this.all[i].at > instant - LASTS_MS; i--)
      if (this.all[i].at <= instant) found.push(this.all[i]);
    return found;
  }

  /** Return the last event that reached a client, or that happened at all. */
  lastFor(id) {
    return this.all.findLast((one) => one.to.includes(id)) ?? null;
  }
}

class Happening {
  constructor({ topic, lon, lat, to = [], chosen = 0, matched = 0, payload = "", publisher = "", properties = {}, area = null }, now) {
    Object.assign(this, { topic, lon, lat, to: others(to), chosen, matched, payload, publisher, properties, area, at: now });
    [this.x, this.y] = project(lon, lat);
    this.isTold = to.length > 0 || matched > 0;
  }

  isSame({ topic, lon, lat, to = [], payload = "" }) {
    const isNear = Math.abs(lon - this.lon) < 1e-9 && Math.abs(lat - this.lat) < 1e-9;
    const isFirst = !to.length || !to.some((id) => this.to.includes(id));
    return topic === this.topic && isNear && isFirst && payload.slice(0, 200) === this.payload.slice(0, 200);
  }

  add({ to = [], chosen = 0, matched = 0, publisher = "" }) {
    this.to = [...new Set([...this.to, ...others(to)])];
    this.chosen ||= chosen;
    this.matched = Math.max(this.matched, matched, this.to.length);
    this.publisher ||= publisher;
    this.isTold = true;
    return this;
  }
}

const others = (ids) => ids.filter((id) => !id.startsWith("page-"));
