"""`run`: ingest → regions → plan → histogram → train → audit, and the changes since the last run.

Each job writes its tables when it runs. Files that brokers load (plan, policies, histograms) are
written at the very end, when all jobs are done; if one fails, the old files stay. A job without
input is skipped with a reason.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from nearcast.eventlog.log_files import check_logs, is_event_log
from nearcast.eventlog.stores import is_url
from nearcast.model import Space
from nearcast.model.errors import MisuseError
from nearcast.pipeline.audit.job import AuditJob
from nearcast.pipeline.job import Job, JobResult
from nearcast.pipeline.jobs.histogram import HistogramJob
from nearcast.pipeline.jobs.ingest import NO_ROWS, Cleaning, IngestJob
from nearcast.pipeline.jobs.ingest_events import IngestEventsJob
from nearcast.pipeline.jobs.plan import PlanJob, PlanRules
from nearcast.pipeline.jobs.plan_schedules import SCHEDULE_FILE
from nearcast.pipeline.jobs.regions import RegionsJob
from nearcast.pipeline.jobs.train import Settings, TrainingRules, TrainJob
from nearcast.pipeline.sources.event_logs import has_rows, nothing_in
from nearcast.pipeline.sources.input_checks import check_positions
from nearcast.pipeline.sources.period import Period
from nearcast.pipeline.tables.file_systems import use_session
from nearcast.pipeline.tables.output_files import write_text

if TYPE_CHECKING:
    from nearcast.config.schema import SpaceSection

REPORT_FILE = "run.json"
_ONLY_POSITIONS = "the input has positions only; this needs the event log of a broker"

Summary = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunRules:
    """Rules of all jobs, and the paths of the broker's files if not beside the tables."""

    plan: PlanRules = field(default_factory=PlanRules)
    spaces: tuple[SpaceSection, ...] = ()
    retained: Settings = ()
    training: TrainingRules = field(default_factory=TrainingRules)
    plan_file: Path | None = None
    policy_file: Path | None = None
    audits: bool = True
    period: Period = field(default_factory=Period)  # of the positions that are read


