"""The control information of a message of Δ-causal order: a plain reader and a plain writer.

Written from the description in `nearcast/ordering/codec.py` and `message.py` alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

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


def retold(message: CausalMessage, **changes: Any) -> CausalMessage:
    """Return the message with another account of the past."""
    data = written(replace(account_of(message), **changes), len(message.payload))
    return CausalMessage(data, len(data), message.payload, message.names)


def written(account: Account, payload: int) -> bytes:
    """Return the control information of a message with a payload of so many bytes."""
    entries = [(k, at_us) for k in sorted(account.rows) for at_us, _ in account.rows[k]]
    places = sum(1 << entries.index(wait) for wait in set(account.waits) if wait in entries)
    rest = [wait for wait in account.waits if wait not in entries]
    parts = [
        bytes([account.width << 4 | (4 if account.lifetime_us else 0)]),
        varint(account.sender),
        account.sent_us.to_bytes(7, "little"),
        varint(account.lifetime_us) if account.lifetime_us else b"",
        set_of(account.destinations),
        varint(account.to),
        set_of(sum(1 << k for k in account.rows)),
        *(row(account.rows[k], account.width) for k in sorted(account.rows)),
        set_of(places),
        varint(len(rest)),
        *(varint(k) + time(at_us, account.width) for k, at_us in rest),
        varint(payload),
    ]
    return b"".join(parts)


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def time(at_us: int, width: int) -> bytes:
    return (at_us % (1 << 8 * width)).to_bytes(width, "little")


def set_of(bits: int) -> bytes:
    """Return a set in its smaller form."""
    numbers = numbers_in(bits)
    gaps = b"".join(varint(b - a - 1) for a, b in zip([-1, *numbers], numbers, strict=False))
    as_bits = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    if len(numbers) <= 1 or len(gaps) < len(as_bits):
        return length_of(len(numbers), 0) + gaps
    return length_of(len(as_bits), 0x40) + as_bits


def length_of(length: int, form: int) -> bytes:
    return bytes([form | length]) if length < 0x3F else bytes([form | 0x3F]) + varint(length - 0x3F)


def row(entries: tuple[tuple[int, int], ...], width: int) -> bytes:
    out = bytearray()
    for place, (at_us, bits) in enumerate(entries):
        more = 0x80 if place < len(entries) - 1 else 0
        first, *others = set_of(bits)
        out += time(at_us, width) + bytes([first | more, *others])
    return bytes(out)
