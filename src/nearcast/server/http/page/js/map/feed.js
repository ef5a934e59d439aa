// Brings live data into the scene: positions, events, shapes, the plan. Runs while the map is shown.

import { get, isOperator, session } from "../api.js";
import { onState, watch } from "../live.js";
import { boundsOf } from "./ground.js";

const SHAPES_MS = 8_000; // where they are too many to be drawn, fifteen times as rarely
const MOST_SHAPES = 400; // more are not drawn
const FULL_MS = 1_500; // by then the live topic has said where everybody is, unless others watch it too
const AGAIN_MS = 2_000;
const PLAN_MS = 10_000;
const UNSEEN_MS = 20_000; // a page that nobody has seen for so long watches nothing, and costs nothing

/** Feeds a map; `start` and `stop` may be called at any time. */
export class Feed {
  constructor(map, { onSpaces, onFirstPlaces }) {
    Object.assign(this, { map, scene: map.scene, onSpaces, onFirstPlaces });
    [this.stops, this.timers, this.areas, this.spaces, this.skips] = [[], [], new Map(), [], 0];
    this.isOn = this.isWatching = false;
    onState((state) => state === "up" && this.isWatching && Date.now() - this.refreshedAt > AGAIN_MS && this.refresh());
    document.addEventListener("visibilitychange", () => this.seen(!document.hidden));
  }

  start() {
    if (this.isOn) return;
    this.isOn = true;
    this.seen(!document.hidden);
  }

  stop() {
    this.isOn = false;
    this.seen(false, 0);
  }

  /** Watch while somebody sees the map: again at once, no more after a while. */
  seen(isSeen, afterMs = UNSEEN_MS) {
    clearTimeout(this.leaving);
    if (isSeen) this.isOn && this.begin();
    else if (afterMs) this.leaving = setTimeout(() => this.end(), afterMs);
    else this.end();
  }

  begin() {
    if (this.isWatching) return;
    this.isWatching = true;
    if (session.positions) this.stops.push(watch("$nearcast/live/positions/+", (message) => this.positions(message)));
    if (isOperator()) this.stops.push(watch("$nearcast/live/deliveries/+", ({ text }) => this.deliveries(text)));
    this.every(SHAPES_MS, () => this.readShapes());
    this.every(PLAN_MS, () => this.readGround());
    this.refresh();
  }

  end() {
    this.isWatching = false;
    for (const stop of [...this.stops, ...this.areas.values()]) stop();
    this.timers.forEach(clearInterval);
    [this.stops, this.timers, this.areas] = [[], [], new Map()];
  }

  every(ms, work) {
    this.timers.push(setInterval(() => document.hidden || work(), ms));
  }

  refresh() {
    [this.view, this.hasFull, this.refreshedAt] = ["", false, Date.now()];
    this.readSpaces();
    setTimeout(() => this.hasFull || (this.isWatching && this.readPositions()), FULL_MS);
    this.readGround();
  }

  async readSpaces() {
    const found = await quietly(get("spaces"));
    if (!found) return;
    this.spaces = found.items;
    this.onSpaces(this.spaces);
    this.look();
  }

  async readPositions() {
    if (!session.positions) return;
    const found = await quietly(get("positions"));
    if (!found || !this.isWatching) return;
    this.scene.leftOut = found.left_out ?? 0;
    this.scene.crowd.take({ moved: found.clients, full: true }, session.node, Date.now());
    this.frameFirst();
  }

  /** Show everybody when the first places are known, and again while other nodes tell theirs. */
  frameFirst() {
    const { crowd } = this.scene;
    const { camera } = this.map;
    const isOurs = this.framed && camera.version === this.framed.version && Date.now() - this.framed.at < 4_000;
    if (this.isFramed && !(isOurs && crowd.size !== this.framed.size)) return;
    const features = [...crowd.clients.values()].map(({ lon, lat }) => ({ geometry: { type: "Polygon", coordinates: [[[lon, lat]]] } }));
    const bounds = boundsOf(this.scene.plan) ?? boundsOf(features);
    if (!bounds) return;
    const at = isOurs ? this.framed.at : Date.now();
    this.isFramed = true;
    this.onFirstPlaces(bounds);
    this.framed = { at, size: crowd.size, version: camera.version };
  }

