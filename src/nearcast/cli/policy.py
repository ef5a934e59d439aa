"""`nearcast policy show`: where a retained policy waits and where it sends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearcast.cli.terminal import JSON, os_errors_translated, print_json

if TYPE_CHECKING:
    from nearcast.retained import Policies

app = typer.Typer(help="Show policies for retained messages.", no_args_is_help=True)

_MOST_PANELS = 6


@app.command()
def show(
    path: Annotated[
        Path | None,
        typer.Argument(help="A policy file; without one, the policy that comes with Nearcast."),
    ] = None,
    *,
    topic: Annotated[
        list[str] | None, typer.Option(help="Draw this topic's table; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Draw to .svg or .png.")] = None,
    json: bool = JSON,
) -> None:
    """Show the contents of a policy file, and draw its decision regions.

    Example: nearcast policy show policies.json --topic plant/7/heat --out policy.svg
    """
    from nearcast.retained import Policies, read_policies, shipped_policy

    with os_errors_translated():
        policies = Policies(general=shipped_policy()) if path is None else read_policies(path)
        _check_topics(
            policies,
            topic or [],
            "the policy that comes with Nearcast" if path is None else str(path),
        )
        if out is not None:
            _draw(policies, topic or [], out)
    facts = _facts(policies)
    if json:
        print_json(facts | {"picture": None if out is None else str(out)})
        return
    general = facts["general"]
    typer.echo("one policy for all topics: " + ("none" if general is None else general))
    for name, row in facts["topics"].items():
        typer.echo(
            f"{name}: waits in {row['waits']} of {row['states']} states, λP {row['publish']:g}"
        )
    if out is not None:
        typer.echo(f"Wrote {out}.")


def _facts(policies: Policies) -> dict[str, Any]:
    general = policies.general
    trained = None
    if general is not None:
        low, high = general.trained.publish
        trained = f"for {low:g} to {high:g} publishes a step"
    return {
        "general": trained,
        "topics": {
            name: {
                "waits": int(one.actions.sum()),
                "states": int(one.actions.size),
                "publish": one.rates.publish,
                "omega": one.weights.omega,
            }
            for name, one in policies.topics.items()
        },
    }


def _check_topics(policies: Policies, topics: list[str], where: str) -> None:
    from nearcast.model.errors import MisuseError

    for topic in topics:
        if topic not in policies.topics:
            known = ", ".join(list(policies.topics)[:5]) or "no topic of its own"
            raise MisuseError(topic, where=where, expected=f"a topic of the file: {known}")


def _draw(policies: Policies, topics: list[str], out: Path) -> None:
    """Draw the requested topics; else the general policy, else the first few topics."""
    from nearcast.model.errors import MisuseError
    from nearcast.retained.picture import draw_general, draw_tables

    if out.suffix not in {".svg", ".png"}:
        raise MisuseError(out.name, where="--out", expected="a name ending .svg or .png")
    if policies.general is not None and not topics:
        draw_general(policies.general, out)
        return
    names = topics or list(policies.topics)[:_MOST_PANELS]
    if not names:
        raise MisuseError("no policy at all", where="--out", expected="a file with some policy")
    draw_tables({name: policies.topics[name].actions for name in names}, out)
