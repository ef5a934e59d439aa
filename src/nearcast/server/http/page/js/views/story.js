// The story of the demonstration, step by step beside the map. Only where the address asked for it.

import { h, put, tool } from "../dom.js";
import { watch } from "../live.js";
import { planPicture } from "./plans.js";

const TOPIC = "nearcast-demo/story";

/** The card that tells the story; the demonstration publishes its steps as retained messages. */
export class Story {
  constructor(view) {
    this.view = view;
    this.element = h("section.story.card", { hidden: true, "aria-live": "polite", "aria-label": "Demonstration" });
  }

  start() {
    if (this.stop || sessionStorage.getItem("demo") !== "yes") return;
    this.stop = watch(TOPIC, ({ text }) => this.take(text));
  }

  take(text) {
    let step;
    try {
      step = JSON.parse(text);
    } catch {
      return;
    }
    const { number, of, title, lines = [], table = null, plans = [], view = null } = step;
    const isFolded = this.element.classList.contains("folded");
    put(this.element,
      h("header", h("div", h("h3", `Demonstration · ${number} of ${of}`), h("h2", title)), tool("minus", isFolded ? "Unfold" : "Fold", () => this.element.classList.toggle("folded"))),
      h("div.story-progress", Array.from({ length: of }, (_, i) => h(`i${i < number ? ".done" : ""}`))),
      h("div.story-body", lines.map((line) => h("p", line)),
        plans.length ? h("div.story-plans", plans.map(({ title: name, features }) => h("figure", planPicture(features, 200, 190), h("figcaption", name)))) : null,
        table ? h("table.small", h("thead", h("tr", table.headings.map((heading) => h("th", { scope: "col" }, heading)))), h("tbody", table.rows.map((row) => h("tr", row.map((cell) => h("td", cell)))))) : null));
    this.element.hidden = false;
    if (view) this.view.frame(view, false);
  }
}
