"""The invariants of the pools of a `BoxIndex`, which hold between any two calls."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from nearcast.index.boxes.pools import (
    L_CHILD,
    L_COUNT,
    L_DIM,
    L_LEAF,
    L_PARENT,
    L_ROUTE,
    LEAF,
    M_COUNT,
    M_DIMS,
    M_LEAF_FREE,
    M_LEAVES,
    M_LEVELS,
    M_NEXT_AGE,
    M_NODE_FREE,
    M_NODES,
    Floats,
    Ints,
    Pools,
    bounds_size,
)
from nearcast.index.boxes.tree import narrowness_of_all


@dataclass(slots=True)
class _Seen:
    """What a walk through the tree has met so far."""

    nodes: set[int] = field(default_factory=set)
    leaves: set[int] = field(default_factory=set)
    positions: dict[int, int] = field(default_factory=dict)
    deepest: int = 0


def check_pools(pools: Pools) -> None:
    """Raise AssertionError if an invariant is broken; O(n) in plain Python."""
    seen = _Seen()
    stack = [(0, -1, 1)]
    while stack:
        node, parent, level = stack.pop()
        links = pools.links[node * 16 : node * 16 + 16]
        assert links[L_PARENT] == parent, f"node {node}: parent is not {parent}"
        assert node not in seen.nodes, f"node {node} is met twice"
        seen.nodes.add(node)
        seen.deepest = max(seen.deepest, level)
        if links[L_CHILD] < 0:
            _check_leaf(pools, node, seen)
            continue
        _check_inner(pools, node)
        child = int(links[L_CHILD])
        stack += [(child, node, level + 1), (child + 1, node, level + 1)]
    _check_totals(pools, seen)
    _check_slots(pools, seen.positions)


def rows_below(pools: Pools, root: int) -> tuple[Floats, Ints]:
    """Return boxes and positions below a node."""
    boxes, positions, stack = [], [], [root]
    dims = int(pools.meta[M_DIMS])
    while stack:
        links = pools.links[(node := stack.pop()) * 16 : node * 16 + 16]
        if links[L_CHILD] >= 0:
            stack += [int(links[L_CHILD]), int(links[L_CHILD]) + 1]
            continue
        leaf, count = int(links[L_LEAF]), int(links[L_COUNT])
        block = pools.coords[leaf * LEAF * 2 * dims :][: LEAF * 2 * dims].reshape(2 * dims, LEAF)
        boxes.append(block[:, :count].T)
        positions.append(np.arange(leaf * LEAF, leaf * LEAF + count))
    return np.concatenate(boxes), np.concatenate(positions)


def _bounds_of(pools: Pools, boxes: Floats, positions: Ints) -> list[float]:
    """Return the expected bounds of a node, from the boxes below it."""
    dims = int(pools.meta[M_DIMS])
    if not len(boxes):
        return [np.inf, -np.inf, np.inf, -np.inf] * dims + [np.inf, np.inf, -np.inf]
    edges = [
        float(edge)
        for i in range(dims)
        for column in (boxes[:, 2 * i], boxes[:, 2 * i + 1])
        for edge in (column.min(), column.max())
    ]
    weight = float(pools.weights[positions].max()) if pools.weights.size else 1.0
    return [
        *edges,
        float(pools.narrow[positions].min()),
        float(pools.ages[positions].min()),
        weight,
    ]


def _check_bounds(pools: Pools, node: int, boxes: Floats, positions: Ints) -> None:
    size = bounds_size(int(pools.meta[M_DIMS]))
    found = pools.bounds[node * size : (node + 1) * size].tolist()
    expected = _bounds_of(pools, boxes, positions)
    assert found == expected, f"node {node}: bounds {found}, boxes below {expected}"


def _check_leaf(pools: Pools, node: int, seen: _Seen) -> None:
    dims = int(pools.meta[M_DIMS])
    leaf, count = (int(pools.links[node * 16 + f]) for f in (L_LEAF, L_COUNT))
    assert 0 <= count <= LEAF, f"leaf {leaf} has {count} boxes"
    assert leaf not in seen.leaves, f"leaf {leaf} is met twice"
    assert pools.leaf_node[leaf] == node, f"leaf {leaf} does not know its node"
    seen.leaves.add(leaf)
    boxes, positions = rows_below(pools, node)
    _check_bounds(pools, node, boxes, positions)
    block = pools.coords[leaf * LEAF * 2 * dims :][: LEAF * 2 * dims].reshape(2 * dims, LEAF)
    assert (block[0::2, count:] == np.inf).all(), f"leaf {leaf}: a void place is not void"
    assert (block[1::2, count:] == -np.inf).all(), f"leaf {leaf}: a void place is not void"
    bounded = np.isfinite(boxes).any(axis=0).reshape(dims, 2).any(axis=1)
    known = np.array([int(pools.bits[node * 8]) >> i & 1 for i in range(dims)], dtype=np.bool_)
    assert not (bounded & ~known).any(), f"leaf {leaf} forgot an attribute"
    narrow = np.empty(count)
    narrowness_of_all(boxes.ravel(), dims, pools.extent, narrow)
    assert (pools.narrow[positions] == narrow).all(), f"leaf {leaf}: narrowness"
    seen.positions.update(zip(positions.tolist(), pools.keys[positions].tolist(), strict=True))


def _check_inner(pools: Pools, node: int) -> None:
    size = bounds_size(int(pools.meta[M_DIMS]))
    links = pools.links[node * 16 : node * 16 + 16]
    _check_bounds(pools, node, *rows_below(pools, node))
    for side in (0, 1):
        child = int(links[L_CHILD]) + side
        hull = pools.bounds[child * size + 4 * int(links[L_DIM]) :][:4]
        planes = pools.nodes[node * 8 + 2 * side :][:2]
        assert planes.tolist() == [hull[0], hull[3]], f"node {node}: planes"
        right = _turn_right(pools, node, *rows_below(pools, child))
        assert (right == bool(side)).all(), f"node {node}: a box is on the wrong side"


def _turn_right(pools: Pools, node: int, boxes: Floats, positions: Ints) -> npt.NDArray[np.bool_]:
    """Return for each box whether the node's route leads it to the right."""
    route = int(pools.links[node * 16 + L_ROUTE])
    bar, age = pools.routes[2 * node : 2 * node + 2]
    if route < boxes.shape[1]:
        return np.asarray(boxes[:, route] >= bar)
    narrow, ages = pools.narrow[positions], pools.ages[positions]
    return np.asarray((narrow > bar) | ((narrow == bar) & (ages >= age)))


