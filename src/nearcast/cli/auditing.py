"""`nearcast pipeline audit` and `whatif`: what went wrong, and what a change would have done."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.terminal import JSON, print_json

if TYPE_CHECKING:
    from nearcast.pipeline.audit import Audited

Master = Annotated[str, typer.Option(help="The Spark master: local[*], spark://host:port, yarn …")]
Logs = Annotated[
    list[str], typer.Option("--input", help="A node's event log; once for each directory.")
]


def register(app: typer.Typer) -> None:
    """Add these commands to `nearcast pipeline`."""
    app.command()(audit)


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
    from nearcast.pipeline import audit as job
    from nearcast.pipeline.audit_hops import Allowance
    from nearcast.pipeline.audit_selections import Selecting
    from nearcast.pipeline.failures import told_plainly
    from nearcast.pipeline.progress import spark_progress
    from nearcast.pipeline.session import spark_session

    selecting = None if config is None else Selecting(tuple(load(config, os.environ).space))
    allowance = Allowance(_milliseconds(skew, "--skew"), _milliseconds(settle, "--settle"))
    spark = spark_session(master)
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
