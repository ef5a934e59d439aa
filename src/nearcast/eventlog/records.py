"""Collects the records of a node's event log on the hot path.

A run of PUBLISH packets of one publisher is one record with the unchanged bytes of the packets; a
process outside the broker later converts it to rows (`segments.finish`). Every event has a sequence
number. Numbers that are left out on purpose are in gap records, so a number without a record means
a loss. Changes of subscriptions, presence and positions are numbered together with the events: the
numbers say what was in effect when an event arrived, whatever the clocks say.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import NamedTuple


class Record(IntEnum):
    """The kind of a record."""

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


class Arrival(IntEnum):
    """How an event arrived at a node."""

    CLIENT = 0  # published by a client of this node
    NODE = 1  # through the session of a peer: for all subscribers here
    CAUSAL = 2  # from a peer, in causal order
    CHOSEN = 3  # for subscribers chosen by a holder, a top-k or a share group


class Dropped(IntEnum):
    """Why a due message was not delivered, or was removed from a queue."""

    SLOW = 0
    QUOTA = 1
    EXPIRED = 2
    TOO_LARGE = 3
    ENDED = 4
    REVOKED = 5


class CausalStep(IntEnum):
    """What happened to a message of a causal group at one node."""

    SENT = 0
    DELIVERED = 1
    HELD = 2
    DISCARDED = 3
    KEPT = 4  # not sent yet: published too soon after a start


class CausalNote(NamedTuple):
    """The fields of a causal message that an audit needs.

    Sender and stamp identify a message. `detail` has the destinations of a sent message, what a
    held one waits for, or why one was discarded.
    """

    group: str
    sender: str
    stamp_us: int
    lifetime_us: int
    detail: str = ""


class RetainedChoice(IntEnum):
    """What happened to a retained message for a new subscriber."""

    SENT_NOW = 0
    HELD_BACK = 1
    NOT_SENT = 2  # there was none, or the subscriber requested none
    RELEASED = 3  # a deferred copy was delivered after all
    REPLACED = 4  # a live message replaced a deferred copy


class LoggedRates(NamedTuple):
    """The rates behind a decision.

    Publishes, subscribes, and unsubscribes per subscriber, per second.
    """

    publish_per_s: float
    subscribe_per_s: float
    leave_per_s: float


HEADER = Struct("<BI")
# first number, count, time (ms), flags, size of the head, size of a packet, sizes of publisher and
# topic, lifetime in ms or 0
EVENTS = Struct("<QIQBIIHHI")
QOS, RETAIN, LIMITED, WAY = (
    3,
    4,
    8,
    4,
)  # masks of an event's flags; the bits from WAY on are its `Arrival`
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
    """Collects records; `take` returns those since the last call.

    `keeps(sequence)` decides by the first number of a run whether it is recorded; a run that is not
    leaves a gap. Complexity: O(bytes) per record, nothing per message of a run.
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
        self.next = first  # the sequence number of the next event
        self.size = 0  # bytes of the records that were not taken yet
        self._keeps = keeps
        self._parts: list[bytes] = []
        self._notes = True  # whether the last run was recorded
        self._first = self._taken = first  # first number of the last run; next number at `take`
        self._gap_first = self._gap_count = 0  # the sampling gap that is still open

    def keep(self, keeps: Keeps | None) -> None:
        """Replace the function that decides which runs are recorded."""
        self._keeps = keeps

    def take(self) -> list[bytes]:
        """Return the records since the last call, in pieces: packets are not copied."""
        self._close_gap()
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
        """Record a run of `count` packets of equal size, each with its payload after the head.

        `flags` are QoS, RETAIN, LIMITED (not every subscriber is meant to get it), and the
        `Arrival` from bit WAY on; `lifetime_ms` is 0 for a message that does not expire.
        """
        self._first = self.next
        self.next += count
        self._notes = self._keeps is None or self._keeps(self._first)
        if not self._notes:
            self._skip(self._first, count)
            return
        self._close_gap()
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
        """Record that messages of the last run were delivered to these clients."""
        if self._notes and receivers:
            fixed = DELIVERIES.pack(self._first + offset, count, qos)
            self._add(Record.DELIVERIES, fixed + "\0".join(receivers).encode())

    def number(self, offset: int) -> int:
        """Return the number of a message of the last run; 0 if the run was not recorded."""
        return self._first + offset if self._notes else 0

    def dropped(
        self, receivers: list[str], count: int, reason: int, now_ms: int, number: int
    ) -> None:
        """Record that messages from `number` on were not delivered to these clients.

        `reason` is a `Dropped`. With number 0 nothing is recorded.
        """
        if number:
            fixed = DROPS.pack(number, count, now_ms, reason)
            self._add(Record.DROPS, fixed + "\0".join(receivers).encode())

    def sent(self, number: int, receiver: str, now_ms: int, deadline_ms: int) -> None:
        """Record that a message with a lifetime was sent from the queue in which it waited."""
        self._add(Record.SENT, SENT.pack(number, now_ms, deadline_ms) + receiver.encode())

    def present(self, client: str, now_ms: int, *, is_there: bool) -> None:
        """Record that a client or peer connected or disconnected; "" is this node itself.

        The record has a number like an event, and sampling never leaves it out.
        """
        self._close_gap()
        fixed = PRESENCE.pack(self.next, now_ms, is_there)
        self.next += 1
        self._add(Record.PRESENCE, fixed + client.encode())

    def causal(self, step: CausalStep, note: CausalNote, now_ms: int, number: int) -> None:
        """Record a step of a message of a causal group; with number 0 nothing is recorded.

        `number` is that of its event, or `next` if there is none here: held, discarded.
        """
        if not number:
            return
        self._close_gap()
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
        """Record that a subscription began or ended; the record has a number like an event.

        `is_restored`: the subscription existed before this node was started.
        """
        self._close_gap()
        name, raw = client.encode(), text.encode()
        flags = is_added * ADDED | no_local * NO_LOCAL | is_restored * RESTORED
        size = min(len(raw), 0xFFFF)  # conditions may be longer; readers take all that follows
        fixed = SUBSCRIPTION.pack(self.next, now_ms, flags, qos, len(name), size)
        self.next += 1
        self._add(Record.SUBSCRIPTION, fixed + name + raw)

    def position(self, client: str, lon: float, lat: float, now_ms: int) -> None:
        """Record a client's reported position; sampled and numbered like an event."""
        number = self.next
        self.next += 1
        if self._is_noted(number):
            fixed = POSITION.pack(number, now_ms, lon, lat)
            self._add(Record.POSITION, fixed + client.encode())

    def retained_decision(
        self,
        client: str,
        topic: str,
        choice: RetainedChoice,
        now_ms: int,
        *,
        rates: tuple[float, float, float] | None = None,
        policy: str = "",
        reason: str = "",
    ) -> None:
        """Record the decision about a retained message; sampled and numbered like an event.

        `rates` are `LoggedRates`, or None where they are unknown; `policy` names the policy that
        decided, `reason` says in a word or two why.
        """
        number = self.next
        self.next += 1
        if self._is_noted(number):
            texts = [one.encode() for one in (client, topic, policy, reason)]
            sizes = map(len, texts)
            fixed = RETAINED.pack(number, now_ms, choice, *(rates or _UNKNOWN), *sizes)
            self._add(Record.RETAINED, fixed + b"".join(texts))

    def drop(self) -> None:
        """Discard the records that were not taken yet, and record a gap for them."""
        self._close_gap()
        self._parts.clear()
        self.size = 0
        if self.next > self._taken:
            self.gap(self._taken, self.next - self._taken, "backlog")

    def gap(self, first: int, count: int, reason: str) -> None:
        """Record that sequence numbers were left out, and why."""
        self._add(Record.GAP, GAP.pack(first, count) + reason.encode())

    def _is_noted(self, number: int) -> bool:
        """Return whether this number is recorded; close or extend the gap accordingly."""
        if self._keeps is None or self._keeps(number):
            self._close_gap()
            return True
        self._skip(number, 1)
        return False

    def _skip(self, first: int, count: int) -> None:
        if not self._gap_count:
            self._gap_first = first
        self._gap_count += count

    def _close_gap(self) -> None:
        if self._gap_count:
            count, self._gap_count = self._gap_count, 0
            self.gap(self._gap_first, count, "sampled")

    def _add(self, kind: Record, body: bytes) -> None:
        self._parts.append(HEADER.pack(kind, len(body)) + body)
        self.size += HEADER.size + len(body)


def sampled(share: float) -> Keeps:
    """Return a `Keeps` that keeps about this share of all runs, the same ones every time.

    >>> sum(sampled(0.25)(number) for number in range(10_000)) in range(2_300, 2_700)
    True
    """
    limit = int(share * (1 << 32))

    def keeps(sequence: int) -> bool:
        return (sequence * 0x9E3779B97F4A7C15 >> 29) & 0xFFFFFFFF < limit

    return keeps
