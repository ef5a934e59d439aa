"""The state of one subscription in the tree.

A seat knows its parent, its siblings, the members of the groups it hosts, and, for repair only, the
hosts on the way to the root. It hosts the groups of the levels 0 … `top` without a gap, as the host
of a group is one of its members. `top == -1` is a follower: another seat has exactly the same box
and relays for it.

The behaviour is in functions over this state, one module per concern: `structure.py` (elections,
splits, handing groups over), `joining.py`, `upkeep.py` (heartbeats), `repair.py`, `routing.py`
(events).

Read next: `structure.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from nearcast.overlay.bounds import Bounds, union_of
from nearcast.overlay.events import EventBatch, Floats
from nearcast.overlay.messages import (
    Address,
    Body,
    Envelope,
    Instant,
    Join,
    MemberEntry,
    PeerId,
)
from nearcast.overlay.settings import Settings

MOST_LOST = 8
"""To how many silent peers a seat keeps sending greetings."""
MOST_MET = 8
"""How many peers a seat keeps of those that others have named."""


@dataclass(slots=True)
class Group:
    """A group as its host sees it."""

    level: int
    term: int
    members: dict[Address, MemberEntry]
    heard: dict[Address, Instant]
    """When each member was last heard from."""
    passed: dict[Address, int] = field(default_factory=dict)
    """Events forwarded to each member lately, for elections by measured rates."""
    loads: dict[Address, int] = field(default_factory=dict)
    """What relaying has cost each member lately, as it last said."""

    @classmethod
    def of(cls, level: int, term: int, entries: Iterable[MemberEntry], now: Instant) -> Group:
        """Return a group whose members were all heard from just now."""
        members = {entry.address: entry for entry in entries}
        return cls(level, term, members, dict.fromkeys(members, now))

    def box(self) -> Bounds:
        """Return the box around all members."""
        return union_of([entry.box for entry in self.members.values()])

    def drop(self, member: Address) -> None:
        """Remove a member; no effect if it is none."""
        self.members.pop(member, None)
        self.heard.pop(member, None)
        self.passed.pop(member, None)
        self.loads.pop(member, None)


@dataclass(slots=True)
class Joining:
    """A join request of this seat that is not yet answered."""

    nonce: int
    height: int
    box: Bounds
    fresh: bool
    """A new subscription or a changed box: the box is not yet in the seat's groups."""
    moving: bool
    """All groups above `height` are given up once the seat is accepted."""
    contact: Address
    """Who was asked."""
    deadline: Instant


@dataclass(slots=True)
class PendingJoin:
    """A join that the host of a level-2 group keeps while it gathers estimates."""

    join: Join
    waiting: set[Address]
    """The level-1 hosts that have not answered yet."""
    costs: dict[Address, tuple[float, float]]
    """The estimates so far, as `joining._estimate` returns them."""
    deadline: Instant


class Gap(NamedTuple):
    """Events in `box` may have passed some subscriber by, since it was cut off from the root."""

    box: Bounds
    since: Instant | None
    """None: not known."""


class Heir(NamedTuple):
    """The host of a group that the seat has just handed over."""

    level: int
    host: Address
    members: frozenset[Address]
    box: Bounds
    until: Instant
    """By then all seats concerned know the new host."""


@dataclass(slots=True)
class SeatCounts:
    """Counts of a seat's events; overhead is counted in events, not in costs."""

    received: int = 0
    unwanted: int = 0
    """Received from another peer, not wanted here: R each."""
    forwarded: int = 0
    """Forwarded to another peer: F each."""
    climbing: int = 0
    """The part of `unwanted` that was on its way up."""
    lifted: int = 0
    """The part of `forwarded` that was on its way up."""
    barren: int = 0
    """Received from above, and wanted neither here nor below."""
    delivered: int = 0
    duplicates: int = 0
    refused: int = 0
    """Invalid messages: unknown senders, invalid boxes, cycles."""
    acknowledged: int = 0
    """Events reported as not wanted, with a cache: a small message each."""
    spared: int = 0
    """Forwards that a cache made needless."""


