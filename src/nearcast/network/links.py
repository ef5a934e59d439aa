"""A link between two nodes: numbered frames over a network that loses, doubles and reorders.

A link does not repeat what is lost. It notices (a number is missing, or the other side says that it
has sent more), and both sides begin anew; what must arrive is then sent again by the session that
runs over the link, as an MQTT client's is after a lost connection.

      down ──Hello──► greeting ──Hello that names my token──► up ──gap, silence, new token──► down

Both sides choose a token for each beginning. A frame names both; a frame with another pair belongs
to another beginning and is not taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from random import Random
from struct import Struct, error
from typing import NamedTuple, TypeAlias

from nearcast.model.errors import PeerProtocolError

FORMAT = 1
"""The version of the frames; a node refuses to talk to one that speaks another."""


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    """Number 1: I am up, do not answer; 0: answer me. The content is a greeting."""
    DATA = 2
    BEAT = 3
    """Number: the last that I sent. The content is three times for the skew."""


class Frame(NamedTuple):
    """What travels. Tokens are the sender's and the receiver's; 0: not known."""

    kind: Kind
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
            return Frame(Kind(kind), token, peer_token, number, data[_HEAD.size :])
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
    """The link works from now on; what the other side said of itself."""

    greeting: bytes


@dataclass(frozen=True, slots=True)
class Down:
    """The link is broken; whatever was under way may be lost."""

    reason: str


@dataclass(frozen=True, slots=True)
class Arrived:
    """What the other side sent next."""

    content: bytes


Happening: TypeAlias = Up | Down | Arrived


@dataclass(frozen=True, slots=True)
class LinkTiming:
    """How patient a link is, in milliseconds."""

    hello_ms: int = 200
    beat_ms: int = 500
    silence_ms: int = 3_000


class Link:
    """One end of a link.

    Contract: between an `Up` and the next `Down` the contents arrive whole, once and in the order
    sent; of a beginning that ends, a prefix of what was sent has arrived. `take_frames` returns
    what is to travel. `skew_ms` is how far the other clock is ahead, as far as the delay lets it be
    told; `delay_ms` is the shortest round trip seen. All that was sent before `arrived_ms`, in this
    beginning or the one that has just ended, has arrived; -1: nothing surely.
    """

    def __init__(self, timing: LinkTiming, random: Random, greeting: bytes = b"") -> None:
        self._timing = timing
        self._random = random
        self.greeting = greeting
        self._token = self._new_token()
        self._peer_token = 0
        self._peer_greeting = b""
        self._sent = self._received = 0
        self._heard_at = 0
        self._hello_at: int | None = None
        self._beat_at: int | None = None
        self._peer_clock = self._peer_clock_at = 0
        self._frames: list[Frame] = []
        self.is_up = False
        self.restarts = 0
        self.skew_ms = 0.0
        self.delay_ms = float("inf")
        self.arrived_ms = -1

    def open(self, now: int) -> None:
        """Begin to greet."""
        self._say_hello(now)

    def send(self, content: bytes) -> None:
        """Send; the link must be up."""
        assert self.is_up
        self._sent += 1
        self._frames.append(Frame(Kind.DATA, self._token, self._peer_token, self._sent, content))

    def take_frames(self) -> list[Frame]:
        """Return what is to travel now, in this order."""
        frames, self._frames = self._frames, []
        return frames

    def receive(self, frame: Frame, now: int) -> list[Happening]:
        """Take in a frame; return what follows from it."""
        if frame.kind is Kind.HELLO:
            return self._greeted(frame, now)
        if frame.peer_token != self._token or frame.token != self._peer_token:
            return []  # of another beginning
        self._heard_at = now
        out: list[Happening] = []
        if not self.is_up:
            out.append(self._come_up(now))
        if frame.kind is Kind.BEAT:
            return out + self._beaten(frame, now)
        if frame.number <= self._received:
            return out  # doubled on the way
        if frame.number > self._received + 1:
            return out + self._begin_anew(f"{frame.number - self._received - 1} lost", now)
        self._received += 1
        out.append(Arrived(frame.content))
        return out

    def is_early(self, data: bytes) -> bool:
        """Tell whether a frame of this beginning came before others that were sent earlier."""
        try:
            frame = decode_frame(data)
        except PeerProtocolError:
            return False
        if frame.kind is Kind.HELLO or not self.is_up:
            return False
        if (frame.peer_token, frame.token) != (self._token, self._peer_token):
            return False
        return frame.number > self._received + (frame.kind is Kind.DATA)

    def advance(self, now: int) -> list[Happening]:
        """Do what is due."""
        if self.is_up and now - self._heard_at >= self._timing.silence_ms:
            return self._begin_anew("silence", now)
        if self._hello_at is not None and self._hello_at <= now:
            self._say_hello(now)
        if self._beat_at is not None and self._beat_at <= now:
            self._beat(now)
        return []

    def wake_at(self) -> int | None:
        """Say when something is due."""
        if self._beat_at is None:
            return self._hello_at  # a link that is down greets, one that is up beats
        return min(self._beat_at, self._heard_at + self._timing.silence_ms)

    def reset(self, reason: str, now: int) -> list[Happening]:
        """Begin anew from this side."""
        return self._begin_anew(reason, now)

    # --- beginnings -------------------------------------------------------------------------

    def _new_token(self) -> int:
        return self._random.getrandbits(63) + 1

    def _greeted(self, frame: Frame, now: int) -> list[Happening]:
        """Take a Hello. What names my token answers me; my token is new since I was last up."""
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
        """Choose a new token, so that nothing that was sent before can be taken any more."""
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
            Frame(Kind.HELLO, self._token, self._peer_token, int(self.is_up), self.greeting)
        )

    # --- beats and clocks -------------------------------------------------------------------

    def _beat(self, now: int) -> None:
        self._beat_at = now + self._timing.beat_ms
        waited = now - self._peer_clock_at if self._peer_clock_at else -1
        times = _TIMES.pack(now, self._peer_clock, waited)
        self._frames.append(Frame(Kind.BEAT, self._token, self._peer_token, self._sent, times))

    def _beaten(self, frame: Frame, now: int) -> list[Happening]:
        if frame.number > self._received:
            return self._begin_anew(f"{frame.number - self._received} lost", now)
        theirs, mine, waited = _TIMES.unpack(frame.content)
        self._peer_clock, self._peer_clock_at = theirs, now
        if waited >= 0:
            self.arrived_ms = mine  # a beat is answered only if nothing before it is missing
            round_trip = now - mine - waited
            if 0 <= round_trip <= self.delay_ms:
                self.delay_ms = round_trip
                self.skew_ms = theirs - now + round_trip / 2
        return []
