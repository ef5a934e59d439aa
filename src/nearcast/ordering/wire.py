"""Bytes for sets, times and rows of control information; the four algorithms share them.

    varint   7 bits a byte, lowest first, the top bit says "more follows"
    set      one byte of form and length, then either the gaps between ascending numbers
             (varints) or a bit set, whichever is smaller
    time     the lowest `width` bytes of a microsecond count; the reader knows the message's
             own time, and no entry is older than the window that `width` bytes span
    row      what is known of one sender: (time, set) pairs, oldest first; the top bit of a
             set's first byte says that another pair follows

A time is thus a difference from the message's time, taken modulo the window. Unlike a plain
difference it does not change from one message to the next, so a row's bytes are made once
and used until the row changes; at 250 ms both take three bytes.

Read next: message.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from nearcast.model.errors import PeerProtocolError

HIGHEST_NUMBER: Final = 4095
"""The highest number of a process: a bit set of 512 bytes."""

_MORE: Final = 0x80
_BITS: Final = 0x40
_LONG: Final = 0x3F

Entry = tuple[int, int]
Entries = tuple[Entry, ...]


class Row:
    """What is known of one sender's messages: (sent_us, destination bits), oldest first.

    A value: never changed once made. `union` is all destination bits together. The bytes are
    kept because most rows travel many times.
    """

    __slots__ = ("_width", "_wire", "entries", "first_us", "last_us", "union")

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.first_us, union = entries[0]
        self.last_us = entries[-1][0]
        if len(entries) > 1:
            for _, bits in entries:
                union |= bits
        self.union = union
        self._width = 0
        self._wire = b""

    def __eq__(self, other: object) -> bool:
        """Compare by content."""
        return isinstance(other, Row) and self.entries == other.entries

    def __hash__(self) -> int:
        """Agree with equality."""
        return hash(self.entries)

    def __repr__(self) -> str:
        """Show times and destinations."""
        return f"Row({', '.join(f'{t}→{numbers_in(bits)}' for t, bits in self.entries)})"

    def wire(self, width: int) -> bytes:
        """Return the row's bytes. O(entries) once, then O(1)."""
        if self._width != width:
            self._wire = _row_bytes(self.entries, width)
            self._width = width
        return self._wire

    def remember(self, wire: bytes, width: int) -> None:
        """Keep the bytes that this row was read from, so that passing it on costs nothing."""
        self._wire = wire
        self._width = width


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


