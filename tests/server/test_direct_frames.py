"""Frames on a direct connection between two nodes."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nearcast.server.cluster.direct_links import DirectConnection


class Frames:
    """Stands for the doors: keeps what comes."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.is_lost = False

    def admits(self, _way: DirectConnection, line: bytes) -> bool:
        return line == b"hello\n"

    def received(self, _way: DirectConnection, frame: bytes) -> None:
        self.got.append(frame)

    def lost(self, _way: DirectConnection) -> None:
        self.is_lost = True


def way_to(frames: Any) -> DirectConnection:
    async def make() -> DirectConnection:
        way = DirectConnection(frames)
        way._transport = Written()  # type: ignore[assignment]
        return way

    return asyncio.run(make())


class Written:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.data = b""
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.data += data

    def abort(self) -> None:
        self.is_aborted = True


@given(st.lists(st.binary(max_size=9), max_size=6), st.lists(st.integers(1, 12), min_size=1))
def test_frames_arrive_whole_in_whatever_portions(sent: list[bytes], portions: list[int]):
    frames = Frames()
    way = way_to(frames)
    data = b"hello\n" + b"".join(len(one).to_bytes(4, "little") + one for one in sent)
    at = turn = 0
    while at < len(data):
        size = portions[turn % len(portions)]
        way.data_received(data[at : at + size])
        at, turn = at + size, turn + 1
    assert frames.got == sent
    assert way._transport.data == b"+"  # type: ignore[union-attr]


def test_a_frame_beyond_all_bounds_ends_the_connection():
    frames = Frames()
    way = way_to(frames)
    way.data_received(b"hello\n\xff\xff\xff\xff")
    assert way._transport.is_aborted  # type: ignore[union-attr]
    assert frames.got == []
