"""Densities are counts of events: like NumPy's, in any order, with missing values spread out."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pyspark.sql import DataFrame, SparkSession

from nearcast.model import Attribute, Space
from nearcast.model.errors import FileFormatError, MisuseError
from nearcast.overlay import GridDensity, MarginalDensity, Settings
from nearcast.pipeline.jobs.histogram import (
    EventHistogram,
    count_events,
    extent_of,
    load_histogram,
    quantiles,
    save_histogram,
    spread,
)

SHOPS = Space(
    name="shops",
    topic_filter="shops/#",
    attributes=(
        Attribute.number("price", 0, 100),
        Attribute.category("kind", ["food", "tools", "x"]),
    ),
    missing="all",
)
WIDE = Space(
    name="wide",
    topic_filter="wide/#",
    attributes=tuple(Attribute.number(name, -1, 1) for name in "abcde"),
)


def shops(spark: SparkSession, count: int = 900) -> tuple[DataFrame, np.ndarray, list[str]]:
    rng = np.random.default_rng(1)
    prices = np.append(rng.beta(2, 5, count - 2) * 100, [0.0, 100.0])
    kinds = [["food", "tools", "x"][i % 7 % 3] for i in range(count)]
    rows = [
        (i, float(price), kind) for i, (price, kind) in enumerate(zip(prices, kinds, strict=True))
    ]
    return spark.createDataFrame(rows, "event_id bigint, price double, kind string"), prices, kinds


@pytest.mark.spark
@pytest.mark.parametrize("partitions", [1, 7])
def test_a_grid_is_what_numpy_counts(spark: SparkSession, partitions: int):
    frame, prices, kinds = shops(spark)
    found = count_events(frame.repartition(partitions), SHOPS)
    places = np.array([["food", "tools", "x"].index(kind) for kind in kinds], float)
    points = np.stack([prices, places], axis=1)
    expected, _ = np.histogramdd(points, bins=(64, 3), range=[(0, 100), (-0.5, 2.5)])
    assert found.counts is not None
    assert (found.counts == expected).all()
    assert found.events == 900
    density = found.density()
    assert isinstance(density, GridDensity)
    assert density.expected(((0.0, -0.5), (100.0, 2.5))) == pytest.approx(1.0)
    assert Settings(found.extent, density=density).e.kind == "histogram"


@pytest.mark.spark
def test_an_event_without_a_value_is_spread_over_all_of_them(spark: SparkSession):
    rows = [(1, 50.0, "food"), (2, None, "tools"), (3, None, None)]
    frame = spark.createDataFrame(rows, "event_id bigint, price double, kind string")
    counts = count_events(frame, SHOPS).counts
    assert counts is not None
    assert counts.sum() == pytest.approx(3.0)
    assert counts[:, 1].sum() == pytest.approx(1 + 1 / 3)
    assert counts[5, 1] == pytest.approx(1 / 64 + 1 / 192)
    assert counts[32, 0] == pytest.approx(1 + 1 / 192)


@pytest.mark.spark
def test_of_many_attributes_each_is_counted_for_itself(spark: SparkSession):
    rng = np.random.default_rng(2)
    points = np.clip(rng.normal(0.2, 0.3, (2_000, 5)), -1, 1)
    rows = [(i, *map(float, row)) for i, row in enumerate(points)]
    names = ", ".join(f"{name} double" for name in "abcde")
    frame = spark.createDataFrame(rows, f"event_id bigint, {names}")
    found = count_events(frame.repartition(3), WIDE)
    density, exact = found.density(), MarginalDensity(extent_of(WIDE), points)
    assert isinstance(density, MarginalDensity)
    for axis in range(5):
        for _ in range(10):
            lows, highs = [-1.0] * 5, [1.0] * 5
            lows[axis], highs[axis] = sorted(rng.uniform(-1, 1, 2).tolist())
            box = (tuple(lows), tuple(highs))
            assert density.expected(box) == pytest.approx(exact.expected(box), abs=0.003)


@pytest.mark.spark
def test_no_events_and_columns_of_other_kinds_are_said(spark: SparkSession):
    empty = spark.createDataFrame([], "event_id bigint, price double, kind string")
    with pytest.raises(MisuseError, match="no events of the space 'shops'"):
        count_events(empty, SHOPS)
    odd = spark.createDataFrame([(1, "dear")], "event_id bigint, price string")
    with pytest.raises(MisuseError, match="'price'"):
        count_events(odd, SHOPS)


@given(
    st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 3)), st.integers(1, 9), min_size=1)
)
def test_spreading_keeps_the_sum_and_known_values(cells: dict[tuple[int, int], int]):
    table = spread({row * 4 + column: n for (row, column), n in cells.items()}, (2, 3))
    expected = np.zeros((2, 3))
    for (row, column), n in cells.items():
        rows = [row - 1] if row else [0, 1]
        columns = [column - 1] if column else [0, 1, 2]
        for r in rows:
            for c in columns:
                expected[r, c] += n / len(rows) / len(columns)
    assert table == pytest.approx(expected)


@given(arrays.arrays(np.int64, 12, elements=st.integers(0, 50)).filter(lambda counts: counts.any()))
def test_of_the_quantiles_as_many_lie_in_each_cell_as_events_do(counts: np.ndarray):
    values = quantiles(counts, 0.0, 12.0)
    assert (np.diff(values) >= 0).all()
    shares = np.histogram(values, 12, (0, 12))[0] / len(values)
    assert shares == pytest.approx(counts / counts.sum(), abs=2e-3)


def grid(counts: list[list[float]]) -> EventHistogram:
    return EventHistogram("shops", ("price", "kind"), extent_of(SHOPS), 3, np.array(counts), None)


def test_how_far_two_histograms_are_apart():
    one, other = grid([[1, 1], [2, 0]]), grid([[0, 1], [2, 1]])
    assert one.distance(one) == 0.0
    assert one.distance(other) == pytest.approx(0.25)
    assert one.distance(grid([[1, 3]])) == 1.0
    samples = np.sort(np.random.default_rng(1).uniform(-1, 1, (1000, 5)), axis=0)
    marginal = EventHistogram("wide", tuple("abcde"), extent_of(WIDE), 9, None, samples)
    assert one.distance(marginal) is None
    assert marginal.distance(marginal) == 0.0
    moved = EventHistogram(
        "wide", tuple("abcde"), extent_of(WIDE), 9, None, np.sort(-abs(samples), axis=0)
    )
    apart = marginal.distance(moved)
    assert apart is not None
    assert 0.4 < apart < 0.6


def test_a_file_is_read_back_and_a_bad_one_refused(tmp_path: Path):
    path = tmp_path / "deep" / "h.json"
    samples = np.sort(np.random.default_rng(1).uniform(-1, 1, (50, 5)), axis=0)
    for one in (
        grid([[1, 1.5], [2, 0]]),
        EventHistogram("wide", tuple("abcde"), extent_of(WIDE), 9, None, samples),
    ):
        save_histogram(one, path)
        read = load_histogram(path)
        assert (read.space, read.attributes, read.extent, read.events) == (
            one.space, one.attributes, one.extent, one.events,
        )  # fmt: skip
        assert read.distance(one) == 0.0
    good = json.loads(path.read_text())
    for change, told in (
        ({"format": "x"}, "another kind"),
        ({"format_version": 2}, "version 2"),
        ({"samples": [[1]]}, "damaged"),
        ({"samples": None}, "damaged"),
        ({"kind": "histogram"}, "damaged"),
        ({"lows": [1]}, "damaged"),
    ):
        path.write_text(json.dumps(good | change))
        with pytest.raises(FileFormatError, match=told):
            load_histogram(path)
    path.write_text(json.dumps(good)[:40])
    with pytest.raises(FileFormatError, match="no JSON"):
        load_histogram(path)
