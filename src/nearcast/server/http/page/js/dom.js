// Builds elements. Text goes in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

/** Return an element: `h("button.primary", {type: "button", onclick}, "Send", child)`. */
export function h(spec, ...parts) {
  const [tag, ...classes] = spec.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  return fill(element, parts);
}

/** Return an SVG element; attributes and children as with `h`. */
export function svg(tag, ...parts) {
  return fill(document.createElementNS(SVG, tag), parts);
}

function fill(element, parts) {
  for (const part of parts.flat(Infinity)) {
    if (part === null || part === undefined || part === false) continue;
    if (part instanceof Node) element.append(part);
    else if (typeof part === "object") setAll(element, part);
    else element.append(String(part));
  }
  return element;
}

function setAll(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "hidden") element[name] = value;
    else if (value !== null && value !== undefined && value !== false)
      element.setAttribute(name, value === true ? "" : String(value));
  }
}

/** Replace all children of an element. */
export function put(element, ...parts) {
  element.replaceChildren();
  return fill(element, parts);
}

/** Return one of the icons, drawn with strokes on a grid of 24. */
export function icon(name) {
  return svg(
    "svg",
    { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" },
    (ICONS[name] ?? []).map((d) => svg("path", { d })),
  );
}

/** Return a button that is an icon; `title` says what it does. */
export function tool(name, title, onclick, attributes = {}) {
  return h("button.tool", { type: "button", title, "aria-label": title, onclick, ...attributes }, icon(name));
}

const ICONS = {
  map: ["M9 4 3 6v14l6-2 6 2 6-2V4l-6 2-6-2Z", "M9 4v14", "M15 6v14"],
  try: ["M5 19 15 9", "m14 4 1.2 2.8L18 8l-2.8 1.2L14 12l-1.2-2.8L10 8l2.8-1.2L14 4Z", "M19 14v4", "M17 16h4"],
  overview: ["M4 19V5", "M4 19h16", "m7 15 4-5 3 3 5-7"],
  clients: ["M9 11a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7Z", "M3 20c0-3.5 2.5-6 6-6s6 2.5 6 6", "M16 4.5a3.5 3.5 0 0 1 0 6", "M18 14.5c2 .8 3 2.8 3 5.5"],
  topics: ["M10 4 8 20", "M16 4l-2 16", "M4.5 9h16", "M3.5 15h16"],
  nodes: ["M12 8a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5Z", "M5 21a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5Z", "M19 21a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5Z", "M11 8 6.2 16.2", "m13 8 4.8 8.2", "M7.5 18.5h9"],
  learning: ["M4 5h7v6H4z", "M13 5h7v3.5h-7z", "M13 11h7v8h-7z", "M4 13.5h7V19H4z"],
  log: ["M6 3h9l4 4v14H6z", "M14.5 3v4.5H19", "M9 12h7", "M9 16h7"],
  more: ["M5 12h.01", "M12 12h.01", "M19 12h.01"],
  close: ["M6 6l12 12", "M18 6 6 18"],
  sun: ["M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8Z", "M12 2.5v2", "M12 19.5v2", "M2.5 12h2", "M19.5 12h2", "m5.3 5.3 1.4 1.4", "m17.3 17.3 1.4 1.4", "m5.3 18.7 1.4-1.4", "m17.3 6.7 1.4-1.4"],
  moon: ["M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5Z"],
  plus: ["M12 5v14", "M5 12h14"],
  minus: ["M5 12h14"],
  fit: ["M4 9V4h5", "M20 9V4h-5", "M4 15v5h5", "M20 15v5h-5"],
  layers: ["m12 3 9 5-9 5-9-5 9-5Z", "m3 12.5 9 5 9-5", "m3 16.5 9 5 9-5"],
  play: ["M7 4.5v15l12-7.5-12-7.5Z"],
  pause: ["M8 5v14", "M16 5v14"],
  circle: ["M12 20a8 8 0 1 0 0-16 8 8 0 0 0 0 16Z", "M12 12h.01"],
  box: ["M4 6h16v12H4z"],
  polygon: ["m5 9 7-5 7 6-2.5 9H7z"],
  copy: ["M9 9h11v11H9z", "M15 9V4H4v11h5"],
  search: ["M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14Z", "m16.2 16.2 4.3 4.3"],
  follow: ["M12 17a5 5 0 1 0 0-10 5 5 0 0 0 0 10Z", "M12 2.5v4", "M12 17.5v4", "M2.5 12h4", "M17.5 12h4"],
};
