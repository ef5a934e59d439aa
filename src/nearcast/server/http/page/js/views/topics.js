// Topics: retained messages to look at and delete, filters with their subscribers, share groups.

import { get, isOperator, remove } from "../api.js";
import { h, put, tool } from "../dom.js";
import { bytes, count, many } from "../format.js";
import { pretty } from "./inspect.js";
import { PolledView, table } from "./polled.js";

/** The view at #/topics. */
export class TopicsView extends PolledView {
  constructor() {
    super("Topics", 5000);
    this.filter = h("input", { value: "#", "aria-label": "Topic filter of retained messages", spellcheck: "false", oninput: () => this.look() });
    this.limit = 50;
    this.detail = h("aside.detail.card", { "aria-label": "Retained message", hidden: true });
    put(this.tools, h("label.search", h("span.dim", "Filter"), this.filter));
    this.element.append(this.detail);
  }

  look() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.refresh(), 250);
  }

  async read() {
    const [retained, filters, groups] = await Promise.all([
      get("retained", { filter: this.filter.value || "#", limit: this.limit }), get("topics", { limit: 50 }), get("share-groups", { limit: 50 })]);
    return { retained, filters, groups };
  }

  hide() {
    super.hide();
    this.detail.hidden = true;
  }

  draw({ retained, filters, groups }) {
    put(this.body,
      h("section", h("h2", "Retained messages ", h("span.dim.num", count(retained.total))),
        table([["Topic", ""], ["Payload", "grow"], ["Size", "right"], ["QoS", "right"]], retained.items.map((one) => [
          h("button.quiet.link", { type: "button", onclick: () => this.open(one.topic) }, one.topic), h("code.payload-line", one.preview), h("span.num", bytes(one.bytes)), one.qos]),
        "No retained message fits this filter."),
        retained.next ? h("button", { type: "button", onclick: () => { this.limit += 200; this.refresh(); } }, "Show more") : null),
      h("div.columns",
        h("section", h("h2", "Subscriptions by filter ", h("span.dim.num", count(filters.total))),
          table([["Filter", "grow"], ["Subscribers", "right"], ["with conditions", "right"]], filters.items.map((one) => [h("code.wrap", one.filter), h("span.num", count(one.subscribers)), h("span.num", count(one.with_conditions))]), "Nobody subscribes yet.")),
        h("section", h("h2", "Share groups ", h("span.dim.num", count(groups.total))),
          table([["Group", ""], ["Filter", "grow"], ["Members", "right"]], groups.items.map((one) => [one.group, h("code.wrap", one.filter), h("span.num", count(one.member_count))]), "No share group."))));
  }

  async open(topic) {
    const close = () => { this.detail.hidden = true; };
    const head = h("header.panel-head", h("div", h("h3", "Retained message"), h("h2.wrap", topic)), tool("close", "Close", close));
    this.detail.hidden = false;
    try {
      const found = await get("retained/message", { topic });
      put(this.detail, head, h("div.panel-body",
        h("pre.payload", found.text === null ? `${many(found.bytes, "byte")} that are not text` : pretty(found.text)), found.cut ? h("p.dim", "The rest is left out.") : null,
        found.properties.length ? h("dl.facts", found.properties.map(([name, value]) => [h("dt", name), h("dd", value)])) : null,
        isOperator() ? this.deleteButton(topic, close) : null));
    } catch (problem) {
      put(this.detail, head, h("p.problem", problem.message));
    }
    this.detail.querySelector("button")?.focus();
  }

  deleteButton(topic, close) {
    const button = h("button.danger", { type: "button", onclick: async () => {
      if (button.dataset.sure === undefined) {
        button.dataset.sure = "";
        button.textContent = "Press again to delete";
        return;
      }
      try {
        await remove("retained/message", { topic });
        close();
        this.refresh();
      } catch (problem) {
        button.replaceWith(h("p.problem", problem.message));
      }
    } }, "Delete");
    return button;
  }
}
