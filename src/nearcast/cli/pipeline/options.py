"""Options that several commands of `nearcast pipeline` share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from nearcast.config import Configuration

Input = Annotated[str, typer.Option("--input", help="What to read: a file or a table.")]
Logs = Annotated[
    list[str],
    typer.Option("--input", help="A node's event log; repeat the option for each node."),
]
Output = Annotated[str, typer.Option("--output", help="The directory for tables and files.")]
Since = Annotated[
    str, typer.Option(help="Read only positions from this day or instant on: 2026-11-17T06:00.")
]
Day = Annotated[
    str,
    typer.Option(help="Read only this day (2026-11-17), and replace only its rows in the table."),
]
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
TimeZoneName = Annotated[
    str | None,
    typer.Option(
        metavar="ZONE",
        help="Also try plans of their own for hours and weekdays, by the clock of this time zone, "
        "for example Europe/Berlin.",
    ),
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


def loaded(config: Path | None) -> Configuration:
    """Return the configuration of a file and of the environment."""
    from nearcast.config import load

    return load(config, os.environ)
