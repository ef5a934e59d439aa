// The panel about what was clicked: a client with its subscriptions, or an event, and why.

import { get, isOperator, post, session } from "../api.js";
import { h, icon, put, tool } from "../dom.js";
import { clock, count, duration, many, place } from "../format.js";
import { distanceM } from "../map/camera.js";
import { boundsOf, contains } from "../map/ground.js";

const RECENT = 8; // events that can be asked about
const HEARD = 20; // subscriptions that are listed for a place

/** Fills the panel of the map. */
export class Inspector {
  constructor(view) {
    this.view = view;
  }

  pick({ client, event, leaf, region }, place) {
    if (client) this.showClient(client.id);
    else if (event) this.showEvent(event);
    else if (this.view.tryIt.isOpen) return;
    else if (place && (this.view.panel.hidden || this.isGround)) this.showGround(place, leaf, region);
    else this.close();
  }

  close() {
    const { view } = this;
    view.scene.selected = view.follows = this.event = null;
    this.isGround = false;
    view.panel.hidden = !view.tryIt.isOpen;
    if (view.tryIt.isOpen) view.tryIt.fill();
    view.map.redraw();
  }

  open(title, kind, ...content) {
    const { panel } = this.view;
    this.isGround = false;
    put(panel, h("header.panel-head", h("div", h("h3", kind), h("h2.wrap", title)), tool("close", "Close", () => this.close())), h("div.panel-body", content));
    panel.hidden = false;
  }

  /** Show a client; return its place, if that is known. */
  async showClient(id) {
    const { scene, map } = this.view;
    const event = scene.happenings.lastFor(id) ?? scene.happenings.all.at(-1) ?? null;
    this.event = null;
    scene.selected = scene.crowd.clients.get(id) ?? { id };
    map.redraw();
    this.open(id, "Client", h("p.dim", "Reading …"));
    let found;
    try {
      found = await get(`clients/${encodeURIComponent(id)}`);
    } catch (problem) {
      if (scene.selected?.id === id) this.open(id, "Client", problem.status === 404 ? this.unknown(id) : h("p.problem", problem.message));
      return null;
    }
    scene.selectedRanges = found.subscriptions.items.filter(({ near_m: near }) => near).map(({ near_m: near }) => [id, near]);
    if (scene.selected?.id === id) this.open(id, "Client", this.facts(found), this.actions(id, found.client), this.subscriptions(found.subscriptions), this.why(id, event));
    return found.client.position;
  }

  /** What there is to say of a client that no node answers for. */
  unknown(id) {
    const one = this.view.scene.crowd.clients.get(id);
    return one
      ? [h("p", h("span.dim", "Place "), h("span.num", place([one.lon, one.lat]))), h("p.dim", `Its session is at node ${one.node}, which does not answer questions: it has no HTTP API, or is of an older version.`)]
      : h("p.dim", "It has gone.");
  }

  facts({ client, keep_alive_s: keepAlive, expiry_s: expiry }) {
    const spot = client.position;
    return h("dl.facts",
      client.node === session.node ? null : pair("Node", client.node),
      pair("State", client.connected ? h("span.pill.good", "connected") : h("span.pill", "away")),
      spot ? pair("Place", h("span.num", place(spot))) : null,
      pair("Protocol", [client.protocol, client.address ? h("span.dim", `  ${client.address}`) : null]),
      client.connected && client.since ? pair("Since", `${duration((Date.now() - asMs(client.since)) / 1000)} ago`) : null,
      pair("Queued", h("span.num", count(client.queued))),
      keepAlive ? pair("Keep alive", `${keepAlive} s`) : null,
      expiry ? pair("Session ends", `${duration(expiry)} after it leaves`) : null);
  }

  actions(id, client) {
    const { view } = this;
    const follow = h("button", { type: "button", "aria-pressed": String(view.follows === id), onclick: () => {
      view.follows = view.follows === id ? null : id;
      follow.setAttribute("aria-pressed", String(view.follows === id));
    } }, icon("follow"), "Follow");
    return h("div.actions", client.position ? follow : null, isOperator() && client.connected ? kickButton(id, () => this.showClient(id)) : null);
  }

  subscriptions({ items, total }) {
    return h("section", h("h3", `Subscriptions · ${total}`), items.length ? h("ul.subs", items.map(subscriptionRow)) : h("p.dim", "None."),
      total > items.length ? h("p.dim", `… and ${total - items.length} more`) : null);
  }

  /** Why a client got an event, or did not: the steps of `nearcast explain`. */
  why(id, event) {
    if (!isOperator()) return null;
    const recent = this.view.scene.happenings.all.slice(-RECENT).reverse();
    if (event && !recent.includes(event)) recent.unshift(event);
    this.waits = recent.length ? null : id;
    if (!recent.length) return h("section", h("h3", "Why?"), h("p.dim", "After the next message this explains why it came, or why not."));
    const answer = h("div.answer");
    const select = h("select", { "aria-label": "Message", onchange: () => explain(id, recent[select.selectedIndex], answer) },
      recent.map((one) => h("option", { selected: one === event }, `${clock(one.at)}  ${one.topic}`)));
    explain(id, event ?? recent[0], answer);
    return h("section", h("h3", "Why did it get this message, or not?"), select, answer);
  }

  /** Show the panel again once there is a message to ask about, or an event has reached somebody. */
  tick() {
    const { scene, panel } = this.view;
    if (this.event && !panel.hidden && this.event.to.length !== this.reached) this.showEvent(this.event);
    if (this.waits && this.waits === scene.selected?.id && !panel.hidden && scene.happenings.all.length) this.showClient(this.waits);
  }

