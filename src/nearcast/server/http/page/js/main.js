// The shell: which view is shown, who is logged in, whether the broker is there.

import { logIn, logOut, onSession, readSession, session, Unreachable } from "./api.js";
import { h, icon, put, tool } from "./dom.js";
import { connect, disconnect, liveState, onState } from "./live.js";
import { isDark, onTheme, switchTheme } from "./theme.js";
import { LoginView } from "./views/login.js";

const VIEWS = [
  ["map", "Map"], ["try", "Try it"], ["overview", "Overview"], ["clients", "Clients"],
  ["topics", "Topics"], ["nodes", "Nodes"], ["learning", "Learning"], ["log", "Log"],
];
const MAIN = new Set(["map", "try", "overview", "clients"]); // always in the bar of a phone
const LOADERS = {
  map: () => import("./views/map.js").then(({ MapView }) => new MapView()),
  overview: () => import("./views/overview.js").then(({ OverviewView }) => new OverviewView()),
  clients: () => import("./views/clients.js").then(({ ClientsView }) => new ClientsView()),
  topics: () => import("./views/topics.js").then(({ TopicsView }) => new TopicsView()),
  nodes: () => import("./views/nodes.js").then(({ NodesView }) => new NodesView()),
  learning: () => import("./views/learning.js").then(({ LearningView }) => new LearningView()),
  log: () => import("./views/log.js").then(({ LogView }) => new LogView()),
};
const content = document.getElementById("content");
const tabs = document.querySelector(".tabs");
const status = document.querySelector(".status");
const notices = document.querySelector(".notices");
const views = new Map();
let shown = null;
let wanted = "";
let who = null;

const routeOf = () => {
  const name = /^#\/(\w+)/.exec(location.hash)?.[1];
  return VIEWS.some(([view]) => view === name) ? name : "map";
};

/** Return a view, made once; the map and "Try it" are one. */
function view(route) {
  const name = route === "try" ? "map" : route;
  if (!views.has(name)) views.set(name, LOADERS[name]().catch((problem) => { views.delete(name); throw problem; }));
  return views.get(name);
}

async function go() {
  const route = session.role === null ? "login" : routeOf();
  wanted = route;
  drawTabs(route);
  let next;
  try {
    next = route === "login" ? login : await view(route);
  } catch {
    return tellNotices("This part of the page could not be loaded.");
  }
  if (wanted !== route) return;
  if (shown !== next) {
    shown?.hide?.();
    content.replaceChildren(next.element);
    content.scrollTop = 0;
  }
  shown = next;
  document.title = `${VIEWS.find(([name]) => name === route)?.[1] ?? "Log in"} · Nearcast`;
  next.show?.(route);
}

function drawTabs(route) {
  tabs.hidden = route === "login";
  tabs.classList.remove("open");
  put(tabs, VIEWS.map(([name, text]) => h(`a.tab${MAIN.has(name) ? "" : ".minor"}`, { href: `#/${name}`, "aria-current": name === route ? "page" : null }, icon(name), h("span", text))),
    h("button.tab.tab-more", { type: "button", onclick: () => tabs.classList.toggle("open"), "aria-label": "More views" }, icon("more"), h("span", "More")));
}

const STATES = { up: "Live", connecting: "Connecting", lost: "No connection", off: "Off" };

function drawStatus() {
  const state = liveState();
  put(status,
    session.role ? h("span.pill.live", { title: `Node ${session.node}, Nearcast ${session.version}` }, h(`i.led.${state}`), h("span", STATES[state])) : null,
    session.role ? h("span.pill.role", session.user ? `${session.user} · ${session.role}` : session.role) : null,
    tool(isDark() ? "sun" : "moon", isDark() ? "Light colours" : "Dark colours", switchTheme, { class: "quiet tool" }),
    session.user ? h("button.quiet", { type: "button", onclick: leave }, "Log out")
      : session.role && session.login ? h("button.quiet", { type: "button", onclick: () => { session.role = null; go(); drawStatus(); } }, "Log in") : null);
}

function tellNotices(trouble = "") {
  const lost = liveState() === "lost" ? "The broker does not answer. This page tries again every second." : "";
  put(notices, [trouble || lost].filter(Boolean).map((text) => h("div.notice.bad", h("span", text))),
    session.notice && sessionStorage.getItem("notice") !== session.notice
      ? h("div.notice", h("span", session.notice), h("button.quiet", { type: "button", onclick: () => { sessionStorage.setItem("notice", session.notice); tellNotices(); } }, "Understood")) : null);
}

async function leave() {
  disconnect();
  await logOut().catch(() => {});
}

/** Where the session is another one than before, everything begins anew. */
async function sessionChanged() {
  const now = JSON.stringify([session.role, session.user, session.node, session.positions]);
  if (now !== who) {
    who = now;
    disconnect();
    for (const made of views.values()) (await made).reset?.();
    shown?.hide?.();
    shown = null;
    if (session.role) connect().catch(() => tellNotices("The MQTT client could not be loaded."));
  }
  drawStatus();
  tellNotices();
  go();
}

/** Take the token out of the address, so that it is neither kept nor copied with it. */
async function tokenFromAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const token = given.get("token");
  if (given.has("demo")) sessionStorage.setItem("demo", "yes");
  if (!token && !given.has("demo")) return false;
  history.replaceState(null, "", `${location.pathname}#/map`);
  if (token) await logIn({ token });
  return Boolean(token);
}

async function begin() {
  try {
    if (!(await tokenFromAddress())) await readSession();
  } catch (problem) {
    if (!(problem instanceof Unreachable)) return readSession().catch(begin);
    tellNotices("The broker does not answer. This page tries again every second.");
    setTimeout(begin, 1000);
  }
}

const login = new LoginView();
addEventListener("hashchange", go);
onSession(sessionChanged);
onTheme(drawStatus);
let wasLost = false;
onState((state) => {
  drawStatus();
  tellNotices();
  if (state === "up" && wasLost) readSession().catch(() => {}); // the broker may have other settings
  wasLost = state === "lost" || (wasLost && state !== "up");
});
// A broker refuses the socket of a login that has ended meanwhile: ask who we are.
setInterval(() => liveState() === "lost" && readSession().catch(() => {}), 3000);
begin();

/** For tests, which have to know where on the screen a place is. */
export const testing = { map: () => view("map"), view };
