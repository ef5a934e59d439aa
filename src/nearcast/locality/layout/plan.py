"""The plan of a broker network: which leaf is responsible for which place (paper 0).

            R part: leaves over slow regions            Q part: quadrants over everything
             ┌────┐      may overlap                     ┌───────┬───┬───┐ split where users are,
             │ r0 ├──┐   closed                          │       ├───┼───┤ not counting those in
             └──┬─┘r1│                                   ├───────┼───┴───┤ slow regions; half-open
                └────┘                                   └───────┴───────┘

The one rule of both registering and routing: an area belongs to every R leaf that it meets, and to
every Q leaf that it meets outside all R leaves. A point in R leaves belongs to all of them; any
other point to exactly one Q leaf. So an event and a subscription that share a point share a leaf.

Read next: `grid.py` (exact borders), `quadtree.py` and `rtree.py` (the two parts).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nearcast.locality.layout.grid import (
    CellCounts,
    Grid,
    checked_regions,
    region_cells,
    space_rect,
)
from nearcast.locality.layout.plan_parts import (
    Flows,
    Layout,
    broker_count,
    check_build,
    checked_brokers,
    checked_flows,
    checked_nodes,
    packed_leaves,
    split_region,
)
from nearcast.locality.layout.quadtree import QuadTree, block_of, split_by_load
from nearcast.locality.layout.rect import (
    Area,
    Bounded,
    Rect,
    checked_rect,
    covering_rects,
    is_covered,
)
from nearcast.locality.layout.rtree import RTree
from nearcast.model.errors import LimitError, MisuseError, OutOfRangeError

Kind = Literal["r", "q"]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf: where users connect and subscriptions are kept.

    `key` names it across versions of a plan: "q" and the block's path, or "r", the region's number
    and the quarters it was split into ("r3", "r3.20"). `rect` is the rectangle as drawn, `closed`
    the exact set of points (a Q leaf is half-open, see `grid.py`). `load` is the number of users it
    was planned for.
    """

    number: int
    key: str
    kind: Kind
    rect: Rect
    closed: Rect
    load: int

    @property
    def depth(self) -> int:
        """Return the depth of the leaf: a Q leaf's level, or how often an R leaf was split."""
        return len(self.key) - 1 if self.kind == "q" else len(self.key.partition(".")[2])


