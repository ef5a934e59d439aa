"""`nearcast plan show` and `plan diff`: the layout of a network, and what changes in it."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearcast.cli.terminal import JSON, os_errors_translated, print_json

if TYPE_CHECKING:
    from nearcast.locality import Plan, Rect

app = typer.Typer(help="Show and compare plans of a cluster.", no_args_is_help=True)

PlanFile = Annotated[Path, typer.Argument(help="A plan file (JSON).", show_default=False)]


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

    Example: nearcast plan show plan.json --regions regions.geojson --out plan.svg
    """
    from nearcast.locality import draw_plan, load_plan, plan_geojson

    with os_errors_translated():
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
def diff(old: PlanFile, new: PlanFile, *, json: bool = JSON) -> None:
    """Compare two plans: leaves that are added, removed, reshaped or moved to another broker.

    The exit code is 1 if registrations would have to move.

    Example: nearcast plan diff plan-1.json plan-2.json
    """
    from dataclasses import asdict

    from nearcast.locality import load_plan, plan_diff

    with os_errors_translated():
        difference = plan_diff(load_plan(old), load_plan(new))
    if json:
        print_json(asdict(difference))
    else:
        for line in difference.lines():
            typer.echo(line)
    if not difference.is_empty:
        raise typer.Exit(1)
