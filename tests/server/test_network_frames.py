"""Frames between nodes over NATS: cut into pieces, carried in order, and put together again."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.waiting import WAIT_S, until

from nearcast.config import NetworkSection
from nearcast.model.errors import (
    EnvironmentProblem,
)
from nearcast.nats.connection import close, connect
from nearcast.server.cluster import nats_frames
from nearcast.server.cluster.nats_frames import FrameCarrier
from nearcast.server.cluster.nats_pieces import Assembly, cut

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("_lasting_entries")]


@given(st.binary(max_size=300), st.integers(9, 64), st.integers(0, 2**40))
def test_pieces_are_short_enough_and_give_the_frame_back(data: bytes, most: int, number: int):
    pieces = list(cut(data, most, number))
    assembly = Assembly()

    assert all(len(piece) <= most for piece in pieces)
    results = [assembly.add(piece) for piece in pieces]
    assert results[:-1] == [None] * (len(pieces) - 1)
    assert (results or [b""])[-1] == data


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=6), st.randoms(use_true_random=False))
def test_a_frame_with_a_missing_piece_is_dropped_and_the_others_arrive(
    frames: list[bytes], rng: random.Random
):
    assembly, whole, arrived = Assembly(), [], []
    for number, data in enumerate(frames):
        pieces = list(cut(data, 20, number))
        taken = [piece for piece in pieces if rng.random() < 0.9]
        if len(taken) == len(pieces):
            whole.append(data)
        arrived += [one for piece in taken if (one := assembly.add(piece)) is not None]

    assert arrived == whole


@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.data())
def test_whatever_is_lost_doubled_or_out_of_order_nothing_arrives_that_was_not_sent(
    sizes: list[int], data: st.DataObject
):
    frames = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
    pieces = [piece for number, one in enumerate(frames) for piece in cut(one, 20, number)]
    arriving = data.draw(st.lists(st.sampled_from(pieces), max_size=25))
    assembly = Assembly()

    arrived = [one for piece in arriving if (one := assembly.add(piece)) is not None]

    assert set(arrived) <= set(frames)


@pytest.mark.parametrize("count", [65_535, 65_536, 65_537])
def test_a_frame_may_have_more_pieces_than_two_bytes_count(count: int):
    most, short_head = 40, 8
    data = random.Random(count).randbytes(count * (most - short_head))
    pieces = list(cut(data, most, 1 << 40))
    assembly = Assembly()

    assert len(pieces) >= count
    assert all(len(piece) <= most for piece in pieces)
    assert [one for piece in pieces if (one := assembly.add(piece)) is not None] == [data]
    lost = assembly.add(pieces[0]), assembly.add(pieces[2])
    assert [*lost, *map(assembly.add, pieces[3:])] == [None] * (len(pieces) - 1)


async def test_a_nats_that_takes_a_few_bytes_only_is_refused_in_words():
    carrier = FrameCarrier("n", "a.1", received=print, has_room=print)
    client = SimpleNamespace(max_payload=1_023)
    with pytest.raises(EnvironmentProblem, match=r"at most 1023 bytes.*Raise max_payload"):
        await carrier.run(client)  # type: ignore[arg-type]


def test_pieces_out_of_order_make_no_frame():
    first, second, third = cut(bytes(range(36)), 20, 1)
    for order in ((first, third, second), (first, second, second), (second, first, third)):
        assembly = Assembly()
        assert [assembly.add(piece) for piece in order] == [None, None, None]


@given(st.lists(st.binary(max_size=12), max_size=8))
def test_no_bytes_from_the_network_make_the_assembly_fail(pieces: list[bytes]):
    assembly = Assembly()
    for piece in pieces:
        assembly.add(piece)
    good = list(cut(b"x" * 30, 20, 7))
    assert [assembly.add(piece) for piece in good][-1] == b"x" * 30


async def test_frames_arrive_in_order_whatever_their_length(section: NetworkSection):
    received: list[tuple[str, bytes]] = []
    both = [await connect(section, name, timeout_s=WAIT_S) for name in ("a", "b")]
    here = FrameCarrier(section.name, "a.1", received=print, has_room=print)
    there = FrameCarrier(
        section.name, "b.2", received=lambda *frame: received.append(frame), has_room=print
    )
    tasks = [asyncio.create_task(one.run(c)) for one, c in zip((here, there), both, strict=True)]
    await until(lambda: here._client is not None and there._client is not None)
    await both[1].flush(WAIT_S)  # NATS knows who listens
    frames = [bytes([number]) * size for number, size in enumerate((1, 3_000_000, 5, 1 << 20, 2))]

    here.send([("b.2", data) for data in frames])
    await until(lambda: len(received) >= len(frames))

    assert received == [("a.1", data) for data in frames]
    assert here.backlog_bytes == 0
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for one in both:
        await close(one)


async def test_frames_that_must_wait_and_frames_that_need_not_keep_their_order(
    section: NetworkSection,
):
    received: list[bytes] = []
    both = [await connect(section, name, timeout_s=WAIT_S) for name in ("a", "b")]
    here = FrameCarrier(section.name, "a", received=print, has_room=print)
    there = FrameCarrier(
        section.name, "b", received=lambda _, data: received.append(data), has_room=print
    )
    tasks = [asyncio.create_task(one.run(c)) for one, c in zip((here, there), both, strict=True)]
    await until(lambda: here._client is not None and there._client is not None)
    await both[1].flush(WAIT_S)  # NATS knows who listens
    rng = random.Random(1)
    frames = [b"%d " % n + bytes(rng.choice((1, 10_000, 400_000))) for n in range(200)]

    for number, data in enumerate(frames):
        here.send([("b", data)])
        if number % 7 == 0:
            await asyncio.sleep(rng.choice((0, 0.001)))
    await until(lambda: len(received) >= len(frames))

    assert received == frames
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for one in both:
        await close(one)


async def test_without_a_connection_frames_are_dropped_and_counted():
    carrier = FrameCarrier("net", "a", received=print, has_room=print)

    carrier.send([("b", b"1"), ("b", b"2")])

    assert (carrier.dropped, carrier.backlog_bytes) == (2, 0)


class Slow:
    """A NATS that takes nothing until it is let."""

    max_payload = 1 << 20
    is_closed = True

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.taken: list[tuple[str, bytes]] = []

    async def subscribe_directly(self, _subject: str, _take: Any) -> None: ...

    def publish_directly(self, _subject: str, _data: bytes) -> bool:
        return False

    async def publish(self, subject: str, data: bytes) -> None:
        await self.may.wait()
        self.taken.append((subject, data))


async def test_a_slow_nats_is_told_of_and_so_is_its_end():
    told: list[bool] = []
    carrier = FrameCarrier("net", "a", received=print, has_room=lambda: told.append(True))
    nats = Slow()
    task = asyncio.create_task(carrier.run(nats))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    half = bytes(nats_frames.HIGH_WATER_BYTES // 2)

    carrier.send([("b", half), ("b", half)])
    await asyncio.sleep(0.01)
    assert [carrier.is_crowded] == [False]
    carrier.send([("b", b"one more")])
    assert carrier.is_crowded
    assert not told
    nats.may.set()
    await until(lambda: told and not carrier.backlog_bytes)

    assert told == [True]
    assert [carrier.is_crowded] == [False]
    assert [data for subject, data in nats.taken if "piece" not in subject][-1] == b"one more"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
