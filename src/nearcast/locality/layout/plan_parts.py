"""What a plan is made of, and the checks of it: leaves of slow regions and packed ones, brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from nearcast.locality.layout.grid import DEPTH_LIMIT, CellCounts, Grid
from nearcast.locality.layout.rect import Rect
from nearcast.locality.layout.rtree import packed_rects
from nearcast.model.errors import LimitError, MisuseError, OutOfRangeError, UnknownNameError

Layout = Literal["qr", "q", "r"]
Flows = Mapping[tuple[int, int], int]
"""Number of movements between two leaves, in either direction; the smaller leaf number first."""


def check_build(layout: str, capacity: int, fanout: int, max_depth: int | None) -> None:
    """Raise for a layout, capacity, fan-out or depth that makes no sense."""
    if layout not in get_args(Layout):
        raise UnknownNameError(repr(layout), where="layout", expected='"qr", "q" or "r"')
    if capacity < 1:
        raise OutOfRangeError(str(capacity), where="capacity", expected="1 user or more")
    if fanout < 2:
        raise OutOfRangeError(str(fanout), where="fanout", expected="2 children or more")
    if max_depth is not None and not 0 <= max_depth <= DEPTH_LIMIT:
        raise LimitError(str(max_depth), where="max_depth", expected=f"0 to {DEPTH_LIMIT}")


def checked_brokers(brokers: Sequence[int] | None, leaves: int) -> tuple[int, ...] | None:
    """Return the broker of each leaf, checked."""
    if brokers is None:
        return None
    checked = tuple(int(broker) for broker in brokers)
    if len(checked) != leaves or min(checked) < 0:
        raise MisuseError(
            f"{len(checked)} brokers for {leaves} leaves",
            where="brokers of a plan",
            expected="one number from 0 for each leaf",
        )
    return checked


def broker_count(brokers: tuple[int, ...] | None, leaves: int) -> int:
    """Return how many brokers a plan has: one for each leaf without an assignment."""
    return leaves if brokers is None else max(brokers) + 1


def checked_nodes(
    nodes: Sequence[str] | None, brokers: tuple[int, ...] | None, leaves: int
) -> tuple[str, ...] | None:
    """Return the names of the brokers, checked."""
    if nodes is None:
        return None
    count = broker_count(brokers, leaves)
    if len(nodes) < count or len(set(nodes)) < len(nodes) or not all(nodes):
        raise MisuseError(
            ", ".join(map(repr, nodes)) or "no name",
            where="nodes of a plan",
            expected=f"different names, one for each of {count} brokers",
        )
    return tuple(nodes)


def checked_flows(flows: Flows, leaves: int) -> dict[tuple[int, int], int]:
    """Return the moves between leaves, checked."""
    for (one, other), moves in flows.items():
        if not 0 <= one < other < leaves or moves < 0:
            raise MisuseError(
                f"{moves} moves between leaves {one} and {other}",
                where="flows of a plan",
                expected=f"two leaves from 0 to {leaves - 1}, the smaller first",
            )
    return dict(flows)


def packed_leaves(
    space: Rect, counts: CellCounts, capacity: int, first: int
) -> list[tuple[str, Rect, int]]:
    """Return R leaves that pack the users outside the regions by load."""
    grid = Grid.over(space, counts.depth)
    leaves = []
    for number, ((c0, r0, c1, r1), load) in enumerate(
        packed_rects(counts.outside, capacity), first
    ):
        south_west, north_east = grid.block(grid.depth, c0, r0), grid.block(grid.depth, c1, r1)
        leaves.append((f"r{number}", south_west.joined(north_east), load))
    return leaves


REGION_DEPTH_LIMIT = 6
"""How often an R leaf may be split into quarters (trap T0.5)."""


def split_region(leaf: tuple[str, Rect, int], capacity: int) -> list[tuple[str, Rect, int]]:
    """Split an R leaf over its capacity into quarters, assuming users spread evenly."""
    key, rect, load = leaf
    if load <= capacity or len(key.partition(".")[2]) >= REGION_DEPTH_LIMIT:
        return [leaf]
    stem = key if "." in key else key + "."
    parts = [
        (f"{stem}{digit}", part, (load + digit) // 4) for digit, part in enumerate(rect.quarters())
    ]
    return [smaller for part in parts for smaller in split_region(part, capacity)]
