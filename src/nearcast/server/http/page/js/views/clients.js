// Clients: a list that can be searched, and what one of them is.

import { get, isOperator, session } from "../api.js";
import { h, icon, put, tool } from "../dom.js";
import { count, duration, many, place } from "../format.js";
import { kickButton, subscriptionRow } from "./inspect.js";
import { PolledView, table } from "./polled.js";

const PAGE = 50;

/** The view at #/clients. */
export class ClientsView extends PolledView {
  constructor() {
    super("Clients", 4000);
    this.search = h("input", { type: "search", placeholder: "Search by name", "aria-label": "Search clients", oninput: () => this.look() });
    this.limit = PAGE;
    this.detail = h("aside.detail.card", { "aria-label": "Client", hidden: true });
    put(this.tools, h("label.search", icon("search"), this.search));
    this.element.append(this.detail);
  }

  look() {
    clearTimeout(this.waiting);
    this.limit = PAGE;
    this.waiting = setTimeout(() => this.refresh(), 200);
  }

  read() { return get("clients", { search: this.search.value, limit: this.limit }); }

  hide() {
    super.hide();
    this.detail.hidden = true;
  }

  draw({ items, total, next }) {
    const spans = items.some(({ node }) => node !== session.node);
    put(this.body, h("p.dim", many(total, "client")),
      table([["Client", ""], ...(spans ? [["Node", "minor"]] : []), ["State", ""], ["Protocol", "minor"], ["Address", "minor"], ["Since", "minor"], ["Subscriptions", "right minor"], ["Queued", "right"], ["Place", "minor"]],
        items.map((one) => [
          h("button.quiet.link", { type: "button", onclick: () => this.open(one.id) }, one.id || "(no name)"), ...(spans ? [one.node] : []),
          one.connected ? h("span.pill.good", "connected") : h("span.pill", "away"),
          one.protocol ?? "–", h("span.num", one.address ?? "–"), one.since ? duration((Date.now() - ms(one.since)) / 1000) : "–",
          h("span.num", count(one.subscriptions)), h("span.num", count(one.queued)), one.position ? h("span.num", place(one.position)) : "–",
        ]), this.search.value ? "No client has a name like this." : "No client has a session yet."),
      next ? h("button", { type: "button", onclick: () => { this.limit += 4 * PAGE; this.refresh(); } }, "Show more") : null);
  }

  async open(id) {
    const close = () => { this.detail.hidden = true; };
    this.detail.hidden = false;
    const head = h("header.panel-head", h("div", h("h3", "Client"), h("h2.wrap", id)), tool("close", "Close", close));
    try {
      const { client, subscriptions, unread } = await get(`clients/${encodeURIComponent(id)}`);
      put(this.detail, head, h("div.panel-body",
        h("dl.facts", client.node === session.node ? null : [h("dt", "Node"), h("dd", client.node)], h("dt", "Address"), h("dd", client.address ?? "–"), h("dt", "Queued"), h("dd.num", `${count(client.queued)}`), unread ? [h("dt", "Reading"), h("dd", "it does not read what it is sent, or sends more than it may")] : null),
        h("div.actions", client.position ? h("a.button", { href: `#/map/${encodeURIComponent(id)}` }, icon("map"), "Show on the map") : null,
          isOperator() && client.connected ? kickButton(id, () => this.refresh()) : null),
        h("h3", `Subscriptions · ${subscriptions.total}`), h("ul.subs", subscriptions.items.map(subscriptionRow))));
    } catch (problem) {
      put(this.detail, head, h("p.problem", problem.message));
    }
    this.detail.querySelector("button")?.focus();
  }
}

const ms = (since) => (typeof since === "number" ? (since < 1e11 ? since * 1000 : since) : Date.parse(since));
