"""Paper 0's experiment: what is counted, how it is judged, and that a seed decides everything."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from nearcast.locality import CellCounts, Plan, Rect
from nearcast.model.errors import UnknownNameError
from nearcast.papers.form import Claim, Row
from nearcast.papers.qr_network.claims import claims, figure_series, figures, points
from nearcast.papers.qr_network.experiment import LAYOUTS, NetworkPoint, run_point, run_routing
from nearcast.papers.qr_network.layouts import FollowingLayout, LayoutRun, PlannedLayout
from nearcast.papers.qr_network.subscriber_tree import SubscriberTree

SPACE = Rect(0.0, 0.0, 8.0, 8.0)
SMALL = NetworkPoint(subscribers=120, rounds=8, capacity=8, regions=6)


def west_and_east() -> PlannedLayout:
    """A region in the west, one block for the rest."""
    return PlannedLayout(Plan.build(SPACE, [(1, 1, 3, 3)], CellCounts.empty(3)))


def places(*points: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([p[0] for p in points], float), np.array([p[1] for p in points], float)


def test_a_handover_is_counted_when_someone_crosses_a_border_and_only_then() -> None:
    run = LayoutRun(west_and_east(), *places((2, 2), (6, 6)))
    run.round(*places((2.5, 2), (6, 6)), [])
    assert run.costs.handovers == 0
    run.round(*places((3.5, 2), (2, 2)), [])
    assert run.costs.handovers == 2


def test_an_event_for_someone_just_handed_over_is_sent_again() -> None:
    run = LayoutRun(west_and_east(), *places((2, 2), (6, 6)))
    seen_by_old = Rect(2.5, 1.0, 4.0, 3.0)  # reaches into the region that user 0 leaves
    new_to_both = Rect(3.2, 1.9, 3.8, 2.1)
    run.round(*places((3.5, 2), (6, 6)), [seen_by_old, new_to_both])

    assert run.costs.multicast_messages == 1 + 0  # root and region; root alone
    assert run.costs.retransmissions == 1 + 0  # one message from the old; none from root to root
    assert run.costs.deliveries == 2
    assert run.costs.retransmission_ratio == 0.5
    assert run.costs.ratio_with_deliveries == 0.25


def test_messages_count_the_hops_from_the_root_to_each_leaf() -> None:
    crowd = np.array([0.5, 1.5, 2.5, 3.5])
    counts = CellCounts.from_positions(SPACE, [], crowd, crowd, depth=3)
    layout = PlannedLayout(Plan.build(SPACE, [], counts, capacity=2))
    near, far = Rect.at(0.5, 0.5), Rect.at(7, 7)

    assert layout.plan.height == 2
    assert layout.multicast(near)[1] == 2
    assert layout.multicast(far)[1] == 1
    assert layout.multicast(SPACE)[1] == 8  # four blocks, one of which has four more
    assert layout.hops_to(layout.plan.leaf_at(0.5, 0.5).number) == 2
    assert layout.brokers() == (7, 9)


def test_an_r_tree_of_subscribers_follows_them_and_stays_whole() -> None:
    random = np.random.default_rng(5)
    xs, ys = random.random((2, 90)) * 8
    tree = SubscriberTree(SPACE, xs, ys, capacity=7, fanout=3)
    layout = FollowingLayout(tree)
    for _ in range(25):
        xs, ys = (
            np.clip(xs + random.normal(0, 0.4, 90), 0, 8),
            np.clip(ys + random.normal(0, 0.4, 90), 0, 8),
        )
        group_of = layout.follow(xs, ys)
        index, groups = tree.tree()
        assert set(groups) == set(group_of)
        assert np.bincount(group_of).max() <= 7
        for i, group in enumerate(group_of):  # within the rectangle of its group
            assert group in {groups[n] for n in index.search(Rect.at(xs[i], ys[i])).leaves}
        for event in (Rect(1, 1, 2, 3), Rect.at(4, 4), SPACE):
            leaves, _ = layout.multicast(event)
            there = [i for i in range(90) if event.contains(xs[i], ys[i])]
            assert {group_of[i] for i in there} <= set(leaves)
    assert layout.brokers()[0] >= 90 / 7
    assert layout.hops_to(0) >= 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_point_gives_the_same_rows_each_time_and_other_rows_for_another_seed(layout: str) -> None:
    point = replace(SMALL, layout=layout)
    rows = run_point(point)

    assert rows == run_point(point)
    assert rows != run_point(replace(point, seed=2))
    assert [row["rounds"] for row in rows] == [2, 4, 6, 8]
    assert all(a["handovers"] <= b["handovers"] for a, b in pairwise(rows))


def test_all_layouts_of_a_seed_see_the_same_people_and_events() -> None:
    rows = [run_point(replace(SMALL, layout=layout), 1)[0] for layout in LAYOUTS]

    assert len({row["deliveries"] for row in rows}) == 1


def test_upkeep_is_a_message_per_rectangle_that_has_changed() -> None:
    space, market = Rect(0.0, 0.0, 8.0, 8.0), Rect(1.0, 1.0, 3.0, 3.0)
    xs, ys = np.array([1.5, 2.5, 6.0]), np.array([1.5, 2.5, 6.0])
    counts = CellCounts.from_positions(space, [market], xs, ys, depth=2)
    run = LayoutRun(PlannedLayout(Plan.build(space, [market], counts, capacity=9)), xs, ys)
    run.round(xs, ys, [])
    assert run.costs.upkeep_messages == 0
    run.round(xs + np.array([0, 0, 1]), ys, [])  # outside the region
    assert run.costs.upkeep_messages == 0
    run.round(xs + np.array([0.1, 0, 1]), ys, [])
    assert run.costs.upkeep_messages == 1
    quadrants = LayoutRun(
        PlannedLayout(Plan.build(space, [], counts, layout="q", capacity=9)), xs, ys
    )
    quadrants.round(xs + 0.1, ys, [])
    assert quadrants.costs.upkeep_messages == 0
    tree = SubscriberTree(space, xs, ys, capacity=2, fanout=4)
    groups = tree.rects()
    following = LayoutRun(FollowingLayout(tree), xs, ys)
    assert following.costs.upkeep_messages == 0
    following.round(xs + 0.01, ys, [])
    after = tree.rects()
    changed = [one for one in groups | after if groups.get(one) != after.get(one)]
    assert following.costs.upkeep_messages == len(changed) > 1


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(UnknownNameError):
        run_point(replace(SMALL, layout="x"))


def rows_with(**values: dict[str, float]) -> list[Row]:
    """Rows of two sizes and three seeds, with means as given per column and layout."""
    base = dict.fromkeys(("brokers", "all_blocks", "handovers", "multicast_messages"), 100.0)
    rows: list[Row] = []
    for layout in ("q", "qr", "r", "r-packed"):
        for size in (10, 20):
            for seed in (1, 2, 3):
                cell = {c: v.get(layout[:2].rstrip("-"), 100.0) for c, v in values.items()}
                cell = {**base, "retransmission_ratio": 0.1, **cell}
                cell["with_upkeep"] = cell["multicast_messages"]
                if size == 10:
                    cell["retransmission_ratio"] /= 4
                row: Row = {"layout": layout, "subscribers": size, "rounds": 5, "seed": seed}
                row |= {name: value * (1 + 0.01 * seed) for name, value in cell.items()}
                rows.append(row | {"kind": "layout"})
    return rows


def judged(name: str, **values: dict[str, float]) -> list[Claim]:
    return [claim for claim in claims(rows_with(**values)) if claim.id == name]


@pytest.mark.parametrize(
    ("claim", "column", "good", "bad"),
    [
        ("C0.1", "brokers", (100, 65, 50), [(100, 90, 50), (100, 65, 70), (100, 40, 30)]),
        ("C0.2", "retransmission_ratio", (0.2, 0.1, 0.3), [(0.4, 0.1, 0.3), (0.1, 0.3, 0.3)]),
        ("C0.3", "handovers", (100, 50, 55), [(100, 50, 70), (52, 50, 55)]),
        ("C0.4", "multicast_messages", (10, 20, 30), [(10, 40, 30), (25, 20, 30)]),
    ],
)
def test_a_claim_holds_when_the_figures_say_so_and_not_otherwise(
    claim: str, column: str, good: tuple[float, ...], bad: list[tuple[float, ...]]
) -> None:
    def verdicts_on(means: tuple[float, ...]) -> list[Claim]:
        return judged(claim, **{column: dict(zip(("q", "qr", "r"), means, strict=True))})

    found = verdicts_on(good)
    assert all(verdict.holds for verdict in found)  # for both readings of R-only
    assert len(found) == (4 if claim == "C0.4" else 2)  # with upkeep, too
    assert not any(verdict.holds for wrong in bad for verdict in verdicts_on(wrong))
    assert all(verdict.low <= verdict.high for verdict in found)
    assert all(verdict.seeds == (1, 2, 3) for verdict in found)


def test_routing_from_the_q_root_is_bounded_by_its_height_and_cheaper_at_random_places() -> None:
    rows = [row for seed in (1, 2) for row in run_routing(replace(SMALL, seed=seed), places=60)]
    rows = [row | {"kind": "routing"} for row in rows]

    assert claims(rows_with() + rows)[-1].id == "C0.5"
    assert all(row["from_q_depth"] <= row["height_q"] + 2 for row in rows)
    assert {row["places"] for row in rows} == {"uniform", "people"}
    too_deep = rows[0] | {"from_q_depth": rows[0]["height_q"] + 3}
    assert not claims([*rows_with(), too_deep, *rows[1:]])[-1].holds


def test_points_name_every_layout_and_vary_one_thing_at_a_time() -> None:
    layouts = [point for point in points(quick=True) if point.kind == "layout"]
    varied = [point.parameters for point in points(quick=True) if point.kind == "sensitivity"]
    base = varied[0]
    changes = {
        tuple((k, v) for k, v in some.items() if v != base[k] and k != "layout") for some in varied
    }

    assert {point.parameters["layout"] for point in layouts} == set(LAYOUTS)
    assert len(points(quick=False)) > len(points(quick=True))
    assert {len(change) for change in changes} == {0, 1}
    assert len(changes) >= 10
    assert (("capacity", 10),) in changes


def test_figures_have_a_curve_for_each_layout_and_are_drawn() -> None:
    rows = [
        row | {"kind": "layout"}
        for layout in LAYOUTS
        for row in run_point(replace(SMALL, layout=layout, rounds=4), 2)
    ]
    curves = figure_series(rows, "handovers", "rounds")

    assert set(curves) == set(LAYOUTS)
    assert list(curves["q"]) == [2, 4]
    (figure,) = figures(rows)
    assert b"Q+R" in figure.svg
