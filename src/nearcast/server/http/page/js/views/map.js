// The map and what stands on it: layers, legend, time, and the panel about what was clicked.

import { isOperator, session } from "../api.js";
import { h, put, tool } from "../dom.js";
import { clock, count } from "../format.js";
import { liveState, onState } from "../live.js";
import { project } from "../map/camera.js";
import { MapCanvas } from "../map/canvas.js";
import { Crowd } from "../map/crowd.js";
import { Feed } from "../map/feed.js";
import { Happenings } from "../map/happenings.js";
import { nodeColour } from "../map/paint.js";
import { Inspector } from "./inspect.js";
import { Story } from "./story.js";
import { TryIt } from "./try.js";

const LAYERS = [
  ["clients", "Clients", true], ["trails", "Trails", true], ["ranges", "Ranges ($near)", true], ["areas", "Areas ($area)", true],
  ["events", "Events", true], ["plan", "Plan by node", true], ["regions", "Slow regions", false],
];

const STREETS = 2 ** 24; // pixels that the world is wide, where a street is seen

/** The view at #/map and, with the panel to try subscriptions, at #/try. */
export class MapView {
  constructor() {
    const layers = Object.fromEntries(LAYERS.map(([name, , isOn]) => [name, isOn]));
    this.scene = {
      crowd: new Crowd(), happenings: new Happenings(), layers, plan: [], regions: [], nodes: [],
      ranges: [], areas: [], draft: null, selected: null, past: null, leftOut: 0,
    };
    this.map = new MapCanvas(this.scene);
    this.inspector = new Inspector(this);
    this.tryIt = new TryIt(this);
    this.story = new Story(this);
    this.feed = new Feed(this.map, {
      onSpaces: (spaces) => this.tryIt.takeSpaces(spaces),
      onFirstPlaces: (bounds) => this.frame(bounds),
    });
    this.map.onPick = (what, place) => this.inspector.pick(what, place);
    this.map.onMove = () => { this.feed.look(); this.drawScale(); };
    this.build();
    onState(() => this.tellState());
    setInterval(() => this.element.isConnected && this.tick(), 500);
  }

  build() {
    this.facts = h("div.map-facts");
    this.empty = h("div.map-empty", { hidden: true });
    this.scale = h("div.map-scale", h("span"), h("i"));
    this.legend = h("div.legend");
    this.source = h("div.map-source");
    this.panel = h("section.panel", { "aria-label": "Details", hidden: true });
    this.element = h("div.map-view",
      this.map.element,
      h("div.map-top", this.facts),
      this.empty,
      this.controls(),
      this.panel,
      h("div.map-bottom", this.legend, this.timeline(), this.scale),
      this.source,
      this.story.element,
    );
  }

  controls() {
    const layers = h("div.layers.card", { hidden: true, id: "layers" }, h("h3", "Layers"), LAYERS.map(([name, text]) =>
      h("label.check", h("input", { type: "checkbox", checked: this.scene.layers[name], onchange: (event) => this.setLayer(name, event.target.checked) }), text)));
    const toggle = tool("layers", "Layers", () => {
      layers.hidden = !layers.hidden;
      toggle.setAttribute("aria-expanded", String(!layers.hidden));
    }, { "aria-controls": "layers", "aria-expanded": "false" });
    return h("div.map-controls",
      h("div.card.tools", tool("plus", "Zoom in", () => this.map.camera.zoom(1.6)), tool("minus", "Zoom out", () => this.map.camera.zoom(1 / 1.6)),
        tool("fit", "Show everybody", () => this.showAll()), toggle), layers);
  }

  timeline() {
    this.slider = h("input.time", { type: "range", min: -300, max: 0, value: 0, step: 1, "aria-label": "Time: the last minutes", oninput: () => this.travel(Number(this.slider.value)) });
    this.time = h("button.quiet.now", { type: "button", title: "Back to now", onclick: () => this.travel(0) }, "Live");
    return h("div.timeline.card", { title: "The last minutes" }, this.slider, this.time);
  }

  setLayer(name, isOn) {
    this.scene.layers[name] = isOn;
    if (isOn && name === "regions") this.feed.readGround();
    this.map.redraw();
    this.map.camera.version++;
  }

  /** Show an instant of the past, in seconds before now; 0 is live. */
  travel(seconds) {
    this.slider.value = seconds;
    if (seconds === 0) this.scene.past = this.then = null;
    else {
      this.then ??= { spotsAt: this.scene.crowd.past(), now: Date.now() };
      const instant = this.then.now + seconds * 1000;
      this.scene.past = { instant, spots: this.then.spotsAt(instant) };
    }
    this.tick();
  }

  show(route) {
    this.map.base.useTiles(session.map);
    this.source.textContent = (session.map?.attribution ?? "").replace(/<[^>]*>/g, "");
    this.feed.start();
    this.tryIt.setOpen(route === "try");
    if (route !== "try" && !this.scene.selected) this.inspector.close();
    this.story.start();
    this.tick();
    const asked = /^#\/map\/(.+)$/.exec(location.hash)?.[1];
    if (asked) this.lookAt(asked);
  }

