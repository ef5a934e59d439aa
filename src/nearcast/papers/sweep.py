"""Runs a sweep on Spark: one task per point, the most expensive first; rows go to the driver."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearcast.model.errors import NearcastError
from nearcast.papers.form import Experiment, Point, Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a task: its rows and its processor time, or why it failed."""

    point: Point
    rows: tuple[Row, ...]
    processor_s: float
    failure: str = ""


class TaskFailedError(NearcastError):
    """A task of the sweep failed; names the point, so that it can be run alone."""


def run_point(point: Point) -> Done:
    """Run a point of any paper; a failure is returned as text with its point."""
    from nearcast.papers.registry import PAPERS

    start = time.process_time()
    try:
        rows = PAPERS[point.paper].run(point)
    except Exception as error:  # noqa: BLE001 - told with the point, on the driver
        return Done(point, (), time.process_time() - start, f"{type(error).__name__}: {error}")
    named = tuple({**row, "paper": point.paper, "kind": point.kind} for row in rows)
    return Done(point, named, time.process_time() - start)


def sweep(spark: SparkSession, points: Sequence[Point]) -> list[Done]:
    """Run all points, each as one task; the results are in the order of the points."""
    order = sorted(range(len(points)), key=lambda place: -points[place].cost_s)
    work = spark.sparkContext.parallelize([points[place] for place in order], len(points))
    done = dict(zip(order, work.map(run_point).collect(), strict=True))
    finished: list[Done] = [done[place] for place in range(len(points))]
    _raise_failures(finished)
    return finished


def _raise_failures(finished: Sequence[Done]) -> None:
    failed = [done for done in finished if done.failure]
    if failed:
        raise TaskFailedError(
            f"{failed[0].failure} ({len(failed)} of {len(finished)} tasks failed)",
            where=str(failed[0].point),
            todo="What an earlier run wrote is untouched",
        )


def rows_by_paper(finished: Sequence[Done]) -> dict[int, list[Row]]:
    """Return the rows of each paper, without the column `paper`."""
    found: dict[int, list[Row]] = {}
    for done in finished:
        rows = [{k: v for k, v in row.items() if k != "paper"} for row in done.rows]
        found.setdefault(done.point.paper, []).extend(rows)
    return found


def all_points(papers: Mapping[int, Experiment], *, quick: bool) -> list[Point]:
    """Return the points of the given papers."""
    return [point for paper in papers.values() for point in paper.points(quick=quick)]
