"""What plans by the clock cost, as the definition counts; and the kinds of mobility."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.locality import Plan, Rect
from nearcast.locality.layout.costs import LayoutWeights, brokers_by_leaf, layout_cost
from nearcast.locality.layout.movement import Movement, joined_movement
from nearcast.locality.layout.tracks import MobilityKind, mobility_kinds
from nearcast.locality.schedule.week import BLOCKS, DIVISIONS
from nearcast.locality.schedule.worth import (
    LayoutRules,
    WeekRecord,
    division_cost,
    handed_over,
    weigh_divisions,
)

SPACE = Rect(0.0, 0.0, 1.0, 1.0)
SIDE = 8
RULES = LayoutRules(SPACE, 4.0, (1, 1), LayoutWeights(), is_free=True)
FEW_BROKERS = replace(RULES, weights=LayoutWeights(1.0, 0.05, 0.0))


def movement(times_ms: np.ndarray, moves: dict[tuple[int, int], int] | None = None) -> Movement:
    pairs = sorted((moves or {}).items())
    low, high = (np.array([pair[end] for pair, _ in pairs], np.int64) for end in (0, 1))
    return Movement(3, times_ms, low, high, np.array([n for _, n in pairs], np.int64), 1_000)


def crowd(west: int, east: int, users: int = 16) -> Movement:
    """Users spread evenly over some columns, who walk to the next row now and then."""
    times = np.zeros((SIDE, SIDE), np.int64)
    times[:, west:east] = users * 1_000 // (SIDE * (east - west))
    moves = {
        (SIDE * r + c, SIDE * (r + 1) + c): 3 for r in range(SIDE - 1) for c in range(west, east)
    }
    return movement(times, moves)


def week(blocks: list[Movement], times: int = 5) -> WeekRecord:
    pairs = [(0, 1), (1, 2), (2, 3), (3, 0), (3, 4), (4, 5), (5, 6), (6, 7), (7, 4), (7, 0)]
    return WeekRecord(blocks, Counter(dict.fromkeys(pairs, times)))


@given(
    st.lists(st.integers(0, 3), min_size=16, max_size=16),
    st.lists(st.integers(0, 3), min_size=16, max_size=16),
    st.lists(st.integers(0, 5), min_size=16, max_size=16),
)
def test_who_is_handed_over_by_a_change_of_plan(
    old: list[int], new: list[int], users: list[int]
) -> None:
    """The heaviest pair of an old and a new leaf stays, and so on; everybody else moves."""
    before, after = (np.array(one, np.int32).reshape(4, 4) for one in (old, new))
    times = np.array(users, np.int64).reshape(4, 4) * 1_000
    none = np.zeros(0, np.int64)
    found = handed_over(before, after, Movement(2, times, none, none, none, 1_000))
    left: dict[tuple[int, int], int] = {}
    for a, b, n in zip(old, new, users, strict=True):
        left[a, b] = left.get((a, b), 0) + n
    moved = sum(users)
    while left and max(left.values()):
        most = max(left.values())
        a, b = min(pair for pair, n in left.items() if n == most)
        moved -= most
        left = {(c, d): n for (c, d), n in left.items() if c != a and d != b}
    assert found == moved


def test_the_cost_of_a_division_is_the_sum_of_its_blocks_and_changes() -> None:
    west, east = crowd(0, 4), crowd(4, 8)
    record = week([east, west, west, east] * 2)
    halves = [
        ("r0", Rect(0.0, 0.0, 0.49, 1.0), 0),
        ("r1", Rect(0.5, 0.0, 1.0, 1.0), 0),
        ("q", SPACE, 0),
    ]
    quarters = [("q" + digit, SPACE, 0) for digit in "0123"]
    plans = [
        Plan(SPACE, leaves, layout=form, depth=3, fanout=8, version=1)  # type: ignore[arg-type]
        for leaves, form in ((halves, "qr"), (quarters, "q"), (halves, "qr"), (halves, "qr"))
    ]
    found = division_cost(DIVISIONS["hours"], plans, record, RULES)
    each = [
        layout_cost(plans[block % 4], record.blocks[block], RULES.capacity, RULES.reach)
        for block in range(BLOCKS)
    ]
    # Night and evening have the halves, one of which is used; its 16 users fall into eight parts.
    assert found.cost.brokers == max(one.brokers for one in each) == 8
    inside = sum(one.handovers for one in each)
    assert found.cost.handovers == inside + found.handovers_by_changes
    # Four of the changes go from halves to quarters or back, with 16 users, of whom 8 keep a leaf.
    assert found.handovers_by_changes == 5 * 4 * 8
    assert min(one.leaves_per_event for one in each) <= found.cost.leaves_per_event
    assert found.cost.leaves_per_event <= max(one.leaves_per_event for one in each)


def test_a_leaf_needs_the_brokers_of_its_fullest_block() -> None:
    """One plan of two halves, each of which is full at another time: both need their brokers."""
    record = week([crowd(4, 8), crowd(0, 4, 8), crowd(0, 4), crowd(4, 8, 4)] * 2)
    halves = [("r0", Rect(0.0, 0.0, 0.49, 1.0), 0), ("r1", Rect(0.5, 0.0, 1.0, 1.0), 0)]
    plan = Plan(SPACE, [*halves, ("q", SPACE, 0)], layout="qr", depth=3, fanout=8, version=1)
    found = division_cost(DIVISIONS["always"], [plan], record, RULES)
    assert brokers_by_leaf(plan, record.blocks[0], RULES.capacity).tolist() == [0, 4, 0]
    assert brokers_by_leaf(plan, record.blocks[1], RULES.capacity).tolist() == [2, 0, 0]
    assert (found.cost.brokers, found.handovers_by_changes) == (8, 0)


def test_plans_by_the_hour_pay_where_people_are_elsewhere_by_day_than_by_night() -> None:
    night, day = crowd(6, 8, 32), crowd(0, 2, 32)
    record = week([night, day, day, night] * 2, times=1)
    found = weigh_divisions(record, record, FEW_BROKERS)
    assert found.best == "hours"
    assert found.costs["hours"].cost.brokers < found.costs["always"].cost.brokers
    often = week([night, day, day, night] * 2, times=1_000)  # changes cost more than they save
    assert weigh_divisions(often, often, FEW_BROKERS).best == "always"
    rows = {row["division"]: row for row in found.rows()}
    assert [name for name, row in rows.items() if row["chosen"]] == ["hours"]
    assert rows["always"]["plans"] == 1


def test_weekends_pay_alone_if_hours_do_not_differ() -> None:
    record = week([crowd(0, 2, 32)] * 4 + [crowd(6, 8, 32)] * 4, times=1)
    assert weigh_divisions(record, record, FEW_BROKERS).best == "days"


def test_a_class_that_nobody_was_seen_in_is_not_judged() -> None:
    nobody = movement(np.zeros((SIDE, SIDE), np.int64))
    some = week([crowd(0, 4)] * 4 + [nobody] * 4)
    assert set(weigh_divisions(some, some, RULES).costs) == {"always", "hours"}
    none = week([nobody] * BLOCKS)
    assert weigh_divisions(none, none, RULES).rows() == []


def test_parts_together_are_the_whole() -> None:
    one, other = crowd(0, 2), crowd(1, 3)
    both = joined_movement([one, other])
    assert (both.time_ms == one.time_ms + other.time_ms).all()
    assert both.span_ms == 2_000
    assert both.moves.sum() == one.moves.sum() + other.moves.sum()
    assert len(both.moves) == 3 * (SIDE - 1)


@given(st.floats(0, 900), st.floats(0, 1e5))
def test_kinds_of_mobility_by_the_speed_of_a_step(step_s: float, step_m: float) -> None:
    (found,) = mobility_kinds(np.array([step_s]), np.array([step_m])).tolist()
    if step_s == 0 or step_m < 0.49 * step_s:
        assert found == MobilityKind.STAND
    elif 0.51 * step_s < step_m < 2.49 * step_s:
        assert found == MobilityKind.WALK
    elif step_m > 2.51 * step_s:
        assert found == MobilityKind.RIDE


def test_the_borders_between_the_kinds() -> None:
    kinds = mobility_kinds(np.full(4, 10.0), np.array([4.9, 5.0, 24.9, 25.0]))
    assert kinds.tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize("name", DIVISIONS)
def test_divisions_give_each_block_a_class(name: str) -> None:
    division = DIVISIONS[name]
    assert len(division) == BLOCKS
    assert set(division) == set(range(max(division) + 1))
