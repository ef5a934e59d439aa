"""`nearcast pipeline run`: all jobs of a night, and what changed since the last run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.pipeline.learning import plan_rules, retained_settings, training_rules
from nearcast.cli.pipeline.options import (
    Bounds,
    Brokers,
    Capacity,
    Day,
    Depth,
    HoldOut,
    Leaves,
    MostTopics,
    Output,
    PlanFile,
    PolicyFile,
    Refit,
    Since,
    TimeZoneName,
    WeightsText,
    loaded,
)
from nearcast.cli.sharing import Join, Network, Reassign, network_section, share_run
from nearcast.cli.spark import Config, Master, TableFormat, started_spark
from nearcast.cli.terminal import JSON, print_json
from nearcast.model.errors import KeyMissingError, MisuseError

if TYPE_CHECKING:
    from nearcast.config import NetworkSection
    from nearcast.pipeline.run import RunStep, Summary


def run(
    *,
    input: Annotated[  # noqa: A002 - the option's name
        list[str],
        typer.Option(
            "--input", help="A node's event log, or positions; repeat the option for each node."
        ),
    ],
    output: Output,
    config: Config = None,
    brokers: Brokers = None,
    leaves: Leaves = 100,
    capacity: Capacity = None,
    bounds: Bounds = "",
    depth: Depth = 9,
    weights: WeightsText = "",
    hold_out: HoldOut = 0.4,
    time_zone: TimeZoneName = None,
    plan_file: PlanFile = None,
    policies: PolicyFile = None,
    refit: Refit = "auto",
    most_topics: MostTopics = 10_000,
    since: Since = "",
    date: Day = "",
    audit: Annotated[bool, typer.Option(help="Also audit the logs.")] = True,
    share: Annotated[
        bool,
        typer.Option(
            "--share", help="Share plan, policies and histograms with the nodes of a cluster."
        ),
    ] = False,
    join: Join = None,
    network: Network = None,
    reassign: Reassign = False,
    format: TableFormat = "auto",  # noqa: A002 - the option's name
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Run ingest, regions, plan, histogram, train and audit, for example every night.

    Prints what changed since the last run. Plan and policies are written when all jobs are done; if
    a job fails, the old files stay. With --share, the nodes of a running cluster then use what was
    learned.

    Example: nearcast pipeline run --input data/eventlog --output nightly --config nearcast.toml
    --policies data/policies.json

    Example: nearcast pipeline run --input a/eventlog --input b/eventlog --output nightly
    --config nearcast.toml --share --join nats://127.0.0.1:4222
    """
    from nearcast.pipeline.progress import spark_progress
    from nearcast.pipeline.run import RunJob, RunRules, changes, last_report
    from nearcast.pipeline.sources.period import Period
    from nearcast.pipeline.spark_errors import spark_errors_translated

    section = _cluster_to_share_with(config, join, network) if share else None
    if section is None and (join or network or reassign):
        asked = "--join, --network or --reassign"
        raise MisuseError(asked, where="run", expected="them with --share")
    configuration = loaded(config)
    rules = RunRules(
        plan=plan_rules(leaves, capacity, brokers, depth, bounds, weights, hold_out, time_zone),
        spaces=tuple(configuration.space),
        retained=retained_settings(configuration),
        training=training_rules(most_topics, refit),
        plan_file=plan_file,
        policy_file=policies,
        audits=audit,
        period=Period.of(since, date, "UTC"),
    )
    before = last_report(output)

    def report(step: RunStep) -> None:
        if not json:
            _print_step(step, before.get(step.name, {}))

    job = RunJob(input, output, rules, report)
    job.check()
    spark = started_spark(master, as_json=json, table_format=format, paths=[*input, output])
    with spark_errors_translated(output), spark_progress(spark, "run", lines=not json):
        steps = job.run(spark)
    lines: list[str] = []
    shared = None
    if section is not None:
        lines, shared = share_run(section, job.files(steps), reassigns=reassign)
    if json:
        changed = {
            step.name: changes(before.get(step.name, {}), step.summary or {}) for step in steps
        }
        shown = [step.as_fields() for step in steps]
        fields = {"output": output, "steps": shown, "changes": changed, "first": not before}
        print_json(fields if shared is None else fields | {"shared": shared})
        return
    for line in lines:
        typer.echo(line)
    typer.echo(
        f"All in {output}." + ("" if before else " There was no earlier run to compare with.")
    )


def _cluster_to_share_with(
    config: Path | None, join: str | None, network: str | None
) -> NetworkSection:
    """Return how to reach a cluster whose nodes are there: a run takes long, and may be in vain."""
    import asyncio

    from nearcast.server.cluster.nats_admin import look

    section = network_section(config, join, network)
    if not asyncio.run(look(section)):
        raise KeyMissingError("no nodes", where=f"network {section.name}", todo="Start one first")
    return section


def _print_step(step: RunStep, before: Summary) -> None:
    from nearcast.pipeline.run import changes

    if step.summary is None:
        typer.echo(f"{step.name}: skipped, {step.skipped}")
        return
    typer.echo(f"{step.name} ({step.seconds:g} s)")
    for line in step.lines:
        typer.echo(f"  {line}")
    for line in changes(before, step.summary):
        typer.echo(f"  since the last run: {line}")
