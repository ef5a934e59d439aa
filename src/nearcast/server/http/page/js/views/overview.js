// Overview: what goes through this node, what waits, what was dropped, what it costs.

import { get } from "../api.js";
import { h, put } from "../dom.js";
import { bytes, count, duration, milliseconds, rate } from "../format.js";
import { chart } from "./charts.js";
import { NodeFigures, perSecond } from "./nodefigures.js";
import { PolledView, table } from "./polled.js";

const SAMPLES = 90;
const EVERY_MS = 2000;
const REASONS = {
  slow: "the client reads too slowly", quota: "a quota was used up", expired: "too old", too_large: "larger than the client takes",
  forbidden: "rules", ended: "the session ended", no_member: "no member of the share group", invalid: "cannot be sent on",
};

/** The view at #/overview. */
export class OverviewView extends PolledView {
  constructor() {
    super("Overview", EVERY_MS);
    this.samples = [];
    this.nodes = new NodeFigures();
  }

  show() {
    const read = super.show();
    this.nodes.start();
    return read;
  }

  hide() {
    super.hide();
    this.nodes.end();
  }

  read() { return get("overview"); }

  reset() {
    super.reset();
    this.samples = [];
  }

  draw(now) {
    if (this.samples.at(-1)?.uptime_s > now.uptime_s) this.samples = []; // it was restarted
    this.samples.push(now);
    if (this.samples.length > SAMPLES + 1) this.samples.shift();
    const per = (pick) => this.samples.slice(1).map((one, i) => (pick(one) - pick(this.samples[i])) / ((one.t - this.samples[i].t) / 1000));
    const [received, sent] = [per((one) => one.counters.publish_received ?? one.received), per((one) => one.counters.publish_sent ?? one.sent)];
    const cpu = per((one) => one.cpu_seconds).map((share) => share * 100);
    const dropped = per(({ dropped: all }) => sum(all));
    const state = (pick) => this.samples.map(pick);
    put(this.tools, h("span.pill", `${now.name} · ${now.version}`), h("span.pill", `up ${duration(now.uptime_s)}`));
    put(this.body,
      h("div.cards",
        card("Published", rate(received.at(-1)), "messages/s received", chart([{ values: received, kind: "accent" }], "Messages received per second")),
        card("Delivered", rate(sent.at(-1)), "messages/s sent", chart([{ values: sent, kind: "event" }], "Messages sent per second")),
        card("Clients", count(now.connected), `connected · ${count(now.clients - now.connected)} away`, chart([{ values: state((one) => one.connected), kind: "accent" }], "Connected clients")),
        card("Queued", count(now.queued), `messages wait · ${bytes(now.held_bytes)}`, chart([{ values: state((one) => one.queued), kind: "event" }], "Messages that wait")),
        card("CPU", cpu.length ? `${cpu.at(-1).toFixed(0)} %` : "–", "of one core", chart([{ values: cpu, kind: "accent" }], "CPU of the broker")),
        card("Memory", bytes(now.rss_bytes), "resident", chart([{ values: state((one) => one.rss_bytes), kind: "accent" }], "Memory of the broker")),
        card("Latency", milliseconds(now.latency_ms?.p50), `median · 99 %: ${milliseconds(now.latency_ms?.p99)}`, note("From reading a message to writing its copies, since the start.")),
        card("Dropped", rate(dropped.at(-1)), "messages/s", chart([{ values: dropped, kind: "event" }], "Messages dropped per second"))),
      h("div.columns",
        h("section.card.pad", h("h3", "Dropped since the start, by reason"), bars(now.dropped)),
        h("section.card.pad", h("h3", "In store"), h("dl.facts",
          facts(["Subscriptions", count(now.subscriptions)], ["Retained messages", count(now.retained)], ["Received", `${count(now.counters.publish_received)} messages, ${bytes(now.bytes_received)}`],
            ["Sent", `${count(now.counters.publish_sent)} messages, ${bytes(now.bytes_sent)}`], ["Positions", count(now.counters.positions)], ["Protocol errors", count(now.counters.protocol_errors)],
            ["Event loop late by", `${milliseconds(now.loop_delay_ms?.p50)} · 99 %: ${milliseconds(now.loop_delay_ms?.p99)}`])))),
      this.byNode());
  }

  /** What the nodes of a network do, side by side; the cards above are those of this node. */
  byNode() {
    const nodes = this.nodes.all();
    if (nodes.length < 2) return null;
    const columns = [["Node", ""], ...["Published/s", "Delivered/s", "Clients", "Queued", "Dropped/s", "Latency, median", "99 %", "CPU", "Memory"].map((name) => [name, "right"])];
    const cells = (one) => [
      rate(perSecond(one, ({ received }) => received)), rate(perSecond(one, ({ sent }) => sent)), count(one.figures.connected), count(one.figures.queued),
      rate(perSecond(one, ({ dropped }) => sum(dropped))), milliseconds(one.figures.latency_ms.p50), milliseconds(one.figures.latency_ms.p99),
      percent(perSecond(one, ({ cpu_seconds: seconds }) => seconds)), bytes(one.figures.rss_bytes)];
    return h("section", h("h2", "By node"), table(columns, nodes.map((one) => [one.figures.name, ...cells(one).map((text) => h("span.num", text))]), ""));
  }
}

const sum = (all) => Object.values(all).reduce((total, value) => total + value, 0);
const percent = (share) => (share === null ? "–" : `${(share * 100).toFixed(0)} %`);
const facts = (...rows) => rows.map(([name, value]) => [h("dt", name), h("dd.num", value)]);
const card = (title, figure, words, picture) => h("section.card.figure", h("h3", title), h("p", h("b.big.num", figure), h("span.dim", words)), picture);
const note = (text) => h("p.dim.small", text);

function bars(dropped) {
  const rows = Object.entries(dropped).filter(([, value]) => value > 0).sort(([, a], [, b]) => b - a);
  if (!rows.length) return h("p.dim", "Nothing was dropped.");
  return h("ul.bars", rows.map(([reason, value]) => {
    const bar = h("i");
    bar.style.width = `${(100 * value) / rows[0][1]}%`;
    return h("li", h("span", reason, h("span.dim", `  ${REASONS[reason] ?? ""}`)), h("b.num", count(value)), h("div.bar", bar));
  }));
}
