// Try it: draw where, write a condition, see who is there and what arrives, take the subscription along.

import { isOperator, post } from "../api.js";
import { Completion } from "./completion.js";
import { h, icon, put, tool } from "../dom.js";
import { clock, count, many, metres } from "../format.js";
import { publish, watch } from "../live.js";
import { distanceM } from "../map/camera.js";
import { contains } from "../map/ground.js";
import { SNIPPETS } from "./snippets.js";

const SHOWN = 30; // messages

/** The panel at #/try. */
export class TryIt {
  constructor(view) {
    this.view = view;
    this.isOpen = false;
    this.spaces = [];
    this.draft = null;
    this.arrived = [];
    this.count = 0;
    this.snippet = "mosquitto_sub";
    this.build();
  }

  build() {
    this.space = h("select", { onchange: () => this.choose() });
    this.filter = h("input", { spellcheck: "false", autocapitalize: "off", oninput: () => this.changed() });
    this.where = h("textarea", { rows: 2, spellcheck: "false", autocapitalize: "off", placeholder: "price < 10 and kind = food", oninput: () => this.changed() });
    this.completion = new Completion(this.where, () => this.changed());
    this.radius = h("input.num", { type: "number", min: 1, value: 500, "aria-label": "Radius in metres", oninput: () => this.setRadius() });
    this.tools = Object.fromEntries([["circle", "Circle"], ["box", "Box"], ["polygon", "Polygon"], ["follow", "Near me"]].map(([kind, text]) =>
      [kind, h("button", { type: "button", "aria-pressed": "false", onclick: () => this.useTool(kind) }, icon(kind), text)]));
    this.hint = h("p.dim");
    this.problem = h("p.problem", { role: "alert", hidden: true });
    this.inside = h("div.inside");
    this.messages = h("ul.messages");
    this.copies = h("div.copies");
    this.publishing = h("div.publishing");
  }

  setOpen(isOpen) {
    const { view } = this;
    if (this.isOpen === isOpen) return;
    this.isOpen = isOpen;
    if (isOpen) {
      view.scene.selected = null;
      this.fill();
      this.timer = setInterval(() => this.tellInside(), 700);
      this.changed();
    } else {
      clearInterval(this.timer);
      this.useTool(null);
      this.stop?.();
      this.stop = null;
      view.scene.draft = null;
      view.panel.hidden = true;
    }
  }

  fill() {
    const { panel } = this.view;
    put(panel, h("header.panel-head", h("div", h("h3", "Try it"), h("h2", "A subscription with a place")), tool("close", "Close", () => { location.hash = "#/map"; })),
      h("div.panel-body",
        this.spaces.length ? null : h("p.problem", "No space is declared: nearcast.toml needs a [[space]] for places and conditions."),
        h("label.field", "Space", this.space), h("label.field", "Topics", this.filter),
        h("div.field-group", h("h3", "Where"), h("div.tools-row", Object.values(this.tools)),
          h("label.field.radius", "Radius, m", this.radius), this.hint),
        h("div.field-group", h("label.field", "Condition", this.where), this.completion.list), this.problem,
        h("section", h("h3", "Who is there now"), this.inside),
        h("section", h("h3", "What arrives"), this.messages),
        h("section", h("h3", "Take it along"), this.copies),
        isOperator() ? h("section", h("h3", "Send something there"), this.publishing) : null));
    panel.hidden = false;
    this.tellTool();
    this.drawMessages();
    this.drawPublishing();
  }

  takeSpaces(spaces) {
    if (JSON.stringify(spaces) === JSON.stringify(this.spaces)) return;
    this.spaces = spaces;
    put(this.space, spaces.map(({ name, topics }) => h("option", { value: name }, `${name}  (${topics})`)));
    this.choose();
    if (this.isOpen) this.fill();
  }

  get chosen() { return this.spaces.find(({ name }) => name === this.space.value) ?? null; }

  choose() {
    this.filter.value = this.chosen?.topics ?? "#";
    this.completion.attributes = this.chosen?.attributes ?? [];
    this.where.placeholder = example(this.chosen);
    this.changed();
    this.drawPublishing();
  }

