"""Elections, splits and handing groups over: all decided by the host alone, from its own state.

A host has the groups of its levels 0 … top, so it can settle in one step all consequences of a
change on one level for the others: a group that is too large is split, each part elects its host,
and since a host is one of the members, a seat that loses a group loses those above it too. The
result is sent as one `GroupHandover` to each new host (paper 3, "Joining"; trap T3.2).

Read next: `joining.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from nearcast.overlay.bounds import union_of
from nearcast.overlay.election import Method, elect
from nearcast.overlay.messages import (
    Address,
    Adopt,
    Grant,
    GroupHandover,
    Instant,
    MemberEntry,
    MemberLeft,
    MemberReport,
    Replace,
)
from nearcast.overlay.seat import MOST_LOST, Gap, Group, Heir, Seat
from nearcast.overlay.splitting import split


@dataclass(slots=True)
class _Part:
    """A group as it will be."""

    level: int
    entries: dict[Address, MemberEntry]
    host: Address

    def entry(self) -> MemberEntry:
        box = union_of([entry.box for entry in self.entries.values()])
        return MemberEntry(self.host, box, len(self.entries))


@dataclass(slots=True)
class _Plan:
    parts: list[_Part] = field(default_factory=list)
    passed: list[MemberEntry] = field(default_factory=list)
    """The entries of the seat's groups one level above the last one planned."""
    upto: int = 0
    """The first level that stays as it is."""
    reaches_top: bool = False


def settle(
    seat: Seat,
    start: int,
    now: Instant,
    *,
    until: int | None = None,
    newcomer: Address | None = None,
    heir: Address | None = None,
    elects: bool = True,
    leaving: bool = False,
    nonce: int | None = None,
    known: tuple[Address, ...] = (),
) -> None:
    """Reorganise the seat's groups from level `start` up, and inform all seats concerned.

    Levels up to `until` are planned in any case, higher ones only if something changed below. Each
    of the former elects its host, unless `elects` is false; a group that only records a change
    below keeps its host until the next heartbeat, or the hosts would change with every join. `heir`
    is to host level `start`. With `leaving`, the seat removes its own entry. Complexity: O(levels ·
    most² · n), without a split.
    """
    last = until if until is not None else start
    plan = _Plan(passed=[] if leaving else [seat.entry(start - 1)])
    for level in range(start, seat.top + 1):
        voting = elects and level <= last
        if _is_done(seat, plan, level, last):
            break
        first = level == start
        _plan_level(seat, plan, level, voting, newcomer if first else None, heir if first else None)
    else:
        plan.upto = seat.top + 1
        plan.reaches_top = True
    if plan.reaches_top and seat.parent is None:
        _raise_or_lower_root(seat, plan)
    acquaintances = tuple(dict.fromkeys((*known, *seat.lost, *seat.contacts)))[:MOST_LOST]
    _carry_out(seat, plan, start, now, nonce=nonce, known=acquaintances)


def _is_done(seat: Seat, plan: _Plan, level: int, last: int) -> bool:
    """Return whether nothing changes from this level up."""
    plan.upto = level
    return level > last and plan.passed == [seat.groups[level].members.get(seat.address)]


def _plan_level(
    seat: Seat,
    plan: _Plan,
    level: int,
    voting: bool,
    newcomer: Address | None,
    heir: Address | None,
) -> None:
    members = seat.groups[level].members
    entries = {a: e for a, e in members.items() if a != seat.address}
    entries.update({entry.address: entry for entry in plan.passed})
    plan.passed = []
    several = _parts(seat, level, entries)
    for part in several:
        if heir is not None and heir in part:
            host = heir
        elif seat.address in part and not voting and len(several) == 1:
            host = seat.address
        else:
            host = choose_host(seat, level, part, newcomer)
        made = _Part(level, part, host)
        plan.parts.append(made)
        plan.passed.append(made.entry())


def _parts(
    seat: Seat, level: int, entries: dict[Address, MemberEntry]
) -> list[dict[Address, MemberEntry]]:
    if not entries:
        return []
    settings = seat.settings
    if level == 0 or len(entries) <= settings.most:
        return [entries]
    listed = list(entries.values())
    halves = split([e.box for e in listed], settings.least, settings.extent, settings.split)
    parts = []
    for half in halves:
        parts += _parts(seat, level, {listed[i].address: listed[i] for i in sorted(half)})
    return parts


