"""A large PUBLISH that comes in several reads means what it means in one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from nearcast.broker.publish.large import LARGE
from nearcast.mqtt import (
    Properties,
    ProtocolVersion,
    Publish,
    encode_packet,
)

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
both = pytest.mark.parametrize("version", [V311, V5])
CUTS: tuple[list[int], ...] = (
    [],
    [1],
    [3],
    [9],
    [11],
    [4_000],
    [4_000, 60_000],
    [100, 200, 90_000],
)


def large(topic: str, qos: int, number: int, *, retain: bool = False, **more: Any) -> Publish:
    return Publish(
        topic, bytes([number]) * (LARGE + 30_000), qos, retain=retain, packet_id=number, **more
    )


def outcome(
    world: Any, version: ProtocolVersion, packets: list[bytes], cuts: list[int]
) -> tuple[Any, ...]:
    """Return what a subscriber and the publisher got, and the counters."""
    reader = world.welcome("reader", version)
    reader.subscribe("a/#", 2)
    reader.take()
    writer = world.welcome("writer", version)
    writer.answers = False
    writer.send(Publish("a/b", b"", 1, packet_id=9))
    for data in packets:
        bounds = [0, *cuts, len(data)]
        for start, stop in pairwise(bounds):
            writer.send_bytes(data[start:stop])
    counters = world.node.counters
    seen = (counters.publish_received, counters.publish_bytes_received, counters.publish_sent)
    return list(reader.take()), list(writer.take()), seen, writer.link.is_closing


@both
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize(
    "what", ["plain", "retained", "unheard", "repeated", "properties", "zero", "small behind"]
)
def test_pieces_mean_what_the_whole_means(
    make_world: Any, version: ProtocolVersion, qos: int, cuts: list[int], what: str
) -> None:
    packets = [large("a/b", qos, 1), large("a/b", qos, 2)]
    if what == "retained":
        packets[1] = large("a/b", qos, 2, retain=True)
    elif what == "unheard":
        packets = [large("other", qos, 1), large("other", qos, 2)]
    elif what == "repeated":
        packets[1] = large("a/b", qos, 1)
    elif what == "properties" and version == V5:
        packets[1] = large("a/b", qos, 2, properties=Properties(content_type="x"))
    encoded = [encode_packet(packet, version) for packet in packets]
    if what == "zero":
        at = encoded[1].index(b"a/b") + 3
        encoded[1] = encoded[1][:at] + b"\0\0" + encoded[1][at + 2 :]
    elif what == "small behind":
        encoded[0] += encode_packet(Publish("a/c", b"small", 1, packet_id=7), version)
    pieces = outcome(make_world(), version, encoded, cuts)
    assert pieces == outcome(make_world(), version, encoded, [])
    assert pieces[-1] is (what == "zero")
