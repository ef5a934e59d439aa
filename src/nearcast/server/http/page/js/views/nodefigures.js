// What the nodes of the network tell about themselves, while an operator looks.

import { isOperator } from "../api.js";
import { watch } from "../live.js";

const SILENT_MS = 7_000; // they tell it every two seconds

/** Keeps what each node told last, and before: {figures, node, before, at}. */
export class NodeFigures {
  constructor() {
    this.known = new Map();
  }

  start() {
    if (!this.stop && isOperator()) this.stop = watch("$nearcast/live/figures/+", ({ text }) => this.take(text));
  }

  end() {
    this.stop?.();
    this.stop = null;
    this.known.clear();
  }

  take(text) {
    let told;
    try {
      told = JSON.parse(text);
    } catch {
      return;
    }
    if (!told?.figures || !told.node) return;
    const { name, uptime_s: uptime } = told.figures;
    const last = this.known.get(name)?.figures;
    this.known.set(name, { ...told, before: last && last.uptime_s <= uptime ? last : null, at: Date.now() });
  }

  /** Return the nodes by name; those that have been silent are not there. */
  all() {
    return [...this.known.values()].filter(({ at }) => Date.now() - at < SILENT_MS).sort((a, b) => (a.figures.name < b.figures.name ? -1 : 1));
  }
}

/** Return a difference per second of two answers, or null. */
export function perSecond({ figures, before }, pick) {
  const seconds = before ? (figures.t - before.t) / 1000 : 0;
  return seconds > 0 ? (pick(figures) - pick(before)) / seconds : null;
}