def choose_host(
    seat: Seat,
    level: int,
    entries: dict[Address, MemberEntry],
    newcomer: Address | None = None,
    *,
    impartial: bool = False,
) -> Address:
    """Return the host of a group; on level 0 the oldest of those with the same box.

    `impartial` gives the seat itself no advantage, so that others would choose the same.
    """
    settings, incumbent = seat.settings, None if impartial else seat.address
    if incumbent in entries and (level == 0 or keeps_hosts(seat, level)):
        return seat.address
    if level == 0:
        return next(iter(entries))
    listed = list(entries.values())
    places = {entry.address: place for place, entry in enumerate(listed)}
    place = elect(
        settings.method,
        [entry.box for entry in listed],
        expected=settings.e.expected,
        volume=settings.extent.volume,
        costs=settings.costs,
        incumbent=places.get(incumbent) if incumbent is not None else None,
        newcomer=places.get(newcomer) if newcomer is not None else None,
        random=None if impartial else seat.random,
    )
    return listed[place].address


def keeps_hosts(seat: Seat, level: int) -> bool:
    """Return whether hosts change only with the heartbeat: by rates or loads, once events flow.

    A member that has not said yet what it bears may have handed this very group over. See
    `repair.py`.
    """
    if seat.settings.spread and level <= seat.top:
        group = seat.groups[level]
        known = [group.loads.get(one, LEAST_SAMPLE) for one in group.members if one != seat.address]
        return max([seat.burden, *known]) >= LEAST_SAMPLE
    return seat.settings.method is Method.MEASURED and seat.tally.received >= LEAST_SAMPLE


LEAST_SAMPLE = 50
"""Events that must have been seen before measured rates count."""


def _raise_or_lower_root(seat: Seat, plan: _Plan) -> None:
    """Put a new root above several parts; remove roots with a single member."""
    while len(plan.passed) > 1:
        level = plan.parts[-1].level + 1
        entries = {entry.address: entry for entry in plan.passed}
        part = _Part(level, entries, choose_host(seat, level, entries))
        plan.parts.append(part)
        plan.passed = [part.entry()]
    while plan.parts and plan.parts[-1].level > 0 and len(plan.parts[-1].entries) == 1:
        plan.passed = list(plan.parts.pop().entries.values())


def _carry_out(
    seat: Seat,
    plan: _Plan,
    start: int,
    now: Instant,
    *,
    nonce: int | None,
    known: tuple[Address, ...],
) -> None:
    me, parent, level_above = seat.address, seat.parent, seat.top + 1
    term = seat.clock + 1
    handed = _handed(plan, me)
    kept = [_as_group(seat, part, term, now) for part in plan.parts if part.host == me]
    seat.groups = seat.groups[:start] + kept + seat.groups[plan.upto :]
    seat.branches = None
    if handed or any(group.term == term for group in kept):
        seat.clock = term
    for host, parts in handed.items():
        above = _part_around(plan, host, parts[-1].level + 1)
        uplink = above.host if above is not None else parent
        message = GroupHandover(
            tuple(Grant(part.level, tuple(part.entries.values())) for part in parts),
            uplink,
            _term_of(seat, uplink, parts[-1].level + 1, term, handed),
            term,
            _sponsor(plan, me, host) if above is None else None,
            nonce,
            known=known if uplink is None else (),
            settled=seat.settled,
        )
        seat.send(host, message)
    _note_heirs(seat, handed, now)
    if plan.reaches_top:
        _tell_above(seat, plan, level_above, handed, known)
    _take_place_below(seat, plan, term, now)


def _as_group(seat: Seat, part: _Part, term: int, now: Instant) -> Group:
    if part.level > seat.top:
        return Group.of(part.level, term, part.entries.values(), now)
    group = seat.groups[part.level]
    for gone in [address for address in group.members if address not in part.entries]:
        group.drop(gone)
    for address, entry in part.entries.items():
        group.members[address] = entry
        group.heard.setdefault(address, now)
    return group


def _handed(plan: _Plan, me: Address) -> dict[Address, list[_Part]]:
    """Return the parts that others will host, lowest first."""
    handed: dict[Address, list[_Part]] = {}
    for part in plan.parts:
        if part.host != me:
            handed.setdefault(part.host, []).append(part)
    return handed


def _note_heirs(seat: Seat, handed: dict[Address, list[_Part]], now: Instant) -> None:
    until = now + 2 * min(seat.settings.beat_ms, 5 * seat.settings.retry_ms)
    seat.heirs = [heir for heir in seat.heirs if heir.until > now]
    for host, parts in handed.items():
        for part in parts:
            members = frozenset(part.entries)
            seat.heirs.append(Heir(part.level, host, members, part.entry().box, until))


def _part_around(plan: _Plan, member: Address, level: int) -> _Part | None:
    for part in plan.parts:
        if part.level == level and member in part.entries:
            return part
    return None


