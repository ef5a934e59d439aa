// The HTTP API: one function per verb, and problems as errors that people can read.

/** What the API answered instead of a result (RFC 9457). */
export class Problem extends Error {
  constructor(status, document) {
    super(document.detail || document.title || `The broker answered ${status}.`);
    this.status = status;
    this.document = document;
  }
}

/** No answer came: the broker is not there, or the network is not. */
export class Unreachable extends Error {
  constructor() {
    super("The broker does not answer.");
    this.status = 0;
  }
}

export const session = { role: null, user: null, csrf: null, login: false, positions: false };
const changed = new Set();

/** Call `listener` whenever the session has changed. */
export function onSession(listener) {
  changed.add(listener);
}

/** Take what the server said about this session. */
function take(document) {
  Object.assign(session, { user: null, csrf: null, notice: "", mqtt: null }, document);
  for (const listener of changed) listener(session);
  return session;
}

export const isOperator = () => session.role === "operator";

/** Ask who we are. */
export async function readSession() {
  return take(await get("session"));
}

/** Log in with a name and password, or with a token. */
export async function logIn(credentials) {
  return take(await call("POST", "session", credentials));
}

/** Log out; afterwards the session is a new one. */
export async function logOut() {
  await call("DELETE", "session");
  return readSession();
}

export const get = (path, query) => call("GET", withQuery(path, query));
export const post = (path, body) => call("POST", path, body ?? {});
export const remove = (path, query) => call("DELETE", withQuery(path, query));

function withQuery(path, query) {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

async function call(method, path, body) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET" && session.csrf) headers["X-CSRF-Token"] = session.csrf;
  let response;
  try {
    response = await fetch(`/api/${path}`, {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-cache",
    });
  } catch {
    throw new Unreachable();
  }
  if (response.status === 204) return null;
  const document = await response.json().catch(() => ({}));
  if (!response.ok) {
    if (response.status === 401 && path !== "session") readSession().catch(() => {});
    throw new Problem(response.status, document);
  }
  return document;
}
