// Log: the last lines of the broker, and the new ones as they come.

import { get, isOperator } from "../api.js";
import { h, put } from "../dom.js";
import { clock } from "../format.js";
import { onState, watch } from "../live.js";

const MOST = 500;
const LEVELS = ["debug", "info", "warning", "error"];

/** The view at #/log. */
export class LogView {
  constructor() {
    this.lines = [];
    this.level = h("select", { "aria-label": "Least level", onchange: () => this.draw() }, LEVELS.map((name) => h("option", { selected: name === "info" }, name)));
    this.words = h("input", { type: "search", placeholder: "Only lines with", "aria-label": "Only lines with", oninput: () => this.draw() });
    this.list = h("ol.log", { tabindex: 0, "aria-label": "Lines of the log, the newest first" });
    this.element = h("section.view", h("header.view-head", h("h1", "Log"), h("div.view-tools", this.level, this.words)), this.list);
    onState((state) => state === "up" && this.stop && this.read());
  }

  show() {
    this.stop ??= isOperator() ? watch("$nearcast/live/log/+", ({ topic, text }) => this.take(topic, text)) : () => {};
    this.read();
  }

  hide() {
    this.stop?.();
    this.stop = null;
  }

  reset() {
    this.hide();
    this.lines = [];
  }

  async read() {
    try {
      this.lines = (await get("log", { limit: MOST })).items.reverse();
      this.draw();
    } catch (problem) {
      this.lines = [];
      put(this.list, h("li.problem", problem.status === 403 ? "Only operators may read the log." : problem.message));
    }
  }

  take(topic, text) {
    const node = topic.split("/").at(-1);
    try {
      this.lines.unshift(...JSON.parse(text).map((line) => ({ ...line, node })).reverse());
    } catch {
      return;
    }
    this.lines.length = Math.min(this.lines.length, MOST);
    this.draw();
  }

  draw() {
    const least = LEVELS.indexOf(this.level.value);
    const words = this.words.value.toLowerCase();
    const shown = this.lines.filter(({ level, text }) => LEVELS.indexOf(level) >= least && text.toLowerCase().includes(words));
    put(this.list, shown.length ? shown.map(({ t, level, text, node }) =>
      h(`li.${LEVELS.includes(level) ? level : "error"}`, h("time.num", clock(t)), h("span.level", level), h("span.wrap", node ? h("b", `${node} `) : null, text)))
      : h("li.dim", "No line fits."));
  }
}
