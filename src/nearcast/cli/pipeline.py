"""`nearcast pipeline …`: a command for each job.

A command turns options into the job's class and passes it to `run_job` (`spark.py`), which checks
the input, starts Spark and prints the result.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nearcast.cli.pipeline_stream import stream
from nearcast.cli.sharing import Join, Network, Reassign, network_section, share_run
from nearcast.cli.spark import (
    Config,
    ConfigFile,
    Master,
    Rank,
    SpaceName,
    Top,
    TopicOfEvents,
    match_query,
    parsed_bounds,
    run_job,
    space_section,
    started_spark,
)
from nearcast.cli.terminal import JSON, print_json
from nearcast.cli.whatif import whatif
from nearcast.model.errors import KeyMissingError, MisuseError

if TYPE_CHECKING:
    from nearcast.config import Configuration, NetworkSection
    from nearcast.pipeline.job import Job
    from nearcast.pipeline.jobs.plan import PlanRules
    from nearcast.pipeline.jobs.train import Settings, TrainingRules
    from nearcast.pipeline.run import RunStep, Summary

app = typer.Typer(help="Run a job on Spark.", no_args_is_help=True)

Input = Annotated[str, typer.Option("--input", help="What to read: a file or a table.")]
Logs = Annotated[
    list[str],
    typer.Option("--input", help="A node's event log; repeat the option for each node."),
]
Output = Annotated[str, typer.Option("--output", help="The directory for tables and files.")]
Leaves = Annotated[int, typer.Option(min=1, help="About how many leaves, without --capacity.")]
Capacity = Annotated[
    float | None, typer.Option(help="Users at once above which a quadrant is split.")
]
Brokers = Annotated[
    int | None, typer.Option(min=1, help="Distribute the leaves over this many brokers.")
]
Bounds = Annotated[
    str,
    typer.Option(
        help="west,south,east,north. Default: those of the last plan, or where positions are."
    ),
]
WeightsText = Annotated[
    str,
    typer.Option(
        "--weights",
        help="What counts in a layout: brokers=1,handovers=1,events=0.3 (relative to quadrants).",
    ),
]
HoldOut = Annotated[
    float,
    typer.Option(min=0, max=0.9, help="The share of the record that layouts are judged on."),
]
Depth = Annotated[int, typer.Option(min=1, max=12, help="How often a side may be halved.")]
PlanFile = Annotated[
    Path | None,
    typer.Option(help="The plan file, old and new. Default: OUTPUT/plan.json."),
]
PolicyFile = Annotated[
    Path | None,
    typer.Option(
        help="The policy file. Default: OUTPUT/policies.json. A broker reads DATA/policies.json."
    ),
]
Refit = Annotated[
    Literal["auto", "always", "never"],
    typer.Option(help="Fit the policy for all topics again; auto: when it earns too little."),
]
MostTopics = Annotated[
    int, typer.Option(min=1, help="The largest number of topics that get a table.")
]


def ingest(
    *,
    input: Input,  # noqa: A002 - the option's name
    output: Output,
    columns: Annotated[
        str, typer.Option(help="The names of columns in the file: user_id=cab,t=time,lon=x,lat=y")
    ] = "",
    timezone: Annotated[
        str, typer.Option(help="The time zone of timestamps that have none.")
    ] = "UTC",
    max_speed: Annotated[float, typer.Option(help="Metres per second; faster is an error.")] = 70.0,
    gap: Annotated[float, typer.Option(help="Seconds without a position that end a trip.")] = 600.0,
    space: Annotated[str, typer.Option(help="Read events of this space, not positions.")] = "",
    config: ConfigFile = Path("nearcast.toml"),
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Read GPS or event files into a clean table; dropped rows are kept with the reason.

    Reads CSV, JSON lines, Parquet, GeoParquet, and the event log of a broker. Writes the tables
    OUTPUT/positions (with --space: OUTPUT/events) and OUTPUT/rejected.

    Example: nearcast pipeline ingest --input cabs.csv --output city --columns t=time,user_id=cab
    """
    from nearcast.pipeline.jobs.ingest import COLUMNS, Cleaning, IngestJob

    job: Job
    if space:
        job = _ingest_events(input, output, columns, timezone, space, config)
    else:
        cleaning = Cleaning(max_speed, gap, timezone)
        job = IngestJob([input], output, _mapping(columns, COLUMNS), cleaning)
    run_job(job, master, as_json=json)


def _ingest_events(
    path: str, output: str, columns: str, timezone: str, space: str, config: Path
) -> Job:
    from nearcast.eventlog.log_files import is_event_log
    from nearcast.pipeline.jobs.ingest_events import IngestEventsJob
    from nearcast.pipeline.sources.column_types import EVENT_DETAILS, EVENT_KEY

    section = space_section(config, space)
    if section.values == "properties" and is_event_log(path):
        raise MisuseError(
            f"the space {space!r}, whose values are in user properties",
            where=path,
            expected="a space with values in the payload: the log has no properties",
        )
    declared = section.to_space()
    names = (EVENT_KEY, *EVENT_DETAILS, *(each.name for each in declared.attributes))
    return IngestEventsJob([path], output, declared, _mapping(columns, names), timezone)


