"""Policy files: read back as written; anything else is refused, naming what is wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model.errors import FileFormatError
from nearcast.retained import (
    Caps,
    Policies,
    Rates,
    Shape,
    Timeliness,
    TopicPolicy,
    Weights,
    policies_from_text,
    policies_to_text,
    read_policies,
    shipped_policy,
    write_policies,
)


def table(caps: Caps, seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 2, caps.table_shape).astype(np.uint8)


def some_policies(seed: int = 1) -> Policies:
    caps = Caps()
    topics = {
        "plant/7/heat": TopicPolicy(table(caps, seed), Rates(0.3, 0.1, 0.0), Weights(0.4, 2.0)),
        "straße/ü": TopicPolicy(table(caps, seed + 1), Rates(0.0, 0.0, 0.0), Weights()),
    }
    return Policies(caps, general=shipped_policy(), topics=topics)


@given(
    st.integers(1, 12),
    st.integers(1, 30),
    st.sampled_from(Shape),
    st.floats(0.1, 9),
    st.floats(0, 1),
    st.dictionaries(st.text(max_size=8), st.integers(0, 99), max_size=3),
)
def test_policies_come_back_as_they_were_written(
    hold: int, age: int, shape: Shape, scale: float, floor: float, topics: dict[str, int]
) -> None:
    caps = Caps(hold, age)
    tables = {t: TopicPolicy(table(caps, s), Rates(0.1 * s), Weights()) for t, s in topics.items()}
    written = Policies(caps, Timeliness(shape, scale, floor), 0.9, None, tables)
    back = policies_from_text(policies_to_text(written))

    assert (back.caps, back.timeliness, back.discount) == (caps, written.timeliness, 0.9)
    assert back.general is None
    assert set(back.topics) == set(topics)
    for topic, policy in back.topics.items():
        assert np.array_equal(policy.actions, tables[topic].actions)
        assert (policy.rates, policy.weights) == (tables[topic].rates, tables[topic].weights)
        assert policy.flat == tables[topic].flat


def test_a_general_policy_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    path = tmp_path / "policies.json"
    write_policies(some_policies(), path)
    back = read_policies(path).general

    assert back is not None
    assert np.array_equal(back.network, shipped_policy().network)
    assert np.array_equal(back.layout, shipped_policy().layout)
    assert [p.name for p in tmp_path.iterdir()] == ["policies.json"]


def test_every_file_that_was_cut_short_is_refused() -> None:
    text = policies_to_text(some_policies()).rstrip()

    for end in range(0, len(text), 97):
        with pytest.raises(FileFormatError):
            policies_from_text(text[:end])
    with pytest.raises(FileFormatError):
        policies_from_text(text[:-1])


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda d: d.update(version=2), "version 2"),
        (lambda d: d.pop("version"), "version None"),
        (lambda d: d.update(format="plan"), "another kind"),
        (lambda d: d.pop("model"), "'model'"),
        (lambda d: d["model"].update(hold_max=0), "hold_max"),
        (lambda d: d["model"].update(discount=1.5), "discount"),
        (lambda d: d["model"]["timeliness"].update(shape="cubic"), "model"),
        (lambda d: d["model"]["timeliness"].pop("floor"), "'floor'"),
        (lambda d: d.pop("topics"), "'topics'"),
        (lambda d: d.update(topics=3), "topics"),
        (lambda d: d["general"]["network"].pop(), "network"),
        (lambda d: d["general"]["network"].append(None), "general"),
        (lambda d: d["general"].update(network=[float("nan")] * 7), "network"),
        (lambda d: d["general"].pop("trained"), "'trained'"),
        (lambda d: d["general"]["trained"].update(leave=[1.0]), "general"),
        (lambda d: d["general"]["trained"].update(publish=[0.0, 1.0]), "publish"),
        (lambda d: d["general"]["trained"].update(publish=[2.0, 1.0]), "publish"),
        (lambda d: d["topics"]["straße/ü"]["actions"].pop(), "10 rows"),
        (lambda d: d["topics"]["straße/ü"]["actions"].append("0"), "straße/ü"),
        (lambda d: d["topics"]["straße/ü"].update(actions=["0" * 20] * 11), "[20]"),
        (lambda d: d["topics"]["straße/ü"].update(actions=["2" * 21] * 11), "straße/ü"),
        (lambda d: d["topics"]["straße/ü"].update(actions=[7] * 11), "straße/ü"),
        (lambda d: d["topics"]["straße/ü"]["rates"].update(publish=-1), "publish"),
        (lambda d: d["topics"]["straße/ü"]["rates"].update(other=1), "straße/ü"),
        (lambda d: d["topics"]["straße/ü"].pop("weights"), "'weights'"),
        (lambda d: d["topics"].update(x=None), "'x'"),
    ],
)
def test_a_file_with_something_wrong_is_refused_by_name(change: Change, named: str) -> None:
    document = json.loads(policies_to_text(some_policies()))
    change(document)

    with pytest.raises(FileFormatError) as refused:
        policies_from_text(json.dumps(document), "p.json")
    assert named in str(refused.value)
    assert "p.json" in str(refused.value)


@given(st.recursive(st.none() | st.floats() | st.text(max_size=3), st.lists, max_leaves=5))
def test_any_other_json_is_refused_and_nothing_else_is_raised(found: object) -> None:
    for text in (json.dumps(found), json.dumps({"format": found})):
        with pytest.raises(FileFormatError):
            policies_from_text(text)


@pytest.mark.parametrize("key", ["model", "general", "topics"])
@given(found=st.recursive(st.none() | st.floats() | st.text(max_size=3), st.lists, max_leaves=5))
def test_any_rubbish_in_a_part_is_refused(key: str, found: object) -> None:
    document = json.loads(policies_to_text(some_policies()))
    document[key] = found
    if (key == "general" and found is None) or (key == "topics" and found == []):
        return

    with pytest.raises(FileFormatError):
        policies_from_text(json.dumps(document))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "policies.json"
    path.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(FileFormatError):
        read_policies(path)