def time_width(window_us: int) -> int:
    """Return how many bytes tell apart all times within `window_us`.

    >>> time_width(250_000), time_width(60_000_000)
    (3, 4)
    """
    return max(2, (window_us.bit_length() + 7) // 8)


def varint(value: int) -> bytes:
    r"""Return `value` ≥ 0 in groups of seven bits.

    >>> varint(300)
    b'\xac\x02'
    """
    if value < 0x80:
        return value.to_bytes(1, "little")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def set_bytes(bits: int, flag: int = 0) -> bytes:
    r"""Return a set of numbers as gaps or as bits, whichever is smaller.

    >>> set_bytes(1 << 9), set_bytes(0b1111_0000)
    (b'\x01\t', b'A\xf0')
    """
    if not bits:
        return flag.to_bytes(1, "little")
    if not bits & (bits - 1) and bits < 1 << 0x80:  # one number below 128: the usual case
        return bytes((flag | 1, bits.bit_length() - 1))
    length = (bits.bit_length() + 7) >> 3
    if bits.bit_count() >= length:
        return _length_bytes(length, flag | _BITS) + bits.to_bytes(length, "little")
    gaps, last = bytearray(), -1
    for number in numbers_in(bits):
        gaps += varint(number - last - 1)
        last = number
    if len(gaps) >= length:
        return _length_bytes(length, flag | _BITS) + bits.to_bytes(length, "little")
    return _length_bytes(bits.bit_count(), flag) + bytes(gaps)


def _length_bytes(length: int, flags: int) -> bytes:
    if length < _LONG:
        return (flags | length).to_bytes(1, "little")
    return (flags | _LONG).to_bytes(1, "little") + varint(length - _LONG)


def _row_bytes(entries: Entries, width: int) -> bytes:
    window = (1 << 8 * width) - 1
    last = len(entries) - 1
    return b"".join(
        [
            (sent_us & window).to_bytes(width, "little")
            + set_bytes(bits, 0 if i == last else _MORE)
            for i, (sent_us, bits) in enumerate(entries)
        ]
    )


def _bits_of(gaps: Iterable[int]) -> int:
    bits, last = 0, -1
    for gap in gaps:
        last += gap + 1
        if last > HIGHEST_NUMBER:
            raise wrong(f"process number {last}", expected=f"0 to {HIGHEST_NUMBER}")
        bits |= 1 << last
    return bits


_bits_of_bytes = lru_cache(maxsize=4096)(_bits_of)
"""The same small sets arrive again and again."""


class Reader:
    """Read the forms above from bytes that a peer sent; anything amiss is its mistake."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        start = self.at
        end = start + count
        if end > len(self.data):
            raise wrong(f"{len(self.data)} bytes", expected=f"at least {end}")
        self.at = end
        return self.data[start:end]

    def byte(self) -> int:
        """Return the next byte."""
        at = self.at
        if at >= len(self.data):
            raise wrong(f"{at} bytes", expected="more")
        self.at = at + 1
        return self.data[at]

    def varint(self) -> int:
        """Return a number written by `varint`."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise wrong("a number of more than 64 bits", expected="a shorter one")

    def number(self) -> int:
        """Return the number of a process."""
        value = self.varint()
        if value > HIGHEST_NUMBER:
            raise wrong(f"process number {value}", expected=f"0 to {HIGHEST_NUMBER}")
        return value

    def set(self) -> int:
        """Return a set of numbers, as bits."""
        first = self.byte()
        if first & _MORE:
            raise wrong("a set that goes on", expected="a single one")
        return self._rest_of_set(first)

    def _rest_of_set(self, first: int) -> int:
        length = first & _LONG
        if length == _LONG:
            length += self.varint()
        if first & _BITS:
            if length > HIGHEST_NUMBER // 8 + 1:
                raise wrong(f"a bit set of {length} bytes", expected="512 at most")
            return int.from_bytes(self.take(length), "little")
        gaps = self.data[self.at : self.at + length]
        if gaps.isascii() and len(gaps) == length:  # each gap is one byte
            self.at += length
            return _bits_of_bytes(gaps)
        return _bits_of([self.varint() for _ in range(min(length, HIGHEST_NUMBER + 1))])

    def time(self, width: int, sent_us: int) -> int:
        """Return a time at or before `sent_us`, of which `width` bytes were written."""
        low = int.from_bytes(self.take(width), "little")
        return sent_us - ((sent_us - low) & ((1 << 8 * width) - 1))

    def row(self, width: int, sent_us: int) -> Row:
        """Return one sender's row.

        Written out rather than composed of the methods above: this loop is most of the time
        that decoding takes.
        """
        data, at, size = self.data, self.at, len(self.data)
        start, window, entries, before = at, (1 << 8 * width) - 1, [], -1
        more = _MORE
        while more:
            after = at + width
            if after >= size:
                raise wrong(f"{size} bytes", expected=f"at least {after + 1}")
            low = int.from_bytes(data[at:after], "little")
            time_us = sent_us - ((sent_us - low) & window)
            if time_us <= before:
                raise wrong("times of one sender out of order", expected="ascending times")
            first = data[after]
            more = first & _MORE
            form = first & ~_MORE
            at = after + 1
            if form == 0:
                bits = 0
            elif _BITS < form < _BITS | _LONG:
                at += form & _LONG
                bits = int.from_bytes(data[after + 1 : at], "little")
            elif form < _LONG and (gaps := data[at : at + form]).isascii():
                at += form
                bits = _bits_of_bytes(gaps)
            else:
                self.at = at
                bits = self._rest_of_set(form)
                at = self.at
            entries.append((time_us, bits))
            before = time_us
        if at > size:
            raise wrong(f"{size} bytes", expected=f"at least {at}")
        row = Row(tuple(entries))
        row.remember(data[start:at], width)
        self.at = at
        return row


def wrong(found: str, *, expected: str) -> PeerProtocolError:
    """Return the error for bytes that no correct process sends."""
    return PeerProtocolError(found, where="causal message", expected=expected)
