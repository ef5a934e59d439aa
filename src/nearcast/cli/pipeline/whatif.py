"""`nearcast pipeline whatif`: what another plan or other policies would have changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.terminal import JSON, print_json

if TYPE_CHECKING:
    from nearcast.simulator.whatif import Compared


def whatif(
    *,
    input: Annotated[  # noqa: A002 - the option's name
        list[str],
        typer.Option("--input", help="A node's event log; repeat the option for each node."),
    ],
    config: Annotated[Path, typer.Option(help="The configuration of the nodes.")] = Path(
        "nearcast.toml"
    ),
    plan: Annotated[Path | None, typer.Option(help="A plan file to try.")] = None,
    policies: Annotated[Path | None, typer.Option(help="A policy file to try.")] = None,
    old_plan: Annotated[Path | None, typer.Option(help="The plan in force. Default: none.")] = None,
    old_policies: Annotated[
        Path | None, typer.Option(help="The policies in force. Default: those of Nearcast.")
    ] = None,
    most: Annotated[
        int, typer.Option(min=1, help="The largest number of actions to replay.")
    ] = 20_000,
    json: bool = JSON,
) -> None:
    """Show what a plan or policies would have changed: replay a log in the simulator.

    Nothing is applied. Compares handovers, messages between nodes and retained messages.

    Example: nearcast pipeline whatif --input a/eventlog --input b/eventlog --plan plan.json
    """
    from nearcast.cli.terminal import os_errors_translated
    from nearcast.config import load
    from nearcast.model.errors import MisuseError
    from nearcast.retained import read_policies
    from nearcast.server.broker_settings import retained_settings, space_settings
    from nearcast.simulator.replay_log import read_actions
    from nearcast.simulator.whatif import WhatIfCase, compare, read_plan

    if plan is None and policies is None:
        raise MisuseError(
            "nothing to try", where="whatif", expected="--plan FILE or --policies FILE, or both"
        )
    configuration = load(config, os.environ)
    with os_errors_translated():
        log = read_actions(input, most)
        before = WhatIfCase(
            None if old_plan is None else read_plan(old_plan, log.nodes),
            None if old_policies is None else read_policies(old_policies),
        )
        after = WhatIfCase(
            before.plan if plan is None else read_plan(plan, log.nodes),
            before.policies if policies is None else read_policies(policies),
        )
    done = compare(
        log,
        before,
        after,
        spaces=[space_settings(one) for one in configuration.space],
        retained=[retained_settings(one) for one in configuration.retained],
    )
    if json:
        print_json(done.as_dict())
    else:
        _print(done)


def _print(done: Compared) -> None:
    typer.echo(f"{done.acts:,} actions of {len(done.nodes)} node(s), replayed twice")
    if done.left_out:
        typer.echo(f"{done.left_out:,} later actions were left out: --most replays more")
    typer.echo(f"{'':<20}{'old':>14}{'candidate':>14}{'change':>10}")
    for name, old, new in done.rows():
        change = f"{(new - old) / old:+.0%}" if old else ("" if new == old else "new")
        typer.echo(f"{name.replace('_', ' '):<20}{old:>14,}{new:>14,}{change:>10}")
