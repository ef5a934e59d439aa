"""The guide's example runs, and the experiment's functions return the rows they promise."""

from __future__ import annotations

import doctest
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nearcast.overlay import Method
from nearcast.papers.content_overlay.claims import claims, figures, points
from nearcast.papers.content_overlay.experiment import (
    Parameters,
    cache_rows,
    churn_rows,
    gini,
    overhead_rows,
)

GUIDE = Path(__file__).parents[2] / "docs" / "content-overlay.md"
SMALL = Parameters(peers=25, events=40, event_sigmas=(10.0, 120.0, 500.0), beat_ms=5_000)


def test_the_example_in_the_guide_runs() -> None:
    found = doctest.testfile(str(GUIDE), module_relative=False)
    assert found.attempted > 5
    assert found.failed == 0


def test_a_point_delivers_exactly_what_matches_and_is_the_same_again() -> None:
    rows = overhead_rows(SMALL, 3)
    assert [row["deliveries"] for row in rows] == [row["matching"] for row in rows]
    assert rows == overhead_rows(SMALL, 3)
    assert rows != overhead_rows(SMALL, 4)


def test_every_claim_gets_a_verdict_and_every_figure_is_drawn() -> None:
    rows = []
    for seed in (1, 2):
        for method in (Method.RANDOM, Method.LARGEST, Method.CHEAPEST):
            for sigma in (100.0, 300.0):
                some = replace(SMALL, method=method, subscription_sigma=sigma)
                rows += [{"kind": "paper"} | row for row in overhead_rows(some, seed)]
        rows += [{"kind": "cache"} | row for row in cache_rows(SMALL, seed, 5)]
    verdicts = claims(rows)
    assert {verdict.id for verdict in verdicts} == {f"C3.{number}" for number in range(1, 7)}
    assert all(verdict.says and verdict.measured for verdict in verdicts)
    assert all(verdict.seeds == (1, 2) for verdict in verdicts)
    assert all(len(figure.svg) > 1_000 for figure in figures(rows))


def test_under_churn_most_deliveries_are_made_and_the_tree_is_sound_afterwards() -> None:
    few = replace(
        SMALL,
        peers=25,
        events=80,
        subscription_sigma=60.0,
        event_sigmas=(60.0,),
        beat_ms=1_000,
        coalesce_ms=0,
    )
    (row,) = churn_rows(few, 1, leaves_per_s=0.5, crash_share=0.5)
    assert row["left"] > 0
    assert row["sound_after"]
    assert row["delivered_share"] > 0.8


def test_points_are_listed_for_both_sizes() -> None:
    kinds = {point.kind for point in points(quick=True)}
    assert kinds == {
        "paper",
        "beyond",
        "cache",
        "split",
        "climb",
        "dimensions",
        "churn",
        "growth",
        "one hop",
        "read: F = 0",
        "read: climb",
    }
    assert len(points(quick=False)) > len(points(quick=True))


def test_gini_of_one_who_bears_all() -> None:
    assert gini(np.array([0.0] * 99 + [5.0])) == pytest.approx(0.99)
    assert gini(np.zeros(4)) == 0.0
