"""`nearcast pipeline plan` and `train`: what brokers load, learned from records and logs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nearcast.cli.pipeline.options import (
    Bounds,
    Brokers,
    Capacity,
    Depth,
    HoldOut,
    Leaves,
    Logs,
    MostTopics,
    Output,
    PlanFile,
    PolicyFile,
    Refit,
    TimeZoneName,
    WeightsText,
    loaded,
)
from nearcast.cli.spark import Config, Master, TableFormat, parsed_bounds, run_job
from nearcast.cli.terminal import JSON

if TYPE_CHECKING:
    from nearcast.config import Configuration
    from nearcast.pipeline.jobs.plan import PlanRules
    from nearcast.pipeline.jobs.train import Settings, TrainingRules


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
    time_zone: TimeZoneName = None,
    plan_file: PlanFile = None,
    format: TableFormat = "auto",  # noqa: A002 - the option's name
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Make a plan for a cluster from how users move, and compare it with the last plan.

    Reads the tables that 'ingest' and 'regions' wrote. Compares four layouts: quadrants only,
    rectangles only, R leaves where people stay, and the optimised one, on the whole record and on
    days held out. Writes OUTPUT/plan.json (the previous plan is kept as plan-before.json), the
    pictures plan.svg and layouts.svg, and a map plan.geojson. With --time-zone, where plans of
    their own for hours or weekdays pay, also these plans and OUTPUT/schedule.json. To
    apply the plan or the schedule to a running cluster: 'nearcast nodes --plan FILE'.

    Example: nearcast pipeline plan --input city/positions --output city --brokers 4
    """
    from nearcast.pipeline.jobs.plan import PlanJob

    rules = plan_rules(leaves, capacity, brokers, depth, bounds, weights, hold_out, time_zone)
    table = regions or f"{input.rstrip('/').rpartition('/')[0] or '.'}/regions"
    run_job(
        PlanJob(input, table, output, rules, plan_file), master, as_json=json, table_format=format
    )


def plan_rules(
    leaves: int,
    capacity: float | None,
    brokers: int | None,
    depth: int,
    bounds: str,
    weights: str,
    hold_out: float,
    time_zone: str | None,
) -> PlanRules:
    """Return the rules of a plan from the options of a command."""
    from nearcast.locality.layout.costs import LayoutWeights
    from nearcast.pipeline.jobs.plan import PlanRules

    chosen = LayoutWeights.parse(weights) if weights else LayoutWeights()
    space = parsed_bounds(bounds)
    return PlanRules(leaves, capacity, brokers, depth, space, chosen, hold_out, time_zone)


def train(
    *,
    input: Logs,  # noqa: A002 - the option's name
    output: Output,
    config: Config = None,
    policies: PolicyFile = None,
    refit: Refit = "auto",
    most_topics: MostTopics = 10_000,
    format: TableFormat = "auto",  # noqa: A002 - the option's name
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

    settings = retained_settings(loaded(config or Path("nearcast.toml")))
    rules = training_rules(most_topics, refit)
    run_job(
        TrainJob(input, output, settings, rules, policies),
        master,
        as_json=json,
        table_format=format,
    )


def training_rules(most_topics: int, refit: Literal["auto", "always", "never"]) -> TrainingRules:
    """Return the rules of training from the options of a command."""
    from nearcast.pipeline.jobs.train import TrainingRules

    return TrainingRules(most_topics=most_topics, refit=refit)


def retained_settings(configuration: Configuration) -> Settings:
    """Return what the configuration says about retained messages, for the pipeline."""
    from nearcast.retained import Mode, TopicSetting, Weights

    return [
        (block.topics, TopicSetting(Mode(block.mode), Weights(block.omega, block.cost), block.hold))
        for block in configuration.retained
    ]
