"""`nearcast pipeline audit` and `whatif`: what went wrong, and what a change would have done."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.sparking import started_spark
from nearcast.cli.terminal import JSON, print_json

if TYPE_CHECKING:
    from nearcast.pipeline.audit.job import Audited
    from nearcast.pipeline.jobs.whatif import Compared

Master = Annotated[str, typer.Option(help="The Spark master: local[*], spark://host:port, yarn …")]
Logs = Annotated[
    list[str], typer.Option("--input", help="A node's event log; once for each directory.")
]


def register(app: typer.Typer) -> None:
    """Add these commands to `nearcast pipeline`."""
    app.command()(audit)
    app.command()(whatif)


def audit(
    *,
    input: Logs,  # noqa: A002 - the option's name
    output: Annotated[str, typer.Option("--output", help="The directory for the job's tables.")],
    config: Annotated[
        Path | None, typer.Option(help="Where spaces are declared: to check $where, $area, $near.")
    ] = None,
    skew: Annotated[float, typer.Option(help="Seconds by which nodes' clocks may differ.")] = 1.0,
    settle: Annotated[
        float, typer.Option(help="Seconds until all nodes know of a change; also time under way.")
    ] = 5.0,
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Find every lost, doubled, late or misordered delivery in the event logs of all nodes.

    Writes the tables OUTPUT/faults and OUTPUT/unknown. The exit code is 1 if there is a fault.

    Example: nearcast pipeline audit --input a/eventlog --input b/eventlog --output audit
    """
    from nearcast.config import load
    from nearcast.pipeline.audit import job
    from nearcast.pipeline.audit.conditions import Selecting
    from nearcast.pipeline.audit.hops import Allowance
    from nearcast.pipeline.audit.logs import find_segments
    from nearcast.pipeline.progress import spark_progress
    from nearcast.pipeline.spark_errors import told_plainly

    selecting = None if config is None else Selecting(tuple(load(config, os.environ).space))
    allowance = Allowance(_milliseconds(skew, "--skew"), _milliseconds(settle, "--settle"))
    find_segments(input)  # an input that is no log is reported before Spark takes its time to start
    spark = started_spark(master, as_json=json)
    with told_plainly(output), spark_progress(spark, "audit"):
        done = job.audit(spark, input, output, selecting=selecting, allowance=allowance)
    if json:
        print_json(done.as_dict())
    else:
        _show(done, output)
    if not done.is_clean:
        raise typer.Exit(1)


def _milliseconds(seconds: float, where: str) -> int:
    from nearcast.model.errors import OutOfRangeError

    if not 0 <= seconds <= 86_400:
        raise OutOfRangeError(f"{seconds:g}", where=where, expected="0 to 86400 seconds")
    return round(seconds * 1000)


def _show(done: Audited, output: str) -> None:
    nodes = f"{len(done.nodes)} node{'s' if len(done.nodes) > 1 else ''}"
    typer.echo(f"{done.events:,} events, {done.deliveries:,} deliveries of {nodes}")
    for kind, count in done.faults.items():
        typer.echo(f"{kind:<12}{count:>12,}")
    for title, counts in (("unknown", done.unknown), ("allowed", done.allowed)):
        for why, count in sorted(counts.items()):
            typer.echo(f"{title:<12}{count:>12,}  {why}")
    if done.dropped:
        typer.echo(f"{'dropped':<12}{done.dropped:>12,}  by the nodes, each with a reason")
    what = "No fault." if done.is_clean else "Each fault is a row of"
    typer.echo(f"{what} {output}/faults" if not done.is_clean else what)


PlanFile = Annotated[Path | None, typer.Option(help="A plan file to try.")]
PolicyFile = Annotated[Path | None, typer.Option(help="A policy file to try.")]


def whatif(
    *,
    input: Logs,  # noqa: A002 - the option's name
    config: Annotated[Path, typer.Option(help="The configuration of the nodes.")] = Path(
        "nearcast.toml"
    ),
    plan: PlanFile = None,
    policies: PolicyFile = None,
    old_plan: Annotated[Path | None, typer.Option(help="The plan in force; else none.")] = None,
    old_policies: Annotated[
        Path | None, typer.Option(help="The policies in force; else those that come along.")
    ] = None,
    most: Annotated[
        int, typer.Option(min=1, help="Play at most so many acts of the log.")
    ] = 20_000,
    json: bool = JSON,
) -> None:
    """Say what a plan or policies would have changed, by playing a log again in the simulator.

    Nothing is applied. Compared are handovers, messages between nodes and retained traffic.

    Example: nearcast pipeline whatif --input a/eventlog --input b/eventlog --plan plan.json
    """
    from nearcast.cli.terminal import told_of_files
    from nearcast.config import load
    from nearcast.model.errors import MisuseError
    from nearcast.pipeline.jobs.whatif import WhatIfCase, compare, read_plan
    from nearcast.pipeline.jobs.whatif_log import read_story
    from nearcast.retained import read_policies
    from nearcast.server.broker_settings import retained_settings, space_settings

    if plan is None and policies is None:
        raise MisuseError(
            "nothing to try", where="whatif", expected="--plan FILE or --policies FILE, or both"
        )
    configuration = load(config, os.environ)
    with told_of_files():
        story = read_story(input, most)
        before = WhatIfCase(
            None if old_plan is None else read_plan(old_plan, story.nodes),
            None if old_policies is None else read_policies(old_policies),
        )
        after = WhatIfCase(
            before.plan if plan is None else read_plan(plan, story.nodes),
            before.policies if policies is None else read_policies(policies),
        )
    done = compare(
        story,
        before,
        after,
        spaces=[space_settings(one) for one in configuration.space],
        retained=[retained_settings(one) for one in configuration.retained],
    )
    if json:
        print_json(done.as_dict())
    else:
        _show_both(done)


def _show_both(done: Compared) -> None:
    typer.echo(f"{done.acts:,} acts of {len(done.nodes)} node(s) played twice")
    if done.left_out:
        typer.echo(f"{done.left_out:,} later ones were left out: --most plays more")
    typer.echo(f"{'':<20}{'old':>14}{'candidate':>14}{'change':>10}")
    for name, old, new in done.rows():
        change = f"{(new - old) / old:+.0%}" if old else ("" if new == old else "new")
        typer.echo(f"{name.replace('_', ' '):<20}{old:>14,}{new:>14,}{change:>10}")