@dataclass(slots=True)
class Branches:
    """All targets to which a seat forwards events, as arrays for the kernel."""

    rows: list[tuple[Address, int]]
    """The seat itself first (level -1), then others, then the seat's own groups."""
    others: int
    """How many rows are not the seat's own groups."""
    lows: Floats
    highs: Floats


class Seat:
    """The state of one subscription. `address` is unique; times are in ms, never decreasing."""

    __slots__ = (
        "address",
        "asks",
        "awaiting",
        "barren",
        "beats",
        "box",
        "branches",
        "burden",
        "choices",
        "circles",
        "clock",
        "contacts",
        "counted",
        "cut_since",
        "delivered",
        "flush_at",
        "former",
        "gaps",
        "groups",
        "heirs",
        "hosting_since",
        "joining",
        "kin",
        "lost",
        "met",
        "next_beat",
        "out",
        "outside",
        "parent",
        "parent_heard",
        "parent_since",
        "parent_term",
        "path",
        "pending",
        "random",
        "refuges",
        "reported",
        "seen",
        "seen_before",
        "seen_since",
        "settings",
        "settled",
        "siblings",
        "sponsor",
        "tally",
        "tries",
        "unreached",
        "wanted",
    )

    def __init__(
        self,
        address: Address,
        box: Bounds,
        settings: Settings,
        random: Random,
        contacts: tuple[Address, ...],
        now: Instant,
    ) -> None:
        self.address = address
        self.box = box
        """The box by which the tree knows this seat."""
        self.wanted = box
        """The box that the subscriber wants; differs while a change is in progress."""
        self.settings = settings
        self.random = random
        # Addresses known from the start, through which the overlay can be reached.
        self.contacts = contacts
        # Peers to which connections broke lately, and until when that counts.
        self.unreached: dict[PeerId, Instant] = {}
        # --- the tree
        self.clock = 0
        """The highest term seen; a group that changes its host gets a higher one."""
        # The groups that this seat hosts, by level from 0 without a gap.
        self.groups: list[Group] = [Group.of(0, 1, [MemberEntry(address, box)], now)]
        # The host of the group in which this seat is a member; None for a root or an orphan.
        self.parent: Address | None = None
        self.parent_term = 0
        self.parent_heard = self.parent_since = now  # when it was last heard from, and its start
        # The parent that was lost last, and when it was last heard from; None while there is one.
        self.former: Address | None = None
        self.cut_since: Instant | None = None
        self.gaps: list[Gap] = []  # ended with a new parent, until the peer collects them
        # All members of the parent's group, as the parent last sent them.
        self.siblings: tuple[MemberEntry, ...] = ()
        # The hosts from the root down to the parent; for repair.
        self.path: tuple[Address, ...] = ()
        # Members of the group one level above the parent's; for repair.
        self.kin: tuple[Address, ...] = ()
        # Groups handed over lately: messages for them are forwarded to their new hosts.
        self.heirs: list[Heir] = []
        self.reported: MemberEntry | None = None  # the entry that was last reported to the parent
        # The member whose group was split to make this seat's; sent until the parent adopts it.
        self.sponsor: Address | None = None
        # --- joining and repair
        self.joining: Joining | None = None  # this seat's own join request, until it is answered
        # Joins of others for which estimates are gathered, by nonce.
        self.choices: dict[int, PendingJoin] = {}
        self.refuges: list[Address] = []  # addresses to ask for a parent, in order
        self.tries = 0  # requests in a row without success
        self.settled = not contacts
        """Without a parent, and with reason to believe that it is the root of the only tree."""
        self.circles = 0
        """How often in a row the parent claimed to be below this seat."""
        self.awaiting: Instant | None = None
        """Until when an orphan waits for the elected sibling."""
        self.lost: dict[Address, Instant] = {}  # silent peers, and when to greet each again
        self.met: list[Address] = []  # named by other peers, the newest last
        self.next_beat, self.beats = now + 1 + int(random.random() * settings.beat_ms), 0
        # --- events
        # The targets of events as arrays; None: to be built again.
        self.branches: Branches | None = None
        # Ids seen in this period and the one before: the memory against duplicates.
        self.seen, self.seen_before, self.seen_since = set[object](), set[object](), now
        # Events held back, by target, rising and cached (`Settings.coalesce_ms`).
        self.pending: dict[tuple[Address, bool, bool], list[EventBatch]] = {}
        self.flush_at: Instant | None = None
        # Events for the subscriber, until the peer collects them.
        self.delivered: list[EventBatch] = []
        self.tally = SeatCounts()
        # What relaying has cost lately, by which `Settings.spread` decides; until when counted.
        self.burden = self.counted = 0.0
        self.hosting_since = now
        """When groups came from another host, or were handed over because of the load."""
        # Values that nobody behind a member wanted (`cache.py`).
        self.barren: dict[Address, dict[Bounds, None]] = {}
        # The number under which each member is asked; a join increases it.
        self.asks: dict[Address, int] = {}
        # What hosts above said about their groups, for a bridge (`outside.py`).
        self.outside: dict[Address, tuple[MemberEntry, ...]] = {}
        self.out: list[Envelope] = []

    @property
    def top(self) -> int:
        """Return the highest level hosted; -1 for a follower."""
        return len(self.groups) - 1

    @property
    def root(self) -> Address:
        """Return the root, as far as this seat knows."""
        return self.path[0] if self.parent is not None and self.path else self.address

    def entrance(self, now: Instant) -> Address:
        """Return where events of this peer enter: the root, or the nearest host that is reached."""
        if self.parent is None:
            return self.address
        return next((host for host in self.path if self.is_reached(host, now)), self.parent)

    def is_reached(self, address: Address, now: Instant) -> bool:
        """Return whether no connection to a peer broke lately."""
        return self.unreached.get(address.peer, now) <= now

    def overhead(self) -> float:
        """Return all overhead so far, in the settings' costs."""
        costs = self.settings.costs
        return costs.receive * self.tally.unwanted + costs.forward * self.tally.forwarded

    def entry(self, level: int) -> MemberEntry:
        """Return this seat as a member of a group of `level + 1`."""
        if level < 0:
            return MemberEntry(self.address, self.box, 1)
        group = self.groups[level]
        return MemberEntry(self.address, group.box(), len(group.members))

    def send(self, to: Address, body: Body) -> None:
        """Put a message into the outbox."""
        self.out.append(Envelope(to, self.address, body))

    def is_asking(self, now: Instant) -> bool:
        """Return whether an answer to a request may still come."""
        return self.joining is not None and now < self.joining.deadline

    def is_moving(self, now: Instant) -> bool:
        """Return whether the seat is moving, which a better contact must not interrupt."""
        return self.joining is not None and self.joining.moving and now < self.joining.deadline

    def heir_of(self, level: int, *members: Address | None) -> Address | None:
        """Return the host of a group handed over lately, preferably the one with these members."""
        at_level = [heir for heir in self.heirs if heir.level == level]
        for heir in reversed(at_level):
            if any(member in heir.members for member in members):
                return heir.host
        return at_level[-1].host if at_level else None

    def due_at(self) -> Instant:
        """Return when the seat has something to do next."""
        at = self.next_beat
        if self.flush_at is not None and self.flush_at < at:
            at = self.flush_at
        if self.joining is not None and self.joining.deadline < at:
            at = self.joining.deadline
        if self.awaiting is not None and self.awaiting < at:
            at = self.awaiting
        for choice in self.choices.values():
            at = min(at, choice.deadline)
        return at

    def learn_term(self, term: int) -> None:
        """Raise the clock to a term, if it is higher."""
        self.clock = max(self.clock, term)

    def remember_lost(self, address: Address, now: Instant) -> None:
        """Greet a silent peer from time to time: it may be behind a partition."""
        if address == self.address:
            return
        self.lost.pop(address, None)
        self.lost[address] = now + self.settings.probe_ms
        while len(self.lost) > MOST_LOST:
            del self.lost[next(iter(self.lost))]