  // --- drawing --------------------------------------------------------------------------

  useTool(kind) {
    this.kind = this.kind === kind ? null : kind;
    this.view.map.tool = this.kind ? new Drawing(this) : null;
    this.tellTool();
  }

  tellTool() {
    for (const [kind, button] of Object.entries(this.tools)) button.setAttribute("aria-pressed", String(kind === this.kind));
    this.radius.parentNode.hidden = !["circle", "near"].includes(this.draft?.kind) && !["circle", "follow"].includes(this.kind);
    this.hint.textContent = HINTS[this.kind] ?? (this.draft ? describe(this.draft) : "Everywhere. Choose a tool and draw on the map.");
  }

  setDraft(draft, isDone) {
    this.draft = draft;
    this.view.scene.draft = draft?.kind === "near" ? { ...draft, kind: "circle" } : draft;
    if (draft && "radiusM" in draft && document.activeElement !== this.radius) this.radius.value = Math.round(draft.radiusM);
    if (isDone) {
      if (this.kind) this.useTool(this.kind);
      if (draft?.kind === "near") this.report(draft.centre);
      this.changed();
    }
    this.tellTool();
    this.tellInside();
  }

  setRadius() {
    const radiusM = Number(this.radius.value);
    if (this.draft && "radiusM" in this.draft && radiusM > 0) {
      this.setDraft({ ...this.draft, radiusM }, false);
      this.changed();
    }
  }

  /** Report our own place: the page is a client, and `$near` is around it. */
  report([lon, lat]) {
    publish("$position", JSON.stringify({ lon: round(lon), lat: round(lat) })).catch((problem) => this.tellProblem(problem.message));
  }

  // --- the subscription -----------------------------------------------------------------

  request() {
    const { draft } = this;
    return {
      filter: this.filter.value.trim(), where: this.where.value.trim() || null,
      area: draft && draft.kind !== "near" ? areaText(draft) : null,
      near: draft?.kind === "near" ? Math.round(draft.radiusM) : null,
    };
  }

  changed() {
    clearTimeout(this.waiting);
    if (this.isOpen) this.waiting = setTimeout(() => this.check(), 250);
  }

  async check() {
    const request = this.request();
    try {
      const found = await post("subscriptions/check", request);
      if (!this.isOpen) return;
      this.tellProblem(found.ok ? "" : found.problem);
      if (found.ok) this.subscribe(found.text, request);
    } catch (problem) {
      this.tellProblem(problem.message);
    }
  }

  subscribe(text, request) {
    this.drawCopies(text, request);
    if (text === this.text && this.stop) return;
    this.stop?.();
    this.text = text;
    [this.arrived, this.count] = [[], 0];
    this.drawMessages();
    this.stop = watch(text, (message) => this.arrive(message), (code, reason) => code >= 0x80 && this.tellProblem(reason || `The broker refused it (0x${code.toString(16)}).`));
  }

  arrive({ topic, text, packet }) {
    this.count++;
    this.arrived.unshift({ topic, text, at: Date.now(), isRetained: packet.retain });
    this.arrived.length = Math.min(this.arrived.length, SHOWN);
    if (!this.drawing) this.drawing = setTimeout(() => { this.drawing = null; this.drawMessages(); }, 120);
  }

  tellProblem(text) {
    this.problem.hidden = !text;
    this.problem.textContent = text;
  }

  // --- what comes of it -----------------------------------------------------------------

  tellInside() {
    const { scene } = this.view;
    const everybody = [...scene.crowd.clients.values()];
    const here = this.draft ? everybody.filter(({ lon, lat }) => covers(this.draft, lon, lat)) : everybody;
    if (!everybody.length) put(this.inside, h("p.dim", "No client's place is known to this session."));
    else put(this.inside, h("p", h("b.num", count(here.length)), ` of ${many(everybody.length, "client")}`),
      h("ul.chips", here.slice(0, 12).map(({ id }) => h("li", h("button.quiet.link", { type: "button", onclick: () => this.view.inspector.showClient(id) }, id)))));
  }

