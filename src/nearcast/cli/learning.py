"""`nearcast pipeline plan`, `histogram`, `train`, `run`: what brokers learn from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nearcast.cli.sparking import started_spark
from nearcast.cli.terminal import JSON, print_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nearcast.config import Configuration
    from nearcast.locality import Rect
    from nearcast.pipeline.jobs.plan import PlanRules
    from nearcast.pipeline.jobs.run import Audit, JobResult, Summary
    from nearcast.pipeline.jobs.train import Settings

Master = Annotated[str, typer.Option(help="The Spark master: local[*], spark://host:port, yarn …")]
Output = Annotated[str, typer.Option("--output", help="The directory for tables and files.")]
Config = Annotated[Path | None, typer.Option(help="The brokers' configuration file.")]
Leaves = Annotated[int, typer.Option(min=1, help="About how many leaves, without --capacity.")]
Capacity = Annotated[
    float | None, typer.Option(help="Users at once above which a quadrant is cut.")
]
Brokers = Annotated[
    int | None, typer.Option(min=1, help="Share the leaves out over so many brokers.")
]
Bounds = Annotated[
    str, typer.Option(help="west,south,east,north; else the last plan's, or where positions are.")
]
Depth = Annotated[int, typer.Option(min=1, max=12, help="How often a side may be halved.")]
PlanFile = Annotated[
    Path | None,
    typer.Option(help="The plan file; else OUTPUT/plan.json. It is also the last plan."),
]
PolicyFile = Annotated[
    Path | None,
    typer.Option(
        help="The policy file; else OUTPUT/policies.json. A broker reads DATA/policies.json."
    ),
]
Refit = Annotated[
    Literal["auto", "always", "never"],
    typer.Option(help="Fit the policy for all topics anew: when it earns too little, or as said."),
]
Logs = Annotated[
    list[str],
    typer.Option(
        "--input", help="A broker's event log; of several nodes, each. 'run': or positions."
    ),
]
MostTopics = Annotated[int, typer.Option(min=1, help="Tables for so many topics at most.")]


def register(app: typer.Typer) -> None:
    """Add these commands to `nearcast pipeline`."""
    for command in (plan, histogram, train, run):
        app.command()(command)


def plan(
    *,
    input: Annotated[str, typer.Option("--input", help="The table of positions.")],  # noqa: A002
    regions: Annotated[
        str, typer.Option(help="The table of regions; else beside the positions.")
    ] = "",
    output: Output,
    brokers: Brokers = None,
    leaves: Leaves = 100,
    capacity: Capacity = None,
    bounds: Bounds = "",
    depth: Depth = 9,
    plan_file: PlanFile = None,
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Lay out a network of brokers by how people move, and compare with the last plan.

    Reads the tables that 'ingest' and 'regions' wrote. Writes OUTPUT/plan.json (the one before is
    kept as plan-before.json), a picture plan.svg and a map plan.geojson. Let a running network
    follow it with 'nearcast nodes --plan OUTPUT/plan.json'.

    Example: nearcast pipeline plan --input city/positions --output city --brokers 4
    """
    from nearcast.pipeline.jobs import plan as plans
    from nearcast.pipeline.progress import spark_progress
    from nearcast.pipeline.sources.input_checks import check_table
    from nearcast.pipeline.spark_errors import told_plainly
    from nearcast.pipeline.tables.transaction import read_table

    rules = _plan_rules(leaves, capacity, brokers, depth, bounds)
    path = plan_file or Path(output) / plans.PLAN_FILE
    last = plans.last_plan(path)
    table = regions or f"{input.rstrip('/').rpartition('/')[0] or '.'}/regions"
    for root in (input, table):
        check_table(root)
    spark = started_spark(master, as_json=json)
    with told_plainly(output), spark_progress(spark, "plan"):
        slow = plans.regions_of(read_table(spark, table))
        found = plans.lay_out(read_table(spark, input), slow, rules, last)
        plans.save_found(found, Path(output), path)
    if json:
        print_json({**found.summary(), "plan": str(path)})
        return
    _print_plan(found.summary())
    for line in [] if found.diff is None else found.diff.lines():
        typer.echo(f"  {line}")
    typer.echo(f"Plan: {path}" + ("" if found.is_new else " (unchanged)"))