def _check_totals(pools: Pools, seen: _Seen) -> None:
    meta = pools.meta
    assert len(seen.positions) == meta[M_COUNT], "count"
    assert seen.deepest <= meta[M_LEVELS], "levels"
    free_leaves, leaf = set(), int(meta[M_LEAF_FREE])
    while leaf >= 0:
        free_leaves.add(leaf)
        leaf = int(pools.leaf_node[leaf])
    free_nodes, node = {1}, int(meta[M_NODE_FREE])
    while node >= 0:
        free_nodes |= {node, node + 1}
        node = int(pools.links[node * 16 + L_PARENT])
    assert not free_leaves & seen.leaves, "a leaf is used and free"
    assert not free_nodes & seen.nodes, "a node is used and free"
    assert free_leaves | seen.leaves == set(range(meta[M_LEAVES])), "a leaf is lost"
    assert free_nodes | seen.nodes == set(range(meta[M_NODES])), "a node is lost"
    ages = [int(pools.ages[position]) for position in seen.positions]
    assert len(set(ages)) == len(ages), "two boxes of the same age"
    assert not ages or max(ages) < meta[M_NEXT_AGE], "a box from the future"


def _check_slots(pools: Pools, positions: dict[int, int]) -> None:
    """Check that every key is found from its home slot on, and nothing else is in the table."""
    taken = pools.slots[pools.slots != -1]
    assert sorted(taken.tolist()) == sorted(positions), "hash table and leaves differ"
    assert len(set(positions.values())) == len(positions), "a key is there twice"
