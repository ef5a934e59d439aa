"""Frames that are longer than NATS takes, cut into pieces and put together again."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

_HEAD = Struct("<IHH")
HEAD_BYTES = _HEAD.size
MOST_PIECES = 0xFFFF


def cut(data: bytes, most: int, number: int) -> Iterator[bytes]:
    """Yield the pieces of a frame, each of at most `most` bytes, the last one last."""
    room = most - HEAD_BYTES
    count = -(-len(data) // room)
    for index in range(count):
        head = _HEAD.pack(number & 0xFFFF_FFFF, index, count)
        yield head + data[index * room : (index + 1) * room]


class Assembly:
    """The pieces that one sender's frame has so far.

    Contract: `add` returns a frame once all of its pieces have come in their order; a frame of
    which a piece is missing is dropped whole, and the link above notices that.
    """

    def __init__(self) -> None:
        self._number = -1
        self._pieces: list[bytes] = []

    def add(self, piece: bytes) -> bytes | None:
        """Take a piece; return the frame that it completes."""
        if len(piece) < HEAD_BYTES:
            return None
        number, index, count = _HEAD.unpack_from(piece)
        if index == 0:
            self._number, self._pieces = number, []
        elif number != self._number or index != len(self._pieces):
            self._number, self._pieces = -1, []
            return None
        self._pieces.append(piece[HEAD_BYTES:])
        if len(self._pieces) < count:
            return None
        whole = b"".join(self._pieces)
        self._number, self._pieces = -1, []
        return whole
