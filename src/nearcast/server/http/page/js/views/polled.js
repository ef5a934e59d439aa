// What the views beside the map share: they ask again while they are shown, and say what went wrong.

import { h, put } from "../dom.js";

/** A view that reads something every few seconds. Subclasses have `title`, `read()` and `draw(found)`. */
export class PolledView {
  constructor(title, everyMs, lead = "") {
    this.everyMs = everyMs;
    this.tools = h("div.view-tools");
    this.problem = h("p.problem", { role: "alert", hidden: true });
    this.body = h("div.view-body", h("p.dim", "Reading …"));
    this.element = h("section.view", h("header.view-head", h("div", h("h1", title), lead ? h("p.dim", lead) : null), this.tools), this.problem, this.body);
  }

  show() {
    this.hide();
    this.timer = setInterval(() => document.hidden || this.refresh(), this.everyMs);
    return this.refresh();
  }

  hide() {
    clearInterval(this.timer);
  }

  reset() {
    put(this.body, h("p.dim", "Reading …"));
  }

  async refresh() {
    try {
      const found = await this.read();
      this.problem.hidden = true;
      this.draw(found);
    } catch (problem) {
      if (problem.status === undefined) throw problem;
      this.problem.textContent = problem.status === 403 ? "Only operators may see this." : problem.message;
      this.problem.hidden = false;
      if (problem.status === 403) put(this.body);
    }
  }
}

/** Return a table; `columns` are [heading, class]; rows are arrays of cells. */
export function table(columns, rows, empty) {
  if (!rows.length) return h("p.empty", empty);
  return h("div.table-wrap", h("table", h("thead", h("tr", columns.map(([text, kind]) => h("th", { scope: "col", class: kind }, text)))),
    h("tbody", rows.map((cells) => h("tr", cells.map((cell, i) => h("td", { class: columns[i][1], "data-label": columns[i][0] }, cell)))))));
}
