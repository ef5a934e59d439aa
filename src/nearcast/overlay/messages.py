"""The messages between peers.

    Join          add this box (or this whole subtree) to a group        climbs, then descends
    Ask           what would your group cost with this box in it?        host of level 2 → level 1
    Answer        …                                                      back
    Adopt         I am your parent; these are your siblings              parent → child, heartbeat
    MemberReport  I am your child; this is my box                        child → parent, heartbeat
    GroupHandover these groups are yours now                             old host → new host
    Returned      …but I cannot take them                                back
    Replace       from now on, this one instead of me                    old host → its parent
    MemberLeft    I am no child of yours (any more)                      child → parent
    Unknown       you are no child of mine                               parent → child
    Relocate      my group is too small: find another                    host → member
    Greet         which root do you know?                                after a suspected partition
    Meet          there is another tree behind this peer                 climbs to the root
    Events        pass these on                                          up (rising) or down
    Barren        nobody below wanted these                              child → parent, with caches
    Refused       I will not, because …                                  to the sender
    AskBoxes      what is in your groups?                                a bridge → hosts above it
    GroupBoxes    …                                                      back

Levels count from below: a level-0 group is one box with all seats that have exactly this box, a
level-1 group holds such boxes, a level-k group holds level-(k-1) groups. The host of a group is
always one of its members (paper 3, "Tree").

Read next: `seat.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple, TypeAlias

from nearcast.overlay.bounds import Bounds
from nearcast.overlay.events import EventBatch

PeerId: TypeAlias = str
Instant: TypeAlias = int
"""Milliseconds."""


class Address(NamedTuple):
    """One subscription's seat at a peer."""

    peer: PeerId
    seat: int


class MemberEntry(NamedTuple):
    """A group's view of a member: its host, the box around all below it, its size."""

    address: Address
    box: Bounds
    size: int = 1
    """How many members the group has that this member hosts; 1 for a single box."""


@dataclass(frozen=True, slots=True)
class Join:
    """Add the group of height `height` that `origin` hosts to a group one level higher."""

    origin: Address
    entry: MemberEntry
    height: int
    nonce: int
    term: int = 0
    """The highest term that the origin knows; the host that accepts it uses a higher one."""
    avoid: Address | None = None
    descend: int | None = None
    """None while climbing; then the level of the receiver's group that is to forward it."""
    settled: bool = False
    """The origin has reason to believe that it is the root of the only tree."""
    moving: bool = False
    """The origin gives up all groups that it hosts above `height` once it is accepted."""
    twin: bool = False
    """Sent to the relay of exactly the same box."""
    hops: int = 0


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask for the cost of a level-1 group with this entry in it."""

    entry: MemberEntry
    nonce: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The cost by the paper's formula; `twin` if exactly this box is there already."""

    nonce: int
    cost: float
    twin: bool


@dataclass(frozen=True, slots=True)
class Adopt:
    """Parent to member: the sender hosts the group of this level, and the receiver is in it."""

    level: int
    term: int
    siblings: tuple[MemberEntry, ...]
    path: tuple[Address, ...]
    """The hosts from the root down to the sender."""
    kin: tuple[Address, ...]
    """Members of the group one level higher: whom to ask if the sender is gone."""
    nonce: int | None = None


@dataclass(frozen=True, slots=True)
class MemberReport:
    """Member to parent: the sender is the member `entry` of the receiver's group of this level."""

    level: int
    entry: MemberEntry
    term: int
    sponsor: Address | None = None
    """The member whose group was split to make the sender's."""
    hops: int = 0
    load: int = 0
    """What relaying has cost the sender lately (`Settings.spread`)."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A group that changes its host."""

    level: int
    entries: tuple[MemberEntry, ...]


@dataclass(frozen=True, slots=True)
class GroupHandover:
    """Host these groups, lowest level first; the new parent is `uplink` (None: become the root)."""

    grants: tuple[Grant, ...]
    uplink: Address | None
    uplink_term: int
    term: int
    sponsor: Address | None = None
    nonce: int | None = None
    settled: bool = True
    """Without an uplink: whether the old host believed that it was the only root."""
    hops: int = 0
    known: tuple[Address, ...] = ()
    """Peers of other trees that the old host lost contact with."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The receiver of a handover cannot host these groups; the old host takes them back."""

    handover: GroupHandover


@dataclass(frozen=True, slots=True)
class Replace:
    """In the receiver's group of this level, put `entry` in the sender's place."""

    level: int
    entry: MemberEntry
    term: int = 0
    hops: int = 0


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """The sender is not in the receiver's group of this level (any more)."""

    level: int
    hops: int = 0


@dataclass(frozen=True, slots=True)
class Unknown:
    """The receiver is not in the sender's group of this level."""

    level: int


@dataclass(frozen=True, slots=True)
class Relocate:
    """The sender's group of this level is too small; the receiver has to find another."""

    level: int


@dataclass(frozen=True, slots=True)
class Greet:
    """Compare roots with a peer that has been silent for a while."""

    root: Address
    answer: bool
    known: tuple[Address, ...] = ()
    """Some neighbours of the sender, through which the receiver may find the tree later."""


@dataclass(frozen=True, slots=True)
class Meet:
    """The seat `contact` belongs to another tree."""

    contact: Address
    hops: int = 0


@dataclass(frozen=True, slots=True)
class Events:
    """Forward these events: down to the members they concern and, if rising, also up."""

    batch: EventBatch
    rising: bool
    asks: int | None = None
    """With a cache: the sender asks, under this number, which events nobody wanted."""


@dataclass(frozen=True, slots=True)
class Barren:
    """No subscription below wanted events with these values."""

    boxes: tuple[Bounds, ...]
    asks: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The sender refuses a request."""

    reason: str
    nonce: int


@dataclass(frozen=True, slots=True)
class AskBoxes:
    """Ask a host on the way from the root for the boxes of its groups."""


@dataclass(frozen=True, slots=True)
class GroupBoxes:
    """The sender's own box first, then the members of all groups that it hosts."""

    entries: tuple[MemberEntry, ...]


Body: TypeAlias = (
    Join
    | Ask
    | Answer
    | Adopt
    | MemberReport
    | GroupHandover
    | Returned
    | Replace
    | MemberLeft
    | Unknown
    | Relocate
    | Greet
    | Meet
    | Events
    | Barren
    | Refused
    | AskBoxes
    | GroupBoxes
)


class Envelope(NamedTuple):
    """A message in flight."""

    to: Address
    sender: Address
    body: Body


class EventDelivery(NamedTuple):
    """Events for this peer's own subscriptions, each once."""

    batch: EventBatch


Output: TypeAlias = Envelope | EventDelivery

_WORD = 8


def size_bytes(body: Body) -> int:
    """Return about how many bytes a body takes on the wire: 8 per number or name, plus payloads."""
    return _WORD + sum([_size(getattr(body, field.name)) for field in fields(body)])


def _size(value: object) -> int:
    if isinstance(value, EventBatch):
        sides = 2 if (value.lows != value.highs).any() else 1
        return int(len(value) * _WORD + sides * value.lows.nbytes) + sum(map(len, value.payloads))
    if isinstance(value, Grant):
        return _WORD + _size(value.entries)
    if isinstance(value, GroupHandover):
        return size_bytes(value)
    if isinstance(value, tuple):
        return sum(map(_size, value))
    return _WORD
