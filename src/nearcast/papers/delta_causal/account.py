"""The control information of a message of Δ-causal order, taken apart into plain values.

Plain Python, written from the description in `nearcast/ordering/codec.py` and `message.py` alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from nearcast.ordering import CausalMessage
from nearcast.ordering.codec import BITS, LONG, MORE, OWN_LIFETIME, TIME_BYTES

Entry = tuple[int, int]
"""(sent_us, destinations as bits)."""


@dataclass(frozen=True, slots=True)
class Account:
    """What a message says; processes are numbers, sets of them are bits."""

    width: int
    sender: int
    sent_us: int
    lifetime_us: int  # 0: that of the group
    destinations: int
    to: int
    rows: dict[int, tuple[Entry, ...]]
    waits: tuple[tuple[int, int], ...]


def account_of(message: CausalMessage) -> Account:
    """Return what a message says."""
    return _Reader(message.data).account()


def numbers_in(bits: int) -> list[int]:
    """Return the positions of the ones, ascending.

    >>> numbers_in(0b10110)
    [1, 2, 4]
    """
    numbers = []
    while bits:
        lowest = bits & -bits
        numbers.append(lowest.bit_length() - 1)
        bits ^= lowest
    return numbers


class _Reader:
    """Reads one form after the other."""

    def __init__(self, data: bytes) -> None:
        self._left = iter(data)

    def account(self) -> Account:
        flags = next(self._left)
        width, sender, sent_us = flags >> 4, self._varint(), self._fixed(TIME_BYTES)
        own_us = self._varint() if flags & OWN_LIFETIME else 0
        (destinations, _), to = self._set(), self._varint()
        senders = numbers_in(self._set()[0])
        rows = {sender: tuple(self._row(width, sent_us)) for sender in senders}
        waits = tuple(self._waits(width, sent_us, rows))
        return Account(width, sender, sent_us, own_us, destinations, to, rows, waits)

    def _fixed(self, width: int) -> int:
        return int.from_bytes(islice(self._left, width), "little")

    def _varint(self) -> int:
        value = shift = 0
        while (byte := next(self._left)) >= MORE:
            value |= (byte - MORE) << shift
            shift += 7
        return value | byte << shift

    def _set(self) -> tuple[int, bool]:
        """Return a set as bits, and whether more follows."""
        first = next(self._left)
        length = first & LONG
        length += self._varint() if length == LONG else 0
        if first & BITS:
            return self._fixed(length), first >= MORE
        bits, last = 0, -1
        for _ in range(length):
            last += self._varint() + 1
            bits |= 1 << last
        return bits, first >= MORE

    def _time(self, width: int, sent_us: int) -> int:
        return sent_us - (sent_us - self._fixed(width)) % (1 << 8 * width)

    def _row(self, width: int, sent_us: int) -> Iterator[Entry]:
        more = True
        while more:
            at_us = self._time(width, sent_us)
            bits, more = self._set()
            yield at_us, bits

    def _waits(
        self, width: int, sent_us: int, rows: dict[int, tuple[Entry, ...]]
    ) -> Iterator[tuple[int, int]]:
        entries = [(number, at_us) for number, row in rows.items() for at_us, _ in row]
        yield from (entries[place] for place in numbers_in(self._set()[0]))
        for _ in range(self._varint()):
            yield self._varint(), self._time(width, sent_us)
