"""The Q part: a quadtree whose blocks split where too many users are (paper 0, "Model").

A block is named by its path from the root, one digit per level: 0 south-west, 1 south-east, 2
north-west, 3 north-east. The root's path is empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from nearcast.locality.layout.grid import Longs
from nearcast.model.errors import FileFormatError

_TABLE_DEPTH = 9


def split_by_load(counts: Longs, capacity: int, max_depth: int) -> dict[str, int]:
    """Return the paths of the leaves and their users; a block over `capacity` splits.

    Stops at `max_depth` whatever the load (trap T0.5). Complexity: O(cells + blocks).
    """
    pyramid = _pyramid(counts)
    leaves: dict[str, int] = {}
    stack = [("", 0, 0)]
    while stack:
        path, column, row = stack.pop()
        users = int(pyramid[len(path)][row, column])
        if users <= capacity or len(path) >= max_depth:
            leaves[path] = users
            continue
        stack.extend(
            (path + str(digit), column * 2 + (digit & 1), row * 2 + (digit >> 1))
            for digit in range(3, -1, -1)
        )
    return leaves


def block_of(path: str) -> tuple[int, int, int]:
    """Return a block's depth, column and row.

    >>> block_of("31")
    (2, 3, 2)
    """
    column = row = 0
    for digit in path:
        column = column * 2 + (int(digit) & 1)
        row = row * 2 + (int(digit) >> 1)
    return len(path), column, row


def _pyramid(counts: Longs) -> list[Longs]:
    levels = [counts]
    while levels[-1].shape[0] > 1:
        fine = levels[-1]
        half = fine.shape[0] // 2
        levels.append(fine.reshape(half, 2, half, 2).sum(axis=(1, 3)))
    return levels[::-1]


@dataclass(frozen=True, slots=True, eq=False)
class QuadTree:
    """The blocks as flat arrays; node 0 is the root, the four children of a node are adjacent.

    `table` holds the node of each cell of a coarse grid (a leaf, or a node of that depth), so that
    a lookup starts near the bottom.
    """

    paths: tuple[str, ...]
    first_child: np.ndarray[tuple[int], np.dtype[np.int32]]
    leaf_of_node: np.ndarray[tuple[int], np.dtype[np.int32]]
    table: np.ndarray[tuple[int], np.dtype[np.int32]]
    table_depth: int
    height: int

    @classmethod
    def of_leaves(cls, paths: Iterable[str], first_number: int) -> QuadTree:
        """Build from the leaves' paths; leaf i gets the number `first_number + i`.

        Paths that do not tile the space are an error.
        """
        numbers = {path: first_number + i for i, path in enumerate(paths)}
        _check_tiling(numbers)
        nodes, children, leaves = [""], [-1], [-1]
        place = 0
        while place < len(nodes):
            path = nodes[place]
            if path in numbers:
                leaves[place] = numbers[path]
            else:
                children[place] = len(nodes)
                nodes.extend(path + digit for digit in "0123")
                children.extend([-1] * 4)
                leaves.extend([-1] * 4)
            place += 1
        height = max(map(len, nodes))
        first_child = np.array(children, np.int32)
        depth = min(height, _TABLE_DEPTH)
        table = _table(nodes, first_child, depth)
        return cls(tuple(nodes), first_child, np.array(leaves, np.int32), table, depth, height)


def _check_tiling(paths: dict[str, int]) -> None:
    covered = sum(4.0 ** -len(path) for path in paths)
    nested = any(path[:end] in paths for path in paths for end in range(len(path)))
    if covered != 1.0 or nested or any(set(path) - set("0123") for path in paths):
        raise FileFormatError(
            f"{len(paths)} blocks that cover {covered:.6g} of the space",
            where="leaves of the Q part",
            expected="blocks that tile the space without overlap",
        )


def _table(
    nodes: list[str], first_child: np.ndarray[tuple[int], np.dtype[np.int32]], depth: int
) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    side = 1 << depth
    table = np.zeros((side, side), np.int32)
    for place, path in enumerate(nodes):
        level, column, row = block_of(path)
        if level == depth or (level < depth and first_child[place] < 0):
            wide = 1 << (depth - level)
            table[row * wide : (row + 1) * wide, column * wide : (column + 1) * wide] = place
    return table.ravel()