  drawMessages() {
    put(this.messages, this.arrived.length
      ? [h("li.dim.small", `${many(this.count, "message")}`), this.arrived.map(({ topic, text, at, isRetained }) =>
          h("li", h("div", h("code.wrap", topic), isRetained ? h("span.pill", "retained") : null, h("span.dim.num", clock(at))), h("code.payload-line", text.slice(0, 300))))]
      : h("li.dim", "Nothing yet. It listens as long as this panel is open."));
  }

  drawCopies(text, request) {
    const code = SNIPPETS[this.snippet]({ text, request, place: this.draft?.kind === "near" ? this.draft.centre : null });
    const tabs = Object.keys(SNIPPETS).map((name) => h("button", { type: "button", "aria-pressed": String(name === this.snippet), onclick: () => { this.snippet = name; this.drawCopies(text, request); } }, name));
    const copy = h("button.copy", { type: "button", onclick: () => copied(code, copy) }, icon("copy"), "Copy");
    put(this.copies, h("div.tools-row", tabs), h("div.snippet", h("pre", { tabindex: 0 }, code), copy));
  }

  drawPublishing() {
    const { chosen } = this;
    if (!isOperator() || !chosen) return void put(this.publishing, h("p.dim", "It needs a space."));
    const topic = h("input", { value: chosen.topics.replace(/[#+].*$/, "try"), "aria-label": "Topic", spellcheck: "false" });
    const payload = h("textarea", { rows: 3, "aria-label": "Payload", spellcheck: "false", value: JSON.stringify(sample(chosen, this.middle())) });
    const top = h("input.num", { type: "number", min: 0, value: 0, "aria-label": "Only the best k" });
    const result = h("div", { role: "status" });
    const properties = () => (Number(top.value) > 0 ? { $top: top.value, $rank: "nearest" } : {});
    put(this.publishing, h("label.field", "Topic", topic), h("label.field", "Payload", payload), h("label.field", "Only the nearest (0: everybody)", top),
      h("div.tools-row",
        h("button", { type: "button", onclick: () => { payload.value = JSON.stringify(sample(chosen, this.middle())); } }, "Middle of the shape"),
        h("button", { type: "button", onclick: () => preview(result, topic.value, payload.value, properties(), Number(top.value)) }, "Who would get it?"),
        h("button.primary", { type: "button", onclick: () => send(result, topic.value, payload.value, properties()) }, "Send")),
      result);
  }

  middle() {
    const { draft, view } = this;
    if (draft?.centre) return draft.centre;
    const places = draft?.kind === "box" ? [draft.a, draft.b] : draft?.places;
    if (!places?.length) return view.map.camera.toPlace(view.map.camera.width / 2, view.map.camera.height / 2);
    return [0, 1].map((axis) => places.reduce((sum, place) => sum + place[axis], 0) / places.length);
  }
}

const HINTS = {
  circle: "Press in the middle and draw outwards.", box: "Draw from corner to corner.",
  polygon: "Click the corners; double click ends it.", follow: "Click where you are: the circle is yours, and this page reports its place.",
};

/** What the pointer does while a tool is chosen. */
class Drawing {
  constructor(panel) {
    [this.panel, this.kind] = [panel, panel.kind];
  }

  down(place) {
    const { panel, kind } = this;
    this.begun = place;
    if (kind === "polygon") {
      const before = panel.draft?.kind === "polygon" && !panel.draft.isClosed ? panel.draft.places : [];
      panel.setDraft({ kind, places: [...before, place], isClosed: false }, false);
    } else if (kind === "follow") panel.setDraft({ kind: "near", centre: place, radiusM: Number(panel.radius.value) || 500 }, false);
    return true;
  }

  move(place) {
    const { panel, kind, begun } = this;
    if (kind === "circle") panel.setDraft({ kind, centre: begun, radiusM: Math.max(1, distanceM(begun, place)) }, false);
    if (kind === "box") panel.setDraft({ kind, a: begun, b: place }, false);
  }

  up(place, moved) {
    const { panel, kind, begun } = this;
    if (kind === "polygon") return;
    if (kind === "circle" && moved < 6) panel.setDraft({ kind, centre: begun, radiusM: Number(panel.radius.value) || 500 }, false);
    if (kind === "box" && moved < 6) return;
    panel.setDraft(panel.draft, true);
  }

  close() {
    const { draft } = this.panel;
    if (draft?.kind !== "polygon") return;
    const places = draft.places.filter((place, i) => !i || distanceM(place, draft.places[i - 1]) > 0.5);
    this.panel.setDraft(places.length > 2 ? { kind: "polygon", places, isClosed: true } : null, true);
  }
}

const round = (value) => Number(value.toFixed(6));

function areaText(draft) {
  if (draft.kind === "circle") return `circle(${draft.centre.map(round).join(",")},${Math.round(draft.radiusM)}m)`;
  if (draft.kind === "box") {
    const [lons, lats] = [0, 1].map((axis) => [draft.a[axis], draft.b[axis]].map(round).sort((a, b) => a - b));
    return `bbox(${[lons[0], lats[0], lons[1], lats[1]].join(",")})`;
  }
  if (!draft.isClosed) return null;
  return `geojson(${JSON.stringify(polygon(draft))})`;
}

function polygon({ places }) {
  const ring = places.map((place) => place.map(round));
  return { type: "Polygon", coordinates: [[...ring, ring[0]]] };
}

function covers(draft, lon, lat) {
  if ("radiusM" in draft) return distanceM(draft.centre, [lon, lat]) <= draft.radiusM;
  if (draft.kind === "box") return (lon - draft.a[0]) * (lon - draft.b[0]) <= 0 && (lat - draft.a[1]) * (lat - draft.b[1]) <= 0;
  return draft.places.length > 2 && contains(polygon(draft), lon, lat);
}

function describe(draft) {
  if (draft.kind === "near") return `Within ${metres(draft.radiusM)} of this page's place, wherever it goes.`;
  if (draft.kind === "circle") return `A circle of ${metres(draft.radiusM)}.`;
  return draft.kind === "box" ? "A box." : `A polygon of ${draft.places.length} corners.`;
}

function example(space) {
  const parts = (space?.attributes ?? []).filter(({ name }) => ![space.longitude, space.latitude].includes(name)).slice(0, 2)
    .map(({ name, categories, low, high }) => (categories?.length ? `${name} = ${categories[0]}` : `${name} < ${Math.round(((low ?? 0) + (high ?? 100)) / 2)}`));
  return parts.join(" and ") || "no condition";
}

function sample(space, [lon, lat]) {
  const document = {};
  for (const { name, path, categories, low, high } of space.attributes) {
    const value = name === space.longitude ? round(lon) : name === space.latitude ? round(lat)
      : categories?.length ? categories[0] : Math.round(((low ?? 0) + (high ?? 100)) / 20);
    const keys = (path ?? name).split(".");
    const last = keys.pop();
    keys.reduce((inner, key) => (inner[key] ??= {}), document)[last] = value;
  }
  return document;
}

async function preview(result, topic, payload, properties, top) {
  try {
    const found = await post("match", { topic, payload, properties, ...(top > 0 ? { top, rank: "nearest" } : {}) });
    put(result, found.problem ? h("p.problem", found.problem) : h("p", h("b.num", count(found.count)), found.count === 1 ? " client would get it" : " clients would get it"),
      h("ul.chips", found.matches.slice(0, 20).map(({ client, distance_m: away }) => h("li", `${client}${away === null || away === undefined ? "" : ` · ${metres(away)}`}`))));
  } catch (problem) {
    put(result, h("p.problem", problem.message));
  }
}

async function send(result, topic, payload, properties) {
  try {
    await publish(topic, payload, { properties });
    put(result, h("p.good", "Sent."));
  } catch (problem) {
    put(result, h("p.problem", problem.message));
  }
}

async function copied(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    put(button, icon("copy"), "Copied");
  } catch {
    put(button, "Select and copy");
  }
  setTimeout(() => put(button, icon("copy"), "Copy"), 1500);
}

