"""What a node notes while it works: records of runs, small enough for the hot path.

A publisher's run of packets is one record, with the packets' bytes as they came; rows are made
of it later (`segments.finish`), outside the broker. Every event has a sequence number; numbers
that were left out on purpose stand in gap records, so that a missing number means a loss.
Subscriptions, who is there, and positions are numbered together with the events: what was in effect
when an event came is known by number, whatever the clocks say.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import NamedTuple


class Record(IntEnum):
    """What a record tells."""

    EVENTS = 1
    DELIVERIES = 2
    SUBSCRIPTION = 3
    GAP = 4
    POSITION = 5
    RETAINED = 6
    PRESENCE = 7
    DROPS = 8
    SENT = 9
    CAUSAL = 10


class Way(IntEnum):
    """How an event came to a node."""

    CLIENT = 0  # published here
    NODE = 1  # from the session of another node: for all here who want it
    CAUSAL = 2  # from another node, in causal order
    CHOSEN = 3  # for those whom a holder of places, a contest or a share group has chosen


class Dropped(IntEnum):
    """Why a message that was due was not handed to somebody, or not sent after it had waited."""

    SLOW = 0
    QUOTA = 1
    EXPIRED = 2
    TOO_LARGE = 3
    ENDED = 4


class CausalStep(IntEnum):
    """What became of a message of a causal group at one node."""

    SENT = 0
    DELIVERED = 1
    HELD = 2
    DISCARDED = 3
    KEPT = 4  # published too soon after a start to be sent already


class CausalNote(NamedTuple):
    """What an audit needs to know of a message of a causal group.

    A message is known by its sender and its stamp. `detail`: the destinations of one sent, what one
    held waits for, why one was discarded.
    """

    group: str
    sender: str
    stamp_us: int
    lifetime_us: int
    detail: str = ""


class Choice(IntEnum):
    """What became of a retained copy for a newcomer."""

    SENT_NOW = 0
    HELD_BACK = 1
    NOT_SENT = 2  # there was none, or the subscriber asked for none
    RELEASED = 3  # a copy held back has gone out after all
    REPLACED = 4  # a live message stood in for a copy held back


class LoggedRates(NamedTuple):
    """What a decision rests on: publishes, newcomers, departures of each subscriber, per second."""

    publish_per_s: float
    subscribe_per_s: float
    leave_per_s: float


HEADER = Struct("<BI")
# first, count, ms, flags, head, size, sizes of publisher and topic, lifetime in ms or 0
EVENTS = Struct("<QIQBIIHHI")
QOS, RETAIN, LIMITED, WAY = 3, 4, 8, 4  # of an event's flags; those from bit WAY on are its `Way`
DELIVERIES = Struct("<QIB")
SUBSCRIPTION = Struct("<QQBBHH")
ADDED, NO_LOCAL, RESTORED = 1, 2, 4
GAP = Struct("<QQ")
POSITION = Struct("<QQdd")
RETAINED = Struct("<QQBdddHHHH")  # number, ms, choice, rates, sizes of the four texts
PRESENCE = Struct("<QQB")
DROPS = Struct("<QIQB")  # first, count, ms, reason
SENT = Struct("<QQQ")  # number, ms, deadline
CAUSAL = Struct("<QQBQQHHH")  # number, ms, step, stamp, lifetime, sizes of the three texts
LONGEST_LIFETIME_MS = 0xFFFF_FFFF

_UNKNOWN = LoggedRates(math.nan, math.nan, math.nan)

Keeps = Callable[[int], bool]


class Recorder:
    """Collects records; `take` gives those since the last call.

    `keeps(sequence)` says of a run, by its first number, whether it is noted; what is not leaves
    a gap. Complexity: O(bytes) a record, nothing per message of a run.
    """

    __slots__ = (
        "_first",
        "_gap_count",
        "_gap_first",
        "_keeps",
        "_notes",
        "_parts",
        "_taken",
        "next",
        "size",
    )

    def __init__(self, first: int = 1, keeps: Keeps | None = None) -> None:
        self.next = first
        self.size = 0
        self._keeps = keeps
        self._parts: list[bytes] = []
        self._notes = True
        self._first = self._taken = first
        self._gap_first = self._gap_count = 0

    def keep(self, keeps: Keeps | None) -> None:
        """Choose anew what is noted."""
        self._keeps = keeps

    def take(self) -> list[bytes]:
        """Return the records since the last call, in pieces: runs are not copied."""
        self._close_gap("sampled")
        parts, self._parts = self._parts, []
        self.size = 0
        self._taken = self.next
        return parts

    def events(
        self,
        count: int,
        now_ms: int,
        flags: int,
        publisher: str,
        topic: bytes,
        packets: bytes,
        head_size: int,
        lifetime_ms: int = 0,
    ) -> None:
        """Note a run: `packets` are `count` of one size, each with its payload behind the head.

        `flags` are QoS, RETAIN, LIMITED (not everyone who wants it is meant to get it), and the
        `Way` from bit WAY on; `lifetime_ms` is 0 for no end.
        """
        self._first = self.next
        self.next += count
        self._notes = self._keeps is None or self._keeps(self._first)
        if not self._notes:
            self._skip(self._first, count)
            return
        self._close_gap("sampled")
        name = publisher.encode()
        size = len(packets) // count
        fixed = EVENTS.pack(
            self._first,
            count,
            now_ms,
            flags,
            head_size,
            size,
            len(name),
            len(topic),
            min(lifetime_ms, LONGEST_LIFETIME_MS),
        )
        head = b"".join((fixed, name, topic))
        whole = len(head) + len(packets)
        self._parts += (HEADER.pack(Record.EVENTS, whole) + head, packets)
        self.size += HEADER.size + whole

    def delivered(self, receivers: list[str], count: int, qos: int, offset: int = 0) -> None:
        """Note that messages of the last run were handed to these clients."""
        if self._notes and receivers:
            fixed = DELIVERIES.pack(self._first + offset, count, qos)
            self._add(Record.DELIVERIES, fixed + "\0".join(receivers).encode())

    def number(self, offset: int) -> int:
        """Return the number of a message of the last run; 0 if it was not noted."""
        return self._first + offset if self._notes else 0

    def dropped(
        self, receivers: list[str], count: int, reason: int, now_ms: int, number: int
    ) -> None:
        """Note that messages from `number` on were not handed to these (0: nothing is noted).

        `reason` is a `Dropped`.
        """
        if number:
            fixed = DROPS.pack(number, count, now_ms, reason)
            self._add(Record.DROPS, fixed + "\0".join(receivers).encode())

    def sent(self, number: int, receiver: str, now_ms: int, deadline_ms: int) -> None:
        """Note that a message with a lifetime has left the queue in which it waited."""
        self._add(Record.SENT, SENT.pack(number, now_ms, deadline_ms) + receiver.encode())

    def present(self, client: str, now_ms: int, *, is_there: bool) -> None:
        """Note that a client or another node has come or gone; "" is this node itself.

        It has a number like an event, and is never left out by sampling.
        """
        self._close_gap("sampled")
        fixed = PRESENCE.pack(self.next, now_ms, is_there)
        self.next += 1
        self._add(Record.PRESENCE, fixed + client.encode())

    def causal(self, step: CausalStep, note: CausalNote, now_ms: int, number: int) -> None:
        """Note what became of a message of a causal group (number 0: nothing is noted).

        `number` is that of its event, or `next` if it is none here: held, discarded.
        """
        if not number:
            return
        self._close_gap("sampled")
        texts = [one.encode()[:0xFFFF] for one in (note.group, note.sender, note.detail)]
        fixed = CAUSAL.pack(number, now_ms, step, note.stamp_us, note.lifetime_us, *map(len, texts))
        self._add(Record.CAUSAL, fixed + b"".join(texts))

    def subscription(
        self,
        now_ms: int,
        client: str,
        text: str,
        qos: int,
        *,
        is_added: bool,
        no_local: bool = False,
        is_restored: bool = False,
    ) -> None:
        """Note that a subscription began or ended; it has a number like an event.

        `is_restored`: it was there before this node was started.
        """
        self._close_gap("sampled")
        name, raw = client.encode(), text.encode()
        flags = is_added * ADDED | no_local * NO_LOCAL | is_restored * RESTORED
        size = min(len(raw), 0xFFFF)  # a selection may be longer; readers take the rest as text
        fixed = SUBSCRIPTION.pack(self.next, now_ms, flags, qos, len(name), size)
        self.next += 1
        self._add(Record.SUBSCRIPTION, fixed + name + raw)

    def position(self, client: str, lon: float, lat: float, now_ms: int) -> None:
        """Note where a client says it is; sampled like an event, and numbered like one."""
        number = self.next
        self.next += 1
        if self._is_noted(number):
            fixed = POSITION.pack(number, now_ms, lon, lat)
            self._add(Record.POSITION, fixed + client.encode())

    def retained_decision(
        self,
        client: str,
        topic: str,
        choice: Choice,
        now_ms: int,
        *,
        rates: tuple[float, float, float] | None = None,
        policy: str = "",
        reason: str = "",
    ) -> None:
        """Note what became of a retained copy, and why; sampled and numbered like an event.

        `rates` are `LoggedRates`, or None where nothing is known; `policy` names the policy that
        was asked, `reason` says in a word or two what decided.
        """
        number = self.next
        self.next += 1
        if self._is_noted(number):
            texts = [one.encode() for one in (client, topic, policy, reason)]
            sizes = map(len, texts)
            fixed = RETAINED.pack(number, now_ms, choice, *(rates or _UNKNOWN), *sizes)
            self._add(Record.RETAINED, fixed + b"".join(texts))

    def drop(self) -> None:
        """Throw away what was not taken yet; the gap says so."""
        self._close_gap("sampled")
        self._parts.clear()
        self.size = 0
        if self.next > self._taken:
            self.gap(self._taken, self.next - self._taken, "backlog")

    def gap(self, first: int, count: int, reason: str) -> None:
        """Note that numbers were left out, and why."""
        self._add(Record.GAP, GAP.pack(first, count) + reason.encode())

    def _is_noted(self, number: int) -> bool:
        """Tell whether this number is kept; see to the gap either way."""
        if self._keeps is None or self._keeps(number):
            self._close_gap("sampled")
            return True
        self._skip(number, 1)
        return False

    def _skip(self, first: int, count: int) -> None:
        if not self._gap_count:
            self._gap_first = first
        self._gap_count += count

    def _close_gap(self, reason: str) -> None:
        if self._gap_count:
            count, self._gap_count = self._gap_count, 0
            self.gap(self._gap_first, count, reason)

    def _add(self, kind: Record, body: bytes) -> None:
        self._parts.append(HEADER.pack(kind, len(body)) + body)
        self.size += HEADER.size + len(body)


def sampled(share: float) -> Keeps:
    """Return a choice that keeps about this share of all runs, the same ones in every run.

    >>> sum(sampled(0.25)(number) for number in range(10_000)) in range(2_300, 2_700)
    True
    """
    limit = int(share * (1 << 32))

    def keeps(sequence: int) -> bool:
        return (sequence * 0x9E3779B97F4A7C15 >> 29) & 0xFFFFFFFF < limit

    return keeps
