"""`run`: ingest → regions → plan → histogram → train → audit, and the changes since the last run.

Each job writes its tables when it runs. Files that brokers load (plan, policies, histograms) are
written at the very end, when all jobs are done; if one fails, the old files stay. A job without
input is skipped with a reason.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearcast.locality.layout.slow_regions import RegionRules
from nearcast.model import Space
from nearcast.model.errors import MisuseError
from nearcast.pipeline.jobs import ingest as ingesting
from nearcast.pipeline.jobs import plan as plans
from nearcast.pipeline.jobs.histogram import (
    EventHistogram,
    count_events,
    load_histogram,
    save_histogram,
)
from nearcast.pipeline.jobs.ingest_events import ingest_events
from nearcast.pipeline.jobs.regions import find_regions, write_geojson
from nearcast.pipeline.jobs.train import (
    POLICY_FILE,
    Settings,
    TrainingRules,
    last_policies,
    save_trained,
    train,
)
from nearcast.pipeline.pictures import draw_regions
from nearcast.pipeline.sources.event_logs import has_rows, is_event_log
from nearcast.pipeline.sources.files import read_events, read_source
from nearcast.pipeline.sources.log_checks import check_logs, nothing_in
from nearcast.pipeline.tables.transaction import read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPORT_FILE = "run.json"
_ONLY_POSITIONS = "the input has positions only; this needs the event log of a broker"

Summary = dict[str, Any]
Audit = Callable[["SparkSession", Sequence[str], str], Summary]
"""Audits the logs (second argument) and writes tables under the output (third)."""


@dataclass(frozen=True, slots=True)
class RunRules:
    """Rules of all jobs, and the paths of the broker's files if not beside the tables."""

    columns: dict[str, str] = field(default_factory=lambda: {c: c for c in ingesting.COLUMNS})
    cleaning: ingesting.Cleaning = field(default_factory=ingesting.Cleaning)
    cell_m: float = 150.0
    regions: RegionRules = field(default_factory=RegionRules)
    plan: plans.PlanRules = field(default_factory=plans.PlanRules)
    spaces: Sequence[Space] = ()  # with JSON values in the payload
    retained: Settings = ()
    training: TrainingRules = field(default_factory=TrainingRules)
    plan_file: Path | None = None
    policy_file: Path | None = None


@dataclass(frozen=True, slots=True)
class JobResult:
    """The summary of one job, or why it was skipped."""

    name: str
    seconds: float
    summary: Summary | None
    skipped: str = ""


@dataclass(slots=True)
class PipelineRun:
    """A run in progress."""

    spark: SparkSession
    sources: Sequence[str]
    output: Path
    rules: RunRules
    tell: Callable[[JobResult], None] = lambda _: None
    steps: list[JobResult] = field(default_factory=list)
    _to_save: list[Callable[[], None]] = field(default_factory=list)

    def all(self, audit: Audit | None) -> list[JobResult]:
        """Run all jobs, then write the files that brokers load."""
        self.output.mkdir(parents=True, exist_ok=True)
        has_log = any(map(is_event_log, self.sources))
        if has_log:
            check_logs(self.sources)
        moves = not has_log or has_rows(self.sources, "positions")
        if not moves and not has_rows(self.sources, "events"):
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
        step = JobResult(name, round(time.perf_counter() - begun_s, 1), summary, why_not)
        self.steps.append(step)
        self.tell(step)

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
        try:
            self._ingest_events(space)
        except MisuseError as problem:  # no row is good: that is the publishers' doing
            return {"skipped": str(problem)}
        found = count_events(read_table(self.spark, f"{self.output}/{space.name}/events"), space)
        path = self.output / f"histogram-{space.name}.json"
        last = load_histogram(path) if path.exists() else None
        self._to_save.append(lambda: save_histogram(found, path))
        return histogram_summary(found, last)

    def _ingest_events(self, space: Space) -> None:
        parts = [read_events(self.spark, path, space, {}) for path in self.sources]
        events = reduce(lambda one, other: one.unionByName(other), parts)
        try:
            ingest_events(events, f"{self.output}/{space.name}", space)
        except MisuseError:
            if events.isEmpty():  # asked only now: it is a pass over the log
                raise MisuseError("no event of this space is in the log") from None
            raise

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
    tell: Callable[[JobResult], None] = lambda _: None,
) -> list[JobResult]:
    """Run all jobs on the event logs of all brokers, or on a file of positions; save the report."""
    under_way = PipelineRun(spark, sources, Path(output), rules, tell)
    steps = under_way.all(audit)
    _save_report(steps, Path(output) / REPORT_FILE)
    return steps


def histogram_summary(found: EventHistogram, last: EventHistogram | None) -> Summary:
    """Return the size and kind of a histogram, and its distance from the last one."""
    moved = None if last is None else found.distance(last)
    kind = "histogram" if found.counts is not None else "marginals"
    told = None if moved is None else round(moved, 4)
    return {"events": found.events, "kind": kind, "moved_share": told}


# --- since the last run ---------------------------------------------------------------------------


def last_report(output: str) -> dict[str, Summary]:
    """Return the summaries of the last run by job; empty if there was none."""
    path = Path(output) / REPORT_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {step["name"]: step["summary"] or {} for step in content["steps"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # a report is for people: without one there is no comparison


def _save_report(steps: list[JobResult], path: Path) -> None:
    content = {"format": "nearcast-run", "steps": [as_fields(step) for step in steps]}
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps(content, indent=1, default=str), encoding="utf-8")
    partial.replace(path)


def as_fields(step: JobResult) -> dict[str, Any]:
    """Return the result of a job as fields for JSON."""
    return {
        "name": step.name,
        "seconds": step.seconds,
        "summary": step.summary,
        "skipped": step.skipped or None,
    }


def changes(before: Summary, after: Summary, name: str = "") -> list[str]:
    """Return the values that differ, one line each.

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
