"""What peers say to each other.

    Join       take this box (or this whole subtree) into a group        climbs, then descends
    Ask        what would your group cost with this box in it?           host of level 2 → level 1
    Answer     …                                                         back
    Adopt      I am your parent; these are your siblings                 parent → child, each beat
    Report     I am your child; this is my box                           child → parent, each beat
    Handover   these groups are yours now                                old host → new host
    Returned   …but I cannot take them                                   back
    Replace    from now on, this one instead of me                       old host → its parent
    Left       I am no child of yours (any more)                         child → parent
    Unknown    you are no child of mine                                  parent → child
    Relocate   my group is too small: find another                       host → member
    Greet      which root do you know?                                   after a suspected partition
    Meet       there is another tree behind this peer                    climbs to the root
    Events     pass these on                                             up (rising) or down
    Barren     nobody below wanted these                                 child → parent, with caches
    Refused    I will not, because …                                     to whoever asked

Levels count from below: a level-0 group is one box with everybody who subscribed to exactly it, a
level-1 group holds such boxes, a level-k group holds level-(k-1) groups. The host of a group is
always one of its members (paper 3, "Tree").

Read next: `seat.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple, TypeAlias

from nearcast.overlay.bounds import Bounds
from nearcast.overlay.events import Batch

PeerId: TypeAlias = str
Instant: TypeAlias = int
"""Milliseconds."""


class Address(NamedTuple):
    """One subscription's seat at a peer."""

    peer: PeerId
    seat: int


class Entry(NamedTuple):
    """What a group knows of a member: its host, the box around all below it, its size."""

    address: Address
    box: Bounds
    size: int = 1
    """Overhead per second that the host bears, as it reports."""


@dataclass(frozen=True, slots=True)
class Join:
    """Take the group of height `height` that `origin` hosts into a group one level higher."""

    origin: Address
    entry: Entry
    height: int
    nonce: int
    term: int = 0
    """The highest term that the origin knows; whoever takes it in will go beyond."""
    avoid: Address | None = None
    descend: int | None = None
    """None while climbing; then the level of the receiver's group that is to take it further."""
    settled: bool = False
    """The origin has reason to believe that it is the root of the one tree."""
    moving: bool = False
    """The origin gives up all it hosts above `height` once it is taken in."""
    twin: bool = False
    """Sent to the relay of the very same box."""
    hops: int = 0


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask what a level-1 group would cost with this entry in it."""

    entry: Entry
    nonce: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What it would cost, by the paper's formula; `twin` if the very same box is there already."""

    nonce: int
    cost: float
    twin: bool


@dataclass(frozen=True, slots=True)
class Adopt:
    """I host the group of this level, and you are in it."""

    level: int
    term: int
    siblings: tuple[Entry, ...]
    path: tuple[Address, ...]
    """Hosts from the root down to the sender."""
    kin: tuple[Address, ...]
    """Members of the group one level higher: where to ask if the sender is gone."""
    nonce: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """I am the member `entry` of your group of this level."""

    level: int
    entry: Entry
    term: int
    sponsor: Address | None = None
    """The member whose group was split to make the sender's."""
    hops: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """A group that changes hands."""

    level: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Handover:
    """Host these groups, lowest level first; your parent is `uplink` (None: be the root)."""

    grants: tuple[Grant, ...]
    uplink: Address | None
    uplink_term: int
    term: int
    sponsor: Address | None = None
    nonce: int | None = None
    settled: bool = True
    """Without an uplink: whether the old host took itself for the one root."""
    hops: int = 0
    known: tuple[Address, ...] = ()
    """Peers of other trees that the old host lost sight of."""


@dataclass(frozen=True, slots=True)
class Returned:
    """I cannot host these groups: take them back."""

    handover: Handover


@dataclass(frozen=True, slots=True)
class Replace:
    """In your group of this level, put `entry` in my place."""

    level: int
    entry: Entry
    term: int = 0
    hops: int = 0


@dataclass(frozen=True, slots=True)
class Left:
    """I am not in your group of this level (any more)."""

    level: int
    hops: int = 0


@dataclass(frozen=True, slots=True)
class Unknown:
    """You are not in my group of this level."""

    level: int


@dataclass(frozen=True, slots=True)
class Relocate:
    """My group of this level is too small; find yourself another."""

    level: int


@dataclass(frozen=True, slots=True)
class Greet:
    """Compare roots with somebody not heard of for a while."""

    root: Address
    answer: bool


@dataclass(frozen=True, slots=True)
class Meet:
    """`contact` belongs to another tree."""

    contact: Address
    hops: int = 0


@dataclass(frozen=True, slots=True)
class Events:
    """Pass these on: down to whom they concern and, if rising, also up."""

    batch: Batch
    rising: bool
    asks: int | None = None
    """With a cache: the sender wants to hear, under this number, which events nobody wanted."""


@dataclass(frozen=True, slots=True)
class Barren:
    """Nobody below wanted events with these values."""

    boxes: tuple[Bounds, ...]
    asks: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The sender will not do what was asked."""

    reason: str
    nonce: int


Body: TypeAlias = (
    Join
    | Ask
    | Answer
    | Adopt
    | Report
    | Handover
    | Returned
    | Replace
    | Left
    | Unknown
    | Relocate
    | Greet
    | Meet
    | Events
    | Barren
    | Refused
)


class Envelope(NamedTuple):
    """A message under way."""

    to: Address
    sender: Address
    body: Body


class Delivery(NamedTuple):
    """Events for this peer's own subscriptions, each once."""

    batch: Batch


Output: TypeAlias = Envelope | Delivery

_WORD = 8


def size_bytes(body: Body) -> int:
    """Return about how many bytes a body takes on the wire: 8 per number or name, plus payloads."""
    return _WORD + sum([_size(getattr(body, field.name)) for field in fields(body)])


def _size(value: object) -> int:
    if isinstance(value, Batch):
        sides = 2 if (value.lows != value.highs).any() else 1
        return int(len(value) * _WORD + sides * value.lows.nbytes) + sum(map(len, value.payloads))
    if isinstance(value, Grant):
        return _WORD + _size(value.entries)
    if isinstance(value, Handover):
        return size_bytes(value)
    if isinstance(value, tuple):
        return sum(map(_size, value))
    return _WORD
