"""Real clients talk through a real broker: paho, aiomqtt, gmqtt, Mosquitto's, mqtt.js."""

from __future__ import annotations

import asyncio
import os
import queue
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.server

paho = pytest.importorskip("paho.mqtt.client", reason="paho-mqtt is not installed")

WAIT_S = 60  # for what must come; on a good day nobody waits
DOORS = ("tcp", "tls", "ws", "wss")


class Paho:
    """A paho client with an inbox."""

    def __init__(
        self, broker: Any, door: str, version: int, certificates: Path, **options: Any
    ) -> None:
        from paho.mqtt.enums import CallbackAPIVersion

        transport = "websockets" if door.startswith("ws") else "tcp"
        clean = {} if version == 5 else {"clean_session": True}
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            protocol=version,
            transport=transport,
            **{**clean, **options},
        )
        self.inbox: queue.Queue[Any] = queue.Queue()
        self.events: queue.Queue[str] = queue.Queue()
        if door.startswith("ws"):
            self.client.ws_set_options(path="/mqtt")
        if door in ("tls", "wss"):
            self.client.tls_set(str(certificates / "ca.pem"), tls_version=ssl.PROTOCOL_TLS_CLIENT)
        self.client.on_message = lambda _c, _u, message: self.inbox.put(message)
        self.client.on_connect = lambda *_: self.events.put("connected")
        self.client.on_subscribe = lambda *_: self.events.put("subscribed")
        self.port = broker.ports[door]

    def connect(self) -> Paho:
        self.client.connect("127.0.0.1", self.port)
        self.client.loop_start()
        assert self.events.get(timeout=WAIT_S) == "connected"
        return self

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self.client.subscribe(topic_filter, qos)
        assert self.events.get(timeout=WAIT_S) == "subscribed"

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("door", DOORS)
def test_paho(all_listeners: Any, certificates: Path, door: str, version: int) -> None:
    receiver = Paho(all_listeners, door, version, certificates).connect()
    receiver.subscribe("a/#", 2)
    sender = Paho(all_listeners, door, version, certificates).connect()
    expected = []
    for qos in (0, 1, 2):
        for size in (0, 10, 100_000):
            payload = bytes([qos]) * size
            sender.client.publish("a/b", payload, qos).wait_for_publish(WAIT_S)
            expected.append((qos, payload))
    received = [receiver.inbox.get(timeout=WAIT_S) for _ in expected]
    for one in (sender, receiver):
        one.close()

    assert sorted((one.qos, bytes(one.payload)) for one in received) == sorted(expected)


def test_paho_retained_will_and_lasting_session(all_listeners: Any, certificates: Path) -> None:
    doomed = Paho(all_listeners, "tcp", 4, certificates)
    doomed.client.will_set("will", b"gone", 1, retain=True)
    doomed.connect()
    options = {"client_id": "lasting", "clean_session": False}
    lasting = Paho(all_listeners, "tcp", 4, certificates, **options).connect()
    lasting.subscribe("q/#", 2)
    lasting.close()
    sock = doomed.client.socket()
    doomed.client.loop_stop()
    sock.close()
    sender = Paho(all_listeners, "tcp", 4, certificates).connect()
    for qos in (1, 2):
        sender.client.publish("q/x", b"%d" % qos, qos).wait_for_publish(WAIT_S)
    again = Paho(all_listeners, "tcp", 4, certificates, **options).connect()
    assert [again.inbox.get(timeout=WAIT_S).payload for _ in "12"] == [b"1", b"2"]

    reader = Paho(all_listeners, "tcp", 5, certificates).connect()
    reader.subscribe("will", 1)
    message = reader.inbox.get(timeout=WAIT_S)
    for one in (sender, again, reader):
        one.close()
    assert (message.payload, bool(message.retain)) == (b"gone", True)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("door", ["tcp", "tls", "ws"])
async def test_aiomqtt(all_listeners: Any, certificates: Path, door: str, version: int) -> None:
    aiomqtt = pytest.importorskip("aiomqtt", reason="aiomqtt is not installed")
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    options: dict[str, Any] = {
        "hostname": "127.0.0.1",
        "port": all_listeners.ports[door],
        "protocol": aiomqtt.ProtocolVersion.V5 if version == 5 else aiomqtt.ProtocolVersion.V311,
    }
    if door == "tls":
        options["tls_context"] = context
    if door == "ws":
        options |= {"transport": "websockets", "websocket_path": "/mqtt"}
    async with aiomqtt.Client(**options) as receiver, aiomqtt.Client(**options) as sender:
        await receiver.subscribe("a/+", qos=2)
        for qos in (0, 1, 2):
            await sender.publish("a/b", b"%d" % qos, qos=qos)
        received = []
        async with asyncio.timeout(WAIT_S):
            async for message in receiver.messages:
                received.append((message.qos, message.payload))
                if len(received) == 3:
                    break

    assert sorted(received) == [(0, b"0"), (1, b"1"), (2, b"2")]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.filterwarnings("ignore")  # gmqtt uses what Python will drop
