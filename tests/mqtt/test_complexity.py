"""Whatever a stranger can send is read in linear time, also before login.

Four times the input may take about four times the time; quadratic work would take sixteen times.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from nearcast.model import MisuseError, parse_shape, parse_where, split_prefixes
from nearcast.model.requests import SELECTING, decoded
from nearcast.mqtt import (
    Connect,
    FilterRequest,
    MqttProtocolError,
    PacketReader,
    PacketType,
    Properties,
    Publish,
    Subscribe,
    Unsubscribe,
    check_topic_filter,
    check_topic_name,
    decode_packet,
    encode_packet,
)
from nearcast.mqtt.properties import UNLIMITED, encode_properties, read_properties
from nearcast.node import Connection, Node
from nearcast.node.values import read_json, read_position

STEP, ALLOWED = 4, 9.0
Work = Callable[[], object]


def _seconds(work: Work) -> float:
    best = 1e9
    for _ in range(4):
        started = time.thread_time()
        with contextlib.suppress(MisuseError, MqttProtocolError):
            work()  # a refusal is an answer, and must be quick as well
        best = min(best, time.thread_time() - started)
    return best


def _many(count: int) -> Properties:
    return Properties(user_properties=tuple((f"n{n}", "value") for n in range(count)))


def _body(packet: Connect | Subscribe | Unsubscribe | Publish) -> tuple[int, bytes]:
    raw = encode_packet(packet)
    at = 2
    while raw[at - 1] & 0x80:
        at += 1
    return raw[0], raw[at:]


def _user_properties(count: int) -> Work:
    data = encode_properties(_many(count))
    return lambda: read_properties(data, 0, len(data), PacketType.CONNECT, UNLIMITED)


def _subscription_identifiers(count: int) -> Work:
    data = encode_properties(Properties(subscription_identifiers=tuple(range(1, count + 1))))
    return lambda: read_properties(data, 0, len(data), PacketType.PUBLISH, UNLIMITED)


def _connect(count: int) -> Work:
    first, body = _body(Connect("c", properties=_many(count)))
    return lambda: decode_packet(first, body)


def _connect_in_pieces(count: int) -> Work:
    raw = encode_packet(Connect("c" * 60_000, properties=_many(900)))[: count * 100]
    pieces = [raw[at : at + 4] for at in range(0, len(raw), 4)]

    def work() -> None:
        node, link = Node(), Connection()
        node.open(link, 1)
        for piece in pieces:
            node.receive(link, piece, 1)

    return work


def _stream_in_pieces(count: int) -> Work:
    raw = encode_packet(Publish("t", b"x" * 40 * count))
    pieces = [raw[at : at + 10] for at in range(0, len(raw), 10)]

    def work() -> None:
        reader = PacketReader()
        for piece in pieces:
            reader.feed(piece)

    return work


def _subscribe(count: int) -> Work:
    first, body = _body(Subscribe(1, tuple(FilterRequest(f"a/{n}") for n in range(count))))
    return lambda: decode_packet(first, body)


def _unsubscribe(count: int) -> Work:
    first, body = _body(Unsubscribe(1, tuple(f"a/{n}" for n in range(count))))
    return lambda: decode_packet(first, body)


def _publish(count: int) -> Work:
    packet = encode_packet(Publish("t", b"", properties=_many(count)))
    connect = encode_packet(Connect("c"))

    def work() -> None:
        node, link = Node(), Connection()
        node.open(link, 1)
        node.receive(link, connect + packet, 1)

    return work


CASES: dict[str, tuple[int, Callable[[int], Work]]] = {
    "user properties": (4_000, _user_properties),
    "subscription identifiers": (10_000, _subscription_identifiers),
    "CONNECT": (4_000, _connect),
    "CONNECT in pieces": (150, _connect_in_pieces),
    "a packet in pieces": (2_000, _stream_in_pieces),
    "SUBSCRIBE": (4_000, _subscribe),
    "UNSUBSCRIBE": (4_000, _unsubscribe),
    "PUBLISH": (4_000, _publish),
    "topic name": (200_000, lambda n: lambda: check_topic_name("a/" * n, printable=True)),
    "topic filter": (20_000, lambda n: lambda: check_topic_filter("+/" * n, printable=True)),
    "prefixes": (4_000, lambda n: lambda: split_prefixes("$near/1m/" * n + "a", SELECTING)),
    "values of prefixes": (20_000, lambda n: lambda: decoded([("$where", "%41b" * n)])),
    "$where, or": (500, lambda n: lambda: parse_where(" or ".join(["price < 5"] * n))),
    "$where, in": (500, lambda n: lambda: parse_where(f"kind in ({', '.join('abc' * n)})")),
    "$where, brackets": (5_000, lambda n: lambda: parse_where("(" * n)),
    "$where, not": (5_000, lambda n: lambda: parse_where("not " * n + "a < 1")),
    "$where, a word": (50_000, lambda n: lambda: parse_where("x" * n)),
    "$where, blanks": (50_000, lambda n: lambda: parse_where(" " * n)),
    "$where, text": (50_000, lambda n: lambda: parse_where("a = '" + "\\\\" * n)),
    "$area, brackets": (20_000, lambda n: lambda: parse_shape("(" * n)),
    "$area, blanks": (20_000, lambda n: lambda: parse_shape("circle(" + " " * n)),
    "$area, digits": (20_000, lambda n: lambda: parse_shape("circle(" + "1" * n)),
    "$area, GeoJSON": (20_000, lambda n: lambda: parse_shape("geojson([" + "[8,47]," * n + "])")),
    "JSON, depth": (20_000, lambda n: lambda: read_json(b"[" * n)),
    "JSON, numbers": (20_000, lambda n: lambda: read_json(b"[" + b"1.5," * n + b"1]")),
    "JSON, one number": (50_000, lambda n: lambda: read_json(b"0." + b"1" * n)),
    "JSON, text": (50_000, lambda n: lambda: read_json(b'"' + b"\\u00e9" * n + b'"')),
    "position": (20_000, lambda n: lambda: read_position(b"", (("a", "b"),) * n)),
}


@pytest.mark.parametrize("name", CASES)
def test_four_times_the_input_takes_about_four_times_the_time(name: str) -> None:
    size, make = CASES[name]
    small, large = make(size), make(size * STEP)
    ratios: list[float] = []
    for _ in range(4):  # others use the machine as well
        ratios.append(_seconds(large) / max(_seconds(small), 20e-6))
        if ratios[-1] <= ALLOWED:
            return
    pytest.fail(f"{name}: {', '.join(f'{one:.1f}' for one in ratios)} times the time")
