// Small line charts, as SVG.

import { svg } from "../dom.js";

const [WIDTH, HEIGHT] = [260, 56];

/** Return a chart of values over the last minutes; several series share the scale. */
export function chart(series, label) {
  const most = Math.max(1e-9, ...series.flatMap(({ values }) => values.filter(Number.isFinite)));
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": label, preserveAspectRatio: "none" },
    svg("line", { x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5, class: "chart-axis" }),
    series.map(({ values, kind, room = Math.max(30, values.length) }) => {
      const points = values.map((value, i) => [WIDTH - ((values.length - 1 - i) * WIDTH) / (room - 1), HEIGHT - 2 - (value / most) * (HEIGHT - 6)]).filter(([, y]) => Number.isFinite(y));
      if (points.length < 2) return null;
      const line = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
      return [svg("polygon", { class: `chart-fill ${kind}`, points: `${points[0][0]},${HEIGHT} ${line} ${WIDTH},${HEIGHT}` }), svg("polyline", { class: `chart-line ${kind}`, points: line })];
    }));
}
