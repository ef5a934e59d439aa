"""One subscription in the tree: what it knows, and nothing else.

A seat knows its parent, its siblings, the members of the groups it hosts, and for repair only the
hosts on the way to the root. It hosts the groups of the levels 0 … `top` without a gap, for the
host of a group is one of its members. `top == -1` is a follower: another seat has the very same box
and relays for it.

The behaviour is in functions over this state, one module per concern: `structure.py` (elections,
splits, handing groups over), `joining.py`, `upkeep.py` (beats), `repair.py`, `routing.py` (events).

Read next: `structure.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from nearcast.overlay.bounds import Bounds, union_of
from nearcast.overlay.events import Batch, Floats
from nearcast.overlay.messages import Address, Body, Entry, Envelope, Instant, Join
from nearcast.overlay.settings import Settings

MOST_LOST = 8
"""How many peers that fell silent a seat goes on greeting."""


@dataclass(slots=True)
class Group:
    """A group as its host sees it."""

    level: int
    term: int
    members: dict[Address, Entry]
    heard: dict[Address, Instant]
    passed: dict[Address, int] = field(default_factory=dict)
    """Events passed on to each member lately, for elections by measured rates."""

    @classmethod
    def of(cls, level: int, term: int, entries: Iterable[Entry], now: Instant) -> Group:
        """Return a group whose members were all heard just now."""
        members = {entry.address: entry for entry in entries}
        return cls(level, term, members, dict.fromkeys(members, now))

    def box(self) -> Bounds:
        """Return the box around all members."""
        return union_of([entry.box for entry in self.members.values()])

    def drop(self, member: Address) -> None:
        """Forget a member; no effect if it is none."""
        self.members.pop(member, None)
        self.heard.pop(member, None)
        self.passed.pop(member, None)


@dataclass(slots=True)
class Joining:
    """A request to be taken in, not yet answered."""

    nonce: int
    height: int
    box: Bounds
    fresh: bool
    """A new subscription or a changed box: what is placed is not yet in the seat's groups."""
    moving: bool
    """What is hosted above `height` is given up once somebody takes the seat in."""
    deadline: Instant


@dataclass(slots=True)
class Choice:
    """A join held by the host of a level-2 group while it gathers estimates."""

    join: Join
    waiting: set[Address]
    costs: dict[Address, tuple[float, float]]
    deadline: Instant


class Heir(NamedTuple):
    """Who hosts a group that the seat has just handed over."""

    level: int
    holder: Address
    members: frozenset[Address]
    box: Bounds
    until: Instant
    """By then everybody concerned knows."""


@dataclass(slots=True)
class Tally:
    """What a seat did for events; overhead is counted in events, not in costs."""

    received: int = 0
    unwanted: int = 0
    """Received from another peer, not wanted here: R each."""
    forwarded: int = 0
    """Sent on to another peer: F each."""
    climbing: int = 0
    """The part of `unwanted` that was on its way up."""
    lifted: int = 0
    """The part of `forwarded` that was on its way up."""
    barren: int = 0
    """Received from above, and nobody here or below wanted it."""
    delivered: int = 0
    duplicates: int = 0
    refused: int = 0
    """Messages that made no sense: unknown senders, unsound boxes, cycles."""
    acknowledged: int = 0
    """Events reported as wanted by nobody, with a cache: a small message each."""
    spared: int = 0
    """Forwards that a cache made needless."""


@dataclass(slots=True)
class Branches:
    """Everybody to whom a seat passes events on, as arrays for the kernel."""

    rows: list[tuple[Address, int]]
    """The seat itself first (level -1), then others, then the seat's own groups."""
    others: int
    """How many rows are not the seat's own groups."""
    lows: Floats
    highs: Floats


