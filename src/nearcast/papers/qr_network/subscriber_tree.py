"""Paper 0: an R-only network that follows its subscribers, as a baseline for the plans.

The paper does not say how it ran R-only; it says that the index "changes dynamically" and so costs
messages. That is an R-tree *of subscribers*: a leaf is a group of at most `capacity` of them, its
rectangle their bounding box. A subscriber that leaves the rectangle is removed and inserted again
where a rectangle grows least; a group over capacity splits, one below 40 % is dissolved.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearcast.locality.layout.rect import Rect
from nearcast.locality.layout.rtree import RTree

Floats = NDArray[np.float64]


class SubscriberTree:
    """Groups of subscribers, and the R-tree over their rectangles.

    Complexity: a round costs O(users) plus O(groups) for each user that left its rectangle.
    """

    def __init__(self, space: Rect, xs: Floats, ys: Floats, *, capacity: int, fanout: int) -> None:
        self._space, self._capacity, self._fanout = space, capacity, fanout
        self._xs, self._ys = xs.copy(), ys.copy()
        self.group_of = np.full(len(xs), -1, np.int64)
        self._members: dict[int, set[int]] = {0: set()}
        self._next = 1
        self._rects: dict[int, list[float]] = {}
        for user in range(len(xs)):
            self._insert(user)
        self._tighten()

    def move(self, xs: Floats, ys: Floats) -> None:
        """Move all users."""
        self._xs, self._ys = xs.copy(), ys.copy()
        rects = np.full((self._next, 4), np.nan)
        for group, rect in self._rects.items():
            rects[group] = rect
        own = rects[self.group_of]
        out = (xs < own[:, 0]) | (ys < own[:, 1]) | (xs > own[:, 2]) | (ys > own[:, 3])
        for user in np.flatnonzero(out).tolist():
            self._take_out(user)
            self._insert(user)
        self._tighten()

    def tree(self) -> tuple[RTree, list[int]]:
        """Return the R-tree over the groups' rectangles, and the group of each of its leaves."""
        groups = sorted(self._rects)
        rects = [Rect(*self._rects[group]) for group in groups]
        return RTree.over(self._space, rects, self._fanout), groups

    def rects(self) -> dict[int, tuple[float, ...]]:
        """Return the rectangle of each group."""
        return {group: tuple(rect) for group, rect in self._rects.items()}

    def _insert(self, user: int) -> None:
        group = self._best_group(self._xs[user], self._ys[user])
        self._put(user, group)
        if len(self._members[group]) > self._capacity:
            self._split(group)

    def _best_group(self, x: float, y: float) -> int:
        """Return the group whose rectangle grows least; on a tie, the smaller rectangle."""
        if not self._rects:
            return next(iter(self._members))
        groups = list(self._rects)
        rects = np.array([self._rects[group] for group in groups])
        wide, high = rects[:, 2] - rects[:, 0], rects[:, 3] - rects[:, 1]
        new_wide = np.maximum(rects[:, 2], x) - np.minimum(rects[:, 0], x)
        new_high = np.maximum(rects[:, 3], y) - np.minimum(rects[:, 1], y)
        area = wide * high
        return groups[int(np.lexsort((area, new_wide * new_high - area))[0])]

    def _put(self, user: int, group: int) -> None:
        self._members[group].add(user)
        self.group_of[user] = group
        x, y = float(self._xs[user]), float(self._ys[user])
        rect = self._rects.setdefault(group, [x, y, x, y])
        rect[0], rect[1] = min(rect[0], x), min(rect[1], y)
        rect[2], rect[3] = max(rect[2], x), max(rect[3], y)

    def _take_out(self, user: int) -> None:
        group = int(self.group_of[user])
        members = self._members[group]
        members.discard(user)
        if len(members) < 0.4 * self._capacity and len(self._members) > 1:
            del self._members[group]
            self._rects.pop(group, None)
            for other in sorted(members):
                self._insert(other)

    def _split(self, group: int) -> None:
        """Cut a group in two halves across its longer side."""
        members = sorted(self._members[group])
        west, south, east, north = self._rects[group]
        column = self._xs if east - west >= north - south else self._ys
        members.sort(key=lambda user: (column[user], user))
        half = len(members) // 2
        new = self._next
        self._next += 1
        self._members[group], self._members[new] = set(), set()
        del self._rects[group]
        for user in members[:half]:
            self._put(user, group)
        for user in members[half:]:
            self._put(user, new)

    def _tighten(self) -> None:
        for group, members in self._members.items():
            if members:
                users = np.fromiter(members, np.int64, len(members))
                xs, ys = self._xs[users], self._ys[users]
                self._rects[group] = [
                    float(xs.min()), float(ys.min()), float(xs.max()), float(ys.max()),
                ]  # fmt: skip