def _term_of(
    seat: Seat,
    uplink: Address | None,
    level: int,
    term: int,
    handed: dict[Address, list[_Part]],
) -> int:
    if uplink is None or uplink in handed:
        return term
    return seat.groups[level].term if uplink == seat.address else seat.parent_term


def _sponsor(plan: _Plan, me: Address, host: Address) -> Address:
    """Return the member whose group gave rise to `host`, the new member of the parent's group."""
    first = plan.passed[0].address
    if host == first or any(entry.address == me for entry in plan.passed):
        return me
    return first


def _tell_above(
    seat: Seat,
    plan: _Plan,
    level: int,
    handed: dict[Address, list[_Part]],
    known: tuple[Address, ...],
) -> None:
    """Report to the parent, or the new root, what became of the seat's highest group."""
    heads = [entry.address for entry in plan.passed]
    if seat.parent is not None:
        if not heads:
            seat.send(seat.parent, MemberLeft(level))
        elif seat.address in heads:
            report(seat)
        else:
            seat.send(seat.parent, Replace(level, plan.passed[0], seat.clock))
    elif heads and heads[0] != seat.address and heads[0] not in handed:
        seat.send(
            heads[0],
            GroupHandover((), None, seat.clock, seat.clock + 1, settled=seat.settled, known=known),
        )


def _take_place_below(seat: Seat, plan: _Plan, term: int, now: Instant) -> None:
    """If another seat hosts the group of which this seat is a member now, make it the parent."""
    part = _part_around(plan, seat.address, seat.top + 1)
    if part is None or part.host == seat.address:
        return
    if seat.joining is not None and not seat.joining.moving:
        seat.joining = None  # it had asked because it had no parent
    root = seat.path[:1] or (plan.passed[0].address,)
    seat.path = root if root[0] == part.host else (*root, part.host)
    set_parent(seat, part.host, term, now)
    seat.siblings = tuple(part.entries.values())


def set_parent(seat: Seat, parent: Address | None, term: int, now: Instant) -> None:
    """Set the parent and its term."""
    seat.parent = parent
    seat.parent_term = max(seat.parent_term, term)
    seat.parent_heard = seat.parent_since = now
    seat.reported = None
    seat.awaiting = None
    if parent is None:
        seat.path = ()
        seat.siblings = ()
    else:
        seat.cut_since = None


def note_gap(seat: Seat) -> None:
    """Record that a seat without a parent, and all below it, may have missed events until now.

    A seat that joins for the first time, with nobody below it, has missed nothing. Where the seat
    believed to be the only root, events from below it may have passed all others by, too.
    """
    if seat.parent is not None:
        return
    is_host = seat.top > 0 or (seat.top == 0 and len(seat.groups[0].members) > 1)
    if seat.cut_since is None and not is_host:
        return
    n = seat.settings.extent.dimensions
    everything = (-inf,) * n, (inf,) * n
    box = everything if seat.settled else seat.entry(seat.top).box
    seat.gaps.append(Gap(box, seat.cut_since))


def report(seat: Seat, *, always: bool = False) -> None:
    """Report the seat's highest group to the parent, if something changed."""
    if seat.parent is None:
        return
    entry = seat.entry(seat.top)
    if always or seat.reported is None or entry != seat.reported:
        seat.reported = entry
        seat.send(
            seat.parent,
            MemberReport(seat.top + 1, entry, seat.clock, seat.sponsor, load=int(seat.burden)),
        )


def adopt(seat: Seat, member: Address, level: int, nonce: int | None = None) -> None:
    """Send a member of a group its parent and siblings."""
    group = seat.groups[level]
    kin = seat.groups[level + 1].members if level < seat.top else [e.address for e in seat.siblings]
    path = (*seat.path, seat.address)
    siblings = tuple(group.members.values()) if level or len(group.members) <= MOST_TWINS else ()
    seat.send(member, Adopt(level, group.term, siblings, path, tuple(kin), nonce))


MOST_TWINS = 64
"""Beyond this many, followers of one relay are not told of each other; they re-join instead."""


def take_over(seat: Seat, grants: Sequence[Grant], term: int, now: Instant) -> None:
    """Host these groups, which continue the seat's own levels, and inform their members."""
    for grant in grants:
        own = seat.entry(grant.level - 1)
        entries = [own if entry.address == seat.address else entry for entry in grant.entries]
        seat.groups.append(Group.of(grant.level, term, entries, now))
    seat.branches = None
    seat.hosting_since = now
    for grant in grants:
        for entry in grant.entries:
            if entry.address != seat.address:
                adopt(seat, entry.address, grant.level)