def _mapping(text: str, wanted: tuple[str, ...]) -> dict[str, str]:
    """Return the mapping 'a=b,c=d' over the column names of a job."""
    names = {name: name for name in wanted}
    for pair in filter(None, text.split(",")):
        want, equals, source = (part.strip() for part in pair.partition("="))
        if want not in names or not equals or not source:
            raise MisuseError(
                repr(pair),
                where="--columns",
                expected=f"NAME=COLUMN with a name of {', '.join(wanted)}",
            )
        names[want] = source
    return names


def regions(
    *,
    input: Input,  # noqa: A002 - the option's name
    output: Output,
    cell: Annotated[float, typer.Option(help="Side of a cell in metres.")] = 150.0,
    slow: Annotated[
        float, typer.Option(help="Metres per second up to which a step is slow.")
    ] = 1.5,
    slow_share: Annotated[float, typer.Option(help="Share of a cell's time that is slow.")] = 0.5,
    density: Annotated[
        float, typer.Option(help="Times the time in an average visited cell.")
    ] = 3.0,
    min_cells: Annotated[int, typer.Option(help="Fewer connected cells are noise.")] = 2,
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Find slow regions: where users are dense, slow and connected.

    Reads the table that 'ingest' wrote. Writes the tables OUTPUT/cells and OUTPUT/regions, a map
    OUTPUT/regions.geojson and a picture OUTPUT/regions.png.

    Example: nearcast pipeline regions --input city/positions --output city
    """
    from nearcast.locality.layout.slow_regions import RegionRules
    from nearcast.pipeline.jobs.regions import RegionsJob

    rules = RegionRules(slow, slow_share, density, min_cells)
    run_job(RegionsJob(input, output, cell, rules), master, as_json=json)


def match(
    *,
    input: Input,  # noqa: A002 - the option's name
    subscriptions: Annotated[str, typer.Option(help="The subscription table or file.")],
    output: Output,
    space: SpaceName,
    topic: TopicOfEvents = "",
    top: Top = None,
    rank: Rank = "narrowest",
    config: ConfigFile = Path("nearcast.toml"),
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Match a table of events with a table of subscriptions: exact, ranked, the k best.

    Writes the tables OUTPUT/deliveries and OUTPUT/rejected_events.

    Example: nearcast pipeline match --space shops --input events.parquet
    --subscriptions subscriptions.parquet --output found --top 5
    """
    from nearcast.pipeline.jobs.match_job import MatchJob

    declared = space_section(config, space).to_space()
    query = match_query(declared, topic, top, rank)
    run_job(MatchJob(input, subscriptions, output, declared, query), master, as_json=json)


def plan(
    *,
    input: Annotated[str, typer.Option("--input", help="The table of positions.")],  # noqa: A002
    regions: Annotated[
        str, typer.Option(help="The table of regions. Default: beside the positions.")
    ] = "",
    output: Output,
    brokers: Brokers = None,
    leaves: Leaves = 100,
    capacity: Capacity = None,
    bounds: Bounds = "",
    depth: Depth = 9,
    weights: WeightsText = "",
    hold_out: HoldOut = 0.4,
    plan_file: PlanFile = None,
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Make a plan for a cluster from how users move, and compare it with the last plan.

    Reads the tables that 'ingest' and 'regions' wrote. Compares four layouts: quadrants only,
    rectangles only, R leaves where people stay, and the optimised one, on the whole record and on
    days held out. Writes OUTPUT/plan.json (the previous plan is kept as plan-before.json), the
    pictures plan.svg and layouts.svg, and a map plan.geojson. To apply the plan to a running
    cluster: 'nearcast nodes --plan OUTPUT/plan.json'.

    Example: nearcast pipeline plan --input city/positions --output city --brokers 4
    """
    from nearcast.pipeline.jobs.plan import PlanJob

    rules = _plan_rules(leaves, capacity, brokers, depth, bounds, weights, hold_out)
    table = regions or f"{input.rstrip('/').rpartition('/')[0] or '.'}/regions"
    run_job(PlanJob(input, table, output, rules, plan_file), master, as_json=json)


def _plan_rules(
    leaves: int,
    capacity: float | None,
    brokers: int | None,
    depth: int,
    bounds: str,
    weights: str,
    hold_out: float,
) -> PlanRules:
    from nearcast.locality.layout.proposals import LayoutWeights
    from nearcast.pipeline.jobs.plan import PlanRules

    chosen = LayoutWeights.parse(weights) if weights else LayoutWeights()
    return PlanRules(leaves, capacity, brokers, depth, parsed_bounds(bounds), chosen, hold_out)


def histogram(
    *,
    input: Annotated[str, typer.Option("--input", help="The table of events.")],  # noqa: A002
    output: Output,
    space: SpaceName,
    config: Config = None,
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Count where events lie in their space: densities for the overlay's elections.

    Reads a table that 'ingest --space' wrote. Writes OUTPUT/histogram-SPACE.json.

    Example: nearcast pipeline histogram --space shops --input city/events --output city
    """
    from nearcast.pipeline.jobs.histogram import HistogramJob

    declared = space_section(config or Path("nearcast.toml"), space).to_space()
    run_job(HistogramJob(input, output, declared), master, as_json=json)


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
    r"""Learn from event logs when retained messages are worth sending.

    For topics under a \[\[retained]] block with mode "learned": computes the rates of each topic
    and its exact decision table. Writes the table OUTPUT/topic_policies and the policy file.

    Example: nearcast pipeline train --input data/eventlog --output nightly
    --policies data/policies.json
    """
    from nearcast.pipeline.jobs.train import TrainJob

    settings = _retained_settings(_load(config or Path("nearcast.toml")))
    rules = _training_rules(most_topics, refit)
    run_job(TrainJob(input, output, settings, rules, policies), master, as_json=json)


def _training_rules(most_topics: int, refit: Literal["auto", "always", "never"]) -> TrainingRules:
    from nearcast.pipeline.jobs.train import TrainingRules

    return TrainingRules(most_topics=most_topics, refit=refit)


def _load(config: Path | None) -> Configuration:
    from nearcast.config import load

    return load(config, os.environ)


def _retained_settings(configuration: Configuration) -> Settings:
    from nearcast.retained import Mode, TopicSetting, Weights

    return [
        (one.topics, TopicSetting(Mode(one.mode), Weights(one.omega, one.cost), one.hold))
        for one in configuration.retained
    ]


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
    plan_file: PlanFile = None,
    policies: PolicyFile = None,
    refit: Refit = "auto",
    most_topics: MostTopics = 10_000,
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
    from nearcast.pipeline.spark_errors import spark_errors_translated

    section = _cluster_to_share_with(config, join, network) if share else None
    if section is None and (join or network or reassign):
        asked = "--join, --network or --reassign"
        raise MisuseError(asked, where="run", expected="them with --share")
    configuration = _load(config)
    rules = RunRules(
        plan=_plan_rules(leaves, capacity, brokers, depth, bounds, weights, hold_out),
        spaces=tuple(configuration.space),
        retained=_retained_settings(configuration),
        training=_training_rules(most_topics, refit),
        plan_file=plan_file,
        policy_file=policies,
        audits=audit,
    )
    before = last_report(output)

    def report(step: RunStep) -> None:
        if not json:
            _print_step(step, before.get(step.name, {}))

    job = RunJob(input, output, rules, report)
    job.check()
    spark = started_spark(master, as_json=json)
    with spark_errors_translated(output), spark_progress(spark, "run"):
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
        told = {"output": output, "steps": shown, "changes": changed, "first": not before}
        print_json(told if shared is None else told | {"shared": shared})
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


def audit(
    *,
    input: Logs,  # noqa: A002 - the option's name
    output: Output,
    config: Annotated[
        Path | None, typer.Option(help="Where spaces are declared: to check $where, $area, $near.")
    ] = None,
    skew: Annotated[
        float, typer.Option(help="Seconds by which the clocks of nodes may differ.")
    ] = 1.0,
    settle: Annotated[
        float,
        typer.Option(help="Seconds until all nodes know a change, or have got a message."),
    ] = 5.0,
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Find every lost, doubled, late or misordered delivery in the event logs of all nodes.

    Writes the tables OUTPUT/faults and OUTPUT/unknown. The exit code is 1 if there is a fault.

    Example: nearcast pipeline audit --input a/eventlog --input b/eventlog --output audit
    """
    from nearcast.pipeline.audit.hops import Allowance
    from nearcast.pipeline.audit.job import AuditJob

    spaces = None if config is None else tuple(_load(config).space)
    allowance = Allowance(_milliseconds(skew, "--skew"), _milliseconds(settle, "--settle"))
    run_job(AuditJob(input, output, spaces, allowance), master, as_json=json)


def _milliseconds(seconds: float, where: str) -> int:
    from nearcast.model.errors import OutOfRangeError

    if not 0 <= seconds <= 86_400:
        raise OutOfRangeError(f"{seconds:g}", where=where, expected="0 to 86400 seconds")
    return round(seconds * 1000)


for command in (ingest, regions, match, stream, plan, histogram, train, run, audit, whatif):
    app.command()(command)
