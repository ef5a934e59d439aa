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
        ({"format_version": 2}, "format version 2"),
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
