// Live data: a stock MQTT client on the WebSocket of this server. The page is a client like any other.

import { session } from "./api.js";

const states = new Set();
const subscriptions = new Map(); // filter as subscribed -> {identifier, handlers, answer}
const decoder = new TextDecoder();
let client = null;
let lastIdentifier = 0;
let state = "off";

/** Return "off", "connecting", "up" or "lost". */
export const liveState = () => state;

/** Call `listener(state)` now and whenever the connection changes. */
export function onState(listener) {
  states.add(listener);
  listener(state);
}

function become(next) {
  if (next === state) return;
  state = next;
  for (const listener of states) listener(state);
}

/** Connect, unless the connection of this session is there already. */
export async function connect() {
  if (client || !session.mqtt) return;
  become("connecting");
  const { default: mqtt } = await import("../vendor/mqtt.js");
  if (client || !session.mqtt) return;
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const ours = mqtt.connect(`${scheme}://${location.host}${session.mqtt.path}`, {
    clientId: `page-${crypto.getRandomValues(new Uint32Array(2)).join("")}`,
    protocolVersion: 5, clean: true, keepalive: 30, connectTimeout: 8000, reconnectPeriod: 1000,
    resubscribe: false, queueQoSZero: false, timerVariant: "native",
  });
  client = ours;
  ours.on("connect", () => {
    for (const [filter, known] of subscriptions) subscribe(filter, known);
    become("up");
  });
  ours.on("close", () => client === ours && become("lost"));
  ours.on("error", () => {}); // "close" follows
  ours.on("message", (topic, payload, packet) => deliver(topic, payload, packet));
}

/** Disconnect; `connect` begins again, for example as somebody else. */
export function disconnect() {
  client?.end(true);
  client = null;
  become("off");
}

/**
 * Subscribe, and call `handler({topic, text, packet})` for each message; returns how to stop.
 * `answer(code, reason)` gets the broker's answer to each SUBSCRIBE.
 */
export function watch(filter, handler, answer) {
  const known = subscriptions.get(filter) ?? { identifier: ++lastIdentifier, handlers: new Set(), answer };
  const isNew = !known.handlers.size;
  known.handlers.add(handler);
  subscriptions.set(filter, known);
  if (isNew && state === "up") subscribe(filter, known);
  return () => {
    if (!known.handlers.delete(handler) || known.handlers.size) return;
    subscriptions.delete(filter);
    if (state === "up") client.unsubscribe(filter);
  };
}

function subscribe(filter, { identifier, answer }) {
  const properties = { subscriptionIdentifier: identifier };
  client.subscribe(filter, { qos: 0, properties }, (error, granted, packet) => {
    const code = packet?.granted?.[0] ?? (error ? 0x80 : 0);
    answer?.(code, packet?.properties?.reasonString ?? error?.message ?? "");
  });
}

/** Hand a message to the subscriptions that it came for: the broker names their identifiers. */
function deliver(topic, payload, packet) {
  const identifiers = [packet.properties?.subscriptionIdentifier ?? []].flat();
  const message = { topic, text: decoder.decode(payload), packet };
  for (const { identifier, handlers } of subscriptions.values())
    if (identifiers.includes(identifier)) for (const handler of handlers) handler(message);
}

/** Publish; resolves when the broker has acknowledged (QoS 1). */
export function publish(topic, payload, { qos = 1, properties, retain = false } = {}) {
  if (state !== "up") return Promise.reject(new Error("There is no connection to the broker."));
  return client.publishAsync(topic, payload, { qos, retain, properties: properties && { userProperties: properties } });
}
