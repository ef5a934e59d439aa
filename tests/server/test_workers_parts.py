"""The parts of a broker with workers: who gets a connection, shared figures, the data directory."""

from __future__ import annotations

import multiprocessing
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.cluster.workers.places import place_of
from nearcast.cluster.workers.registry import is_acks
from nearcast.config import read
from nearcast.model.errors import FileFormatError
from nearcast.mqtt import (
    Connect,
    PacketType,
    Properties,
    ProtocolVersion,
    Publish,
    PublishAnswer,
    encode_packet,
)
from nearcast.mqtt.packets import Will
from nearcast.server.metrics.declared import Metric
from nearcast.server.metrics.measurements import LatencyHistogram
from nearcast.server.workers import layout
from nearcast.server.workers.board import Board
from nearcast.server.workers.figures import total
from nearcast.server.workers.handover import connect_name

_TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=40)


@st.composite
def connects(draw: st.DrawFn) -> Connect:
    version = draw(st.sampled_from([ProtocolVersion.V311, ProtocolVersion.V5]))
    properties, will = Properties(), None
    if version == ProtocolVersion.V5:
        pairs = tuple(draw(st.lists(st.tuples(_TEXT, _TEXT), max_size=20)))
        properties = Properties(session_expiry_interval=7, user_properties=pairs)
    if draw(st.booleans()):
        will = Will("will/topic", draw(st.binary(max_size=300)), 1)
    user = draw(st.none() | _TEXT)
    password = None if user is None else draw(st.none() | st.binary(max_size=20))
    return Connect(
        draw(_TEXT.filter(bool)),
        version,
        properties=properties,
        will=will,
        user_name=user,
        password=password,
    )


@given(connects(), st.booleans(), st.data())
def test_the_name_in_a_connect_is_found_as_soon_as_it_is_there(
    connect: Connect, by_user: bool, data: st.DataObject
) -> None:
    whole = encode_packet(connect, connect.version)
    wanted = connect.user_name if by_user else connect.client_id
    assert connect_name(whole, by_user=by_user) == wanted
    size = 1
    while isinstance(found := connect_name(whole[:size], by_user=by_user), int):
        assert size < found <= len(whole)
        size = data.draw(st.integers(size + 1, found))
    assert found == wanted


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_a_name_or_a_greater_number_or_nothing(data: bytes, by_user: bool) -> None:
    for start in (b"", b"\x10", b"\x10\x20\x00\x04MQTT"):
        found = connect_name(start + data, by_user=by_user)
        assert not isinstance(found, int) or found > len(start + data)


@given(st.text(max_size=60), st.integers(1, 64))
def test_an_identifier_has_one_place_whatever_the_user(identifier: str, count: int) -> None:
    place = place_of(identifier, count)
    assert 0 <= place < count
    assert place_of(f"{identifier}@somebody", count) == place or "@" in identifier


def test_the_places_are_even() -> None:
    for count in (2, 3, 8):
        places = [place_of(f"device-{number:05}", count) for number in range(8_000)]
        assert min(map(places.count, range(count))) > 0.9 * 8_000 / count


def test_only_plain_acknowledgements_may_wait() -> None:
    rng = random.Random(3)
    kinds = [PacketType(number) for number in (4, 5, 6, 7)]
    for _ in range(200):
        acks = [
            PublishAnswer(rng.choice(kinds), rng.randrange(1, 65_536))
            for _ in range(rng.randrange(1, 16))
        ]
        data = b"".join(encode_packet(one, ProtocolVersion.V311) for one in acks)
        assert is_acks(data)
        message = encode_packet(Publish("a", b"x" * rng.randrange(9)), ProtocolVersion.V5)
        assert not is_acks(data + message)
        assert not is_acks(message + data)


# --- figures ----------------------------------------------------------------------------------


def _write(board: Board, place: int) -> None:
    until, number = time.monotonic() + 0.5, 0
    while time.monotonic() < until:
        number += 1
        board.write(place, bytes([number % 256]) * (number % 5_000 + 1))
    board.write(place, b"last")


