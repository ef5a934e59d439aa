"""A read of one packet like the last one takes a short way; nobody may tell the difference."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nearcast.broker import Broker, Connection
from nearcast.mqtt import (
    Connect,
    FilterRequest,
    ProtocolVersion,
    Publish,
    Subscribe,
    Unsubscribe,
    encode_packet,
)

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
VERSIONS = (V311, V5)
TOPICS = ("a", "b", "bb")
FILTERS = ("a", "b", "+", "bb")


class FourClients:
    """A node with two publishers and two subscribers; keeps what each got."""

    def __init__(self) -> None:
        self.node = Broker()
        self.links = [self.connected(f"c{n}", VERSIONS[n % 2]) for n in range(4)]
        self.got: list[list[bytes]] = [[] for _ in self.links]
        self.flush()

    def connected(self, name: str, version: ProtocolVersion) -> Connection:
        link = Connection()
        self.node.open(link, 1)
        self.node.receive(link, encode_packet(Connect(name, version), version), 1)
        return link

    def flush(self) -> None:
        for link in self.node.take_dirty():
            if hasattr(self, "got"):
                self.got[self.links.index(link)] += link.outbox
            link.outbox, link.outbox_bytes, link.is_dirty = [], 0, False

    def say(self, who: int, raw: bytes, *, is_split: bool) -> None:
        """Send bytes as one read, or in two portions, which never takes the short way."""
        portions = (raw[:3], raw[3:]) if is_split else (raw,)
        for portion in portions:
            self.node.receive(self.links[who], portion, 2)
        self.flush()


def packet(who: int, what: tuple[str, str, int]) -> bytes:
    kind, text, size = what
    version = VERSIONS[who % 2]
    if kind == "publish":
        return encode_packet(Publish(text, b"x" * size), version)
    if kind == "subscribe":
        return encode_packet(Subscribe(1, (FilterRequest(text, 0),)), version)
    return encode_packet(Unsubscribe(1, (text,)), version)


steps = st.tuples(
    st.integers(0, 3),
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from(TOPICS), st.integers(0, 3)),
        st.tuples(st.just("publish"), st.sampled_from(TOPICS), st.just(1)),
        st.tuples(
            st.sampled_from(("subscribe", "unsubscribe")), st.sampled_from(FILTERS), st.just(0)
        ),
    ),
)


@given(st.lists(steps, max_size=30))
def test_the_short_way_delivers_what_the_long_way_does(
    history: list[tuple[int, tuple[str, str, int]]],
) -> None:
    short, long = FourClients(), FourClients()
    for who, what in history:
        raw = packet(who, what)
        short.say(who, raw, is_split=False)
        long.say(who, raw, is_split=True)

    assert short.got == long.got
    for name in ("publish_received", "publish_bytes_received", "publish_sent", "bytes_received"):
        assert getattr(short.node.counters, name) == getattr(long.node.counters, name)


def test_a_sign_of_life_is_seen_on_the_short_way_too() -> None:
    world = FourClients()
    world.say(0, packet(0, ("subscribe", "a", 0)), is_split=False)
    raw = packet(2, ("publish", "a", 5))
    for now_ms in (100, 200, 300):
        world.node.receive(world.links[2], raw, now_ms)

    assert world.links[2].last_read is not None
    assert world.links[2].last_seen_ms == 300


def test_who_subscribes_between_two_alike_gets_the_second() -> None:
    world = FourClients()
    world.say(0, packet(0, ("subscribe", "a", 0)), is_split=False)
    raw = packet(2, ("publish", "a", 5))
    world.say(2, raw, is_split=False)
    world.say(2, raw, is_split=False)
    world.got = [[] for _ in world.links]
    world.node.receive(world.links[2], packet(2, ("subscribe", "+", 0)), 2)
    world.flush()
    world.say(2, raw, is_split=False)

    assert raw in world.got[0]
    assert raw in world.got[2]


def test_two_in_a_read_and_one_cut_short_do_not_take_the_short_way() -> None:
    world = FourClients()
    world.say(0, packet(0, ("subscribe", "+", 0)), is_split=False)
    raw, other = packet(2, ("publish", "a", 5)), packet(2, ("publish", "bb", 5))
    world.say(2, raw, is_split=False)
    world.got = [[] for _ in world.links]
    for portion in (raw + other, raw[:-2], raw[-2:], raw + raw[:4], raw[4:]):
        world.say(2, portion, is_split=False)

    assert b"".join(world.got[0]) == raw + other + raw + raw + raw
