"""`run`: ingest → regions → plan → histogram → train → audit, and what changed since the last run.

Tables are written as the jobs come to them. What brokers load (plan, policies, histograms) is
written at the very end, when all jobs are done: whatever fails on the way, the old ones stay.
A job that has nothing to work on is skipped, and says why.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearcast.locality.slow_regions import RegionRules
from nearcast.model import Space
from nearcast.model.errors import MisuseError
from nearcast.pipeline import ingest as ingesting
from nearcast.pipeline import plans
from nearcast.pipeline.event_logs import is_event_log
from nearcast.pipeline.histograms import Histogram, count_events, load_histogram, save_histogram
from nearcast.pipeline.ingest_events import ingest_events, topic_pattern
from nearcast.pipeline.log_checks import check_logs, nothing_in, read_logs
from nearcast.pipeline.pictures import draw_regions
from nearcast.pipeline.regions import find_regions, write_geojson
from nearcast.pipeline.sources import read_events, read_source
from nearcast.pipeline.tables import read_table
from nearcast.pipeline.training import (
    POLICY_FILE,
    Settings,
    TrainingRules,
    last_policies,
    save_trained,
    train,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPORT_FILE = "run.json"
_ONLY_POSITIONS = "the input has positions only; this needs the event log of a broker"

Summary = dict[str, Any]
Audit = Callable[["SparkSession", Sequence[str], str], Summary]
"""Looks through logs (second) and writes under the output (third)."""


@dataclass(frozen=True, slots=True)
class RunRules:
    """What a run is to do; where the broker's files are, if not with the tables."""

    columns: dict[str, str] = field(default_factory=lambda: {c: c for c in ingesting.COLUMNS})
    cleaning: ingesting.Cleaning = field(default_factory=ingesting.Cleaning)
    cell_m: float = 150.0
    regions: RegionRules = field(default_factory=RegionRules)
    plan: plans.PlanRules = field(default_factory=plans.PlanRules)
    spaces: Sequence[Space] = ()  # whose events' values are in the payload
    retained: Settings = ()
    training: TrainingRules = field(default_factory=TrainingRules)
    plan_file: Path | None = None
    policy_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What one job did, or why it was skipped."""

    name: str
    seconds: float
    summary: Summary | None
    skipped: str = ""


@dataclass(slots=True)
class Run:
    """A run under way."""

    spark: SparkSession
    sources: Sequence[str]
    output: Path
    rules: RunRules
    tell: Callable[[Step], None] = lambda _: None
    steps: list[Step] = field(default_factory=list)
    _to_save: list[Callable[[], None]] = field(default_factory=list)

    def all(self, audit: Audit | None) -> list[Step]:
        """Do everything, then let brokers have the results."""
        self.output.mkdir(parents=True, exist_ok=True)
        has_log = any(map(is_event_log, self.sources))
        if has_log:
            check_logs(self.sources)
        moves = not has_log or self._has("positions")
        if not moves and not self._has("events"):
            raise nothing_in(self.sources, "no event, no position")
        told_nothing = "no client has told its position"
        self._step("ingest", self._ingest, "" if moves else told_nothing)
        self._step("regions", self._regions, "" if moves else told_nothing)
        self._step("plan", self._plan, "" if moves else told_nothing)
        self._step("histogram", self._histograms, self._why_no_histogram(has_log=has_log))
        self._step("train", self._train, self._why_no_training(has_log=has_log))
        why_no_audit = "" if has_log else _ONLY_POSITIONS
        self._step("audit", lambda: self._audit(audit), why_no_audit)
        for save in self._to_save:
            save()
        return self.steps

    def _step(self, name: str, work: Callable[[], Summary], why_not: str = "") -> None:
        begun_s = time.perf_counter()
        summary = None if why_not else work()
        step = Step(name, round(time.perf_counter() - begun_s, 1), summary, why_not)
        self.steps.append(step)
        self.tell(step)

    def _has(self, table: str) -> bool:
        return not read_logs(self.spark, self.sources, table).isEmpty()

    # --- the jobs ---------------------------------------------------------------------------

    def _ingest(self) -> Summary:
        parts = [read_source(self.spark, path, self.rules.columns) for path in self.sources]
        source = reduce(lambda one, other: one.unionByName(other), parts)
        done = ingesting.ingest(source, str(self.output), self.rules.cleaning)
        return {"kept": done.kept, "rejected": done.rejected}

    def _regions(self) -> Summary:
        rules = self.rules
        positions = read_table(self.spark, f"{self.output}/positions")
        found = find_regions(positions, str(self.output), rules.cell_m, rules.regions)
        write_geojson(found, self.output / "regions.geojson")
        cells = read_table(self.spark, f"{self.output}/cells")
        draw_regions(cells, found, self.output / "regions.png")
        return {"regions": len(found.regions), "slow_cells": len(found.slow_cells)}

    def _plan(self) -> Summary:
        path = self.rules.plan_file or self.output / plans.PLAN_FILE
        last = plans.last_plan(path)
        regions = plans.regions_of(read_table(self.spark, f"{self.output}/regions"))
        positions = read_table(self.spark, f"{self.output}/positions")
        found = plans.lay_out(positions, regions, self.rules.plan, last)
        self._to_save.append(lambda: plans.save_found(found, self.output, path))
        return found.summary()

    def _why_no_histogram(self, *, has_log: bool) -> str:
        if not has_log:
            return _ONLY_POSITIONS
        return "" if self.rules.spaces else "no space is declared whose events have JSON payloads"

    def _histograms(self) -> Summary:
        return {space.name: self._histogram(space) for space in self.rules.spaces}

    def _histogram(self, space: Space) -> Summary:
        from pyspark.sql import functions as F  # noqa: N812

        events = read_logs(self.spark, self.sources, "events")
        if events.where(F.col("topic").rlike(topic_pattern(space.topic_filter))).isEmpty():
            return {"skipped": "no event of this space is in the log"}
        output = f"{self.output}/{space.name}"
        try:
            parts = [read_events(self.spark, path, space, {}) for path in self.sources]
            events = reduce(lambda one, other: one.unionByName(other), parts)
            ingest_events(events, output, space)
        except MisuseError as problem:  # no row is good: that is the publishers' doing
            return {"skipped": str(problem)}
        found = count_events(read_table(self.spark, f"{output}/events"), space)
        path = self.output / f"histogram-{space.name}.json"
        last = load_histogram(path) if path.exists() else None
        self._to_save.append(lambda: save_histogram(found, path))
        return histogram_summary(found, last)

    def _why_no_training(self, *, has_log: bool) -> str:
        if not has_log:
            return _ONLY_POSITIONS
        learns = any(setting.mode.value == "learned" for _, setting in self.rules.retained)
        return "" if learns else 'no [[retained]] block has mode = "learned"'

    def _train(self) -> Summary:
        path = self.rules.policy_file or self.output / POLICY_FILE
        last = last_policies(path)
        where, rules = str(self.output), self.rules
        done = train(self.spark, self.sources, where, rules.retained, rules.training, last)
        self._to_save.append(lambda: save_trained(done, path))
        return done.summary()

    def _audit(self, audit: Audit | None) -> Summary:
        if audit is None:
            return {"skipped": "no audit is at hand"}
        return audit(self.spark, self.sources, str(self.output))


def run(
    spark: SparkSession,
    sources: Sequence[str],
    output: str,
    rules: RunRules,
    *,
    audit: Audit | None = None,
    tell: Callable[[Step], None] = lambda _: None,
) -> list[Step]:
    """Do all jobs on the event logs of all brokers, or on a file of positions; save the report."""
    under_way = Run(spark, sources, Path(output), rules, tell)
    steps = under_way.all(audit)
    _save_report(steps, Path(output) / REPORT_FILE)
    return steps


def histogram_summary(found: Histogram, last: Histogram | None) -> Summary:
    """Return what a histogram holds, and how far it is from the one before."""
    moved = None if last is None else found.distance(last)
    kind = "histogram" if found.counts is not None else "marginals"
    told = None if moved is None else round(moved, 4)
    return {"events": found.events, "kind": kind, "moved_share": told}


# --- since the last time --------------------------------------------------------------------------


def last_report(output: str) -> dict[str, Summary]:
    """Return the summaries of the last run by step; nothing where there was none."""
    path = Path(output) / REPORT_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {step["name"]: step["summary"] or {} for step in content["steps"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # a report is for people: without one, nothing is compared


def _save_report(steps: list[Step], path: Path) -> None:
    content = {"format": "nearcast-run", "steps": [as_fields(step) for step in steps]}
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps(content, indent=1, default=str), encoding="utf-8")
    partial.replace(path)


def as_fields(step: Step) -> dict[str, Any]:
    """Return a step as machines want it."""
    return {
        "name": step.name,
        "seconds": step.seconds,
        "summary": step.summary,
        "skipped": step.skipped or None,
    }


def changes(before: Summary, after: Summary, name: str = "") -> list[str]:
    """Return which figures differ, each as one line.

    >>> changes({"regions": 8, "kept": 5}, {"regions": 9, "kept": 5})
    ['regions: 8 -> 9']
    """
    lines = []
    for key, value in after.items():
        full = f"{name} {key}".strip().replace("_", " ")
        old = before.get(key)
        if isinstance(value, dict):
            lines += changes(old if isinstance(old, dict) else {}, value, full)
        elif key in before and old != value:
            lines.append(f"{full}: {_told(old)} -> {_told(value)}")
    return lines


def _told(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
