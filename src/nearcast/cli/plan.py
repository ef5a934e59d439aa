"""`nearcast plan show` and `plan diff`: the layout of a network, and what a new one changes."""

from __future__ import annotations

import json as json_text
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearcast.cli.serve import ConfigFile, NoConfig, found_config
from nearcast.cli.sharing import Join, Network, Reassign, network_section
from nearcast.cli.terminal import JSON, os_errors_translated, print_json
from nearcast.model.errors import KeyMissingError, MisuseError

if TYPE_CHECKING:
    from nearcast.config import NetworkSection
    from nearcast.locality import NodeChange, Plan, Rect

app = typer.Typer(help="Show and compare plans of a cluster.", no_args_is_help=True)

PlanFile = Annotated[
    Path, typer.Argument(help="A plan file (JSON), or a schedule of plans.", show_default=False)
]


@app.command()
def show(
    path: PlanFile,
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Draw to this .svg or .png, or write .geojson for a map."),
    ] = None,
    regions: Annotated[
        Path | None,
        typer.Option(help="Slow regions to draw beside it: GeoJSON from 'pipeline regions'."),
    ] = None,
    json: bool = JSON,
) -> None:
    """Show what a plan consists of, and draw it.

    Of a schedule of plans: when each plan is in force, and which one is now.

    Example: nearcast plan show plan.json --regions regions.geojson --out plan.svg
    """
    from nearcast.locality import draw_plan, load_plan, plan_geojson
    from nearcast.locality.schedule.plan_schedule import is_schedule

    with os_errors_translated():
        if is_schedule(path):
            _show_schedule(path, out=out or regions, as_json=json)
            return
        plan = load_plan(path)
        slow = [] if regions is None else _read_regions(regions)
        if out is not None and out.suffix == ".geojson":
            out.write_text(plan_geojson(plan, slow), encoding="utf-8")
        elif out is not None:
            draw_plan(plan, out, regions=slow)
    facts = _facts(plan)
    if json:
        print_json(facts | {"picture": None if out is None else str(out)})
        return
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):<16} {value}")
    if out is not None:
        typer.echo(f"Wrote {out}.")


def _show_schedule(path: Path, *, out: Path | None, as_json: bool) -> None:
    import time

    from nearcast.locality.schedule.plan_schedule import load_schedule

    if out is not None:
        todo = "Show the plan files that the schedule names"
        raise MisuseError("a schedule of plans", where=str(path), expected="one plan", todo=todo)
    found = load_schedule(path)
    schedule, now_ms = found.schedule, int(time.time() * 1000)
    due, following = schedule.plan_at(now_ms), schedule.following(now_ms)
    if as_json:
        now = {"in_force": due, "following": following.plan, "following_ms": following.at_ms}
        plans = {name: _facts(plan) for name, plan in found.plans.items()}
        print_json(schedule.as_fields() | now | {"plans": plans})
        return
    typer.echo(f"time zone        {schedule.zone.key}")
    for change in schedule.as_fields()["changes"]:
        plan = found.plans[change["plan"]]
        days = " ".join(change["days"])
        typer.echo(f"{change['at']} {days:<28} {change['plan']} ({len(plan.leaves)} leaves)")
    typer.echo(f"now              {due}")
    typer.echo(f"next             {following.plan}, {schedule.local_time(following.at_ms)}")


def _facts(plan: Plan) -> dict[str, Any]:
    loads = [leaf.load for leaf in plan.leaves]
    brokers = len(plan.leaves) if plan.brokers is None else len(set(plan.brokers))
    return {
        "version": plan.version,
        "layout": plan.layout,
        "space": " ".join(f"{side:g}" for side in plan.space),
        "r_leaves": plan.r_count,
        "q_leaves": len(plan.leaves) - plan.r_count,
        "height_of_q": plan.height,
        "brokers": brokers,
        "users": sum(loads),
        "heaviest_leaf": max(plan.leaves, key=lambda leaf: leaf.load).key,
        "its_users": max(loads),
    }


def _read_regions(path: Path) -> list[Rect]:
    from nearcast.locality import Rect
    from nearcast.model.errors import FileFormatError

    try:
        features = json_text.loads(path.read_text(encoding="utf-8"))["features"]
        rings = [feature["geometry"]["coordinates"][0] for feature in features]
        return [
            Rect(min(xs), min(ys), max(xs), max(ys))
            for xs, ys in (tuple(zip(*ring, strict=True)) for ring in rings)
        ]
    except (ValueError, KeyError, TypeError, IndexError) as problem:
        raise FileFormatError(
            f"something else ({problem})", where=str(path), expected="GeoJSON polygons"
        ) from None


