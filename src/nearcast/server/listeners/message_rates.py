"""Publications in a connection's bytes, counted and delayed: only where a rate is configured.

A client beyond its rate gets what it has sent handled in portions, and nothing more is read from it
meanwhile: TCP makes it slower. No publication is lost, and acknowledgements are as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from nearcast.broker import Connection
from nearcast.config import RatesSection, parse_rate
from nearcast.server.auth.password_checks import source_of
from nearcast.server.auth.rates import Bucket, Buckets

_PUBLISH = 0x30
_LONGEST_WAIT_MS = 1_000


class PacketScanner:
    """Finds the packets in a stream, and which of them are PUBLISH. O(1) per packet."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = 0  # bytes of a packet still to come

    def cut(self, data: bytes, most: int) -> tuple[int, int]:
        """Return the end of the portion with at most `most` publications, and their number.

        The rest has to be passed again, in front of what follows: it begins with a publication too
        many, or with a packet whose length is not complete yet. A stream that is no MQTT is one
        portion: the broker refuses it.
        """
        end, count = len(data), 0
        position = min(self._left, end)
        self._left -= position
        while position < end:
            size = _size(data[position : position + 5])
            is_publish = data[position] & 0xF0 == _PUBLISH
            if size < 0 or (is_publish and count == most):
                return position, count
            count += is_publish
            position += size
        self._left += position - end
        return end, count


def _size(head: bytes) -> int:
    """Return the size of a packet with its header; below 0 if it is not known yet."""
    size = shift = 0
    for place, byte in enumerate(head[1:5], 2):
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return size + place
    return 1 << 62 if len(head) >= 5 else -1  # a length of five bytes: no MQTT


class MessageRates:
    """The rates of publications: of an address, of a user, of a connection."""

    def __init__(self, section: RatesSection, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        rates = {
            what: getattr(section, f"messages_{what}") for what in ("address", "user", "client")
        }
        self._buckets = {
            what: Buckets(parse_rate(text)) for what, text in rates.items() if text is not None
        }

    def __bool__(self) -> bool:
        return bool(self._buckets)

    def of(self, connection: Connection) -> Callable[[], list[Bucket]]:
        """Return a function that returns the buckets of a connection, filled up to now."""
        own = self._buckets.get("client")
        bucket = None if own is None else own.new(self._now_ms())
        return partial(self._of, connection, bucket)

    def _of(self, connection: Connection, own: Bucket | None) -> list[Bucket]:
        now_ms = self._now_ms()
        found = []
        if own is not None:
            own.fill(now_ms)
            found.append(own)
        if "address" in self._buckets:
            found.append(self._buckets["address"].of(source_of(connection.address), now_ms))
        user = None if connection.proof is None else connection.proof.user
        if "user" in self._buckets and user is not None:
            found.append(self._buckets["user"].of(user, now_ms))
        return found


class Loop(Protocol):
    """What runs a function later."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> object:
        """Call it after some seconds."""


class RatedReads:
    """Passes the bytes of one connection on as fast as its rates allow.

    `find_buckets` returns the buckets that count for it now; `handle` takes a portion; `pause` and
    `resume` stop and start reading.
    """

    def __init__(
        self,
        find_buckets: Callable[[], Sequence[Bucket]],
        handle: Callable[[bytes], object],
        pause: Callable[[], None],
        resume: Callable[[], None],
        loop: Loop,
    ) -> None:
        self._find_buckets = find_buckets
        self._handle = handle
        self._pause, self._resume = pause, resume
        self._loop = loop
        self._scanner = PacketScanner()
        self._rest = b""
        self.is_waiting = False
        self.is_over = False  # the connection has closed

    def take(self, data: bytes) -> None:
        """Handle what was read."""
        if not self.is_over:
            self._rest += data
        if not self.is_waiting:
            self._go()

    def _go(self) -> None:
        data, self._rest = self._rest, b""
        buckets = self._find_buckets()
        most = int(min((one.level for one in buckets), default=float(1 << 30)))
        end, count = self._scanner.cut(data, max(0, most))
        for one in buckets:
            one.level -= count
        self._rest = data[end:]
        if end:
            self._handle(data[:end])
        if self._rest and count >= most and not self.is_over:
            self.is_waiting = True
            self._pause()
            wait_ms = max(one.wait_ms() for one in buckets)
            self._loop.call_later(min(wait_ms, _LONGEST_WAIT_MS) / 1000, self._again)

    def end(self) -> None:
        """Handle what is left: the client has closed, and counts on it."""
        if not self.is_over and self._rest:
            self._handle(self._rest)
        self.is_over, self._rest = True, b""

    def _again(self) -> None:
        self.is_waiting = False
        if self.is_over:
            self._rest = b""
            return
        self._go()
        if not self.is_waiting:
            self._resume()
