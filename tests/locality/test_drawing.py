"""Pictures and GeoJSON say what the plan says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from nearcast.locality import CellCounts, Plan, Rect, draw_plan, plan_geojson
from nearcast.locality.layout.drawing import _draw_brokers, _draw_leaves
from nearcast.model.errors import MisuseError

SPACE = Rect(0.0, 0.0, 8.0, 8.0)


def example() -> Plan:
    regions = [(2.0, 2.0, 5.0, 5.0)]
    xs = [3.0, 6.0, 6.1, 6.2, 7.3]
    counts = CellCounts.from_positions(SPACE, regions, xs, xs, depth=4)
    plan = Plan.build(SPACE, regions, counts, capacity=1)
    return plan.with_brokers([n % 3 for n in range(len(plan.leaves))])


def test_geojson_has_a_closed_ring_for_each_leaf_and_region() -> None:
    plan = example()
    content = json.loads(plan_geojson(plan, [Rect(2, 2, 5, 5)]))
    features = content["features"]

    assert len(features) == len(plan.leaves) + 1
    assert features[0]["properties"] == {
        "key": "r0", "kind": "R leaf", "load": 1, "broker": 0, "plan": 1,
    }  # fmt: skip
    assert features[-1]["properties"]["kind"] == "slow region"
    for feature in features:
        ring = feature["geometry"]["coordinates"][0]
        assert ring[0] == ring[-1]
        assert len(ring) == 5


def test_an_svg_is_the_same_each_time_and_names_brokers(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        draw_plan(example(), tmp_path / name, regions=[Rect(2, 2, 5, 5)])

    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert "Plan 1: 1 R leaves" in text
    assert "3 brokers" in text


@pytest.mark.parametrize("has_brokers", [True, False])
def test_each_leaf_is_labelled_with_its_broker_or_else_its_key(has_brokers: bool) -> None:
    plan = example()
    labels = [str(n % 3) for n in range(len(plan.leaves))]
    if not has_brokers:
        leaves = [(leaf.key, leaf.rect, leaf.load) for leaf in plan.leaves]
        plan = plan.remade(leaves, None, None)
        labels = [leaf.key for leaf in plan.leaves]
    axes = Figure().subplots()
    _draw_brokers(axes, plan)

    assert [one.get_text() for one in axes.texts] == labels


def test_leaves_of_both_kinds_are_drawn_with_their_loads() -> None:
    plan, figure = example(), Figure()
    axes = figure.subplots()
    _draw_leaves(axes, figure, plan)

    drawn = [list(np.asarray(one.get_array())) for one in axes.collections]
    loads = {kind: [leaf.load for leaf in plan.leaves if leaf.kind == kind] for kind in "rq"}
    assert sorted(drawn) == sorted(loads.values())
    space = plan.space
    assert (axes.get_xlim(), axes.get_ylim()) == (
        (space.west, space.east),
        (space.south, space.north),
    )


def test_a_png_is_drawn_even_of_a_plan_without_regions(tmp_path: Path) -> None:
    draw_plan(Plan.build(SPACE, [], CellCounts.empty(2)), tmp_path / "plan.png", title="empty")

    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="svg or"):
        draw_plan(example(), tmp_path / "plan.gif")