class Seat:
    """The state of one subscription. `address` is unique; times are milliseconds, never falling."""

    __slots__ = (
        "address",
        "asks",
        "awaiting",
        "barren",
        "beats",
        "box",
        "branches",
        "choices",
        "circles",
        "clock",
        "contacts",
        "delivered",
        "flush_at",
        "former",
        "groups",
        "heirs",
        "joining",
        "kin",
        "lost",
        "next_beat",
        "out",
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
        """The box that the subscriber wants; differs while a change is under way."""
        self.settings = settings
        self.random = random
        self.contacts = contacts
        # the tree
        self.clock = 0
        """The highest term seen; a group that changes hands gets a higher one."""
        self.groups: list[Group] = [Group.of(0, 1, [Entry(address, box)], now)]
        self.parent: Address | None = None
        self.parent_term = 0
        self.parent_heard = now
        self.parent_since = now
        self.former: Address | None = None
        """The parent that was lost last."""
        self.siblings: tuple[Entry, ...] = ()
        self.path: tuple[Address, ...] = ()
        self.kin: tuple[Address, ...] = ()
        self.heirs: list[Heir] = []
        """Groups handed over lately: what comes for them is sent after them."""
        self.reported: Entry | None = None
        self.sponsor: Address | None = None
        # joining and repair
        self.joining: Joining | None = None
        self.choices: dict[int, Choice] = {}
        self.refuges: list[Address] = []
        self.tries = 0
        self.settled = not contacts
        """Without a parent, and with reason to believe that it is the root of the one tree."""
        self.circles = 0
        """How often in a row the parent claimed to be below this seat."""
        self.awaiting: Instant | None = None
        """Until when an orphan waits for the sibling that was elected."""
        self.lost: dict[Address, Instant] = {}
        self.next_beat = now + 1 + int(random.random() * settings.beat_ms)
        self.beats = 0
        # events
        self.branches: Branches | None = None
        self.seen: set[object] = set()
        self.seen_before: set[object] = set()
        self.seen_since = now
        self.pending: dict[tuple[Address, bool, bool], list[Batch]] = {}
        self.flush_at: Instant | None = None
        self.delivered: list[Batch] = []
        self.tally = Tally()
        self.barren: dict[Address, dict[Bounds, None]] = {}
        self.asks: dict[Address, int] = {}
        self.out: list[Envelope] = []

    @property
    def top(self) -> int:
        """Return the highest level hosted; -1 for a follower."""
        return len(self.groups) - 1

    @property
    def root(self) -> Address:
        """Return the root, as far as this seat knows."""
        return self.path[0] if self.parent is not None and self.path else self.address

    def overhead(self) -> float:
        """Return all overhead so far, in the settings' costs."""
        costs = self.settings.costs
        return costs.receive * self.tally.unwanted + costs.forward * self.tally.forwarded

    def entry(self, level: int) -> Entry:
        """Return this seat as a member of a group of `level + 1`."""
        if level < 0:
            return Entry(self.address, self.box, 1)
        group = self.groups[level]
        return Entry(self.address, group.box(), len(group.members))

    def send(self, to: Address, body: Body) -> None:
        """Put a message into the outbox."""
        self.out.append(Envelope(to, self.address, body))

    def is_asking(self, now: Instant) -> bool:
        """Say whether an answer to a request may still come."""
        return self.joining is not None and now < self.joining.deadline

    def is_moving(self, now: Instant) -> bool:
        """Say whether the seat is changing places, which a better contact must not interrupt."""
        return self.joining is not None and self.joining.moving and now < self.joining.deadline

    def heir_of(self, level: int, *members: Address | None) -> Address | None:
        """Return who hosts a group handed over lately, preferably the one with these members."""
        at_level = [heir for heir in self.heirs if heir.level == level]
        for heir in reversed(at_level):
            if any(member in heir.members for member in members):
                return heir.holder
        return at_level[-1].holder if at_level else None

    def due_at(self) -> Instant:
        """Say when the seat wants to be woken."""
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
        """Keep the clock at the highest term seen."""
        self.clock = max(self.clock, term)

    def remember_lost(self, who: Address, now: Instant) -> None:
        """Greet a peer that fell silent from time to time: it may be behind a partition."""
        if who == self.address:
            return
        self.lost.pop(who, None)
        self.lost[who] = now + self.settings.probe_ms
        while len(self.lost) > MOST_LOST:
            del self.lost[next(iter(self.lost))]
