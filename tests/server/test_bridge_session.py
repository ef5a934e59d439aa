"""A bridge in this process: what it owes each side, without NATS and other processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest
from tests.support.waiting import until

from nearcast.broker import Broker, BrokerSettings, SpaceSettings
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.cluster.cluster import Cluster
from nearcast.cluster.messages import BridgeHere, ClientBoxesTold
from nearcast.cluster.peer import PeerNode
from nearcast.model import Attribute, Space
from nearcast.model.errors import PeerProtocolError
from nearcast.mqtt.wire import encode_string
from nearcast.overlay import Bounds
from nearcast.server.clock import Clock
from nearcast.server.loop_batches import LoopBatches
from nearcast.server.overlay import Peer
from nearcast.server.overlay.bridge import Bridge, is_marked, mark
from nearcast.server.overlay.runtime import OverlayRuntime, PeerSettings
from nearcast.server.overlay.spaces import TreeSettings, overlay_space

SHOPS = Space(
    name="shops",
    topic_filter="shops/#",
    attributes=(Attribute.number("price", 0, 100), Attribute.number("size", 0, 10)),
)
QUICK = TreeSettings(beat_ms=200)


class BridgeNode:
    """A node without peers that is a bridge to the overlay of `contact`."""

    def __init__(self, contact: str) -> None:
        settings = [SpaceSettings(space=SHOPS)]
        self.node = Broker(BrokerSettings(), with_journal=True, spaces=settings)
        self.cluster = Cluster("b1", self.node, random=Random(1))
        self.cluster.bridging.become_bridge("edge")
        self.turns = LoopBatches(self.node, Clock())
        self.bridge = Bridge(
            self.node, self.cluster.bridging, self.turns, settings, most_boxes=4, looseness=0.25
        )
        self.runtime = OverlayRuntime(
            PeerSettings(contacts=[contact]),
            [overlay_space(settings[0], QUICK)],
            self.bridge.arrived,
        )

    async def start(self) -> None:
        await self.runtime.start()
        self.bridge.attach(self.runtime)

    async def stop(self) -> None:
        self.bridge.detach()
        await self.runtime.stop()
        self.turns.stop()

    def publish(self, price: float, qos: int = 1, properties: bytes = b"") -> None:
        payload, topic = b'{"price": %f, "size": 1}' % price, encode_string("shops/1")
        head = MessageHead(topic, len(payload), qos, properties)
        self.node.bring(Message(head, payload), self.turns.clock.now_ms())
        self.turns.schedule()

    @property
    def owed(self) -> int:
        """How many messages the session of the bridge has that are not acknowledged."""
        session = self.node.session_of("$bridge/edge")
        assert session is not None
        return len(session.in_flight) + len(session.queue)

    async def knows_wishes(self) -> None:
        def has_learnt() -> bool:
            self.bridge.tend()
            session = self.node.session_of("$bridge/edge")
            return session is not None and any("price=40" in one for one in session.subscriptions)

        await until(has_learnt)


@pytest.fixture
async def both() -> AsyncIterator[tuple[BridgeNode, Peer]]:
    async with Peer(SHOPS, tree=QUICK) as founder:
        await founder.subscribe(where="price = 40..60")
        bridge = BridgeNode(founder.address)
        await bridge.start()
        await bridge.knows_wishes()
        yield bridge, founder
        await bridge.stop()


async def _prices(peer: Peer, count: int) -> list[float]:
    found: list[float] = []
    async with asyncio.timeout(60):
        async for event in peer.events:
            found.append(event.values["price"])
            if len(found) == count:
                break
    return found


async def test_a_message_is_owed_until_the_overlay_has_confirmed_it(both, monkeypatch):
    bridge, founder = both
    acks = bridge.runtime.members[0].acks
    with monkeypatch.context() as patch:
        ignored: list[object] = []
        patch.setattr(acks, "answered", lambda *one: ignored.append(one))
        bridge.publish(50)
        assert await _prices(founder, 1) == [50]
        await until(lambda: ignored)
        assert bridge.owed == 1
    await until(lambda: not bridge.owed)
    assert bridge.bridge.counts.outward == 1


async def test_only_what_peers_want_is_sent_to_them(both):
    bridge, founder = both
    for price in (10, 50, 90):
        bridge.publish(price, qos=0)
        bridge.publish(price + 1)
    assert sorted(await _prices(founder, 2)) == [50, 51]
    await until(lambda: not bridge.owed)
    assert bridge.bridge.counts.outward == 2


async def test_what_has_crossed_a_bridge_crosses_none(both):
    bridge, founder = both
    bridge.publish(50, properties=mark("another"))
    bridge.publish(51)
    assert await _prices(founder, 1) == [51]
    await until(lambda: not bridge.owed)
    assert (bridge.bridge.counts.outward, bridge.bridge.counts.stopped) == (1, 1)
    assert is_marked(b"\x01\x01" + mark("edge"))
    assert not is_marked(b"\x26\x00\x01a\x00\x01b")


async def test_a_peer_gets_what_the_overlay_confirmed_before_and_not_again(both):
    """The session of a bridge that starts again has only what is not confirmed."""
    bridge, founder = both
    bridge.publish(50)
    await until(lambda: not bridge.owed)
    bridge.bridge.detach()
    for price in (41, 42):
        bridge.publish(price)
    assert bridge.owed == 2
    bridge.bridge.attach(bridge.runtime)
    assert await _prices(founder, 3) == [50, 41, 42]


async def test_the_first_bridge_by_name_works_and_boxes_of_nodes_are_checked(both):
    bridge, _ = both
    bridging = bridge.cluster.bridging
    bridge.cluster.meet("a9", 1)
    bridge.cluster.meet("c1", 1)
    first, last = (bridge.cluster.peers[name] for name in ("a9", "c1"))
    bridging.met_bridge(last, BridgeHere("edge"))
    assert bridging.works
    bridging.met_bridge(first, BridgeHere("other"))
    assert bridging.works
    bridging.met_bridge(first, BridgeHere("edge"))
    assert not bridging.works
    bridge.bridge.tend()
    session = bridge.node.session_of("$bridge/edge")
    assert session is not None
    assert not session.subscriptions
    bridging.peer_down(first)
    assert bridging.works
    _told(bridging, last)


def _told(bridging, peer: PeerNode) -> None:
    box = ((10.0, 0.0), (20.0, 5.0))
    bridging.told(peer, ClientBoxesTold("shops", [box]))
    assert bridging.wanted("shops") == [box]
    wrong: list[tuple[str, list[Bounds]]] = [
        ("cars", [box]),
        ("shops", [(box[1], box[0])]),
        ("shops", [((1.0,), (2.0,))]),
    ]
    for space, boxes in wrong:
        with pytest.raises(PeerProtocolError):
            bridging.told(peer, ClientBoxesTold(space, boxes))
    bridging.peer_removed(peer.name)
    assert bridging.wanted("shops") == []