async def test_gmqtt(all_listeners: Any, version: int) -> None:
    gmqtt = pytest.importorskip("gmqtt", reason="gmqtt is not installed")
    received: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
    subscribed = asyncio.Event()
    receiver, sender = gmqtt.Client("gmqtt-r"), gmqtt.Client("gmqtt-s")

    def on_message(_client: Any, _topic: str, payload: bytes, qos: int, _properties: Any) -> int:
        received.put_nowait((qos, payload))
        return 0

    receiver.on_message = on_message
    receiver.on_subscribe = lambda *_: subscribed.set()
    for client in (receiver, sender):
        await client.connect("127.0.0.1", all_listeners.port, version=version)
    receiver.subscribe("a/#", qos=2)
    async with asyncio.timeout(WAIT_S):
        await subscribed.wait()
        for qos in (0, 1, 2):
            sender.publish("a/b", b"%d" % qos, qos=qos)
        seen = [await received.get() for _ in range(3)]
    for client in (sender, receiver):
        await client.disconnect()

    assert sorted(seen) == [(0, b"0"), (1, b"1"), (2, b"2")]


@pytest.mark.skipif(
    shutil.which("mosquitto_sub") is None, reason="Mosquitto is not installed (make setup)"
)
@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
@pytest.mark.parametrize("door", ["tcp", "tls"])
def test_mosquitto_clients(all_listeners: Any, certificates: Path, door: str, version: str) -> None:
    common = ["-h", "127.0.0.1", "-p", str(all_listeners.ports[door]), "-V", version]
    if door == "tls":
        common += ["--cafile", str(certificates / "ca.pem")]
    for qos in ("0", "1", "2"):
        publish = ["mosquitto_pub", *common, "-q", qos, "-t"]
        ready = [*publish, f"m{qos}/ready", "-r", "-m", "subscribed"]
        subprocess.run(ready, check=True, timeout=WAIT_S)
        subscriber = subprocess.Popen(
            ["mosquitto_sub", *common, "-t", f"m{qos}/#", "-q", qos, "-C", "4", "-W", str(WAIT_S)],
            stdout=subprocess.PIPE,
        )
        assert subscriber.stdout is not None
        assert subscriber.stdout.readline() == b"subscribed\n"
        subprocess.run(
            [*publish, f"m{qos}/x", "-l"],
            input=b"one\ntwo\nthree\n",
            check=True,
            timeout=WAIT_S,
        )
        said, _ = subscriber.communicate(timeout=WAIT_S)
        assert said == b"one\ntwo\nthree\n"


_MQTT_JS = """
const mqtt = require('mqtt');
const [url, version] = [process.argv[1], parseInt(process.argv[2])];
const options = {protocolVersion: version, rejectUnauthorized: false};
const receiver = mqtt.connect(url, options);
let count = 0;
receiver.on('connect', () => receiver.subscribe('js/#', {qos: 2}, () => {
  const sender = mqtt.connect(url, options);
  sender.on('connect', () => [0, 1, 2].forEach(qos => sender.publish('js/x', '' + qos, {qos})));
  receiver.on('message', (topic, payload, packet) => {
    console.log(topic, payload.toString(), packet.qos);
    if (++count === 3) { sender.end(); receiver.end(); }
  });
}));
"""


def _has_mqtt_js() -> bool:
    if shutil.which("node") is None:
        return False
    found = subprocess.run(
        ["node", "-e", "require.resolve('mqtt')"],
        capture_output=True,
        check=False,
    )
    return found.returncode == 0


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("door", DOORS)
def test_mqtt_js(all_listeners: Any, door: str, version: int) -> None:
    if not _has_mqtt_js():
        pytest.skip("mqtt.js is not installed (make setup)")
    scheme = {"tcp": "mqtt", "tls": "mqtts"}.get(door, door)
    path = "/mqtt" if door.startswith("ws") else ""
    done = subprocess.run(
        [
            "node",
            "-e",
            _MQTT_JS,
            f"{scheme}://127.0.0.1:{all_listeners.ports[door]}{path}",
            str(version),
        ],
        env={**os.environ, "NODE_NO_WARNINGS": "1"},
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
        check=True,
    )

    assert sorted(done.stdout.splitlines()) == ["js/x 0 0", "js/x 1 1", "js/x 2 2"]