class Plan:
    """An immutable, versioned plan.

    Leaves are numbered: R leaves first, then Q leaves. `nodes[n]` is the name of broker n, None if
    brokers are numbers only; `flows` are movements between leaves as counted from the record, empty
    if unknown. Complexity, for k leaves found and r regions
    over the area's coarse cells: `leaf_at` O(depth + r), `leaves_for_*` O(k · depth + r);
    `leaf_numbers_at` about 30 ns per position.

    >>> counts = CellCounts.from_positions((0, 0, 8, 8), [], [1, 1, 2, 7], [1, 2, 1, 7], depth=3)
    >>> plan = Plan.build((0, 0, 8, 8), [(4, 4, 6, 6)], counts, capacity=2)
    >>> plan.leaf_at(5, 5).key, plan.leaf_at(7, 7).key
    ('r0', 'q3')
    >>> [plan.leaves[n].key for n in plan.leaves_for_event((3, 5, 4, 5))]
    ['r0', 'q2']
    """

    __slots__ = (
        "_candidates", "_cells", "_children", "_leaf_of", "_level", "_node_at", "_rects",
        "brokers", "fanout", "flows", "grid", "layout", "leaves", "links", "nodes", "quadtree",
        "r_count", "rtree", "version",
    )  # fmt: skip

    def __init__(
        self,
        space: Area,
        leaves: Sequence[tuple[str, Rect, int]],
        *,
        layout: Layout,
        depth: int,
        fanout: int,
        version: int,
        brokers: Sequence[int] | None = None,
        nodes: Sequence[str] | None = None,
        flows: Flows | None = None,
    ) -> None:
        """Make a plan from its leaves (key, rectangle, load); `build` is the usual way."""
        self.version, self.layout, self.fanout = version, layout, fanout
        self.grid = Grid.over(space, depth)
        r_leaves = [leaf for leaf in leaves if leaf[0].startswith("r")]
        q_leaves = sorted(leaf for leaf in leaves if leaf[0].startswith("q"))
        self.r_count = len(r_leaves)
        self.leaves = tuple(self._leaves(r_leaves, q_leaves))
        self.rtree = RTree.over(self.space, [leaf[1] for leaf in r_leaves], fanout)
        self.quadtree = QuadTree.of_leaves([leaf[0][1:] for leaf in q_leaves], self.r_count)
        self.brokers = checked_brokers(brokers, len(self.leaves))
        self.nodes = checked_nodes(nodes, self.brokers, len(self.leaves))
        self.flows = checked_flows(flows or {}, len(self.leaves))
        self._index_regions()
        self.links = self._cross_links()

    @classmethod
    def build(
        cls,
        space: Any,
        regions: Iterable[Area],
        counts: CellCounts,
        *,
        layout: Layout = "qr",
        capacity: int = 100,
        max_depth: int | None = None,
        fanout: int = 8,
        region_capacity: int | None = None,
        version: int = 1,
    ) -> Plan:
        """Lay out a network over slow regions and the users outside them (paper 0, "Model").

        `capacity` is the number of users above which a Q block splits; `fanout` the number of
        regions above which an R node splits. With `region_capacity` a region with more users gets
        child blocks at once; without it each region is one leaf, as in the paper.

        Layout "q" ignores the regions and counts everyone. Layout "r" packs the users outside the
        regions into rectangles of at most `capacity` users and leaves the rest of the space to the
        root. Complexity: O(cells + leaves · regions per cell).
        """
        rect = space_rect(space)
        check_build(layout, capacity, fanout, max_depth)
        deepest = counts.depth if max_depth is None else min(max_depth, counts.depth)
        rows = checked_regions(rect, regions if layout != "q" else ())
        if layout != "q" and len(counts.per_region) not in (0, len(rows)):
            raise MisuseError(
                f"counts of {len(counts.per_region)} regions for {len(rows)} regions",
                where="Plan.build",
                expected="counts made with the same regions",
            )
        loads = counts.per_region if len(counts.per_region) else np.zeros(len(rows), np.int64)
        leaves = [
            (f"r{i}", Rect(*row), int(load))
            for i, (row, load) in enumerate(zip(rows.tolist(), loads, strict=False))
        ]
        if region_capacity is not None:
            leaves = [part for leaf in leaves for part in split_region(leaf, region_capacity)]
        if layout == "r":
            leaves += packed_leaves(rect, counts, capacity, len(rows))
            leaves.append(("q", rect, 0))
        else:
            users = counts.everyone if layout == "q" else counts.outside
            blocks = split_by_load(users, capacity, deepest)
            leaves += [(f"q{path}", rect, load) for path, load in blocks.items()]
        return cls(rect, leaves, layout=layout, depth=counts.depth, fanout=fanout, version=version)

    # --- lookups ---------------------------------------------------------------------------------

    @property
    def space(self) -> Rect:
        """Return the rectangle that the plan covers, all edges included."""
        return self.grid.space

    @property
    def height(self) -> int:
        """Return the height of the Q part: steps from its root to its deepest leaf."""
        return self.quadtree.height

    def leaf_at(self, x: float, y: float) -> Leaf:
        """Return the leaf of a user at this place: the first R leaf there, or the Q leaf.

        A place outside the space, or NaN, is an OutOfRangeError.
        """
        self._check_point(x, y)
        found = self._regions_at(x, y)
        return self.leaves[found[0] if found else self._q_leaf(*self.grid.cell(x, y))]

    def leaf_numbers_at(self, xs: ArrayLike, ys: ArrayLike) -> NDArray[np.int32]:
        """Return the leaf number of each position; -1 outside the space and for NaN."""
        x, y = np.ascontiguousarray(xs, np.float64), np.ascontiguousarray(ys, np.float64)
        if x.shape != y.shape or x.ndim != 1:
            raise MisuseError(
                f"shapes {x.shape} and {y.shape}", where="positions", expected="two equal columns"
            )
        out = np.empty(len(x), np.int32)
        tree = self.quadtree
        from nearcast.locality.layout.kernels import leaf_at_kernel

        leaf_at_kernel(
            x, y, self.grid.xs, self.grid.ys, self.grid.depth - self._level, self._rects,
            *self._cells, tree.table, self.grid.depth - tree.table_depth, tree.first_child,
            tree.leaf_of_node, out,
        )  # fmt: skip
        return out

    def leaves_for_event(self, area: Area | Bounded) -> tuple[int, ...]:
        """Return the leaves that must receive an event about a point, rectangle or shape.

        In ascending order. An area that does not meet the space is an OutOfRangeError.
        """
        where = "place of an event"
        rects = (area,) if type(area) is Rect else covering_rects(area, where)
        if not any(rect.intersects(self.space) for rect in rects):
            found = ", ".join(str(tuple(rect)) for rect in rects)
            raise OutOfRangeError(found, where=where, expected=f"a place in {tuple(self.space)}")
        return self._leaves_of_all([rect for rect in rects if rect.intersects(self.space)])

    def leaves_for_subscription(self, area: Area | Bounded) -> tuple[int, ...]:
        """Return the leaves that can see an event for this area (trap T0.1), in ascending order.

        An area beyond the space belongs to the leaves on the nearest edge: a subscriber that leaves
        the space keeps its session, and still gets events that reach it.
        """
        if type(area) is Rect:
            return self.leaves_meeting(area)
        return self._leaves_of_all(covering_rects(area, "area of a subscription"))

    def _leaves_of_all(self, rects: Sequence[Rect]) -> tuple[int, ...]:
        if len(rects) == 1:
            return self.leaves_meeting(rects[0])
        return tuple(sorted({leaf for rect in rects for leaf in self.leaves_meeting(rect)}))

    def leaves_meeting(self, rect: Rect) -> tuple[int, ...]:
        """Return the R leaves that an area meets, and the Q leaves it meets outside those."""
        west, south, east, north = rect
        space = self.grid.space
        inside = space[0] <= west and space[1] <= south and east <= space[2] and north <= space[3]
        if not (inside and west <= east and south <= north):
            rect = checked_rect(rect, "area").clamped(space)
            west, south, east, north = rect
        low = self.grid.cell(west, south)
        if west == east and south == north:
            return self._regions_at(west, south) or (self._q_leaf(*low),)
        high = self.grid.cell(east, north)
        found = self._regions_between(rect, low, high) if self._candidates else ()
        blocks = self._q_leaves(low, high)
        if found:
            blocks = [number for number in blocks if self._meets_outside(rect, number, found)]
        return (*found, *blocks)

    # --- inside --------------------------------------------------------------------------------

    def _leaves(
        self, r_leaves: Sequence[tuple[str, Rect, int]], q_leaves: Sequence[tuple[str, Rect, int]]
    ) -> Iterable[Leaf]:
        for number, (key, rect, load) in enumerate(r_leaves):
            yield Leaf(number, key, "r", rect, rect, load)
        for number, (key, _, load) in enumerate(q_leaves, start=len(r_leaves)):
            block = block_of(key[1:])
            if block[0] > self.grid.depth:
                raise LimitError(key, where="leaf", expected=f"a depth up to {self.grid.depth}")
            yield Leaf(
                number, key, "q", self.grid.block(*block), self.grid.closed_block(*block), load
            )

    def _index_regions(self) -> None:
        rows = [leaf.rect for leaf in self.leaves[: self.r_count]]
        self._rects = np.array(rows, np.float64).reshape(-1, 4)
        self._level, starts, items = region_cells(self.grid, self._rects)
        self._cells = (starts, items)
        occupied = np.flatnonzero(np.diff(starts))
        self._candidates = {
            int(cell): tuple(items[starts[cell] : starts[cell + 1]].tolist()) for cell in occupied
        }
        # Lists answer a single lookup faster than arrays do; the kernels need the arrays.
        self._node_at = self.quadtree.table.data
        self._children: list[int] = self.quadtree.first_child.tolist()
        self._leaf_of: list[int] = self.quadtree.leaf_of_node.tolist()

    def _cross_links(self) -> tuple[tuple[int, ...], ...]:
        """Return the R leaves that overlap each Q leaf (N:M), by Q leaf."""
        return tuple(
            tuple(r for r in self._regions_meeting(leaf.closed))
            for leaf in self.leaves[self.r_count :]
        )

    def _check_point(self, x: float, y: float) -> None:
        if not self.space.contains(x, y):  # NaN is in no rectangle
            raise OutOfRangeError(
                f"({x!r}, {y!r})", where="place", expected=f"a place in {tuple(self.space)}"
            )

    def _regions_at(self, x: float, y: float) -> tuple[int, ...]:
        candidates = self._candidates
        if not candidates:
            return ()
        column, row = self.grid.cell(x, y)
        shift = self.grid.depth - self._level
        near = candidates.get(((row >> shift) << self._level) + (column >> shift))
        if near is None:
            return ()
        leaves = self.leaves
        return tuple([number for number in near if leaves[number].rect.contains(x, y)])

    def _regions_meeting(self, rect: Rect) -> tuple[int, ...]:
        if not self._candidates:
            return ()
        low = self.grid.cell(rect.west, rect.south)
        return self._regions_between(rect, low, self.grid.cell(rect.east, rect.north))

    def _regions_between(
        self, rect: Rect, low: tuple[int, int], high: tuple[int, int]
    ) -> tuple[int, ...]:
        """Return the R leaves that meet a rectangle whose corners lie in these cells."""
        shift, level = self.grid.depth - self._level, self._level
        c0, r0, c1, r1 = low[0] >> shift, low[1] >> shift, high[0] >> shift, high[1] >> shift
        candidates, leaves = self._candidates, self.leaves
        if c0 == c1 and r0 == r1:
            near = candidates.get((r0 << level) + c0, ())
            return tuple([number for number in near if leaves[number].rect.intersects(rect)])
        if (c1 - c0 + 1) * (r1 - r0 + 1) > _FEW_CELLS:
            return self.rtree.search(rect).leaves
        several: set[int] = set()
        for row in range(r0, r1 + 1):
            for cell in range((row << level) + c0, (row << level) + c1 + 1):
                several.update(candidates.get(cell, ()))
        return tuple(sorted([n for n in several if leaves[n].rect.intersects(rect)]))

    def _q_leaf(self, column: int, row: int) -> int:
        depth, children = self.quadtree.table_depth, self._children
        level = self.grid.depth - depth
        node = self._node_at[((row >> level) << depth) + (column >> level)]
        while (child := children[node]) >= 0:
            level -= 1
            node = child + ((row >> level) & 1) * 2 + ((column >> level) & 1)
        return self._leaf_of[node]

    def _q_leaves(self, low: tuple[int, int], high: tuple[int, int]) -> list[int]:
        first = self._q_leaf(*low)
        if low == high or first == self._q_leaf(*high):
            return [first]  # a block that holds two opposite corners holds all between them
        depth, node_at = self.quadtree.table_depth, self._node_at
        shift = self.grid.depth - depth
        columns = range(low[0] >> shift, (high[0] >> shift) + 1)
        rows = range(low[1] >> shift, (high[1] >> shift) + 1)
        if len(columns) * len(rows) > _FEW_CELLS:
            return sorted(self._below(0, self.grid.depth, (0, 0), low, high))
        found: set[int] = set()
        for row in rows:
            for column in columns:
                node = node_at[(row << depth) + column]
                if self._children[node] < 0:
                    found.add(self._leaf_of[node])
                else:
                    found.update(self._below(node, shift, (column, row), low, high))
        return sorted(found)

    def _below(
        self,
        node: int,
        level: int,
        place: tuple[int, int],
        low: tuple[int, int],
        high: tuple[int, int],
    ) -> list[int]:
        """Return the leaves below a node, at (column, row) of its level, that meet the cells."""
        found = []
        stack = [(node, level, *place)]
        while stack:
            node, level, column, row = stack.pop()
            child = self._children[node]
            if child < 0:
                found.append(self._leaf_of[node])
                continue
            level -= 1
            for digit in range(4):
                c, r = column * 2 + (digit & 1), row * 2 + (digit >> 1)
                if (
                    low[0] >> level <= c <= high[0] >> level
                    and low[1] >> level <= r <= high[1] >> level
                ):
                    stack.append((child + digit, level, c, r))
        return found

    def _meets_outside(self, rect: Rect, q_leaf: int, found: Sequence[int]) -> bool:
        linked = [self.leaves[r].rect for r in self.links[q_leaf - self.r_count] if r in found]
        closed = self.leaves[q_leaf].closed
        return not linked or not is_covered(rect.clamped(closed), linked)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash((self.version, self.space, len(self.leaves)))

    def __repr__(self) -> str:
        q_count = len(self.leaves) - self.r_count
        return f"<Plan {self.version} ({self.layout}): {self.r_count} R leaves, {q_count} Q leaves>"

    def _values(self) -> tuple[object, ...]:
        shape = (self.layout, self.fanout, self.space, self.grid.depth)
        return (self.version, *shape, self.leaves, self.brokers, self.nodes, self.flows)

    # --- variants of this plan ------------------------------------------------------------------

    def with_brokers(self, brokers: Sequence[int], version: int | None = None) -> Plan:
        """Return this plan with leaf i served by broker `brokers[i]`."""
        return self.remade(
            [(leaf.key, leaf.rect, leaf.load) for leaf in self.leaves], brokers, version
        )

    def numbered(self, version: int) -> Plan:
        """Return this plan as another version."""
        other = copy.copy(self)
        other.version = version
        return other

    def with_nodes(self, nodes: Sequence[str] | None) -> Plan:
        """Return this plan with broker n named `nodes[n]`; None: without names. O(leaves)."""
        named = copy.copy(self)
        named.nodes = checked_nodes(nodes, self.brokers, len(self.leaves))
        return named

    def with_flows(self, flows: Flows) -> Plan:
        """Return this plan with the movements between its leaves. O(flows)."""
        counted = copy.copy(self)
        counted.flows = checked_flows(flows, len(self.leaves))
        return counted

    def broker_of(self, leaf: int) -> int:
        """Return the broker that serves a leaf; without an assignment, the leaf's own number."""
        return leaf if self.brokers is None else self.brokers[leaf]

    def node_of(self, leaf: int) -> str:
        """Return the name of the node that serves a leaf, or "broker 3" where none is named."""
        broker = self.broker_of(leaf)
        return f"broker {broker}" if self.nodes is None else self.nodes[broker]

    def remade(
        self,
        leaves: Sequence[tuple[str, Rect, int]],
        brokers: Sequence[int] | None,
        version: int | None,
    ) -> Plan:
        """Return a plan of the same space with other leaves (key, rectangle, load).

        The names of the nodes stay where they name all its brokers, and the movements between
        leaves that both plans have.
        """
        plan = Plan(
            self.space, leaves, layout=self.layout, depth=self.grid.depth, fanout=self.fanout,
            version=self.version if version is None else version, brokers=brokers,
        )  # fmt: skip
        if self.nodes is not None and len(self.nodes) >= broker_count(
            plan.brokers, len(plan.leaves)
        ):
            plan.nodes = self.nodes
        numbers = {leaf.key: leaf.number for leaf in plan.leaves}
        ends = {leaf.number: numbers.get(leaf.key) for leaf in self.leaves}
        plan.flows = {
            (min(a, b), max(a, b)): moves
            for (one, other), moves in self.flows.items()
            if (a := ends[one]) is not None and (b := ends[other]) is not None
        }
        return plan


_FEW_CELLS = 32
"""Up to this many cells are looked up one by one; more are left to the trees."""