def histogram(
    *,
    input: Annotated[str, typer.Option("--input", help="The table of events.")],  # noqa: A002
    output: Output,
    space: Annotated[str, typer.Option(help="The space that the events belong to.")],
    config: Config = None,
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Count where events fall in their space: densities for the overlay's elections.

    Reads a table that 'ingest --space' wrote. Writes OUTPUT/histogram-SPACE.json.

    Example: nearcast pipeline histogram --space shops --input city/events --output city
    """
    from nearcast.pipeline.jobs.histogram import count_events, load_histogram, save_histogram
    from nearcast.pipeline.jobs.run import histogram_summary
    from nearcast.pipeline.progress import spark_progress
    from nearcast.pipeline.sources.files import read_all
    from nearcast.pipeline.sources.input_checks import check_there
    from nearcast.pipeline.spark_errors import told_plainly

    declared = _declared(_load(config or Path("nearcast.toml")), space)
    path = Path(output) / f"histogram-{space}.json"
    last = load_histogram(path) if path.exists() else None
    check_there(input)
    spark = started_spark(master, as_json=json)
    with told_plainly(output), spark_progress(spark, "histogram"):
        found = count_events(read_all(spark, input), declared)
    save_histogram(found, path)
    summary = histogram_summary(found, last)
    if json:
        print_json({**summary, "file": str(path)})
        return
    _print_histogram(space, summary)
    typer.echo(f"Histogram: {path}")


def train(
    *,
    input: Logs,  # noqa: A002 - the option's name
    output: Output,
    config: Config = None,
    policies: PolicyFile = None,
    refit: Refit = "auto",
    most_topics: MostTopics = 10_000,
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    r"""Learn from an event log when retained messages are worth sending.

    For topics under a \[\[retained]] block with mode "learned": rates out of the log, an exact
    table for each, like rates solved once. Writes the table OUTPUT/topic_policies and the policy
    file.

    Example: nearcast pipeline train --input data/eventlog --output nightly
    --policies data/policies.json
    """
    from nearcast.pipeline.jobs import train as training
    from nearcast.pipeline.progress import spark_progress
    from nearcast.pipeline.sources.log_checks import check_logs
    from nearcast.pipeline.spark_errors import told_plainly

    settings = _settings(_load(config or Path("nearcast.toml")))
    path = policies or Path(output) / training.POLICY_FILE
    last = training.last_policies(path)
    check_logs(input)
    rules = training.TrainingRules(most_topics=most_topics, refit=refit)
    spark = started_spark(master, as_json=json)
    with told_plainly(input[0]), spark_progress(spark, "train"):
        done = training.train(spark, input, output, settings, rules, last)
        training.save_trained(done, path)
    if json:
        print_json({**done.summary(), "policies": str(path)})
        return
    _print_training(done.summary())
    typer.echo(f"Policies: {path}" + ("" if done.is_new else " (unchanged)"))


def run(
    *,
    input: Logs,  # noqa: A002 - the option's name
    output: Output,
    config: Config = None,
    brokers: Brokers = None,
    leaves: Leaves = 100,
    capacity: Capacity = None,
    bounds: Bounds = "",
    depth: Depth = 9,
    plan_file: PlanFile = None,
    policies: PolicyFile = None,
    refit: Refit = "auto",
    most_topics: MostTopics = 10_000,
    audit: Annotated[bool, typer.Option(help="Look for faults in the logs too.")] = True,
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Ingest, regions, plan, histogram, train, audit in one go, for every night.

    Says what changed since the last run. Plan and policies are written when all is done; if
    anything fails, the old ones stay.

    Example: nearcast pipeline run --input data/eventlog --output nightly --config nearcast.toml
    --policies data/policies.json
    """
    from nearcast.pipeline.jobs import run as nightly
    from nearcast.pipeline.jobs.train import TrainingRules
    from nearcast.pipeline.progress import spark_progress
    from nearcast.pipeline.sources.input_checks import check_positions
    from nearcast.pipeline.spark_errors import told_plainly

    configuration = _load(config)
    rules = nightly.RunRules(
        plan=_plan_rules(leaves, capacity, brokers, depth, bounds),
        spaces=[one.to_space() for one in configuration.space if one.values == "json"],
        retained=_settings(configuration),
        training=TrainingRules(most_topics=most_topics, refit=refit),
        plan_file=plan_file,
        policy_file=policies,
    )
    before = nightly.last_report(output)
    check_positions(input)
    spark = started_spark(master, as_json=json)
    tell = _silent if json else lambda step: _print_step(step, before.get(step.name))
    with told_plainly(output), spark_progress(spark, "run"):
        checks = _audit(configuration) if audit else None
        steps = nightly.run(spark, input, output, rules, audit=checks, tell=tell)
    if json:
        shown = [nightly.as_fields(step) for step in steps]
        changed = {
            step.name: nightly.changes(before.get(step.name, {}), step.summary or {})
            for step in steps
        }
        print_json({"output": output, "steps": shown, "changes": changed, "first": not before})
        return
    typer.echo(
        f"All in {output}." + ("" if before else " There was no run before to compare with.")
    )


def _silent(_: JobResult) -> None:
    """Print nothing: the summary comes at the end."""


def _audit(configuration: Configuration) -> Audit:
    def look(spark: SparkSession, logs: Sequence[str], output: str) -> Summary:
        from nearcast.pipeline.audit.conditions import Selecting
        from nearcast.pipeline.audit.job import audit

        selecting = Selecting(tuple(configuration.space))
        return audit(spark, logs, output, selecting=selecting).as_dict()

    return look


# --- options and configuration ------------------------------------------------------------------


def _plan_rules(
    leaves: int, capacity: float | None, brokers: int | None, depth: int, bounds: str
) -> PlanRules:
    from nearcast.pipeline.jobs.plan import PlanRules

    return PlanRules(leaves, capacity, brokers, depth, _rect(bounds))


def _rect(text: str) -> Rect | None:
    from nearcast.locality.layout.rect import checked_rect
    from nearcast.model.errors import MisuseError

    if not text:
        return None
    try:
        return checked_rect([float(part) for part in text.split(",")], "--bounds")
    except ValueError as problem:
        if isinstance(problem, MisuseError):
            raise
        raise MisuseError(
            repr(text), where="--bounds", expected="four numbers: west,south,east,north"
        ) from None


def _load(config: Path | None) -> Configuration:
    from nearcast.config import load

    return load(config, os.environ)


def _declared(configuration: Configuration, name: str) -> Any:
    from nearcast.model.errors import UnknownNameError

    known = {one.name: one for one in configuration.space}
    if name not in known:
        expected = f"one of {', '.join(known)}" if known else "a [[space]] in the configuration"
        raise UnknownNameError(f"the space {name!r}", where="--space", expected=expected)
    return known[name].to_space()


def _settings(configuration: Configuration) -> Settings:
    from nearcast.retained import Mode, TopicSetting, Weights

    return [
        (one.topics, TopicSetting(Mode(one.mode), Weights(one.omega, one.cost), one.hold))
        for one in configuration.retained
    ]


# --- output --------------------------------------------------------------------------------------


def _print_step(step: JobResult, before: Summary | None) -> None:
    from nearcast.pipeline.jobs.run import changes

    if step.summary is None:
        typer.echo(f"{step.name}: skipped, {step.skipped}")
        return
    typer.echo(f"{step.name} ({step.seconds:g} s)")
    _TELLERS.get(step.name, _print_summary)(step.summary)
    for line in changes(before or {}, step.summary):
        typer.echo(f"  since the last run: {line}")


def _print_summary(summary: Summary) -> None:
    for key, value in summary.items():
        told = (
            value
            if not isinstance(value, dict)
            else ", ".join(f"{k} {v}" for k, v in value.items())
        )
        typer.echo(f"  {key.replace('_', ' ')}: {told if told != '' else 'none'}")


def _print_plan(summary: Summary) -> None:
    moved = summary["handovers"]
    typer.echo(
        f"  plan {summary['version']}: {summary['leaves']} leaves over {summary['regions']} slow "
        f"regions and {summary['users_at_once']:g} users at once; quadrants alone would take "
        f"{summary['leaves_q_only']}"
    )
    told = ", ".join(f"{count:,} ({name})" for name, count in moved.items())
    typer.echo(f"  handovers in this record: {told}")
    if summary["brokers"]:
        typer.echo(
            f"  {summary['brokers']} brokers: {summary['broker_changes']:,} of these change the "
            f"broker; the heaviest has {summary['imbalance']:g} times the mean load"
        )
    if summary["outside_the_space"]:
        typer.echo(f"  {summary['outside_the_space']:,} positions lie outside the space")


def _print_histogram(space: str, summary: Summary) -> None:
    if "skipped" in summary:
        typer.echo(f"  {space}: skipped, {summary['skipped']}")
        return
    told = f"  {space}: {summary['events']:,} events ({summary['kind']})"
    if summary["moved_share"] is not None:
        told += f"; {summary['moved_share']:.1%} of them lie elsewhere than last time"
    typer.echo(told)


def _print_histograms(summary: Summary) -> None:
    for space, each in summary.items():
        _print_histogram(space, each)


def _print_training(summary: Summary) -> None:
    typer.echo(
        f"  {summary['tables']:,} tables for {summary['topics']:,} topics, "
        f"{summary['rate_groups']:,} problems solved; {summary['tables_changed']:,} decide "
        f"otherwise than before, {summary['tables_kept']:,} of silent topics are kept"
    )
    if not summary["topics"]:
        typer.echo("  no topic publishes retained messages often enough for anyone to wait")
    share = summary["general_share"]
    earns = "" if share is None else f"; it earns {share:.1%} of what can be gained"
    typer.echo(f"  policy for all topics: {summary['general']}{earns}")


_TELLERS = {"plan": _print_plan, "histogram": _print_histograms, "train": _print_training}
