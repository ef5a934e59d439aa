"""A link between two nodes: numbered frames over a network that loses, duplicates and reorders.

A link does not retransmit lost frames. It detects the loss (a number is missing, or the peer
reports that it has sent more), and both sides restart the link. Messages that must arrive are then
sent again by the session above the link, as for an MQTT client after a lost connection.

      down ──Hello──► greeting ──Hello that names my token──► up ──gap, silence, new token──► down

Both sides choose a random token for each incarnation of the link. A frame names both tokens; a
frame with another pair belongs to another incarnation and is ignored.

Read next: `peer_registry.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from random import Random
from struct import Struct, error
from typing import NamedTuple, TypeAlias

from nearcast.model.errors import PeerProtocolError

FORMAT = 1
"""The version of the frame format; a node refuses frames of another version."""


class FrameKind(IntEnum):
    """The kind of a frame."""

    HELLO = 1
    """Number 1: I am up, do not answer; 0: please answer. The content is a greeting."""
    DATA = 2
    """Number: 1, 2, … within an incarnation of the link."""
    BEAT = 3
    """A heartbeat. Number: the last DATA that I sent. The content is three times for the skew."""


class Frame(NamedTuple):
    """One frame. The tokens are the sender's and the receiver's; 0: not known."""

    kind: FrameKind
    token: int
    peer_token: int
    number: int
    content: bytes = b""


_HEAD = Struct("<BBQQQ")
_TIMES = Struct("<qqq")


def encode_frame(frame: Frame) -> bytes:
    """Return a frame as bytes."""
    kind, token, peer_token, number, content = frame
    return _HEAD.pack(FORMAT, kind, token, peer_token, number) + content


def decode_frame(data: bytes) -> Frame:
    """Return the frame that `encode_frame` wrote; anything else is a PeerProtocolError."""
    try:
        version, kind, token, peer_token, number = _HEAD.unpack_from(data)
        if version == FORMAT:
            return Frame(FrameKind(kind), token, peer_token, number, data[_HEAD.size :])
    except (error, ValueError):
        raise PeerProtocolError(f"{len(data)} bytes that are no frame", where="link") from None
    raise PeerProtocolError(
        f"format {version}",
        where="link",
        expected=f"format {FORMAT}",
        todo="Upgrade the node that speaks the older one",
    )


@dataclass(frozen=True, slots=True)
class Up:
    """The link is up; `greeting` is the peer's."""

    greeting: bytes


@dataclass(frozen=True, slots=True)
class Down:
    """The link is down; frames in flight may be lost."""

    reason: str


@dataclass(frozen=True, slots=True)
class Arrived:
    """The next content from the peer."""

    content: bytes


Happening: TypeAlias = Up | Down | Arrived


@dataclass(frozen=True, slots=True)
class LinkTiming:
    """How often a link sends, and how long it tolerates silence, in milliseconds."""

    hello_ms: int = 200
    beat_ms: int = 500
    silence_ms: int = 3_000


