"""Each trap of paper 0: the literal reading goes wrong, ours does not.

The literal readings are written out here, so that a test shows what it guards against.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tests.support.two_nodes import TwoNodes

from nearcast.locality import CellCounts, Plan, Rect
from nearcast.papers.qr_network.routing import LeafRouter

SPACE = Rect(0.0, 0.0, 8.0, 8.0)


def literal_registration(plan: Plan, area: Rect) -> list[int]:
    """Paper: the R leaf in which the area lies; otherwise the Q leaf in which it lies."""
    r = [leaf.number for leaf in plan.leaves if leaf.kind == "r" and leaf.rect.covers(area)]
    q = [leaf.number for leaf in plan.leaves if leaf.kind == "q" and leaf.closed.covers(area)]
    return r[:1] or q[:1]


def literal_route(plan: Plan, x: float, y: float) -> list[int]:
    """Paper: to the linked R leaf if it contains the event; down only if none is linked."""
    node, path = 0, ""
    while True:
        block = next((n for n in plan.leaves if n.key == "q" + path), None)
        linked = [
            leaf.number
            for leaf in plan.leaves[: plan.r_count]
            if leaf.rect.intersects(plan.grid.block(len(path), *_corner(path)))
        ]
        inside = [n for n in linked if plan.leaves[n].rect.contains(x, y)]
        if inside:
            return inside[:1]
        if linked:
            return []  # stuck: linked, but not contained
        if block is not None:
            return [block.number]
        cell = plan.grid.cell(x, y)
        level = plan.grid.depth - len(path) - 1
        path += str((cell[0] >> level & 1) + 2 * (cell[1] >> level & 1))
        node += 1


def _corner(path: str) -> tuple[int, int]:
    column = row = 0
    for digit in path:
        column, row = column * 2 + (int(digit) & 1), row * 2 + (int(digit) >> 1)
    return column, row


def test_t0_1_an_area_across_the_border_of_a_slow_region_misses_no_event_inside_it(
    make_plan: Callable[..., Plan],
) -> None:
    plan = make_plan([(4, 4, 6, 6)])
    area, event = Rect(6.0, 5.0, 7.0, 5.5).joined(Rect(5.5, 5.0, 6.0, 5.5)), (5.8, 5.2)
    over_q_border = Rect(3.0, 1.0, 5.0, 2.0)

    literally = literal_registration(plan, area)
    assert not set(literally) & set(plan.leaves_for_event(event))  # the event would be missed
    assert literal_registration(plan, over_q_border) == []  # in no leaf at all

    assert set(plan.leaves_for_subscription(area)) & set(plan.leaves_for_event(event))
    assert len(plan.leaves_for_subscription(over_q_border)) == 3
    nodes = TwoNodes(plan)
    nodes.subscribe("someone", area)
    assert nodes.publish((5.5, 5.0, 6.5, 5.2)) == ["someone"]


def test_t0_2_an_event_where_slow_regions_overlap_goes_to_all_of_them_and_to_a_subscriber_once(
    make_plan: Callable[..., Plan],
) -> None:
    plan = make_plan([(2, 2, 5, 5), (4, 4, 7, 7)])
    nodes = TwoNodes(plan)
    nodes.subscribe("in the second only", (6, 4.5, 6.5, 4.6))
    nodes.subscribe("in both", (4, 4, 5, 5))
    nodes.subscribe("second, reaching in", (4.5, 4.5, 6, 6))
    event = (4.5, 4.5)

    assert len(literal_route(plan, *event)) <= 1  # one R leaf at most
    assert plan.leaves_for_event(event) == (0, 1)
    assert LeafRouter(plan).from_q(event).leaves == (0, 1)
    assert nodes.publish(event) == ["in both", "second, reaching in"]


def test_t0_3_an_event_about_a_rectangle_goes_to_every_leaf_it_touches(
    make_plan: Callable[..., Plan],
) -> None:
    plan = make_plan([(4, 4, 6, 6)])
    event = Rect(1.0, 1.0, 5.0, 5.0)
    centre_only = {plan.leaf_at(3.0, 3.0).key}
    nodes = TwoNodes(plan)
    nodes.subscribe("far corner", (1.0, 1.0, 1.1, 1.1))
    nodes.subscribe("in the region", (5.0, 5.0, 5.5, 5.5))

    assert not (nodes.leaves_of("far corner") | nodes.leaves_of("in the region")) & centre_only
    assert nodes.publish(event) == ["far corner", "in the region"]


def test_t0_4_a_point_on_a_border_belongs_to_one_block_and_regions_have_one_rule(
    make_plan: Callable[..., Plan],
) -> None:
    plan = make_plan([(4, 4, 6, 6)])
    closed_blocks = [
        leaf for leaf in plan.leaves if leaf.kind == "q" and leaf.rect.contains(1.0, 1.0)
    ]
    assert len(closed_blocks) > 1  # closed cells would deliver from several leaves

    assert len(plan.leaves_for_event((1.0, 1.0))) == 1
    assert plan.leaves_for_event((8.0, 8.0))  # the outer edge is in
    for x, y in ((4, 4), (6, 6), (4, 6), (6, 5)):
        assert plan.leaves_for_event((x, y)) == (0,)
        assert 0 in plan.leaves_for_subscription((x, y))
    beyond = math.nextafter(6.0, 7.0)
    assert plan.leaf_at(beyond, 5).kind == "q"


def test_t0_4_a_subscriber_who_leaves_the_space_keeps_its_session(
    make_plan: Callable[..., Plan],
) -> None:
    nodes = TwoNodes(make_plan([(4, 4, 6, 6)]))
    nodes.subscribe("walker", (7, 7, 7.5, 7.5))
    nodes.move("walker", (9, 9, 9.5, 9.5))

    assert nodes.leaves_of("walker")
    assert nodes.publish((7.2, 7.2)) == []
    assert nodes.publish((7, 7, 9.2, 9.2)) == ["walker"]  # it reaches out that far
    nodes.move("walker", (7, 7, 7.5, 7.5))
    assert nodes.publish((7.2, 7.2)) == ["walker"]


def test_t0_5_many_users_on_one_point_do_not_split_for_ever() -> None:
    crowd = np.full(1000, 3.3)
    plan = Plan.build(
        SPACE, [], CellCounts.from_positions(SPACE, [], crowd, crowd, depth=6), capacity=1
    )
    nodes = TwoNodes(plan)
    for user in range(50):
        nodes.subscribe(f"s{user}", (3.3, 3.3))

    assert plan.height == 6
    assert len(nodes.publish((3.3, 3.3))) == 50


def test_t0_7_a_linked_leaf_that_does_not_contain_the_event_does_not_stop_it(
    make_plan: Callable[..., Plan],
) -> None:
    plan = make_plan([(4, 4, 6, 6)])
    event = (7.0, 7.0)  # in the block to which region 0 is linked, outside the region

    assert literal_route(plan, *event) == []  # stuck for ever
    assert LeafRouter(plan).from_q(event).leaves == (plan.leaf_at(*event).number,)
