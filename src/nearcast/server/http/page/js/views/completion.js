// Completion of conditions: attributes, what may follow them, categories. Chosen with keys or a click.

import { h, put } from "../dom.js";

const NUMBER_SIGNS = ["<", "<=", ">", ">=", "=", "!="];
const CATEGORY_SIGNS = ["=", "!=", "in ("];

/** Completes the words of a textarea; `attributes` are those of the space. */
export class Completion {
  constructor(field, changed) {
    Object.assign(this, { field, changed, attributes: [], offers: [], active: -1 });
    this.list = h("ul.completion", { role: "listbox", id: "completion", hidden: true, "aria-label": "Completions" });
    for (const [name, value] of Object.entries({ role: "combobox", "aria-controls": "completion", "aria-autocomplete": "list", "aria-expanded": "false" }))
      field.setAttribute(name, value);
    field.addEventListener("input", () => this.offer());
    field.addEventListener("focus", () => this.offer());
    field.addEventListener("blur", () => setTimeout(() => this.close(), 150));
    field.addEventListener("keydown", (event) => this.key(event));
  }

  offer() {
    const before = this.field.value.slice(0, this.field.selectionStart);
    this.word = /[\w.-]*$/.exec(before)[0];
    const rest = before.slice(0, before.length - this.word.length).trimEnd();
    const wanted = this.word.toLowerCase();
    this.offers = this.possible(rest).filter((offer) => offer.toLowerCase().startsWith(wanted) && offer !== this.word);
    this.active = this.offers.length && this.word ? 0 : -1;
    this.draw();
  }

  /** Return what may stand behind `rest`. */
  possible(rest) {
    const names = this.attributes.map(({ name }) => name);
    const words = rest.match(/[\w.-]+|<=|>=|!=|[<>=(),]/g) ?? [];
    const last = words.at(-1);
    if (!last || ["and", "or", "not"].includes(last)) return names;
    const known = this.attributes.find(({ name }) => name === last);
    if (known) return known.categories?.length ? CATEGORY_SIGNS : NUMBER_SIGNS;
    const about = this.attributes.find(({ name }) => name === words.findLast((word) => names.includes(word)));
    if (["=", "!=", "(", ","].includes(last) && about?.categories?.length) return about.categories;
    return ["and", "or"];
  }

  draw() {
    this.list.hidden = !this.offers.length || document.activeElement !== this.field;
    this.field.setAttribute("aria-expanded", String(!this.list.hidden));
    put(this.list, this.offers.slice(0, 12).map((offer, i) =>
      h("li", { role: "option", id: `completion-${i}`, "aria-selected": String(i === this.active), onmousedown: (event) => { event.preventDefault(); this.take(offer); } }, offer)));
    if (this.active >= 0) this.field.setAttribute("aria-activedescendant", `completion-${this.active}`);
    else this.field.removeAttribute("aria-activedescendant");
  }

  take(offer) {
    const { field, word } = this;
    const place = field.selectionStart;
    const space = offer.endsWith("(") ? "" : " ";
    const before = field.value.slice(0, place - word.length);
    const gap = before && !/[\s(]$/.test(before) ? " " : "";
    field.value = before + gap + offer + space + field.value.slice(place);
    field.selectionStart = field.selectionEnd = (before + gap + offer + space).length;
    this.changed();
    this.offer();
  }

  close() {
    this.offers = [];
    this.draw();
  }

  key(event) {
    if (this.list.hidden) return;
    const many = Math.min(12, this.offers.length);
    if (event.key === "ArrowDown") this.active = (this.active + 1) % many;
    else if (event.key === "ArrowUp") this.active = (this.active - 1 + many) % many;
    else if ((event.key === "Enter" || event.key === "Tab") && this.active >= 0 && !event.shiftKey) {
      event.preventDefault();
      return this.take(this.offers[this.active]);
    } else if (event.key === "Escape") {
      event.stopPropagation();
      return this.close();
    } else return;
    event.preventDefault();
    this.draw();
  }
}
