"""Frames above NATS's maximum payload, split into pieces and reassembled.

A piece begins with the frame's number, its index, and the number of pieces. Where these do not fit
into two bytes, they follow in four bytes each behind `_IS_LONG`; a node that does not know this
form drops the frame, like one with a missing piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from nearcast.model.errors import EnvironmentProblem

_HEAD = Struct("<IHH")
_LONG_HEAD = Struct("<IHHII")
_MOST_SHORT = 0xFFFF  # pieces, with the short head
_IS_LONG = (1, 0)  # index 1 of 0 pieces, impossible otherwise
_LEAST_BYTES = 1_024  # with smaller pieces the largest MQTT message would take too long


def check_room(most: int) -> None:
    """Raise EnvironmentProblem if NATS's maximum payload is too small for frames."""
    if most < _LEAST_BYTES:
        raise EnvironmentProblem(
            f"NATS takes messages of at most {most} bytes",
            expected=f"at least {_LEAST_BYTES}; 1 MB unless it is configured",
            todo="Raise max_payload in the configuration of NATS.",
        )


def cut(data: bytes, most: int, number: int) -> Iterator[bytes]:
    """Yield the pieces of a frame, each of at most `most` bytes, in order.

    `most` has passed `check_room`.
    """
    number &= 0xFFFF_FFFF
    room = most - _HEAD.size
    count = -(-len(data) // room)
    is_long = count > _MOST_SHORT
    if is_long:
        room = most - _LONG_HEAD.size
        count = -(-len(data) // room)
    for index in range(count):
        if is_long:
            head = _LONG_HEAD.pack(number, *_IS_LONG, index, count)
        else:
            head = _HEAD.pack(number, index, count)
        yield head + data[index * room : (index + 1) * room]


def _read_head(piece: bytes) -> tuple[int, int, int, int]:
    """Return number, index and count of a piece, and its content's offset; index -1: invalid."""
    if len(piece) < _HEAD.size:
        return 0, -1, 0, 0
    number, index, count = _HEAD.unpack_from(piece)
    if (index, count) != _IS_LONG:
        return number, index, count, _HEAD.size
    if len(piece) < _LONG_HEAD.size:
        return 0, -1, 0, 0
    number, _, _, index, count = _LONG_HEAD.unpack_from(piece)
    return number, index, count, _LONG_HEAD.size


class Assembly:
    """The pieces of one sender's current frame.

    Contract: `add` returns a frame once all of its pieces have arrived in order; a frame with a
    missing piece is dropped whole, and the link above detects that.
    """

    def __init__(self) -> None:
        self._number = -1
        self._pieces: list[bytes] = []

    def add(self, piece: bytes) -> bytes | None:
        """Add a piece; return the frame that it completes, else None."""
        number, index, count, start = _read_head(piece)
        if index == 0:
            self._number, self._pieces = number, []
        elif number != self._number or index != len(self._pieces):
            self._number, self._pieces = -1, []
            return None
        self._pieces.append(piece[start:])
        if len(self._pieces) < count:
            return None
        whole = b"".join(self._pieces)
        self._number, self._pieces = -1, []
        return whole