class Link:
    """One end of a link.

    Contract: between an `Up` and the next `Down` the contents arrive whole, once and in the order
    sent; of an incarnation that ended, a prefix of the contents has arrived. `take_frames` returns
    the frames to send.
    """

    def __init__(self, timing: LinkTiming, random: Random, greeting: bytes = b"") -> None:
        self._timing = timing
        self._random = random
        self.greeting = greeting  # sent in each HELLO
        self._token = self._new_token()
        self._peer_token = 0
        self._peer_greeting = b""
        self._sent = self._received = 0
        self._heard_at = 0
        self._hello_at: int | None = None
        self._beat_at: int | None = None
        self._peer_clock = self._peer_clock_at = 0
        self._frames: list[Frame] = []
        self.is_up = False  # frames may be sent
        self.restarts = 0  # how often the link went down
        self.skew_ms = 0.0  # how far the peer's clock is ahead, up to half of `delay_ms` off
        self.delay_ms = float("inf")  # shortest round trip seen in this incarnation
        # All frames sent before this time, in this incarnation or the one that just ended, have
        # arrived; -1: none for certain.
        self.arrived_ms = -1

    def open(self, now: int) -> None:
        """Start to send greetings."""
        self._say_hello(now)

    def send(self, content: bytes) -> None:
        """Queue content for the peer; the link must be up."""
        assert self.is_up
        self._sent += 1
        self._frames.append(
            Frame(FrameKind.DATA, self._token, self._peer_token, self._sent, content)
        )

    @property
    def has_frames(self) -> bool:
        """Whether `take_frames` would return any."""
        return bool(self._frames)

    def next_frame(self, content: bytes) -> bytes:
        """Return content as the next frame, encoded: as `send`, where no frame waits."""
        self._sent += 1
        head = (FORMAT, FrameKind.DATA, self._token, self._peer_token, self._sent)
        return _HEAD.pack(*head) + content

    def next_content(self, data: bytes, now: int) -> bytes | None:
        """Return the content of a frame that is the next one; None: `receive` handles it."""
        if len(data) < _HEAD.size or not self.is_up:
            return None
        version, kind, token, peer_token, number = _HEAD.unpack_from(data)
        is_of_now = token == self._peer_token and peer_token == self._token
        if version != FORMAT or kind != FrameKind.DATA or not is_of_now:
            return None
        if number != self._received + 1:
            return None
        self._received = number
        self._heard_at = now
        return data[_HEAD.size :]

    def take_frames(self) -> list[Frame]:
        """Return the frames to send, in order."""
        frames, self._frames = self._frames, []
        return frames

    def receive(self, frame: Frame, now: int) -> list[Happening]:
        """Handle a frame; return what follows from it."""
        if frame.kind is FrameKind.HELLO:
            return self._greeted(frame, now)
        if frame.peer_token != self._token or frame.token != self._peer_token:
            return []  # of another incarnation
        self._heard_at = now
        out: list[Happening] = []
        if not self.is_up:
            out.append(self._come_up(now))
        if frame.kind is FrameKind.BEAT:
            return out + self._beaten(frame, now)
        if frame.number <= self._received:
            return out  # a duplicate
        if frame.number > self._received + 1:
            return out + self._begin_anew(f"{frame.number - self._received - 1} lost", now)
        self._received += 1
        out.append(Arrived(frame.content))
        return out

    def is_early(self, data: bytes) -> bool:
        """Return whether a frame has overtaken frames sent before it in this incarnation."""
        try:
            frame = decode_frame(data)
        except PeerProtocolError:
            return False
        if frame.kind is FrameKind.HELLO or not self.is_up:
            return False
        if (frame.peer_token, frame.token) != (self._token, self._peer_token):
            return False
        return frame.number > self._received + (frame.kind is FrameKind.DATA)

    def advance(self, now: int) -> list[Happening]:
        """Run everything that is due at `now`."""
        if self.is_up and now - self._heard_at >= self._timing.silence_ms:
            return self._begin_anew("silence", now)
        if self._hello_at is not None and self._hello_at <= now:
            self._say_hello(now)
        if self._beat_at is not None and self._beat_at <= now:
            self._beat(now)
        return []

    def wake_at(self) -> int | None:
        """Return when `advance` is due next; None if the link was never opened."""
        if self._beat_at is None:
            return self._hello_at  # down: send HELLO; up: send BEAT
        return min(self._beat_at, self._heard_at + self._timing.silence_ms)

    def reset(self, reason: str, now: int) -> list[Happening]:
        """Restart the link from this side."""
        return self._begin_anew(reason, now)

    # --- incarnations -----------------------------------------------------------------------

    def _new_token(self) -> int:
        return self._random.getrandbits(63) + 1

    def _greeted(self, frame: Frame, now: int) -> list[Happening]:
        """Handle a HELLO. One that names my token answers mine: the token is new since I was up."""
        self._heard_at = now
        if self.is_up:
            if frame.token != self._peer_token:
                down = self._begin_anew("the other side began anew", now)
                self._meet(frame)
                self._answer()
                return down
            if not frame.number:
                self._answer()
            return []
        self._meet(frame)
        out: list[Happening] = []
        if frame.peer_token == self._token:
            out.append(self._come_up(now))
        if not frame.number:
            self._answer()
        return out

    def _meet(self, frame: Frame) -> None:
        self._peer_token, self._peer_greeting = frame.token, frame.content

    def _come_up(self, now: int) -> Up:
        self.is_up = True
        self._sent = self._received = 0
        self.arrived_ms = -1
        self._hello_at = None
        self._beat_at = now + self._timing.beat_ms
        return Up(self._peer_greeting)

    def _begin_anew(self, reason: str, now: int) -> list[Happening]:
        """Choose a new token, so that frames in flight are ignored when they arrive."""
        if not self.is_up:
            return []
        self.is_up = False
        self.restarts += 1
        self._beat_at = None
        self._peer_clock = self._peer_clock_at = 0
        self.delay_ms = float("inf")
        self._token = self._new_token()
        self._frames.clear()
        self._say_hello(now)
        return [Down(reason)]

    def _say_hello(self, now: int) -> None:
        self._hello_at = now + self._timing.hello_ms
        self._answer()

    def _answer(self) -> None:
        self._frames.append(
            Frame(FrameKind.HELLO, self._token, self._peer_token, int(self.is_up), self.greeting)
        )

    # --- heartbeats and clocks --------------------------------------------------------------

    def _beat(self, now: int) -> None:
        self._beat_at = now + self._timing.beat_ms
        waited = now - self._peer_clock_at if self._peer_clock_at else -1
        times = _TIMES.pack(now, self._peer_clock, waited)
        self._frames.append(Frame(FrameKind.BEAT, self._token, self._peer_token, self._sent, times))

    def _beaten(self, frame: Frame, now: int) -> list[Happening]:
        if frame.number > self._received:
            return self._begin_anew(f"{frame.number - self._received} lost", now)
        theirs, mine, waited = _TIMES.unpack(frame.content)
        self._peer_clock, self._peer_clock_at = theirs, now
        if waited >= 0:
            self.arrived_ms = mine  # a beat is answered only if no frame before it is missing
            round_trip = now - mine - waited
            if 0 <= round_trip <= self.delay_ms:
                self.delay_ms = round_trip
                self.skew_ms = theirs - now + round_trip / 2
        return []
