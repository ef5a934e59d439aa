"""Four nodes under faults at random moments, checked message by message.

Clients with lasting sessions publish and listen at every node while nodes are killed, hang and come
back, and NATS hangs and restarts. At the end everybody has everything that was acknowledged, and
nothing of QoS 2 twice. A few seconds by default, ten minutes in a soak.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from hypothesis import settings
from paho.mqtt.enums import CallbackAPIVersion, MessageState

from nearcast.server.processes import Child, Fleet, free_port

pytestmark = pytest.mark.server

IS_SOAK = settings.default is not None and settings.default.max_examples > 50
FAULTS_S = 600.0 if IS_SOAK else 8.0
PATIENCE_S = 60.0
NAMES = ("a", "b", "c", "d")
RECORDED = (MessageState.MQTT_MS_WAIT_FOR_PUBCOMP, MessageState.MQTT_MS_RESEND_PUBREL)


class Client(paho.Client):
    """paho-mqtt, mended: it remembers over several attempts to reconnect what has been released.

    At the second attempt in a row paho 2.2 takes a message of QoS 2 whose PUBREC has come for one
    that was never sent, and publishes it anew: twice, as any broker must see it.
    """

    def _messages_reconnect_reset_out(self) -> None:
        with self._out_message_mutex:
            recorded = [one for one in self._out_messages.values() if one.state in RECORDED]
        super()._messages_reconnect_reset_out()
        for one in recorded:
            one.state = MessageState.MQTT_MS_RESEND_PUBREL


class Citizen:
    """A client with a lasting session that publishes and listens, over any number of crashes."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.got: Counter[bytes] = Counter()
        self.sent: list[bytes] = []
        self.acknowledged = 0
        self.is_subscribed = False
        self._client = Client(CallbackAPIVersion.VERSION2, client_id=name, clean_session=False)
        self._client.on_message = lambda _c, _u, m: self.got.update([bytes(m.payload)])
        self._client.on_publish = self._note_published
        self._client.on_subscribe = lambda *_: setattr(self, "is_subscribed", True)
        self._client.max_queued_messages_set(0)
        self._client.max_inflight_messages_set(200)
        self._client.reconnect_delay_set(1, 1)
        self._client.connect("127.0.0.1", port, keepalive=5)
        self._client.loop_start()
        self._client.subscribe("all/#", 2)

    def publish(self) -> None:
        qos = 1 + len(self.sent) % 2
        payload = b"%s/%d/%d" % (self.name.encode(), qos, len(self.sent))
        self.sent.append(payload)
        self._client.publish(f"all/{self.name}", payload, qos)

    def _note_published(self, *_: object) -> None:
        self.acknowledged += 1

    def is_settled(self) -> bool:
        return self.acknowledged >= len(self.sent)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


class Trouble:
    """Does harm to a network, and mends it."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.fleet = Fleet(directory)
        self.done: Counter[str] = Counter()
        self._rng = rng
        self._nats_port = free_port()
        self._address = self.fleet.start_nats(self._nats_port)
        self.ports = {name: free_port() for name in NAMES}
        for name in NAMES:
            self._start(name)
        self.fleet.wait_until_ready()

    def _start(self, name: str) -> Child:
        self.fleet.nodes = [one for one in self.fleet.nodes if one.name != name]
        return self.fleet.start_node(name, self.ports[name], self._address)

    def strike(self) -> None:
        harm = self._rng.choice([self._kill, self._kill, self._hang, self._nats_hangs, self._nats])
        self.done[harm.__name__] += 1
        harm()

    def _kill(self) -> None:
        victim = self._rng.choice(self.fleet.nodes)
        os.kill(victim.pid, signal.SIGKILL)
        victim.end(5)
        time.sleep(self._rng.uniform(0, 1))
        self._start(victim.name)
        self.fleet.wait_until_ready()

    def _hang(self) -> None:
        self._stop_for(self._rng.choice(self.fleet.nodes).pid, self._rng.choice([0.5, 3.5]))

    def _nats_hangs(self) -> None:
        assert self.fleet._nats is not None
        self._stop_for(self.fleet._nats.pid, self._rng.choice([0.5, 4.0]))

    def _nats(self) -> None:
        assert self.fleet._nats is not None
        os.kill(self.fleet._nats.pid, signal.SIGKILL)
        self.fleet._nats.end(5)
        self.fleet.start_nats(self._nats_port)

    def _stop_for(self, pid: int, seconds: float) -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def trouble(tmp_path: Path) -> Iterator[Trouble]:
    one = Trouble(tmp_path, random.Random(int(time.time()) if IS_SOAK else 3))
    yield one
    one.fleet.__exit__(None, None, None)


def wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.timeout(FAULTS_S + 240)
def test_nothing_acknowledged_is_lost_and_nothing_of_qos_2_comes_twice(trouble: Trouble):
    citizens = [Citizen(f"{name}{n}", trouble.ports[name]) for name in NAMES for n in range(2)]
    assert wait_for(lambda: all(one.is_subscribed for one in citizens))
    time.sleep(1)  # all nodes know of all subscriptions
    is_over = threading.Event()

    def publish() -> None:
        while not is_over.wait(0.02):
            for one in citizens:
                one.publish()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        deadline = time.monotonic() + FAULTS_S
        while time.monotonic() < deadline:
            trouble.strike()
            time.sleep(0.5)
    finally:
        is_over.set()
        thread.join()

    assert wait_for(lambda: all(one.is_settled() for one in citizens)), trouble.done
    sent = [payload for one in citizens for payload in one.sent]
    wait_for(lambda: all(len(one.got) >= len(sent) for one in citizens))
    time.sleep(1)
    for one in citizens:
        one.close()
    for one in citizens:
        missing = set(sent) - set(one.got)
        twice = [payload for payload, count in one.got.items() if b"/2/" in payload and count > 1]
        assert (one.name, len(missing), sorted(missing)[:5]) == (one.name, 0, [])
        assert (one.name, twice[:5]) == (one.name, [])
