"""The R part: one leaf for each slow region, inner nodes when there are many (paper 0, "Model").

The root is the whole space. A node with more leaves than the threshold is split into intermediate
rectangles by sort-tile-recursive packing, which is deterministic. Inner nodes only route.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nearcast.locality.layout.grid import Longs
from nearcast.locality.layout.rect import Rect


@dataclass(frozen=True, slots=True)
class RNode:
    """A node of the R part: its rectangle, and either child nodes or leaf numbers."""

    rect: Rect
    children: tuple[RNode, ...]
    leaves: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Search:
    """The leaves that a search in the R part found, and the nodes visited (with leaves)."""

    leaves: tuple[int, ...]
    nodes_visited: int


@dataclass(frozen=True, slots=True)
class RTree:
    """The R part over leaf rectangles, which may overlap.

    Complexity: search O(nodes whose rectangle meets the area); build O(n log n).
    """

    root: RNode
    rects: tuple[Rect, ...]
    height: int

    @classmethod
    def over(cls, space: Rect, rects: Sequence[Rect], fanout: int) -> RTree:
        """Build over the leaves 0, 1, …; a node gets at most `fanout` children."""
        rects = tuple(rects)
        nodes = [RNode(rect, (), (number,)) for number, rect in enumerate(rects)]
        height = 1 if nodes else 0
        while len(nodes) > fanout:
            nodes = [_parent(group, height) for group in _tiles(nodes, fanout)]
            height += 1
        top = _parent(nodes, height) if nodes else RNode(space, (), ())
        return cls(RNode(space, top.children, top.leaves), rects, height)

    def search(self, rect: Rect) -> Search:
        """Return the leaves that meet `rect`, in ascending order."""
        found: list[int] = []
        visited = 1
        stack = [self.root]
        while stack:
            node = stack.pop()
            hits = [number for number in node.leaves if self.rects[number].intersects(rect)]
            nexts = [child for child in node.children if child.rect.intersects(rect)]
            visited += len(hits) + len(nexts)
            found.extend(hits)
            stack.extend(nexts)
        return Search(tuple(sorted(found)), visited)

    def inner_rects(self) -> list[Rect]:
        """Return the rectangles of all inner nodes except the root, for drawing."""
        rects, stack = [], list(self.root.children)
        while stack:
            node = stack.pop()
            rects.append(node.rect)
            stack.extend(node.children)
        return rects


def _parent(group: Sequence[RNode], height: int) -> RNode:
    rect = group[0].rect
    for node in group[1:]:
        rect = rect.joined(node.rect)
    if height == 1:  # the group consists of leaves, which have no node
        return RNode(rect, (), tuple(node.leaves[0] for node in group))
    return RNode(rect, tuple(group), ())


def _tiles(nodes: list[RNode], fanout: int) -> list[list[RNode]]:
    """Group nodes that lie together: slices by x, runs by y within each."""
    groups = math.ceil(len(nodes) / fanout)
    per_slice = math.ceil(math.sqrt(groups)) * fanout
    by_x = sorted(nodes, key=lambda node: (node.rect.west + node.rect.east, node.rect.south))
    result: list[list[RNode]] = []
    for start in range(0, len(by_x), per_slice):
        part = by_x[start : start + per_slice]
        part.sort(key=lambda node: (node.rect.south + node.rect.north, node.rect.west))
        result.extend(part[at : at + fanout] for at in range(0, len(part), fanout))
    return result


def packed_rects(counts: Longs, capacity: int) -> list[tuple[tuple[int, int, int, int], int]]:
    """Pack the users of a grid into rectangles of at most `capacity` users, for the layout "r".

    Returns (first column, first row, last column, last row) and users of each. A single cell over
    the capacity gets its own rectangle. Slices by column, then runs by row, like `_tiles`.
    """
    rows, columns = counts.nonzero()
    users = counts[rows, columns]
    cells = sorted(zip(columns.tolist(), rows.tolist(), users.tolist(), strict=True))
    total = sum(cell[2] for cell in cells)
    leaves = max(1, math.ceil(total / capacity))
    per_slice = math.ceil(math.sqrt(leaves)) * capacity
    packed: list[tuple[tuple[int, int, int, int], int]] = []
    for part in _runs(cells, per_slice):
        runs = _runs(sorted(part, key=lambda cell: (cell[1], cell[0])), capacity)
        packed.extend((_bounds(run), sum(cell[2] for cell in run)) for run in runs)
    return packed


def _runs(cells: list[tuple[int, int, int]], most: int) -> list[list[tuple[int, int, int]]]:
    runs: list[list[tuple[int, int, int]]] = []
    held = most + 1
    for cell in cells:
        if held + cell[2] > most:
            runs.append([])
            held = 0
        runs[-1].append(cell)
        held += cell[2]
    return runs


def _bounds(cells: list[tuple[int, int, int]]) -> tuple[int, int, int, int]:
    columns, rows = [cell[0] for cell in cells], [cell[1] for cell in cells]
    return min(columns), min(rows), max(columns), max(rows)
