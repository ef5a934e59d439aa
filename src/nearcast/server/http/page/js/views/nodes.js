// Nodes and links: who acts as one broker with this node, and how causal order is doing.

import { get } from "../api.js";
import { h, put, svg } from "../dom.js";
import { count, milliseconds } from "../format.js";
import { NodeFigures } from "./nodefigures.js";
import { PolledView, table } from "./polled.js";

/** The view at #/nodes. */
export class NodesView extends PolledView {
  constructor() {
    super("Nodes and links", 3000);
    this.figures = new NodeFigures();
  }

  show() {
    const read = super.show();
    this.figures.start();
    return read;
  }

  hide() {
    super.hide();
    this.figures.end();
  }

  async read() {
    const [nodes, causal] = await Promise.all([get("nodes"), get("causal-groups")]);
    const told = new Map(this.figures.all().map(({ node }) => [node.name, node]));
    const whole = (one) => (one.here ? one : { ...one, ...told.get(one.name), here: false, state: one.state });
    return { nodes: { ...nodes, nodes: nodes.nodes.map(whole) }, causal };
  }

  draw({ nodes: { network, problem, nodes }, causal }) {
    put(this.tools, network ? h("span.pill", `network ${network}`) : h("span.pill", "one node"));
    const links = nodes.flatMap((node) => node.links.map((link) => ({ from: node.name, ...link })));
    put(this.body, problem ? h("p.problem", problem) : null,
      h("div.columns", h("section.card.pad.ring", drawing(nodes, links)),
        h("section", table([["Node", ""], ["State", ""], ["Connected", "right"], ["Plan", "right minor"], ["Handovers", "right minor"], ["Messages out", "right"]],
          nodes.map((one) => [h("span", one.name, one.here ? h("span.dim", "  this one") : null), h(`span.pill.${["serves", "connected"].includes(one.state) ? "good" : "bad"}`, one.state),
            num(one.connected), one.plan ?? "–", num(one.handovers), num(one.messages_sent)]), "No node."))),
      h("section", h("h2", "Links"), table([["From", ""], ["To", ""], ["State", ""], ["Way", "minor"], ["Clock differs by", "right minor"], ["Delay", "right"], ["Restarts", "right minor"]],
        links.map((one) => [one.from, one.to, [h(`span.pill.${one.up && !one.problem ? "good" : "bad"}`, one.up ? "up" : "down"), one.problem ? h("div.small.wrap", one.problem) : null],
          one.direct ? "direct" : "over NATS", h("span.num", one.up ? milliseconds(one.skew_ms) : "–"), h("span.num", one.up ? milliseconds(one.delay_ms) : "–"), num(one.restarts)]),
        network ? "No link to another node yet." : "One node has no links. Several nodes act as one broker: nearcast up --nodes 4, or nearcast serve --join nats://…")),
      h("section", h("h2", "Causal groups"), table([["Group", ""], ["Topics", "grow"], ["Waiting", "right"], ["Waited", "right"], ["Expired", "right"], ["Discarded", "right"]],
        causal.items.map((one) => [one.group, h("code.wrap", [one.topics].flat().join(" ")), num(one.waiting), num(one.waited), num(one.expired), num(one.discarded)]), "No space has causal order.")));
  }
}

const num = (value) => h("span.num", count(value));

/** Draw the nodes in a ring, and the links that this one knows. */
function drawing(nodes, links) {
  const spot = new Map(nodes.map(({ name }, i) => {
    const angle = (i / nodes.length) * 2 * Math.PI - Math.PI / 2;
    return [name, nodes.length === 1 ? [150, 90] : [150 + 95 * Math.cos(angle), 90 + 58 * Math.sin(angle)]];
  }));
  return svg("svg", { viewBox: "0 0 300 190", class: "nodes", role: "img", "aria-label": `${nodes.length} nodes, ${links.filter(({ up }) => up).length} links up` },
    links.filter(({ from, to }) => spot.has(from) && spot.has(to)).map(({ from, to, up }) =>
      svg("line", { x1: spot.get(from)[0], y1: spot.get(from)[1], x2: spot.get(to)[0], y2: spot.get(to)[1], class: up ? "link up" : "link down" })),
    nodes.map(({ name, here, state }) => {
      const [x, y] = spot.get(name);
      return svg("g", svg("circle", { cx: x, cy: y, r: here ? 13 : 10, class: `node ${["serves", "connected"].includes(state) ? "up" : "down"}` }),
        svg("text", { x, y: y + 27, "text-anchor": "middle", class: "node-name" }, name));
    }));
}
