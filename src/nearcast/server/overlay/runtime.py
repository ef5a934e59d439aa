"""The runtime of a peer: its members in the overlays of all spaces, timers, and messages.

It decides nothing: it carries frames between the connections (`links.py`) and the members
(`nearcast.overlay.live.member`), and calls `advance` when a member asks for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random, SystemRandom

import msgspec

from nearcast.model.errors import EnvironmentProblem, PeerProtocolError
from nearcast.overlay.bounds import Bounds
from nearcast.overlay.events import EventBatch, together
from nearcast.overlay.live.acknowledged import AckTiming, decode_acks, encode_acks
from nearcast.overlay.live.codec import (
    EnvelopeDecoder,
    encode_envelope,
    encode_frame,
    is_of_tree,
)
from nearcast.overlay.live.gap_news import decode_gaps, encode_gaps
from nearcast.overlay.live.introduction import ACKS, GAPS, SpaceDigest
from nearcast.overlay.live.member import NewEvent, OverlayMember, PeerArrival
from nearcast.overlay.live.outgoing import MOST_BYTES, PeerAnswers, goes_with
from nearcast.overlay.messages import Envelope, Events
from nearcast.overlay.settings import Settings
from nearcast.server.overlay.links import LinkSettings, PeerLinks

log = logging.getLogger("nearcast.overlay")

JOIN_S = 20.0
"""How long a peer tries to reach one of its contacts."""
PLACE_S = 5.0
"""How long a peer waits for its place in the tree; it goes on without, and gets it later."""
_PAUSE_S = 0.2
_LEAVE_S = 0.2  # how long messages of a leaving peer may be answered


@dataclass(frozen=True, slots=True)
class OverlaySpace:
    """A space as peers see it: its name, what they must agree about, and the settings."""

    digest: SpaceDigest
    settings: Settings


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """Where a peer listens, whom it asks, and how it is protected."""

    host: str = "127.0.0.1"
    port: int = 0
    contacts: Sequence[str] = ()
    """HOST:PORT of other peers; without any this peer founds an overlay."""
    advertised: str | None = None
    """HOST:PORT that others use, if it is another one than that of the listener."""
    links: LinkSettings = field(default_factory=LinkSettings)
    timing: AckTiming = field(default_factory=AckTiming)


class OverlayRuntime:
    """A peer in the overlays of some spaces; `deliver` gets each arrival with its space's number.

    Contract: `start` joins all overlays or raises. `publish` and `set_boxes` do not wait.
    """

    def __init__(
        self,
        settings: PeerSettings,
        spaces: Sequence[OverlaySpace],
        deliver: Callable[[int, list[PeerArrival]], None],
        *,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self._spaces = sorted(spaces, key=lambda one: one.digest.name)
        self._deliver = deliver
        self._on_change = on_change  # called when members may have found their place
        self.links = PeerLinks(self, settings.links, tuple(one.digest for one in self._spaces))
        self.members: list[OverlayMember] = []
        self._extents = {n: one.settings.extent for n, one in enumerate(self._spaces)}
        self._decoder: EnvelopeDecoder | None = None
        self._loop = asyncio.get_running_loop()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0
        self._is_ending_turn = False
        self._began_s = time.monotonic()
        self._is_over = False

    @property
    def name(self) -> str:
        """The name of this peer: its address, and a number of this start."""
        return self.links.name

    def now(self) -> int:
        """Return the time for the members, in milliseconds; it says nothing about the day."""
        return int(self._loop.time() * 1000)

    # --- start and stop ------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, reach a contact, and take a place in the tree of each space."""
        settings = self.settings
        await self.links.open(settings.host, settings.port, settings.advertised)
        try:
            for space in self._spaces:
                random = Random(SystemRandom().getrandbits(64))
                member = OverlayMember(self.name, space.settings, random, settings.timing)
                self.members.append(member)
            self._decoder = EnvelopeDecoder(self.name, self._extents)
            met = await self._reach_contacts()
            for member in self.members:
                member.meet(met)
                member.set_boxes((), self.now())
            self._carry()
            await self.wait_until_placed()
        except BaseException:
            await self.links.close()
            raise

    async def _reach_contacts(self) -> list[str]:
        """Return the names of the contacts that answer; at least one must, if any is given."""
        problems: dict[str, str] = {}
        until = self._loop.time() + JOIN_S
        contacts = [one for one in self.settings.contacts if one != self.links.address]
        while contacts:
            found = []
            for contact in contacts:
                try:
                    found.append(await self.links.connect(contact))
                except (OSError, TimeoutError, ValueError) as problem:
                    problems[contact] = str(problem) or "no answer in time"
            if found:
                return found
            if self._loop.time() > until:
                said = "; ".join(f"{contact}: {why}" for contact, why in problems.items())
                raise EnvironmentProblem(
                    f"no contact lets this peer join ({said})",
                    where="--contact",
                    todo="Name a running peer of this overlay; the first peer needs no contact.",
                )
            await asyncio.sleep(_PAUSE_S)
        return []

    async def wait_until_placed(self) -> None:
        """Wait until all boxes are in their trees, at most `PLACE_S`."""
        until = self._loop.time() + PLACE_S
        while not self.is_placed and self._loop.time() < until:  # noqa: ASYNC110 - as members say
            await asyncio.sleep(0.01)
        if not self.is_placed:
            log.warning("not in the tree yet after %g s; trying on", PLACE_S)

    @property
    def is_placed(self) -> bool:
        """Whether all boxes are in their trees."""
        return all(member.is_placed for member in self.members)

    async def stop(self) -> None:
        """Leave all trees, and close."""
        self._is_over = True
        if self._alarm is not None:
            self._alarm.cancel()
        for member in self.members:
            member.leave(self.now())
        self._send_out()
        if self.links.peers:
            await asyncio.sleep(_LEAVE_S)
        await self.links.close()

    def total(self, name: str) -> float:
        """Return a figure of all members together; a name of `OverlayMember.state` or a seat's."""
        states = [member.state() for member in self.members]
        if states and name in states[0]:
            return float(sum(one[name] for one in states))
        return float(sum(seat[name] for one in states for seat in one["seats"]))

    @property
    def box_count(self) -> int:
        """How many boxes this peer has in all trees."""
        return sum(len(member.core.seats) for member in self.members)

    # --- called by the owner -------------------------------------------------------------------

    def set_boxes(self, space: int, boxes: Iterable[Bounds]) -> None:
        """Subscribe to these boxes of a space, instead of those before."""
        self.members[space].set_boxes(boxes, self.now())
        self._carry()

    def publish(self, space: int, events: list[NewEvent]) -> list[bytes]:
        """Publish events to other peers; return the identities of those that are accepted."""
        accepted = self.members[space].publish(events, self.now())
        self._carry()
        return accepted

    def ask_outside(self) -> None:
        """Ask in all trees what other peers want."""
        for member in self.members:
            member.ask_outside(self.now())
        self._carry()

    # --- called by connections -----------------------------------------------------------------

    def received(self, peer: str, frames: list[tuple[int, bytes]]) -> None:
        """Process frames of a peer; events that go the same way are processed together."""
        assert self._decoder is not None
        if self._is_over:
            return
        now = self.now()
        run: list[tuple[int, Envelope]] = []
        size = 0
        try:
            for kind, body in frames:
                if is_of_tree(kind):
                    space, envelope = self._decoder.decode(kind, body)
                    size += len(body)
                    if run and not (_goes_with(run[0], (space, envelope)) and size <= MOST_BYTES):
                        self._receive(run, now, peer)
                        run, size = [], len(body)
                    run.append((space, envelope))
                elif kind == ACKS:
                    space, acks = decode_acks(body)
                    if space >= len(self.members):
                        raise PeerProtocolError("answers for an unknown space")
                    self.members[space].answered(peer, acks, now)
                elif kind == GAPS:
                    space, gaps = decode_gaps(body, self._extents)
                    self.members[space].heard_of_gaps(peer, gaps, now)
                else:
                    raise PeerProtocolError(f"a frame of kind {kind}", expected="a message")
        finally:
            self._receive(run, now, peer)
            self._carry()

    def _receive(self, run: list[tuple[int, Envelope]], now: int, peer: str) -> None:
        """Process one message, or several with events that go the same way."""
        if not run:
            return
        space, envelope = run[0]
        if len(run) > 1:
            batches: list[EventBatch] = [one.body.batch for _, one in run]  # type: ignore[union-attr]
            body = envelope.body
            assert isinstance(body, Events)
            envelope = envelope._replace(body=Events(together(batches), body.rising, body.asks))
        self.members[space].receive(envelope, now, peer)

    def lost(self, peer: str) -> None:
        """Handle that a peer is not connected any more; find out whether a neighbour has ended."""
        now = self.now()
        for member in self.members:
            member.lost(peer, now)
        if any(peer in member.tree_neighbours() for member in self.members):
            self.links.probe(peer)
        self._carry()

    def ended(self, peer: str) -> None:
        """Handle that a peer has ended; whoever depends on it finds another place at once."""
        now = self.now()
        for member in self.members:
            member.ended(peer, now)
        self._carry()

    def state(self) -> bytes:
        """Return the state of this peer, as JSON."""
        counts = self.links.counts
        return msgspec.json.encode(
            {
                "peer": self.name,
                "uptime_s": round(time.monotonic() - self._began_s, 1),
                "links": self.links.peers,
                "frames_sent": counts.frames_sent,
                "frames_received": counts.frames_received,
                "bytes_sent": counts.bytes_sent,
                "bytes_received": counts.bytes_received,
                "refused": counts.refused,
                "dropped": counts.dropped,
                "spaces": {
                    space.digest.name: member.state()
                    for space, member in zip(self._spaces, self.members, strict=True)
                },
            }
        )

    # --- inside --------------------------------------------------------------------------------

    def _carry(self) -> None:
        """Send and deliver what the members have at the end of the turn, with what others bring."""
        if not self._is_ending_turn:
            self._is_ending_turn = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_ending_turn = False
        if self._is_over:
            return
        self._send_out()
        for number, member in enumerate(self.members):
            arrivals = member.take_arrivals()
            if arrivals:
                self._deliver(number, arrivals)
        self._on_change()
        self._set_alarm()

    def _send_out(self) -> None:
        send = self.links.send
        for number, member in enumerate(self.members):
            for peer, content in member.take_out():
                if isinstance(content, Envelope):
                    is_event = isinstance(content.body, Events)
                    send(peer, encode_envelope(number, content), may_drop=is_event)
                elif isinstance(content, PeerAnswers):
                    send(peer, encode_frame(ACKS, encode_acks(number, content.acks)))
                else:
                    send(peer, encode_frame(GAPS, encode_gaps(number, content.gaps)))
        self.links.flush()

    def _set_alarm(self) -> None:
        due = [at for one in self.members if (at := one.wake_at()) is not None]
        if not due or self._is_over:
            return
        at = min(due)
        if self._alarm is not None:
            if self._alarm_at == at:
                return
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._loop.call_later(max(0.0, (at - self.now()) / 1000), self._wake)

    def _wake(self) -> None:
        self._alarm = None
        now = self.now()
        for member in self.members:
            member.advance(now)
        self._carry()


def _goes_with(first: tuple[int, Envelope], other: tuple[int, Envelope]) -> bool:
    """Return whether two messages are events of one space for the same seat, on the same way."""
    return first[0] == other[0] and goes_with(first[1], other[1])
