"""QoS 1 between peers: acknowledged hop by hop, repeated by the publisher until all is well.

    publisher ──event──► root ──► host ──► member
        ▲                 │ ▲      │ ▲       │
        └───── answer ────┘ └──────┘ └───────┘      a host answers when all its branches have

An answer is *clean* if every branch that a relay knew has answered, and no relay on the way had
lost a member or handed a group over a moment ago where the event lies: then subscribers may be
without a parent, and nobody would miss their answer. Otherwise the publisher sends the event
again, until an answer is clean or `keep_ms` has passed. A doubt ends after `doubt_ms`: the answer
to an attempt that is so much later than the first confirms the event, too, whatever new doubts
there are; those who have lost their parent since then tell of a gap.

A clean answer does not prove that everybody has the event: a part of the tree may be cut off, and
those who answered may not know. So an event is held for `hold_ms` although it is confirmed. A part
that has a parent again tells of its gap (`gap_news.py`), and the publisher sends what fell into it
again.

An identifier is the identity of the event (who published it, which number) and the attempt: the
tree takes each attempt as a new event, and a subscriber takes each identity once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from struct import Struct
from typing import NamedTuple

import msgspec

from nearcast.model.errors import PeerProtocolError
from nearcast.overlay.bounds import intersects
from nearcast.overlay.events import OverlayEvent
from nearcast.overlay.live.codec import ID_BYTES
from nearcast.overlay.messages import Address, Instant, PeerId
from nearcast.overlay.seat import Gap

_ID = Struct(">8sQHB")
_IDENTITY_BYTES = 16
_LAST_ATTEMPT = 0xFFFF
TOKEN_BYTES = 8


def make_id(token: bytes, number: int, *, sure: bool, attempt: int = 0) -> bytes:
    """Return an identifier; `token` names the publisher since its start."""
    return _ID.pack(token, number, attempt, sure)


def identity_of(event_id: bytes) -> bytes:
    """Return what all attempts of an event have in common."""
    return event_id[:_IDENTITY_BYTES]


def is_sure(event_id: bytes) -> bool:
    """Return whether an event is to be acknowledged."""
    return event_id[-1] == 1


class EventAck(NamedTuple):
    """The answer of a seat to one event."""

    event_id: bytes
    seat: int
    is_clean: bool


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[bytes, int, bool]]).decode


def encode_acks(space: int, acks: Iterable[EventAck]) -> bytes:
    """Return answers as the body of a frame."""
    return bytes((space,)) + _encode(list(acks))


def decode_acks(body: bytes) -> tuple[int, list[EventAck]]:
    """Return the number of the space, and the answers; PeerProtocolError if they are not valid."""
    try:
        found = [EventAck(*one) for one in _decode(memoryview(body)[1:])]
    except (msgspec.MsgspecError, ValueError) as problem:
        raise PeerProtocolError(f"damaged answers ({problem})") from None
    if not body or any(len(one.event_id) != ID_BYTES for one in found):
        raise PeerProtocolError("answers to no event")
    return body[0], found


@dataclass(frozen=True, slots=True)
class AckTiming:
    """How long the publisher waits before it repeats, and gives up; how long a relay remembers."""

    retry_ms: int = 1_000
    most_retry_ms: int = 4_000
    keep_ms: int = 30_000
    hold_ms: int = 30_000
    """How long an event may be sent again because of a gap, from its publication on."""
    relay_ms: int = 10_000
    most_kept: int = 10_000
    most_held: int = 10_000
    """Beyond this many confirmed events, the oldest are not held any longer."""
    most_held_bytes: int = 64 << 20


@dataclass(slots=True)
class AckTotals:
    """Totals of events that are to be acknowledged, since the start."""

    confirmed: int = 0
    """Events of this peer that every branch has answered for."""
    repeated: int = 0
    unconfirmed: int = 0
    """Events given up: not every branch has answered in time."""
    refused: int = 0
    """Events not accepted, because too many wait for answers."""


@dataclass(slots=True)
class _Passage:
    """An event that this peer has taken from another one, or published itself."""

    event_id: bytes
    upstream: Address | None
    """The peer that gets the answer, with the seat here that took the event; None: our own."""
    awaited: int
    is_clean: bool
    until: Instant


@dataclass(slots=True)
class _KeptEvent:
    """An event of this peer; the instants are those of its last attempt, and of its ends."""

    event: OverlayEvent
    attempt: int
    since: Instant
    """When there was a reason to send it: its publication, or a gap."""
    repeats: int
    """How often it was sent again since then."""
    sent_at: Instant
    """When it was sent last."""
    repeat_at: Instant
    until: Instant
    held_until: Instant
    is_settled: bool = False
    """Whether it was confirmed once; it is not counted again."""


def _fell_into(kept: _KeptEvent, gap: Gap) -> bool:
    is_later = gap.since is None or kept.sent_at >= gap.since
    return is_later and intersects((kept.event.lows, kept.event.highs), gap.box)


class Acknowledgements:
    """The events of one peer that wait for answers, its own and those that it relays.

    Complexity: O(1) per event, branch and answer; `advance` O(events that wait).
    """

    def __init__(
        self, token: bytes, timing: AckTiming | None = None, doubt_ms: int = 11_000
    ) -> None:
        self.timing = timing or AckTiming()
        self._doubt_ms = doubt_ms
        self.totals = AckTotals()
        self._token = token
        self._number = 0
        self._kept: dict[bytes, _KeptEvent] = {}  # by identity
        self._held: dict[bytes, _KeptEvent] = {}  # confirmed, in the order of confirmation
        self._held_bytes = 0
        self._awaited: dict[tuple[bytes, PeerId, int], list[_Passage]] = {}
        self._ready: list[tuple[PeerId, EventAck]] = []
        self._due: Instant | None = None
        self.on_settled: Callable[[bytes], None] | None = None
        """Is called with the identity of each event that is confirmed or given up."""

    def __len__(self) -> int:
        """Return how many events of this peer are kept."""
        return len(self._kept)

    @property
    def has_room(self) -> bool:
        """Whether another event may be kept."""
        return len(self._kept) < self.timing.most_kept

    def new_id(self, *, sure: bool) -> bytes:
        """Return an identifier for the next event of this peer."""
        self._number += 1
        return make_id(self._token, self._number, sure=sure)

    def is_own(self, event_id: bytes) -> bool:
        """Return whether this peer published an event."""
        return event_id.startswith(self._token)

    def keep(self, event: OverlayEvent, now: Instant) -> bool:
        """Keep an event of this peer until it is confirmed; return False if too many are kept."""
        if not self.has_room:
            self.totals.refused += 1
            return False
        assert isinstance(event.event_id, bytes)
        timing = self.timing
        kept = _KeptEvent(
            event,
            attempt=0,
            since=now,
            repeats=0,
            sent_at=now,
            repeat_at=self._together(now + timing.retry_ms),
            until=now + timing.keep_ms,
            held_until=now + timing.hold_ms,
        )
        self._kept[identity_of(event.event_id)] = kept
        self._wake_by(kept.repeat_at)
        return True

    def passed(
        self,
        event_id: bytes,
        upstream: Address | None,
        targets: Iterable[Address],
        now: Instant,
        *,
        is_clean: bool,
    ) -> None:
        """Record where an event was sent; it is answered when all targets have answered."""
        passage = _Passage(event_id, upstream, 0, is_clean, now + self.timing.relay_ms)
        for target in targets:
            passage.awaited += 1
            key = (event_id, target.peer, target.seat)
            self._awaited.setdefault(key, []).append(passage)
        if not passage.awaited:
            self._complete(passage)
        else:
            self._wake_by(passage.until)

    def answered(self, peer: PeerId, acks: Iterable[EventAck]) -> None:
        """Take the answers of another peer."""
        for event_id, seat, is_clean in acks:
            passages = self._awaited.get((event_id, peer, seat))
            if passages is None:
                continue
            self._settle(passages.pop(), is_clean=is_clean)
            if not passages:
                del self._awaited[event_id, peer, seat]

    def missed(self, gap: Gap, after_ms: int, now: Instant) -> None:
        """Send what may have fallen into a gap again, in `after_ms`."""
        soon = now + after_ms
        for kept in self._kept.values():
            if _fell_into(kept, gap):
                kept.since, kept.repeats = now, 0
                kept.repeat_at = min(kept.repeat_at, soon)
        for identity, kept in list(self._held.items()):
            if kept.held_until > now and _fell_into(kept, gap):
                self._let_go(identity)
                kept.since, kept.repeats, kept.repeat_at = now, 0, soon
                kept.until = max(kept.until, now + self.timing.relay_ms)
                self._kept[identity] = kept
        self._wake_by(soon)

    def lost(self, peer: PeerId) -> None:
        """Expect no answers any more of a peer whose connection is lost: there will be none."""
        for key in [key for key in self._awaited if key[1] == peer]:
            del self._awaited[key]

    def take(self) -> list[tuple[PeerId, EventAck]]:
        """Return the answers to send, each with its receiver."""
        ready, self._ready = self._ready, []
        return ready

    def advance(self, now: Instant) -> list[OverlayEvent]:
        """Return the events that have to be published again."""
        if self._due is None or now < self._due:
            return []
        self._due = None
        self._forget(now)
        self._release(now)
        again = []
        for identity, kept in list(self._kept.items()):
            if kept.until <= now or kept.attempt == _LAST_ATTEMPT:
                del self._kept[identity]
                self.totals.unconfirmed += not kept.is_settled
                self._settled(kept)
                continue
            if kept.repeat_at <= now:
                again.append(self._repeated(kept, now))
            self._wake_by(min(kept.repeat_at, kept.until))
        return again

    def wake_at(self) -> Instant | None:
        """Return when `advance` is to be called next."""
        return self._due

    # --- inside --------------------------------------------------------------------------------

    def _repeated(self, kept: _KeptEvent, now: Instant) -> OverlayEvent:
        kept.attempt += 1
        kept.repeats += 1
        self.totals.repeated += 1
        timing = self.timing
        wait = min(timing.retry_ms << min(kept.repeats, 8), timing.most_retry_ms)
        kept.sent_at, kept.repeat_at = now, self._together(now + wait)
        assert isinstance(kept.event.event_id, bytes)
        token, number, _, sure = _ID.unpack(kept.event.event_id)
        event_id = _ID.pack(token, number, kept.attempt, sure)
        return replace(kept.event, event_id=event_id)

    def _together(self, at: Instant) -> Instant:
        """Return when to send what is due at an instant: together with others of that time."""
        pause = max(1, self.timing.retry_ms // 4)
        return -(-at // pause) * pause

    def _settle(self, passage: _Passage, *, is_clean: bool) -> None:
        passage.is_clean = passage.is_clean and is_clean
        passage.awaited -= 1
        if not passage.awaited:
            self._complete(passage)

    def _complete(self, passage: _Passage) -> None:
        if passage.upstream is not None:
            peer, seat = passage.upstream
            self._ready.append((peer, EventAck(passage.event_id, seat, passage.is_clean)))
        else:
            identity = identity_of(passage.event_id)
            kept = self._kept.get(identity)
            if kept is not None and (passage.is_clean or self._is_late(passage, kept)):
                del self._kept[identity]
                self.totals.confirmed += not kept.is_settled
                self._hold(identity, kept)
                self._settled(kept)

    def _is_late(self, passage: _Passage, kept: _KeptEvent) -> bool:
        """Return whether no doubt of the first attempt can have lasted until this one."""
        return passage.until - self.timing.relay_ms >= kept.since + self._doubt_ms

    def _settled(self, kept: _KeptEvent) -> None:
        if self.on_settled is not None and not kept.is_settled:
            self.on_settled(identity_of(kept.event.event_id))  # type: ignore[arg-type]
        kept.is_settled = True

    def _hold(self, identity: bytes, kept: _KeptEvent) -> None:
        """Hold a confirmed event for the case of a gap; the oldest go beyond the limits."""
        timing, held = self.timing, self._held
        held[identity] = kept
        self._held_bytes += len(kept.event.payload)
        while held and (len(held) > timing.most_held or self._held_bytes > timing.most_held_bytes):
            self._let_go(next(iter(held)))
        if self._due is None and held:
            self._wake_by(kept.held_until)

    def _let_go(self, identity: bytes) -> None:
        self._held_bytes -= len(self._held.pop(identity).event.payload)

    def _release(self, now: Instant) -> None:
        """Forget events that were held long enough."""
        while self._held:
            identity, kept = next(iter(self._held.items()))
            if kept.held_until > now:
                self._wake_by(kept.held_until + self.timing.retry_ms)  # several at a time
                return
            self._let_go(identity)

    def _forget(self, now: Instant) -> None:
        """Drop events of others that nobody answers for: their publishers repeat them."""
        for key, passages in list(self._awaited.items()):
            left = [one for one in passages if one.until > now]
            if left:
                self._awaited[key] = left
                self._wake_by(min(one.until for one in left))
            else:
                del self._awaited[key]

    def _wake_by(self, at: Instant) -> None:
        if self._due is None or at < self._due:
            self._due = at