@app.command()
def diff(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="[OLD] NEW",
            help="Plan files (JSON). Without OLD: the plan of the running cluster.",
            show_default=False,
        ),
    ],
    *,
    join: Join = None,
    network: Network = None,
    config: ConfigFile = None,
    no_config: NoConfig = False,
    reassign: Reassign = False,
    json: bool = JSON,
) -> None:
    """Show what a new plan would change: for leaves, and for each node and its users.

    With one file: what 'nearcast nodes --plan FILE' would change in the running cluster. The exit
    code is 1 if registrations would have to move.

    Example: nearcast plan diff plan-1.json plan-2.json

    Example: nearcast plan diff plan.json --join nats://127.0.0.1:4222
    """
    from dataclasses import asdict

    from nearcast.locality import load_plan, node_changes, plan_diff
    from nearcast.locality.schedule.plan_schedule import is_schedule

    if len(files) > 2 or (len(files) == 2 and (join or network or reassign)):
        expected = "two files, or one to compare with a running cluster"
        raise MisuseError(f"{len(files)} files", where="plan diff", expected=expected)
    with os_errors_translated():
        for path in files:
            if is_schedule(path):
                todo = "Compare the plan files that the schedule names"
                raise MisuseError("a schedule of plans", where=str(path), todo=todo)
        plans = [load_plan(path) for path in files]
    if len(plans) == 2:
        before, after = _comparable(*plans)
    else:
        section = network_section(found_config(config, no_config=no_config), join, network)
        before, after = _in_force_and_offered(section, plans[0], reassigns=reassign)
    difference, nodes = plan_diff(before, after), node_changes(before, after)
    if json:
        print_json(asdict(difference) | _by_node(nodes))
    else:
        for line in (*difference.lines(), *_node_lines(nodes)):
            typer.echo(line)
    if not difference.is_empty:
        raise typer.Exit(1)


def _in_force_and_offered(
    section: NetworkSection, plan: Plan, *, reassigns: bool
) -> tuple[Plan, Plan]:
    """Return the plan of a running cluster, and a plan as it would be shared."""
    import asyncio

    from nearcast.server.cluster.nats_sharing import look_at_plan

    offer = asyncio.run(look_at_plan(section, plan, reassigns=reassigns))
    if offer.last is None:
        raise KeyMissingError(
            "no plan",
            where=f"network {section.name}",
            expected="one to compare with",
            todo="Every leaf of the file would be new. Compare two files, or share it",
        )
    return offer.last.plan, offer.plan.plan


def _comparable(old: Plan, new: Plan) -> tuple[Plan, Plan]:
    """Return both plans; a new one without names as it would be shared with the old one's nodes."""
    from nearcast.locality import NamedPlan, plan_for_nodes

    if old.nodes is None or new.nodes is not None:
        return old, new
    last = NamedPlan(old, old.nodes)
    return old, plan_for_nodes(new, old.nodes, last=last).plan


def _by_node(nodes: Sequence[NodeChange]) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "nodes": [asdict(one) for one in nodes],
        "users": sum(one.users_after for one in nodes),
        "registrations_handed_over": sum(one.users_in for one in nodes),
    }


def _node_lines(nodes: Sequence[NodeChange]) -> list[str]:
    """Return a table: the leaves and users of each node afterwards, and what comes and goes."""
    if not nodes:
        return ["Which nodes that concerns is open: a plan assigns no brokers."]
    wide = max(len("node"), *(len(one.node) for one in nodes))
    lines = [f"{'node':<{wide}}  leaves  gained  lost   users  coming  going"]
    lines += [
        f"{one.node:<{wide}}  {one.leaves_after:>6}  {len(one.gained):>6}  {len(one.lost):>4}  "
        f"{one.users_after:>6}  {one.users_in:>6}  {one.users_out:>5}"
        for one in nodes
    ]
    told = _by_node(nodes)
    moving, users = told["registrations_handed_over"], told["users"]
    lines.append(f"About {moving:,} of {users:,} users change their node; so do registrations.")
    return lines
