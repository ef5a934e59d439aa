// A subscription as a command or program that other people can run.

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const string = (text) => JSON.stringify(text);

const pairs = ({ where, area, near }) =>
  [["$where", where], ["$area", area], ["$near", near && `${near}m`]].filter(([, value]) => value);

/** By name: a function of {text, request, place} that returns the program. */
export const SNIPPETS = {
  mosquitto_sub({ text, place }) {
    const at = place ? ` \\\n  -D connect user-property lon ${place[0].toFixed(6)} -D connect user-property lat ${place[1].toFixed(6)}` : "";
    return `mosquitto_sub -h ${location.hostname} -V 5 -v${at} \\\n  -t ${quoted(text)}`;
  },

  Python({ request, place }) {
    const properties = pairs(request).map((pair) => `wanted.UserProperty = (${pair.map(string).join(", ")})`);
    const report = place ? [`    client.publish("$position", ${string(JSON.stringify({ lon: place[0], lat: place[1] }))}, qos=1)`] : [];
    return [
      "import paho.mqtt.client as mqtt",
      "from paho.mqtt.packettypes import PacketTypes",
      "from paho.mqtt.properties import Properties",
      "",
      "wanted = Properties(PacketTypes.SUBSCRIBE)",
      ...properties,
      "",
      "def on_connect(client, userdata, flags, reason, properties):",
      ...report,
      `    client.subscribe(${string(request.filter)}, options=mqtt.SubscribeOptions(qos=1), properties=wanted)`,
      "",
      "client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)",
      "client.on_connect = on_connect",
      "client.on_message = lambda client, userdata, message: print(message.topic, message.payload)",
      `client.connect(${string(location.hostname)})`,
      "client.loop_forever()",
    ].join("\n");
  },

  JavaScript({ request, place }) {
    const properties = Object.fromEntries(pairs(request));
    const report = place ? [`  client.publish("$position", ${string(JSON.stringify({ lon: place[0], lat: place[1] }))}, { qos: 1 });`] : [];
    return [
      'import mqtt from "mqtt";',
      "",
      `const client = mqtt.connect("mqtt://${location.hostname}", { protocolVersion: 5 });`,
      'client.on("connect", () => {',
      ...report,
      `  client.subscribe(${string(request.filter)}, {`,
      `    qos: 1, properties: { userProperties: ${JSON.stringify(properties, null, 1).replaceAll("\n", "")} },`,
      "  });",
      "});",
      'client.on("message", (topic, payload) => console.log(topic, payload.toString()));',
    ].join("\n");
  },
};
