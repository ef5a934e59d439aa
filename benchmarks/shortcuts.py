"""What each shortcut of a publication buys: microseconds of CPU for one message, with and without.

One broker in memory, without sockets. A shortcut is taken away by replacing the function that it
is; the broker does the same work the long way. The page `docs/shortcuts.md` has the figures.

    python -m benchmarks.shortcuts
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from random import Random
from time import process_time
from typing import Any, NamedTuple
from unittest.mock import patch

from nearcast.broker import Broker, Connection, SpaceSettings
from nearcast.broker.content.fast_path import ContentFastPath
from nearcast.broker.publish.handler import PublishHandler
from nearcast.broker.publish.message import Message
from nearcast.broker.publish.properties import PropertyReader
from nearcast.broker.publish.route_cache import RouteCache
from nearcast.broker.publish.session_queues import SessionQueues
from nearcast.broker.retained.store import RetainedStore
from nearcast.broker.session.session import Session
from nearcast.eventlog.records import Recorder
from nearcast.model import Attribute, Space
from nearcast.mqtt import (
    Connect,
    FilterRequest,
    Packet,
    PacketType,
    Properties,
    ProtocolVersion,
    Publish,
    PublishAnswer,
    Subscribe,
    encode_packet,
)
from nearcast.simulator.mqtt_node import SimulatedClient, SimulatedNode
from nearcast.simulator.world import World

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
MARKET = Space(
    name="market",
    topic_filter="market/#",
    attributes=(Attribute.number("x", 0, 1_000), Attribute.number("y", 0, 1_000)),
)
CITY = Space(
    name="city",
    topic_filter="city/#",
    attributes=(Attribute.number("lon", -1, 1), Attribute.number("lat", -1, 1)),
    longitude="lon",
    latitude="lat",
)
ROUNDS = 5
Off = Callable[[], AbstractContextManager[Any]]


class Crowd:
    """A broker, its subscribers and one publisher; outboxes are emptied after every read."""

    latest: Broker

    def __init__(self, version: ProtocolVersion = V311, **options: Any) -> None:
        self.node = Crowd.latest = Broker(**options)
        self.version = version
        self.publisher = self.connect("publisher", version)
        self.random = Random(1)

    def connect(self, name: str, version: ProtocolVersion = V311) -> Connection:
        """Connect a client."""
        link = Connection()
        self.node.open(link, 1)
        self.say(link, encode_packet(Connect(name, version), version))
        return link

    def subscribers(
        self,
        count: int,
        *filters: str,
        name: str = "reader",
        qos: int = 0,
        version: ProtocolVersion = V311,
    ) -> None:
        """Connect clients with these subscriptions each."""
        for number in range(count):
            link = self.connect(f"{name} {number}", version)
            requests = tuple(FilterRequest(one, qos) for one in filters)
            self.say(link, encode_packet(Subscribe(1, requests), version))

    def boxes(self, clients: int, each: int) -> None:
        """Connect clients with random boxes of the market: one event in a hundred matches a box."""
        for number in range(clients):
            filters = []
            for _ in range(each):
                x, y = self.random.randrange(900), self.random.randrange(900)
                where = f"{x}<=x<={x + 100};{y}<=y<={y + 100}"
                filters.append(f"$where/{where}/market/#")
            self.subscribers(1, *filters, name=f"boxes {number}")

    def say(self, link: Connection, data: bytes) -> None:
        """Read bytes of a client, and let all others read."""
        node = self.node
        node.receive(link, data, 2)
        for dirty in node.take_dirty():
            if any(chunk[0] >> 4 == 3 and chunk[0] & 6 for chunk in dirty.outbox):
                self._acknowledge(dirty)
            dirty.outbox, dirty.outbox_bytes, dirty.answer_bytes = [], 0, 0
            dirty.is_dirty = False
        if node.state.log is not None:
            node.state.log.take()

    def _acknowledge(self, link: Connection) -> None:
        session = link.session
        if session is not None:
            acks = [PublishAnswer(PacketType.PUBACK, one) for one in session.in_flight]
            data = b"".join(encode_packet(one, V311) for one in acks)
            link.outbox = []
            self.node.receive(link, data, 2)


class Shortcut(NamedTuple):
    """A shortcut; a crowd, its reads and how many messages these have; how to do without."""

    name: str
    make: Callable[[], tuple[Crowd, list[bytes], int]]
    off: Off


def measured(one: Shortcut) -> tuple[float, float]:
    """Return the least CPU for a message with and without a shortcut, in microseconds."""
    crowd, reads, messages = one.make()
    best = [float("inf"), float("inf")]
    for _ in range(ROUNDS):
        for place, way in enumerate((nullcontext, one.off)):
            with way():
                crowd.say(crowd.publisher, reads[0])
                begun = process_time()
                for data in reads:
                    crowd.say(crowd.publisher, data)
                spent = process_time() - begun
            best[place] = min(best[place], spent / messages * 1e6)
    return best[0], best[1]


# --- plain topics


def _reads(crowd: Crowd, packets: list[Packet], per_read: int) -> tuple[Crowd, list[bytes], int]:
    raw = [encode_packet(one, crowd.version) for one in packets]
    reads = [b"".join(raw[at : at + per_read]) for at in range(0, len(raw), per_read)]
    return crowd, reads, len(raw)


def plain(
    per_read: int,
    version: ProtocolVersion = V311,
    *,
    topics: int = 1,
    count: int = 20,
    qos: int = 0,
    readers: ProtocolVersion = V311,
    properties: Properties | None = None,
) -> Callable[[], tuple[Crowd, list[bytes], int]]:
    """Return what makes `count` subscribers and 2,000 publications."""

    def make() -> tuple[Crowd, list[bytes], int]:
        crowd = Crowd(version)
        crowd.subscribers(count, "a/+", qos=qos, version=readers)
        rest = properties or Properties()
        packets: list[Packet] = [
            Publish(f"a/{n % topics}", b"x" * 50, qos, packet_id=n % 1_000 + 1, properties=rest)
            if qos
            else Publish(f"a/{n % topics}", b"x" * 50, properties=rest)
            for n in range(2_000)
        ]
        return _reads(crowd, packets, per_read)

    return make


def _nothing(*_: Any) -> None:
    return None


def _without(owner: type, name: str) -> Off:
    """Return what replaces a method by one that finds nothing."""
    return lambda: patch.object(owner, name, _nothing)


@contextmanager
def _no_routes() -> Iterator[None]:
    """Compile the route of every message."""
    Crowd.latest.state.router._cache.clear()
    with patch.object(RouteCache, "put", _nothing):
        yield


@contextmanager
def _no_runs() -> Iterator[None]:
    """Let every PUBLISH pass alone, as one with flags does."""
    table = Crowd.latest._packets._handlers
    before = dict(table)
    table.update(dict.fromkeys(range(0x30, 0x36), table[0x31]))
    try:
        with patch.object(PublishHandler, "same_again", _nothing):
            yield
    finally:
        table.update(before)


def _queued_first(
    queues: SessionQueues, session: Session, _link: Connection, messages: list[Message], qos: int
) -> None:
    """Send a run as if the window had no room for all of it at once."""
    queues._enqueue_all(session, messages, qos)
    queues.pump(session)


# --- spaces


def market(*, log: bool, values: int = 2_000) -> Callable[[], tuple[Crowd, list[bytes], int]]:
    """Return what makes 1,000 boxes of 200 clients, and events that match about ten each."""

    def make() -> tuple[Crowd, list[bytes], int]:
        crowd = Crowd(spaces=[SpaceSettings(space=MARKET)])
        crowd.boxes(200, 5)
        if log:
            crowd.node.state.log = Recorder()
        packets: list[Packet] = [
            Publish(
                "market/a",
                json.dumps(
                    {"x": crowd.random.uniform(0, 999), "y": crowd.random.uniform(0, 999)}
                ).encode(),
            )
            for _ in range(values)
        ]
        return _reads(crowd, packets, 40)

    return make


def _no_fast_path() -> AbstractContextManager[Any]:
    return patch.object(ContentFastPath, "suits", _nothing)


def cluster_us(*, is_fast: bool, space: Space, wanted: str) -> float:
    """Return the CPU of an event on both nodes of a cluster, each with a log.

    A client of one node publishes, a client of the other is subscribed.
    """
    world = World(1)
    spaces = [SpaceSettings(space=space)]
    nodes = {name: world.add(name, SimulatedNode(name, 1, spaces=spaces)) for name in ("n0", "n1")}
    for name, node in nodes.items():
        world.perform(name, node.meet(list(nodes), world.now))
    world.run(world.now + 1_000)
    publisher, reader = SimulatedClient("p", version=V311), SimulatedClient("r", version=V311)
    world.perform("n0", nodes["n0"].admit(publisher, world.now))
    world.perform("n1", nodes["n1"].admit(reader, world.now))
    reader.subscribe(wanted, 0)
    world.perform("n1", nodes["n1"].turn(world.now))
    world.run(world.now + 2_000)
    for node in nodes.values():
        node.node.state.log = Recorder()
    best = float("inf")
    topic = space.topic_filter.replace("#", "a")
    first, second = (one.name for one in space.attributes)
    with nullcontext() if is_fast else _no_fast_path():
        for _ in range(ROUNDS):
            begun = process_time()
            for number in range(400):
                payload = json.dumps({first: 0.5 + number / 1e4, second: 0.5})
                publisher.publish(Publish(topic, payload.encode()))
            world.perform("n0", nodes["n0"].turn(world.now))
            world.run(world.now + 200)
            best = min(best, (process_time() - begun) / 400 * 1e6)
    assert len(reader.received) == 400 * ROUNDS
    return best


# --- others


def retained() -> tuple[Crowd, list[bytes], int]:
    """Return 2,000 retained messages, and a client that subscribes to all of them five times."""
    crowd = Crowd()
    for number in range(2_000):
        packet = Publish(f"r/{number}", b"x" * 50, retain=True)
        crowd.say(crowd.publisher, encode_packet(packet, V311))
    asked = encode_packet(Subscribe(1, (FilterRequest("r/#", 0),)), V311)
    return crowd, [asked] * 5, 5 * 2_000


SHORTCUTS = [
    Shortcut("cached routes", plain(1, topics=500, count=1), _no_routes),
    Shortcut("the same read again", plain(1, count=1), _without(PublishHandler, "same_again")),
    Shortcut("runs of a read, QoS 0", plain(40), _no_runs),
    Shortcut("runs of a read, QoS 1", plain(40, qos=1), _no_runs),
    Shortcut("runs recoded for the other version", plain(40, readers=V5), _no_runs),
    Shortcut(
        "properties seen before",
        plain(1, V5, count=1, properties=Properties(user_properties=(("a", "b"), ("c", "d")))),
        lambda: patch.object(PropertyReader, "read", _read_anew),
    ),
    Shortcut(
        "a run sent at once, QoS 1",
        plain(40, qos=1),
        lambda: patch.object(SessionQueues, "_send_run", _queued_first),
    ),
    Shortcut("retained messages as one chunk", retained, _without(RetainedStore, "chunk")),
    Shortcut("the fast path of a space", market(log=False), _no_fast_path),
    Shortcut("the fast path of a space, with a log", market(log=True), _no_fast_path),
]

_READ = PropertyReader.read


def _read_anew(reader: PropertyReader, *rest: Any) -> Any:
    reader._known.clear()
    return _READ(reader, *rest)


def main() -> None:
    """Print a table: each shortcut, microseconds with and without it."""
    print(f"{'shortcut':<44} {'with':>8} {'without':>8} µs of CPU a message")
    for one in SHORTCUTS:
        fast, slow = measured(one)
        print(f"{one.name:<44} {fast:8.2f} {slow:8.2f}  {slow / fast:5.1f}x")
    for title, space, wanted in (
        ("the fast path in a cluster, no coordinates", MARKET, "$where/x<1/market/#"),
        ("the fast path in a cluster, coordinates", CITY, "$where/lat>0/city/#"),
    ):
        fast, slow = (cluster_us(is_fast=one, space=space, wanted=wanted) for one in (True, False))
        print(f"{title:<44} {fast:8.2f} {slow:8.2f}  {slow / fast:5.1f}x")


if __name__ == "__main__":
    main()
