"""Wills over nodes: who is lost at one node is told of at the others, once, and only if lost."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions
from tests.support.real_cluster import RealCluster
from tests.support.waiting import WAIT_S, wait_for

pytestmark = pytest.mark.server

LASTING_S = 3_600
DELAY_S = 4

Got = tuple[str, bytes, bool]


def properties(kind: int, **values: Any) -> Properties:
    out = Properties(kind)
    for name, value in values.items():
        setattr(out, name, value)
    return out


class Guest:
    """A client of MQTT 5 that may have a will, and may be lost."""

    def __init__(self, name: str = "") -> None:
        self.got: queue.Queue[Got] = queue.Queue()
        self.was_known = False
        self._name = name
        self._subscribed = threading.Event()
        self._client: paho.Client | None = None

    def come(
        self, port: int, *, will: str = "", delay_s: int = 0, expiry_s: int = LASTING_S
    ) -> Guest:
        """Connect, with a will for this topic, to a session that is there or a new one."""
        welcome = threading.Event()
        client = paho.Client(CallbackAPIVersion.VERSION2, self._name, protocol=paho.MQTTv5)

        def on_connect(_c: Any, _u: Any, flags: Any, reason: Any, _p: Any) -> None:
            assert not reason.is_failure
            self.was_known = flags.session_present
            welcome.set()

        client.on_connect = on_connect
        client.on_message = lambda _c, _u, one: self.got.put(
            (one.topic, bytes(one.payload), one.retain)
        )
        client.on_subscribe = lambda *_: self._subscribed.set()
        if will:
            delay = properties(PacketTypes.WILLMESSAGE, WillDelayInterval=delay_s)
            client.will_set(will, b"gone", 2, retain=True, properties=delay)
        session = properties(PacketTypes.CONNECT, SessionExpiryInterval=expiry_s)
        client.connect("127.0.0.1", port, clean_start=False, properties=session)
        client.loop_start()
        assert welcome.wait(WAIT_S)
        self._client = client
        return self

    @property
    def client(self) -> paho.Client:
        assert self._client is not None
        return self._client

    def subscribe(self, topic_filter: str) -> None:
        self._subscribed.clear()
        self.client.subscribe(topic_filter, options=SubscribeOptions(2))
        assert self._subscribed.wait(WAIT_S)

    def publish(self, topic: str) -> None:
        self.client.publish(topic, b"", 2).wait_for_publish(WAIT_S)  # QoS 1 may come twice

    def fall_silent(self) -> None:
        """Stay connected, but neither hear nor say anything any more, nor come again."""
        self.client.loop_stop()

    def vanish(self) -> None:
        """Lose the connection."""
        self.fall_silent()
        connection = self.client.socket()
        assert connection is not None
        connection.close()

    def leave(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


class Pair:
    """Two nodes over NATS that keep their state, and a client that listens at the second one."""

    def __init__(self, directory: Path) -> None:
        self.cluster = RealCluster(directory, '[durability]\nmode = "process"\n')
        self.cluster.start("a", "b")
        self.cluster.join("a", "b")
        self.ports = self.cluster.ports
        self.listener = Guest("listener").come(self.ports["b"])
        self.listener.subscribe("wills/#")

    def kill(self, name: str) -> None:
        self.cluster.kill(name)

    def restart(self, name: str) -> None:
        self.cluster.start(name)
        self.cluster.join("a", "b")

    def heard_until(self, topic: str) -> list[Got]:
        """Return what the listener gets up to what comes on a topic, which must come."""
        out = [self.listener.got.get(timeout=WAIT_S)]
        while out[-1][0] != topic:
            out.append(self.listener.got.get(timeout=WAIT_S))
        return out

    def heard_by_now(self) -> list[Got]:
        """Return all that was on its way from the first node."""
        publisher = Guest().come(self.ports["a"], expiry_s=0)
        publisher.publish("wills/by-now")
        publisher.leave()
        return self.heard_until("wills/by-now")[:-1]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    one = Pair(tmp_path_factory.mktemp("wills") / "pair")
    try:
        yield one
    finally:
        one.listener.leave()
        one.cluster.__exit__()


@pytest.mark.parametrize("expiry_s", [0, LASTING_S])
def test_who_is_lost_at_one_node_is_told_of_at_another_and_to_who_comes_later(
    pair: Pair, expiry_s: int
):
    topic = f"wills/lost/{expiry_s}"
    lost = Guest("lost").come(pair.ports["a"], will=topic, expiry_s=expiry_s)
    assert pair.heard_by_now() == []

    lost.vanish()

    assert pair.heard_until(topic) == [(topic, b"gone", False)]
    assert pair.heard_by_now() == []
    late = Guest().come(pair.ports["b"], expiry_s=0)

    def is_retained() -> bool:
        late.subscribe(topic)
        with contextlib.suppress(queue.Empty):
            return late.got.get(timeout=0.2) == (topic, b"gone", True)
        return False

    wait_for(is_retained)
    late.leave()


def test_who_says_goodbye_has_no_will(pair: Pair):
    Guest("polite").come(pair.ports["a"], will="wills/polite").leave()
    vanished = Guest("rude").come(pair.ports["a"], will="wills/rude")
    vanished.vanish()
    assert pair.heard_until("wills/rude") == [("wills/rude", b"gone", False)]


def test_the_will_of_who_was_at_a_killed_node_comes_once_when_the_node_is_back(pair: Pair):
    wills = [f"wills/orphan/{expiry_s}" for expiry_s in (0, LASTING_S)]
    for topic, expiry_s in zip(wills, (0, LASTING_S), strict=True):
        orphan = Guest(topic).come(pair.ports["a"], will=topic, expiry_s=expiry_s)
        orphan.fall_silent()
    pair.kill("a")

    pair.restart("a")

    heard = [pair.listener.got.get(timeout=WAIT_S) for _ in wills]
    assert sorted(heard) == [(topic, b"gone", False) for topic in wills]
    assert pair.heard_by_now() == []
    pair.kill("a")  # what is executed is not executed again
    pair.restart("a")
    assert pair.heard_by_now() == []


def test_a_will_that_waits_outlasts_its_node(pair: Pair):
    Guest("patient").come(pair.ports["a"], will="wills/patient", delay_s=DELAY_S).vanish()
    pair.kill("a")
    pair.restart("a")
    assert pair.heard_until("wills/patient") == [("wills/patient", b"gone", False)]


def test_who_comes_back_at_another_node_in_time_has_no_will(pair: Pair):
    roamer = Guest("roamer")
    for attempt in range(5):
        away, here = (f"wills/{name}/{attempt}" for name in ("away", "here"))
        roamer.come(pair.ports["a"], will=here, delay_s=DELAY_S)
        began_s = time.monotonic()
        roamer.vanish()
        roamer.come(pair.ports["b"])
        was_in_time = time.monotonic() - began_s < DELAY_S - 1
        assert roamer.was_known
        # Another will that waits as long, but from now on: once it comes, the first was due.
        Guest("away").come(pair.ports["a"], will=away, delay_s=DELAY_S).vanish()
        heard = pair.heard_until(away)
        roamer.leave()
        if was_in_time:
            assert heard == [(away, b"gone", False)]
            return
    pytest.fail("this machine is too slow to come back in time")