  /** Show the client that the address names, in the middle. */
  async lookAt(name) {
    history.replaceState(null, "", "#/map");
    try {
      const spot = await this.inspector.showClient(decodeURIComponent(name));
      if (!spot) return;
      const [x, y] = project(...spot);
      this.feed.isFramed = true;
      this.map.camera.jump({ x, y, scale: Math.max(this.map.camera.scale, STREETS) });
    } catch (problem) {
      if (!(problem instanceof URIError)) throw problem;
    }
  }

  hide() {
    this.feed.stop();
    this.tryIt.setOpen(false);
  }

  /** Another session: what the last one saw is forgotten. */
  reset() {
    this.feed.stop();
    this.scene.crowd.clear();
    this.scene.happenings.clear();
    Object.assign(this.scene, { ranges: [], areas: [], selected: null, past: null });
    this.inspector.close();
  }

  margin() {
    const isWide = this.map.camera.width > 860;
    return { left: isWide ? 50 : 20, top: 60, bottom: isWide ? 70 : 90, right: isWide && !this.panel.hidden ? 400 : 50 };
  }

  frame(bounds, isQuick = true) {
    const target = this.map.camera.framing(bounds, this.margin());
    if (isQuick) this.map.camera.jump(target);
    else this.map.camera.fly(target, Date.now());
  }

  showAll() {
    this.feed.isFramed = false;
    this.feed.frameFirst();
  }

  // --- what stands around the map -------------------------------------------------------

  tick() {
    const { scene, map } = this;
    const minute = scene.happenings.all.filter((one) => one.at > Date.now() - 10_000).length / 10;
    const places = session.positions ? [fact(count(scene.crowd.size), scene.crowd.size === 1 ? "client" : "clients"), fact(count(map.inView.length), "in view")] : [];
    put(this.facts, places, fact(minute < 10 ? minute.toFixed(1) : count(minute), "events/s"), scene.leftOut ? fact(`+${count(scene.leftOut)}`, "not shown") : null);
    this.facts.dataset.fps = map.frames.perSecond.toFixed(1);
    this.time.textContent = scene.past ? clock(scene.past.instant) : "Live";
    this.time.classList.toggle("past", scene.past !== null);
    this.tellEmpty();
    this.drawLegend();
    this.inspector.tick();
    if (this.follows) this.keepUp();
  }

  keepUp() {
    const one = this.scene.crowd.clients.get(this.follows);
    if (one) Object.assign(this.map.camera, { flight: null }).jump({ x: one.x, y: one.y, scale: this.map.camera.scale });
  }

  tellState() {
    this.element?.classList.toggle("is-lost", liveState() === "lost");
  }

  tellEmpty() {
    const { scene } = this;
    const isEmpty = !scene.crowd.size && !scene.happenings.total && liveState() !== "connecting";
    this.empty.hidden = !isEmpty || this.tryIt.isOpen;
    if (this.empty.hidden || this.empty.dataset.role === String(session.role)) return;
    this.empty.dataset.role = session.role;
    put(this.empty, h("h2", isOperator() ? "Nobody is here yet" : "Waiting for events"),
      session.positions
        ? h("p", "A client appears as soon as it publishes its place to ", h("code", "$position"), ":")
        : h("p", "Events of spaces with coordinates appear here as they happen. ", isOperator() ? "Positions are switched off ([http] positions)." : "Operators also see clients: log in."),
      h("pre", "mosquitto_pub -V 5 -q 1 -i ana -t '$position' \\\n  -m '{\"lon\": -122.4079, \"lat\": 37.7875}'"));
  }

  drawLegend() {
    const { scene } = this;
    const key = [scene.layers.plan, scene.nodes.join(), session.role].join("|");
    if (this.legend.dataset.key === key) return;
    this.legend.dataset.key = key;
    const nodes = scene.layers.plan ? scene.nodes : [];
    put(this.legend, session.positions ? entry("client", "client") : null, entry("event", "event"), session.role === "operator" ? entry("chosen", "chosen by $top") : null,
      nodes.map((name, number) => {
        const swatch = h("i.swatch");
        swatch.style.background = nodeColour(number);
        return h("span.key", swatch, name);
      }));
  }

  drawScale() {
    const { camera } = this.map;
    const [, lat] = camera.toPlace(camera.width / 2, camera.height / 2);
    const per = camera.perMetre(lat);
    const wanted = 90 / per;
    const step = [1, 2, 5].map((n) => n * 10 ** Math.floor(Math.log10(wanted))).findLast((n) => n <= wanted) ?? wanted;
    this.scale.firstChild.textContent = step >= 1000 ? `${step / 1000} km` : `${step} m`;
    this.scale.lastChild.style.width = `${step * per}px`;
  }
}

const fact = (number, words) => h("span.fact", h("b.num", number), " ", words);
const entry = (kind, text) => h("span.key", h(`i.swatch.dot.${kind}`), text);