  /** Show what a place belongs to, and who listens there. */
  showGround(at, leaf, region) {
    const listeners = this.listeners(at);
    if (!leaf && !region && !listeners.length) return this.close();
    const title = leaf ? nameOf(leaf) : region ? "Slow region" : place(at);
    this.open(title, leaf ? "Area of the plan" : region ? "People stay here for long" : "Here",
      [leaf, region].filter(Boolean).map((area) => this.areaFacts(area, area === region, Boolean(leaf && region))),
      this.heard(listeners));
    this.isGround = true;
  }

  areaFacts({ properties, geometry }, isRegion, isHeaded) {
    const inside = [...this.view.scene.crowd.clients.values()].filter(({ lon, lat }) => contains(geometry, lon, lat)).length;
    const bounds = boundsOf([{ geometry }]);
    return h("section", isHeaded ? h("h3", isRegion ? "Slow region" : "Area") : null, h("dl.facts",
      isRegion ? null : pair("Served by", properties.node ? `node ${properties.node}` : `broker ${properties.broker}`),
      isRegion ? null : pair("Cut", properties.kind === "R leaf" ? "where few people cross (R leaf)" : "into quadrants (Q leaf)"),
      properties.load === undefined ? null : pair("Users, as learned", h("span.num", count(properties.load))),
      session.positions ? pair("Clients now", h("span.num", count(inside))) : null,
      pair("From", h("span.num", place([bounds.west, bounds.south]))), pair("To", h("span.num", place([bounds.east, bounds.north])))));
  }

  /** Return [client, what] of the circles and areas that cover a place, as far as the page knows them. */
  listeners(at) {
    const { crowd, ranges, areas } = this.view.scene;
    const covers = (id, radiusM) => {
      const one = crowd.clients.get(id);
      return one && distanceM([one.lon, one.lat], at) <= radiusM;
    };
    return [...areas.filter(({ geometry }) => contains(geometry, ...at)).map(({ client, filter }) => [client, filter]),
      ...ranges.filter(([id, radiusM]) => covers(id, radiusM)).map(([id, radiusM]) => [id, `near ${count(radiusM)} m`])];
  }

  heard(listeners) {
    if (!session.positions) return null;
    const rows = listeners.slice(0, HEARD).map(([id, what]) => h("li", h("button.quiet.link", { type: "button", onclick: () => this.showClient(id) }, id), h("span.pill", what)));
    const more = this.view.scene.areTooMany ? "There are more subscriptions in view than this page knows." : listeners.length > HEARD ? `… and ${listeners.length - HEARD} more` : "";
    return h("section", h("h3", `Who listens here · ${listeners.length}`), rows.length ? h("ul.subs", rows) : h("p.dim", "Nobody's circle or area covers this place."), more ? h("p.dim", more) : null);
  }

  showEvent(event) {
    const { scene, map } = this.view;
    scene.selected = null;
    map.redraw();
    [this.event, this.reached] = [event, event.to.length];
    const reached = event.to.map((id) => h("li", h("button.quiet.link", { type: "button", onclick: () => this.showClient(id) }, id)));
    this.open(event.topic, "Event",
      h("dl.facts", pair("When", clock(event.at)), pair("Place", h("span.num", place([event.lon, event.lat]))),
        event.publisher ? pair("From", event.publisher) : null,
        event.isTold ? pair("Reached", event.chosen ? `the best ${event.chosen}` : many(event.matched || event.to.length, "client")) : null),
      h("pre.payload", pretty(event.payload)),
      event.to.length ? h("section", h("h3", event.chosen ? "Chosen" : "Received by"), h("ul.chips", reached)) : null);
  }
}

const nameOf = ({ properties }) => properties.node ?? `broker ${properties.broker}`;
const pair = (name, value) => [h("dt", name), h("dd", value)];
const asMs = (since) => (typeof since === "number" ? (since < 1e11 ? since * 1000 : since) : Date.parse(since));

/** Return the row of one subscription. */
export function subscriptionRow({ filter, text, qos, where, near_m: near, area, label }) {
  return h("li", h("code.wrap", filter), h("div.tags",
    h("span.pill", `QoS ${qos}`), near ? h("span.pill.accent", `near ${near} m`) : null, area ? h("span.pill.accent", "area") : null,
    where ? h("span.pill.event", where) : null, label ? h("span.pill", label) : null), text && text !== filter ? h("code.whole.wrap", text) : null);
}

/** Return a button that disconnects a client, when pressed twice. */
export function kickButton(id, done) {
  const button = h("button.danger", { type: "button", onclick: async () => {
    if (button.dataset.sure === undefined) {
      button.dataset.sure = "";
      button.textContent = "Press again to disconnect";
      setTimeout(() => { delete button.dataset.sure; button.textContent = "Disconnect"; }, 4000);
      return;
    }
    button.disabled = true;
    try {
      await post(`clients/${encodeURIComponent(id)}/disconnect`);
      button.textContent = "Disconnected";
      done?.();
    } catch (problem) {
      button.replaceWith(h("p.problem", problem.message));
    }
  } }, "Disconnect");
  return button;
}

async function explain(id, event, answer) {
  const properties = { ...event.properties, ...(event.chosen ? { $top: String(event.chosen), $rank: "nearest" } : {}) };
  try {
    const found = await post("explain", { client: id, topic: event.topic, payload: event.payload, properties });
    put(answer, h(`p.verdict.${found.delivered ? "yes" : "no"}`, found.delivered ? "It is delivered." : "It is not delivered."),
      h("ol.steps", found.steps.map(({ step, ok, detail }) => h(`li.${ok ? "ok" : "not"}`, h("b", step), " ", detail))));
  } catch (problem) {
    put(answer, h("p.problem", problem.message));
  }
}

/** Return a payload as JSON with indents, where it is JSON. */
export function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 1).slice(0, 4000);
  } catch {
    return text.slice(0, 4000);
  }
}
