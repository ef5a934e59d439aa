"""Sessions that are dealt out to other brokers keep all that they had, and nothing of others."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nearcast.broker import Broker, Connection
from nearcast.broker.redistribution import redistribute, unsettled
from nearcast.cluster.workers.places import place_of
from nearcast.mqtt import (
    Connect,
    FilterRequest,
    Properties,
    ProtocolVersion,
    Publish,
    Subscribe,
    encode_packet,
)

_V5 = ProtocolVersion.V5
Kept = dict[str, tuple[Any, ...]]


class _Silent:
    """A transport that takes everything."""

    def write(self, chunks: list[bytes]) -> None:
        pass

    def finish(self) -> None:
        pass


def connect(broker: Broker, name: str, now_ms: int) -> Connection:
    connection = Connection("test", "0", transport=_Silent())
    broker.open(connection, now_ms)
    properties = Properties(session_expiry_interval=3_600)
    packet = Connect(name, _V5, clean_start=False, properties=properties)
    broker.receive(connection, encode_packet(packet, _V5), now_ms)
    return connection


def with_sessions(rng: random.Random, names: list[str], now_ms: int) -> Broker:
    """Return a broker with sessions: some connected with messages in flight, some with a queue."""
    broker = Broker(with_journal=True, rng=rng)
    for name in names:
        connection = connect(broker, name, now_ms)
        topics = rng.sample("abc", rng.randrange(1, 4))
        filters = tuple(FilterRequest(topic, rng.randrange(3)) for topic in topics)
        broker.receive(connection, encode_packet(Subscribe(1, filters), _V5), now_ms)
        if rng.random() < 0.5:
            broker.lost(connection, now_ms)
    sender = connect(broker, f"sender of {names[0]}", now_ms)
    for number in range(1, rng.randrange(20)):
        payload = f"{names[0]} {number}".encode()
        qos = rng.randrange(1, 3)
        packet = Publish(rng.choice("abc"), payload, qos, packet_id=number, retain=number % 7 == 0)
        broker.receive(sender, encode_packet(packet, _V5), now_ms)
    return broker


def kept(brokers: list[Broker]) -> Kept:
    """Return what each session has: filters, messages in flight and in the queue, identifiers."""
    return {
        session.client_id: (
            sorted((one.text, one.qos) for one in session.subscriptions.values()),
            [(at, one.payload, at in session.exact) for at, one in session.in_flight.items()],
            [(one.payload, mark & 3) for one, mark in session.queue if mark & 3],
            sorted(session.incoming),
        )
        for broker in brokers
        for session in broker.client_sessions()
    }


def restored(records: bytes, now_ms: int) -> Broker:
    broker = Broker(with_journal=True)
    assert broker.restore([records], now_ms) == []
    return broker


@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 4))
def test_every_session_keeps_what_it_had_at_one_broker(seed: int, before: int, count: int) -> None:
    rng, now_ms = random.Random(seed), 1_000_000
    old = []
    for number in range(before):
        names = [f"client {number} {one}" for one in range(rng.randrange(1, 6))]
        live = with_sessions(rng, names, now_ms)
        live.take_journal()
        old.append(restored(b"".join(live.snapshot()), now_ms))
    assert unsettled(old) == []
    wanted = kept(old)
    topics = {one.topic_text() for one in old[0].retained_messages()}
    new = [restored(b"".join(records), now_ms) for records in redistribute(old, count, place_of)]
    assert kept(new) == wanted
    for place, broker in enumerate(new):
        here = {session.client_id for session in broker.client_sessions()}
        assert here == {name for name in wanted if place_of(name, count) == place}
        assert {one.topic_text() for one in broker.retained_messages()} == topics
