"""A plan survives its file; anything else in the file is a clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.locality import (
    CellCounts,
    Plan,
    Rect,
    load_plan,
    plan_from_json,
    plan_to_json,
    save_plan,
)
from nearcast.model.errors import FileFormatError, MisuseError

SPACE = Rect(-1.5, 0.1, 8.3, 7.7)


def example(layout: str = "qr", capacity: int = 1) -> Plan:
    regions = [(0.1, 0.2, 1 / 3, 0.7), (2, 2, 5, 5)]
    xs = [0.2, 3.0, 6.0, 6.1, 6.2, 7.3]
    counts = CellCounts.from_positions(SPACE, regions, xs, xs, depth=4)
    plan = Plan.build(SPACE, regions, counts, layout=layout, capacity=capacity, region_capacity=1)  # type: ignore[arg-type]
    return plan.with_brokers([n % 3 for n in range(len(plan.leaves))], version=7)


@pytest.mark.parametrize("layout", ["qr", "q", "r"])
def test_a_plan_comes_back_as_it_was(layout: str, tmp_path: Path) -> None:
    plan = example(layout)
    save_plan(plan, tmp_path / "plan.json")

    assert load_plan(tmp_path / "plan.json") == plan
    assert plan_to_json(load_plan(tmp_path / "plan.json")) == plan_to_json(plan)
    assert hash(load_plan(tmp_path / "plan.json")) == hash(plan)
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_names_and_movements_come_back_and_a_plan_without_them_is_still_version_1() -> None:
    plan = example()
    full = plan.with_nodes(["east", "north", "süd"]).with_flows({(0, 2): 31, (0, 1): 7})

    assert plan_from_json(plan_to_json(full)) == full
    assert full.nodes == ("east", "north", "süd")
    assert full.flows == {(0, 1): 7, (0, 2): 31}
    content = json.loads(plan_to_json(full))
    assert content["format_version"] == 2
    assert content["nodes"] == ["east", "north", "süd"]
    assert content["flows"] == [[0, 1, 7], [0, 2, 31]]
    assert json.loads(plan_to_json(plan))["format_version"] == 1
    assert full != plan.with_nodes(full.nodes) != plan
    for name, other in (("nodes", full.with_nodes(None)), ("flows", full.with_flows({}))):
        left = {key: value for key, value in content.items() if key != name}
        assert plan_from_json(json.dumps(left)) == other
    assert plan_from_json(json.dumps(content | {"format_version": 1})) == plan


def test_variants_of_a_plan_keep_its_names_and_the_movements_that_still_have_both_ends() -> None:
    leaves = [(f"q{digit}", SPACE, 4) for digit in "0123"]
    plan = Plan(SPACE, leaves, layout="q", depth=3, fanout=8, version=1, brokers=[0, 0, 1, 1])
    plan = plan.with_nodes(["a", "b"]).with_flows({(0, 1): 5, (1, 3): 6, (0, 3): 7})

    turned = plan.with_brokers([1, 1, 0, 0], 2)
    assert (turned.nodes, turned.flows, turned.version) == (plan.nodes, plan.flows, 2)
    assert turned.node_of(0) == "b"
    assert plan.with_brokers([0, 1, 2, 3]).nodes is None  # it names two of four
    split = [(f"q0{digit}", SPACE, 1) for digit in "0123"] + leaves[1:]
    more = plan.remade(split, [0] * 7, None)
    assert more.flows == {(4, 6): 6}  # q1 and q3
    assert more.nodes == ("a", "b")


def test_every_cut_of_the_file_is_refused() -> None:
    text = plan_to_json(example(capacity=3))
    for end in range(len(text) - 1):
        with pytest.raises(FileFormatError):
            plan_from_json(text[:end])


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileFormatError, match=r"plan\.json"):
        load_plan(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format_version": 3}, "format version 3"),
        ({"format_version": True}, "format version True"),
        ({"format_version": 2, "nodes": ["a", "b"]}, "3 brokers"),
        ({"format_version": 2, "nodes": ["a", "b", "a"]}, "different names"),
        ({"format_version": 2, "nodes": ["a", "b", ""]}, "different names"),
        ({"format_version": 2, "nodes": ["a", "b", 3]}, "nodes.*list of names"),
        ({"format_version": 2, "nodes": "abc"}, "nodes.*list of names"),
        ({"format_version": 2, "flows": [[0, 1]]}, "flows"),
        ({"format_version": 2, "flows": [[1, 0, 5]]}, "smaller first"),
        ({"format_version": 2, "flows": [[0, 99, 5]]}, "flows of a plan"),
        ({"format_version": 2, "flows": [[0, 1, -5]]}, "flows"),
        ({"format_version": 2, "flows": [[0, 1, 5], [0, 1, 6]]}, "each pair once"),
        ({"format_version": 2, "flows": 7}, "plan file"),
        ({"format": "something"}, "nearcast-plan"),
        ({"version": -1}, "version"),
        ({"layout": "z"}, "layout"),
        ({"space": [0, 0, 1]}, "space"),
        ({"space": [0, 0, float("nan"), 1]}, "space"),
        ({"depth": 99}, "depth"),
        ({"depth": 0}, "depth"),
        ({"depth": "4"}, "depth"),
        ({"brokers": [0]}, "brokers"),
        ({"brokers": [True] * 99}, "brokers"),
        ({"leaves": []}, "Q part"),
        ({"leaves": [{"key": "q0", "load": 1}]}, "Q part"),
        ({"leaves": [{"key": "q", "load": 1}, {"key": "q0", "load": 1}]}, "Q part"),
        ({"leaves": [{"key": "q"}]}, "load"),
        (
            {
                "brokers": None,
                "leaves": [{"key": "q", "load": 1}, {"key": "r0", "rect": [2, 2, 3, 3], "load": 1}],
            },
            "order",
        ),
        ({"leaves": [{"key": "x7", "load": 1}]}, "key"),
        (
            {"leaves": [{"key": "r0", "rect": [2, 2, 99, 3], "load": 1}, {"key": "q", "load": 1}]},
            "r0",
        ),
        ({"leaves": 3}, "whole plan file"),
    ],
)
def test_a_file_of_another_version_or_with_nonsense_is_refused_with_a_reason(
    change: dict[str, Any], reason: str
) -> None:
    content = json.loads(plan_to_json(example())) | change
    with pytest.raises(FileFormatError, match=reason):
        plan_from_json(json.dumps(content))


@given(
    st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda t: st.lists(t, max_size=3))
)
def test_no_value_of_any_key_escapes_as_another_error(value: object) -> None:
    content = json.loads(plan_to_json(example()))
    for key in content:
        changed = json.dumps(content | {key: value})
        try:
            plan_from_json(changed)
        except FileFormatError:
            continue


def test_an_assignment_must_name_a_broker_for_each_leaf() -> None:
    with pytest.raises(MisuseError):
        example().with_brokers([0])
