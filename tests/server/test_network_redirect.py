"""A real client of MQTT 5 follows an offer to the node that holds its place, amid a stream."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from tests.support.real_cluster import RealCluster
from tests.support.space_sections import placed_section
from tests.support.waiting import WAIT_S, wait_for

from nearcast.config import NetworkSection
from nearcast.locality import CellCounts, Plan
from nearcast.server.cluster.nats_admin import share_plan

pytestmark = pytest.mark.server
CONFIG = """
[network]
redirect = "offer"
redirect_crossings = 3
redirect_after = "1s"
""" + placed_section("city", lon=(0, 1), lat=(0, 1))
USE_ANOTHER_SERVER = 0x9C


class Follower:
    """A paho client with a session that goes where a Server Reference sends it."""

    def __init__(self, port: int) -> None:
        self.got: list[bytes] = []
        self.resumed: list[bool] = []
        self.reference = ""
        self.is_sent_away = threading.Event()
        self._subscribed = threading.Event()
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2, client_id="ann", protocol=MQTTProtocolVersion.MQTTv5
        )
        self.paho.on_message = lambda _c, _u, message: self.got.append(bytes(message.payload))
        self.paho.on_subscribe = lambda *_: self._subscribed.set()
        self.paho.on_connect = lambda _c, _u, flags, *_: self.resumed.append(flags.session_present)
        self.paho.on_disconnect = self._disconnected
        self.paho.reconnect_delay_set(1, 1)
        self._go_to("127.0.0.1", port)
        self.paho.loop_start()
        wait_for(lambda: self.resumed)

    def _go_to(self, host: str, port: int) -> None:
        lasting = Properties(PacketTypes.CONNECT)
        lasting.SessionExpiryInterval = 600
        self.paho.connect_async(host, port, clean_start=False, properties=lasting)

    def _disconnected(self, _client, _user, _flags, reason, properties) -> None:
        if reason.value == USE_ANOTHER_SERVER:
            self.reference = properties.ServerReference
            host, _, port = self.reference.rpartition(":")
            self._go_to(host, int(port))
            self.is_sent_away.set()

    def subscribe(self, text: str) -> None:
        self.paho.publish("$position", b'{"lon": 0.5, "lat": 0.5}', 1).wait_for_publish(WAIT_S)
        self.paho.subscribe(text, 2)
        assert self._subscribed.wait(WAIT_S)

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


def hold_all(cluster: RealCluster, name: str) -> None:
    """Let all nodes follow a plan by which one holds everything."""
    area = (0.0, 0.0, 1.0, 1.0)
    counts = CellCounts.from_positions(area, [], [0.2, 0.8], [0.2, 0.8], depth=2)
    plan = Plan.build(area, [], counts, capacity=40, version=1)
    number = sorted(cluster.ports).index(name)
    asyncio.run(
        share_plan(
            NetworkSection(join=[cluster.address]), plan.with_brokers([number] * len(plan.leaves))
        )
    )
    wait_for(lambda: all(one.plan == 1 for one in cluster.members().values()))


def test_a_client_follows_the_reference_and_gets_everything_once(tmp_path: Path):
    with RealCluster(tmp_path, CONFIG) as cluster:
        cluster.start("a", "b", "c")
        cluster.join("a", "b", "c")
        hold_all(cluster, "b")
        ann = Follower(cluster.ports["a"])
        try:
            ann.subscribe("$near/5km/city/#")
            writers = [cluster.client(name) for name in ("a", "b", "c")]  # of MQTT 3.1.1
            sent = 0

            def tell() -> None:
                nonlocal sent
                payload = f'{{"lon": 0.5, "lat": 0.5, "id": {sent}}}'.encode()
                writers[sent % 3].publish("city/news", payload, 1 + sent % 2)
                sent += 1

            for _ in range(30):
                tell()
            assert ann.is_sent_away.wait(WAIT_S)
            while len(ann.resumed) < 2:  # it is on its way
                tell()
            for _ in range(60):
                tell()
            wait_for(lambda: len(ann.got) >= sent)
            wait_for(lambda: cluster.members()["a"].redirects_followed == 1)
            assert sent > 100
            assert Counter(ann.got).most_common(1)[0][1] == 1
            assert len(ann.got) == sent
            assert ann.resumed == [False, True]
            address = f"127.0.0.1:{cluster.ports['b']}"
            assert ann.reference == address
            assert f"node b at {address} holds the place of this client" in cluster.log("a")
            assert cluster.members()["a"].redirects_offered == 1  # of the entry waited for
            wait_for(lambda: cluster.members()["b"].clients == 2)  # an entry may be a moment old
        finally:
            ann.close()