  positions({ topic, text }) {
    const frame = read(text);
    if (!frame) return;
    const node = topic.split("/").at(-1);
    this.hasFull ||= frame.full && node === session.node;
    this.scene.crowd.take(frame, node, Date.now());
    this.frameFirst();
  }

  deliveries(text) {
    const now = Date.now();
    for (const event of read(text)?.events ?? []) {
      const place = event.lon === undefined || event.lon === null ? middle(event.area) : [event.lon, event.lat];
      if (place) this.scene.happenings.take({ ...event, lon: place[0], lat: place[1] }, now);
    }
  }

  /** Subscribe to what happens in the view: the page is a client like any other. */
  look() {
    clearTimeout(this.looking);
    this.looking = setTimeout(() => this.isWatching && this.lookNow(), 350);
  }

  lookNow() {
    const { west, south, east, north } = this.map.camera.bounds();
    const text = [west, south, east, north].map((value) => Number(value.toFixed(6))).join(",");
    if (text !== this.view) {
      [this.view, this.skips] = [text, 0];
      this.readShapes();
    }
    const before = this.areas;
    this.areas = new Map();
    for (const space of this.spaces.filter((one) => one.longitude && one.latitude)) {
      const filter = `$area/${text}/${space.topics}`;
      this.areas.set(filter, before.get(filter) ?? watch(filter, (message) => this.event(space, message)));
    }
    for (const [filter, stop] of before) if (!this.areas.has(filter)) stop();
  }

  event(space, { topic, text, packet }) {
    if (packet.retain) return;
    const values = valuesOf(space, text, packet);
    const [lon, lat] = [values[space.longitude], values[space.latitude]].map(Number);
    if (!Number.isFinite(lon) || !Number.isFinite(lat)) return;
    const properties = packet.properties?.userProperties ?? {};
    this.scene.happenings.take({ topic, lon, lat, payload: text, properties }, Date.now());
  }

  async readShapes() {
    const { layers } = this.scene;
    if (!session.positions || !(layers.ranges || layers.areas)) return;
    if (this.skips-- > 0) return;
    const found = await quietly(get("shapes", { ...this.map.camera.bounds(), limit: MOST_SHAPES }));
    if (!found) return;
    this.skips = found.left_out ? 14 : 0;
    this.scene.areTooMany = found.left_out > 0;
    const isOther = ({ client }) => !client.startsWith("page-");
    this.scene.ranges = found.near.filter(isOther).map(({ client, radius_m }) => [client, radius_m]);
    this.scene.areas = found.areas.filter(isOther);
    this.map.redraw();
  }

  async readGround() {
    const [plan, regions] = await Promise.all([quietly(get("plan")), this.scene.layers.regions ? quietly(get("regions")) : null]);
    const { scene } = this;
    scene.plan = plan?.features ?? [];
    scene.regions = regions?.features ?? [];
    scene.nodes = [...new Set(scene.plan.map(({ properties }) => properties.node))].filter(Boolean).sort();
    this.map.redraw();
    this.frameFirst();
  }
}

/** Return the values of an event by attribute, as the space reads them. */
function valuesOf(space, text, packet) {
  if (space.values === "properties") return packet.properties?.userProperties ?? {};
  const document = read(text);
  if (!document) return {};
  const path = (name) => space.attributes.find((one) => one.name === name)?.path ?? name;
  const reach = (name) => path(name).split(".").reduce((found, key) => found?.[key], document);
  return { [space.longitude]: reach(space.longitude), [space.latitude]: reach(space.latitude) };
}

function middle(area) {
  const bounds = area && boundsOf([{ geometry: area }]);
  return bounds && [(bounds.west + bounds.east) / 2, (bounds.south + bounds.north) / 2];
}

function read(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

const quietly = (promise) => promise.catch(() => null);
