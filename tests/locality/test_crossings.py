"""What crosses between brokers: moves, and events near two of them; leaves shared out by it."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.locality import Plan, Rect, assign_leaves
from nearcast.locality.layout.balancing import (
    EVENT_MS,
    assign_by_crossings,
    border_flows,
    crossings,
    cut_for_brokers,
)
from nearcast.locality.layout.costs import plan_owners
from nearcast.locality.layout.grid import Grid
from nearcast.locality.layout.movement import CellRect, Movement, owners_of, time_near
from nearcast.locality.layout.proposals import propose, propose_for_brokers
from nearcast.model.errors import OutOfRangeError

DEPTH, SIDE = 3, 8
SPACE = Rect(0.0, 0.0, 8.0, 8.0)


def movement(times: dict[int, int], moves: dict[tuple[int, int], int]) -> Movement:
    """Time in minutes per cell, moves between cells."""
    time_ms = np.zeros(SIDE * SIDE, np.int64)
    for cell, minutes in times.items():
        time_ms[cell] = minutes * EVENT_MS
    pairs: Counter[tuple[int, int]] = Counter()
    for (one, other), count in moves.items():
        if one != other:
            pairs[min(one, other), max(one, other)] += count
    low, high = (np.array([pair[end] for pair in pairs], np.int64) for end in (0, 1))
    counts = np.array(list(pairs.values()), np.int64)
    return Movement(DEPTH, time_ms.reshape(SIDE, SIDE), low, high, counts, 60_000)


cells = st.integers(0, SIDE * SIDE - 1)
movements = st.builds(
    movement,
    st.dictionaries(cells, st.integers(1, 9), min_size=1, max_size=30),
    st.dictionaries(st.tuples(cells, cells), st.integers(1, 5), max_size=20),
)


def cost(found: Movement, owners: np.ndarray, reach: tuple[int, int]) -> int:
    """The definition: for each move, whether it changes the owner; for each event, whom it reaches.

    A user publishes once in `EVENT_MS`.
    """
    owner = owners.ravel()
    total = sum(
        int(count)
        for one, other, count in zip(found.low, found.high, found.moves, strict=True)
        if owner[one] != owner[other]
    )
    for row, column in itertools.product(range(SIDE), repeat=2):
        near = {
            int(owners[r, c])
            for r in range(max(0, row - reach[1]), min(SIDE, row + reach[1] + 1))
            for c in range(max(0, column - reach[0]), min(SIDE, column + reach[0] + 1))
        }
        total += int(found.time_ms[row, column]) // EVENT_MS * (len(near) - 1)
    return total


@given(movements, st.lists(st.integers(0, 3), min_size=64, max_size=64), st.integers(0, 2))
def test_crossings_are_moves_and_events_that_reach_two(
    found: Movement, owners: list[int], up: int
) -> None:
    by_cell = np.array(owners, np.int32).reshape(SIDE, SIDE)
    counted = crossings(found, by_cell, (1, up))
    assert sum(counted.values()) == cost(found, by_cell, (1, up))
    assert all(one < other for one, other in counted)


def test_time_is_near_the_leaf_across_the_border_and_not_near_itself() -> None:
    found = movement({3: 2, 0: 5}, {})  # of row 0: column 3 is next to the border at 4
    owners = owners_of([CellRect(0, 0, 4, 8), CellRect(4, 0, 8, 8)], SIDE)
    near = time_near(found, owners, (1, 1))
    assert near.tolist() == [[0, 2 * EVENT_MS], [0, 0]]


def all_cuts(found: Movement, brokers: int, most_ms: float, reach: tuple[int, int]) -> float:
    """The least cost of cutting by lines into so many rectangles: every tree of lines is tried.

    A line costs the moves that it cuts in its rectangle, and the events there within its reach.
    """

    @cache
    def best(rect: CellRect, count: int) -> float:
        if count == 1:
            return 0.0 if found.time_in(rect) <= most_ms else float("inf")
        least = float("inf")
        for axis, share in itertools.product((0, 1), range(1, count)):
            for at in range(rect[axis] + 1, rect[axis + 2]):
                names = ("east", "west") if axis == 0 else ("north", "south")
                one, other = (rect._replace(**{name: at}) for name in names)
                parts = best(one, share) + best(other, count - share)
                if parts < least:
                    least = min(least, parts + price(rect, axis, at))
        return least

    def price(rect: CellRect, axis: int, at: int) -> float:
        inside = [
            [(int(end) % SIDE, int(end) // SIDE) for end in ends]
            for ends in zip(found.low, found.high, strict=True)
        ]
        cut = sum(
            int(count)
            for (one, other), count in zip(inside, found.moves, strict=True)
            if all(
                rect.west <= c < rect.east and rect.south <= r < rect.north for c, r in (one, other)
            )
            and (one[axis] < at) != (other[axis] < at)
        )
        low, high = max(rect[axis], at - reach[axis]), min(rect[axis + 2], at + reach[axis])
        names = ("west", "east") if axis == 0 else ("south", "north")
        return cut + found.time_in(rect._replace(**dict(zip(names, (low, high), strict=True)))) / (
            EVENT_MS
        )

    return best(found.everywhere, brokers)


@given(movements, st.integers(1, 3))
def test_the_cut_for_few_brokers_is_the_best_of_all(found: Movement, brokers: int) -> None:
    reach, tolerance = (1, 1), 0.4
    most_ms = (1 + tolerance) * found.time_in(found.everywhere) / brokers
    rects = cut_for_brokers(found, brokers, reach, tolerance=tolerance)
    least = all_cuts(found, brokers, most_ms, reach)
    if rects is None:
        assert least == float("inf")
        return
    assert len(rects) == brokers
    assert sum(rect.cells for rect in rects) == SIDE * SIDE
    assert max(found.time_in(rect) for rect in rects) <= most_ms
    owners = owners_of(rects, SIDE)
    if brokers == 2:  # one line: its cost is that of the whole
        assert cost(found, owners, reach) == pytest.approx(least)


def test_nobody_anywhere_cannot_be_cut_and_bad_numbers_are_refused() -> None:
    nobody = movement({}, {})
    assert cut_for_brokers(nobody, 2, (1, 1)) is None
    crowd = movement({5: 9}, {})
    assert cut_for_brokers(crowd, 3, (1, 1)) is None  # all on one cell
    with pytest.raises(OutOfRangeError, match="1 or more"):
        cut_for_brokers(crowd, 0, (1, 1))


def strip_town() -> Movement:
    """Two crowds that speak among themselves, on both sides of the middle column of quadrants."""
    times = {row * SIDE + column: 4 for row in range(SIDE) for column in (1, 3, 4, 6)}
    moves = {(row * SIDE + 3, row * SIDE + 4): 9 for row in range(SIDE)}
    return movement(times, moves)


def test_events_near_two_brokers_count_though_nobody_moves_there() -> None:
    """By moves alone all borders are as good as each other; by events the empty column is best."""
    times = {row * SIDE + column: 4 for row in range(SIDE) for column in (0, 1, 5, 6, 7)}
    found = movement(times, {})
    columns = [CellRect(c, 0, c + 1, SIDE) for c in range(SIDE)]
    owners = owners_of(columns, SIDE)
    grid = Grid.over(SPACE, DEPTH)
    leaves = [(f"r{n}", grid.closed_cells(*rect), 4) for n, rect in enumerate(columns)]
    plan = Plan(SPACE, [*leaves, ("q", SPACE, 0)], layout="qr", depth=DEPTH, fanout=8, version=1)
    chosen = assign_by_crossings(plan, found, owners, (1, 1), 2).brokers
    assert chosen[0] == chosen[1] != chosen[5] == chosen[6] == chosen[7]
    assert cost(found, np.asarray(chosen)[owners], (1, 1)) == 0


def test_a_given_assignment_is_not_made_worse() -> None:
    found = strip_town()
    columns = [CellRect(c, 0, c + 1, SIDE) for c in range(SIDE)]
    owners = owners_of(columns, SIDE)
    grid = Grid.over(SPACE, DEPTH)
    leaves = [(f"r{n}", grid.closed_cells(*rect), 4) for n, rect in enumerate(columns)]
    plan = Plan(SPACE, [*leaves, ("q", SPACE, 0)], layout="qr", depth=DEPTH, fanout=8, version=1)
    first = [0, 0, 0, 1, 1, 1, 1, 1, 0]
    before = cost(found, np.asarray(first)[owners], (1, 1))
    chosen = assign_by_crossings(plan, found, owners, (1, 1), 2, first=first, tolerance=0.6)
    assert chosen.cut == cost(found, np.asarray(chosen.brokers)[owners], (1, 1)) <= before


def test_leaves_that_tile_the_space_have_borders() -> None:
    """They end at the number before the next one's border; without borders any would be as good."""
    grid = Grid.over(SPACE, DEPTH)
    tiles = [CellRect(c, r, c + 2, r + 2) for r in range(0, SIDE, 2) for c in range(0, SIDE, 2)]
    leaves = [(f"r{n}", grid.closed_cells(*rect), 5) for n, rect in enumerate(tiles)]
    plan = Plan(SPACE, [*leaves, ("q", SPACE, 0)], layout="qr", depth=DEPTH, fanout=8, version=1)
    borders = {pair: n for pair, n in border_flows(plan).items() if len(tiles) not in pair}
    assert len(borders) == 24
    assert set(borders.values()) == {250}
    chosen = assign_leaves(plan, {}, 4).brokers[:16]
    assert sum(chosen[one] != chosen[other] for one, other in borders) <= 9  # 8: four squares


def test_a_layout_for_brokers_crosses_less_than_leaves_shared_out_afterwards() -> None:
    rng = np.random.default_rng(5)
    hot = rng.uniform(0.1, 0.9, (6, 2))
    users, steps = 120, 60
    at = hot[rng.integers(0, 6, users)] + rng.normal(0, 0.03, (users, 2))
    tracks = np.clip(at[:, None] + rng.normal(0, 0.01, (users, steps, 2)).cumsum(1) / 3, 0, 0.999)
    space, reach = Rect(0.0, 0.0, 1.0, 1.0), (3, 3)
    found = Movement.from_tracks(
        space, np.repeat(np.arange(users), steps), np.tile(np.arange(steps) * 10.0, users),
        tracks[..., 0].ravel(), tracks[..., 1].ravel(), 6,
    )  # fmt: skip
    drafts = propose(space, [], found, 8.0, reach)
    both = propose_for_brokers(drafts, found, 4, 8.0, reach)
    assert both is not None
    cuts = []
    for plan, first in ((drafts.plans["optimised"], None), both):
        owners = plan_owners(plan, 6)
        cuts.append(assign_by_crossings(plan, found, owners, reach, 4, first=first).cut)
    assert cuts[1] < cuts[0]
