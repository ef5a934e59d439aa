"""Routing finds what the lookup finds, and its steps are those the paper promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import small_plans
from tests.support.small_plans import MARKS, SPACE, rects

from nearcast.locality import CellCounts, Plan, Rect
from nearcast.model.errors import OutOfRangeError
from nearcast.papers.qr_network.routing import LeafRouter


def plans() -> st.SearchStrategy[Plan]:
    return small_plans.plans(7, capacity=st.integers(1, 3), fanout=st.just(2))


@given(plans(), rects())
def test_both_ways_of_routing_find_the_leaves_that_the_plan_gives(plan: Plan, area: Rect) -> None:
    router = LeafRouter(plan)

    assert router.from_q(area).leaves == plan.leaves_for_event(area)
    assert router.from_r(area).leaves == plan.leaves_for_event(area)


@given(plans(), MARKS, MARKS)
def test_a_point_takes_no_more_steps_than_the_height_of_the_q_part_allows(
    plan: Plan, x: float, y: float
) -> None:
    route = LeafRouter(plan).from_q((x, y))
    in_regions = sum(leaf < plan.r_count for leaf in route.leaves)

    assert route.depth <= plan.height + 1 + bool(in_regions)
    assert route.nodes <= plan.height + 1 + in_regions
    assert route.messages == route.nodes - 1


@given(plans(), MARKS, MARKS)
def test_starting_in_the_r_part_visits_both_parts_for_a_point_outside_all_regions(
    plan: Plan, x: float, y: float
) -> None:
    router = LeafRouter(plan)
    if plan.leaf_at(x, y).kind == "q":
        assert router.from_r((x, y)).nodes > router.from_q((x, y)).nodes


def test_an_event_in_a_region_leaves_the_q_part_early() -> None:
    crowd = np.linspace(4.01, 4.9, 40)
    counts = CellCounts.from_positions(SPACE, [(1, 1, 2, 2)], crowd, crowd, depth=8)
    plan = Plan.build(SPACE, [(1, 1, 2, 2)], counts, capacity=1)
    route = LeafRouter(plan).from_q((1.5, 1.5))

    assert plan.height >= 5
    assert route.leaves == (0,)
    assert route.depth <= 3


def test_an_event_outside_the_space_is_a_clear_error() -> None:
    router = LeafRouter(Plan.build(SPACE, [], CellCounts.empty(2)))
    for start in (router.from_q, router.from_r):
        with pytest.raises(OutOfRangeError):
            start((9.0, 9.0))


def test_a_region_found_at_the_root_leads_to_the_one_it_overlaps_further_down() -> None:
    regions = [(2.0, 2.0, 5.0, 5.0), (4.5, 4.5, 5.5, 5.5)]
    crowd = np.linspace(6.0, 7.9, 30)
    plan = Plan.build(
        SPACE, regions, CellCounts.from_positions(SPACE, regions, crowd, crowd, depth=5), capacity=2
    )
    route = LeafRouter(plan).from_q((4.75, 4.75))

    assert route.leaves == (0, 1)
    assert route.depth == 2  # the root, and the regions it hands the event to