def test_a_slot_is_never_read_half_written() -> None:
    board = Board(2)
    assert board.read(0) == b""
    writer = multiprocessing.get_context("fork").Process(target=_write, args=(board, 1))
    writer.start()
    seen = 0
    while board.read(1) != b"last":
        data = board.read(1)
        assert len(set(data)) <= 1 or data == b"last"
        seen += bool(data)
    writer.join()
    assert seen
    assert board.read(0) == b""
    board.write(0, bytes(1 << 20))  # too long
    assert board.read(0) == b""


@pytest.mark.parametrize(
    ("kind", "name", "own", "others", "wanted"),
    [
        ("counter", "nearcast_connects_total", 3, [4, 5], 12),
        ("gauge", "nearcast_sessions", 3, [], 3),
        ("gauge", "nearcast_retained_messages", 3, [3], 3),
        ("counter", "nearcast_dropped_total", {"slow": 1}, [{"slow": 2, "new": 1}], None),
        ("text", "", "nearcast version 1", ["nearcast version 0"], "nearcast version 1"),
        ("gauge", "nearcast_loop", None, [], None),
    ],
)
def test_values_are_added_up(kind: Any, name: str, own: Any, others: Any, wanted: Any) -> None:
    metric = Metric(name, kind, "", lambda _: None, ("x",))
    found = total(metric, own, others)
    assert found == ({"slow": 3, "new": 1} if isinstance(own, dict) else wanted)


def test_histograms_are_added_up_and_stay_as_they_were() -> None:
    one, other = LatencyHistogram(), LatencyHistogram()
    one.add(0.001, 2)
    other.add(0.1, 3)
    metric = Metric("nearcast_delivery_latency_seconds", "histogram", "", lambda _: None)
    found = total(metric, one, [[other.counts, other.sum]])
    assert isinstance(found, LatencyHistogram)
    assert (found.count, round(found.sum, 6), one.count) == (5, 0.302, 2)


# --- settings and the data directory ----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("workers = 0", "found 0; expected a number from 1 to 64, or 'auto'"),
        ("workers = 65", "found 65; expected a number from 1 to 64, or 'auto'"),
        ("workers = -1", "found -1"),
        ("workers = 'many'", "found 'many'; expected a number from 1 to 64, or 'auto'"),
        ("workers = 2.5", "found 2.5"),
        ("workers = true", "found True"),
        ("workers = 2\n[network]\njoin = ['nats://127.0.0.1:4222']", "exclude each other"),
        (
            "workers = 'auto'\n[feed]\nkafka = 'kafka://localhost:9092/all'\ntopics = ['a']",
            "exclude each other",
        ),
    ],
)
def test_a_bad_number_of_workers_is_named_with_what_was_expected(text: str, expected: str) -> None:
    reading = read(f"[node]\n{text}\n", {}, file="nearcast.toml")
    assert reading.configuration is None
    assert any(expected in str(one) for one in reading.problems), reading.problems


@pytest.mark.parametrize(
    ("text", "wanted"), [("", 1), ("workers = 3", 3), ("workers = 'auto'", "auto")]
)
def test_a_number_or_auto_is_read(text: str, wanted: object) -> None:
    configuration = read(f"[node]\n{text}\n", {}).configuration
    assert configuration is not None
    assert configuration.node.workers == wanted


def test_a_damaged_record_of_the_number_stops_the_start(tmp_path: Path) -> None:
    assert layout.known_count(tmp_path) == 1
    layout.set_count(tmp_path, 3)
    assert layout.known_count(tmp_path) == 3
    for content in (b"", b"{}", b'{"workers": 0}', b'{"workers": "two"}', b"[1]"):
        (tmp_path / layout.FILE_NAME).write_bytes(content)
        with pytest.raises(FileFormatError, match="no number of workers"):
            layout.known_count(tmp_path)