@dataclass(frozen=True, slots=True)
class RunStep:
    """The result of one job of a run, or why it was skipped."""

    name: str
    seconds: float
    summary: Summary | None
    skipped: str = ""
    lines: Sequence[str] = ()

    def as_fields(self) -> Summary:
        """Return the step as fields for JSON."""
        return {
            "name": self.name,
            "seconds": self.seconds,
            "summary": self.summary,
            "skipped": self.skipped or None,
        }


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files that brokers load, as a run has left them; None or missing: its job was skipped."""

    plan: Path | None
    schedule: Path | None  # of plans, which are shared instead of the one plan
    policies: Path | None
    histograms: Mapping[str, Path]  # by space


@dataclass(frozen=True, slots=True)
class RunJob:
    """All jobs in order, on the event logs of all brokers or on files of positions."""

    inputs: Sequence[str]
    output: str
    rules: RunRules = field(default_factory=RunRules)
    report: Callable[[RunStep], None] = lambda _: None  # called after each step

    def check(self) -> None:
        """Check that the input has positions or is an event log."""
        check_positions(self.inputs)

    def run(self, spark: SparkSession) -> list[RunStep]:
        """Run all jobs, then write the files that brokers load, and the report of the run."""
        use_session(spark, self.output, *self.inputs)
        if not is_url(self.output):
            Path(self.output).mkdir(parents=True, exist_ok=True)
        has_log = any(map(is_event_log, self.inputs))
        if has_log:
            check_logs(self.inputs)
        moves = not has_log or has_rows(self.inputs, "positions")
        if not moves and not has_rows(self.inputs, "events"):
            raise nothing_in(self.inputs, "no event, no position")
        steps: list[RunStep] = []
        results: list[JobResult] = []
        for name, work, why_not in self._jobs(has_log=has_log, moves=moves):
            begun_s = time.perf_counter()
            result = None if why_not else work(spark)
            step = RunStep(
                name,
                round(time.perf_counter() - begun_s, 1),
                None if result is None else result.fields,
                why_not,
                () if result is None else result.lines,
            )
            results += [] if result is None else [result]
            steps.append(step)
            self.report(step)
        for result in results:
            result.save()
        _save_report(steps, self.output)
        return steps

    def files(self, steps: Sequence[RunStep]) -> RunFiles:
        """Return the files of the jobs that were not skipped."""
        done = {step.name: step.summary for step in steps if step.summary is not None}
        plan, train = self._plan_job().path, self._train_job().path
        schedule = Path(self.output) / SCHEDULE_FILE
        counted = {name for name, told in done.get("histogram", {}).items() if "events" in told}
        return RunFiles(
            plan if "plan" in done and plan.exists() else None,
            schedule if "plan" in done and schedule.exists() else None,
            train if "train" in done and train.exists() else None,
            {
                one.name: self._histogram_job(one).path
                for one in self._spaces()
                if one.name in counted
            },
        )

    def _plan_job(self) -> PlanJob:
        positions, regions = f"{self.output}/positions", f"{self.output}/regions"
        return PlanJob(positions, regions, self.output, self.rules.plan, self.rules.plan_file)

    def _train_job(self) -> TrainJob:
        rules = self.rules
        settings, file = rules.retained, rules.policy_file
        return TrainJob(self.inputs, self.output, settings, rules.training, file)

    def _histogram_job(self, space: Space) -> HistogramJob:
        return HistogramJob(f"{self.output}/{space.name}/events", self.output, space)

    def _jobs(
        self, *, has_log: bool, moves: bool
    ) -> list[tuple[str, Callable[[SparkSession], JobResult], str]]:
        """Return the name of each job, the work, and the reason to skip it."""
        inputs, output, rules = self.inputs, self.output, self.rules
        of_positions: list[Job] = [
            IngestJob(inputs, output, cleaning=Cleaning(period=rules.period)),
            RegionsJob(f"{output}/positions", output),
            self._plan_job(),
        ]
        audit = AuditJob(inputs, output, rules.spaces)
        no_position = "" if moves else "no client has published its position"
        no_log = "" if has_log else _ONLY_POSITIONS
        learns = any(setting.mode.value == "learned" for _, setting in rules.retained)
        no_topic = "" if learns else 'no [[retained]] block has mode = "learned"'
        no_space = "" if self._spaces() else "no space is declared whose events have JSON payloads"
        return [
            *((job.name, job.run, no_position) for job in of_positions),
            ("histogram", self._histograms, no_log or no_space),
            ("train", self._train_job().run, no_log or no_topic),
            ("audit", audit.run, no_log or ("" if rules.audits else "switched off: --no-audit")),
        ]

    def _spaces(self) -> list[Space]:
        return [one.to_space() for one in self.rules.spaces if one.values == "json"]

    def _histograms(self, spark: SparkSession) -> JobResult:
        found = {space.name: self._histogram(spark, space) for space in self._spaces()}

        def save() -> None:
            for each in found.values():
                each.save()

        lines = [line for each in found.values() for line in each.lines]
        return JobResult({name: each.fields for name, each in found.items()}, lines, save=save)

    def _histogram(self, spark: SparkSession, space: Space) -> JobResult:
        folder = f"{self.output}/{space.name}"
        try:
            IngestEventsJob(self.inputs, folder, space).run(spark)
        except MisuseError as problem:  # no row is good: a mistake of the publishers
            is_empty = problem.found == NO_ROWS
            why = "no event of this space is in the log" if is_empty else str(problem)
            return JobResult({"skipped": why}, [f"{space.name}: skipped, {why}"])
        return self._histogram_job(space).run(spark)


# --- since the last run ---------------------------------------------------------------------------


def last_report(output: str) -> dict[str, Summary]:
    """Return the summaries of the last run by job; empty if there was none."""
    path = Path(output) / REPORT_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {step["name"]: step["summary"] or {} for step in content["steps"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # a report is for people: without one there is no comparison


def _save_report(steps: list[RunStep], output: str) -> None:
    content = {"format": "nearcast-run", "steps": [step.as_fields() for step in steps]}
    write_text(output, REPORT_FILE, json.dumps(content, indent=1, default=str))


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
