"""A summary maintained under changes: few boxes around many that are added and removed.

A broker's clients subscribe and unsubscribe all the time; `Cover` changes with them, with bounded
work per change, and reports which boxes of the summary were added and removed, so that only those
need to be sent. Events that fall into a box and are wanted by no client are false positives.

Read next: `nearcast.cluster.filter_aggregation`, where nodes exchange summaries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nearcast.model.errors import KeyMissingError, LimitError, OutOfRangeError
from nearcast.overlay.bounds import FLOOR, Bounds, Extent, overlap, union, union_of
from nearcast.overlay.density import Density, UniformDensity

MOST_BOXES = 1_024
"""The most boxes of a summary; beyond that they are merged more loosely than asked."""
SLICE = 16
"""The most subscriptions that one call places again, when a box has become too loose."""
_CLOSE = 4  # how many candidate groups are compared exactly
_SMALL = 32  # a box around at most this many is fitted again whenever one of them is removed
_WORN = 2.0  # a box this many times looser than allowed is dissolved
_FAINT = 1e-3  # weight of volume beside counted events: it decides where nothing was counted

Floats = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class _Member:
    group: _Group
    count: int
    share: float
    """How much it added to the covered weight of its group."""


@dataclass(slots=True, eq=False)
class _Group:
    box: Bounds
    row: int = -1
    """Its row in the arrays; -1: it accepts no box, because it is being dissolved."""
    covered: float = 0.0
    """A lower bound of the weight that its members cover."""
    limit: float = 1.0
    """How much larger than `covered` the box was allowed to be."""
    members: dict[Bounds, _Member] = field(default_factory=dict)


class Cover:
    """Boxes around all boxes added and not removed; each counts as often as it was added.

    A new box goes into a group that covers it; else into the one that becomes the least
    loose by it, if E(group) ≤ (1 + looseness) · E(union of its members); else into a new
    one. E is volume, or events where a density is given. When boxes go, groups shrink; one that has
    become twice as loose as allowed is dissolved and its members placed again, `SLICE` per call.

    Contract: `boxes` cover everything at any moment. While nothing was removed and there are
    fewer than `most` groups, each obeys the looseness. A call that raises has changed nothing.

    Complexity: `add` and `remove` O(SLICE · most · n) at worst, usually O(most · n) in NumPy;
    memory O(distinct boxes).

    >>> cover = Cover(Extent((0.0,), (100.0,)), looseness=0.1)
    >>> for low in (0.0, 10.0, 50.0):
    ...     cover.add(((low,), (low + 10.0,)))
    >>> sorted(cover.boxes)
    [((0.0,), (20.0,)), ((50.0,), (60.0,))]
    """

    def __init__(
        self,
        extent: Extent,
        *,
        looseness: float,
        most: int = MOST_BOXES,
        density: Density | None = None,
    ) -> None:
        if not looseness >= 0.0:
            raise OutOfRangeError(repr(looseness), where="looseness", expected="a number from 0")
        if most < 1:
            raise LimitError(repr(most), where="most", expected="at least one box")
        self._extent = extent
        self._allowed = 1.0 + looseness + 1e-12
        self._most = most
        self._density = _counted(density)
        self._members: dict[Bounds, _Member] = {}
        self._groups: list[_Group] = []  # by row
        self._worn: deque[_Group] = deque()
        self._changes: dict[Bounds, int] = {}
        self._lows = np.zeros((0, extent.dimensions))
        self._highs = np.zeros((0, extent.dimensions))
        self._volumes = np.zeros(0)

    def __len__(self) -> int:
        """Return how many different boxes were added."""
        return len(self._members)

    @property
    def boxes(self) -> Iterator[Bounds]:
        """Yield the boxes of the summary; some may be equal."""
        for group in (*self._groups, *self._worn):
            yield group.box

    @property
    def is_settled(self) -> bool:
        """Return whether `tidy` has nothing to do."""
        return not self._worn

    # --- changes --------------------------------------------------------------------------

    def add(self, box: Bounds) -> None:
        """Add a box."""
        box = self._extent.checked(*box, where="a subscription's box")
        member = self._members.get(box)
        if member is not None:
            member.count += 1
        else:
            self._place(box, 1)

    def remove(self, box: Bounds) -> None:
        """Remove one occurrence of a box."""
        member = self._members.get(box)
        if member is None:
            raise KeyMissingError(f"the box {box}", where="Cover", expected="one that was added")
        member.count -= 1
        if member.count:
            return
        group = member.group
        del self._members[box], group.members[box]
        group.covered -= member.share
        if not group.members:
            self._drop(group)
        elif group.row >= 0:
            self._look_at(group)
        self.tidy()

    def tidy(self) -> None:
        """Place up to `SLICE` members of dissolved groups again."""
        for _ in range(SLICE):
            if not self._worn:
                return
            group = self._worn[0]
            box, member = group.members.popitem()
            if not group.members:
                self._drop(group)
            self._place(box, member.count)

    def use_density(self, density: Density | None) -> None:
        """Weigh boxes by another density; all groups are dissolved, by this and later calls."""
        self._density = _counted(density)
        while self._groups:
            group = self._groups[-1]
            self._leave_row(group)
            self._worn.append(group)
        self.tidy()

    def take_changes(self) -> dict[Bounds, int]:
        """Return the net additions of each box since the last call; below 0: removed."""
        changes, self._changes = self._changes, {}
        return {box: count for box, count in changes.items() if count}

    # --- where a box goes -----------------------------------------------------------------

    def _place(self, box: Bounds, count: int) -> None:
        group = self._covering(box) or self._joined(box) or self._founded(box)
        twice = overlap(group.box, box) if group.members else None
        share = self._weight(box) - (self._weight(twice) if twice is not None else 0.0)
        self._members[box] = group.members[box] = _Member(group, count, max(0.0, share))
        group.covered += max(0.0, share)
        self._reshape(group, union(group.box, box))
        group.limit = max(self._allowed, self._looseness(group.box, group.covered))

    def _covering(self, box: Bounds) -> _Group | None:
        """Return the smallest group that covers the box."""
        count = len(self._groups)
        inside = (self._lows[:count] <= box[0]) & (self._highs[:count] >= box[1])
        rows = np.flatnonzero(inside.all(axis=1))
        if not rows.size:
            return None
        return self._groups[int(rows[self._volumes[rows].argmin()])]

    def _joined(self, box: Bounds) -> _Group | None:
        """Return the group that includes the box with the least waste; None: it needs a new one."""
        count = len(self._groups)
        if not count:
            return None
        unions = self._union_volumes(box, count)
        waste = unions / (self._volumes[:count] + self._extent.volume(box))
        weight = self._weight(box)
        looseness, _, best = min(
            (self._looseness_with(self._groups[row], box, weight), place, self._groups[row])
            for place, row in enumerate(_least(waste, _CLOSE))
        )
        return best if looseness <= self._allowed or count >= self._most else None

    def _founded(self, box: Bounds) -> _Group:
        group = _Group(box, len(self._groups))
        self._groups.append(group)
        if len(self._groups) > len(self._volumes):
            self._grow()
        self._note(box, 1)
        self._set_row(group)
        return group

    def _looseness_with(self, group: _Group, box: Bounds, weight: float) -> float:
        twice = overlap(group.box, box)
        gained = max(0.0, weight - (self._weight(twice) if twice is not None else 0.0))
        return self._looseness(union(group.box, box), group.covered + gained)

    def _looseness(self, box: Bounds, covered: float) -> float:
        weight = self._weight(box)
        return weight / covered if covered > weight * 1e-9 else float("inf")

    def _weight(self, box: Bounds) -> float:
        volume = self._extent.volume(box)
        if self._density is None:
            return volume
        return self._density.expected(box) + _FAINT * volume

    def _union_volumes(self, box: Bounds, count: int) -> Floats:
        extent = self._extent
        lows = np.maximum(np.minimum(self._lows[:count], box[0]), extent.lows)
        highs = np.minimum(np.maximum(self._highs[:count], box[1]), extent.highs)
        shares = (highs - lows) / np.subtract(extent.highs, extent.lows)
        volumes: Floats = np.maximum(shares, FLOOR).prod(axis=1)
        return volumes

    # --- groups ---------------------------------------------------------------------------

    def _look_at(self, group: _Group) -> None:
        """Fit a group that has lost a member, or start to dissolve it."""
        if len(group.members) <= _SMALL:
            self._reshape(group, union_of(group.members))
        if self._looseness(group.box, group.covered) > _WORN * group.limit:
            self._leave_row(group)
            self._worn.append(group)

    def _reshape(self, group: _Group, box: Bounds) -> None:
        if box != group.box:
            self._note(group.box, -1)
            self._note(box, 1)
            group.box = box
            self._set_row(group)

    def _drop(self, group: _Group) -> None:
        self._note(group.box, -1)
        if group.row >= 0:
            self._leave_row(group)
        else:
            self._worn.remove(group)

    def _set_row(self, group: _Group) -> None:
        self._lows[group.row], self._highs[group.row] = group.box
        self._volumes[group.row] = self._extent.volume(group.box)

    def _grow(self) -> None:
        """Double the room for groups."""
        more = max(8, len(self._volumes))
        wider = np.zeros((more, self._extent.dimensions))
        self._lows = np.concatenate((self._lows, wider))
        self._highs = np.concatenate((self._highs, wider))
        self._volumes = np.concatenate((self._volumes, np.zeros(more)))

    def _leave_row(self, group: _Group) -> None:
        last = self._groups.pop()
        if last is not group:
            last.row = group.row
            self._groups[group.row] = last
            self._set_row(last)
        group.row = -1

    def _note(self, box: Bounds, change: int) -> None:
        self._changes[box] = self._changes.get(box, 0) + change


def _counted(density: Density | None) -> Density | None:
    """Return a density that counts events; None for an even one, which is the volume."""
    return None if isinstance(density, UniformDensity) else density


def _least(values: Floats, count: int) -> list[int]:
    """Return the positions of the smallest values, the smallest first."""
    places = np.arange(len(values))
    if len(values) > count:
        places = np.argpartition(values, count)[:count]
    ordered: list[int] = places[np.argsort(values[places], kind="stable")].tolist()
    return ordered
