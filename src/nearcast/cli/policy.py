"""`nearcast policy`: where a retained policy waits, and what a broker would do now."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearcast.cli.connecting import connects
from nearcast.cli.explain import ask_broker
from nearcast.cli.terminal import JSON, os_errors_translated, print_json

if TYPE_CHECKING:
    from nearcast.retained import Policies

app = typer.Typer(help="Policies for retained messages.", no_args_is_help=True)

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


@app.command()
@connects("version", "session")
def explain(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    *,
    target: Any,
    json: bool = JSON,
) -> None:
    """Show what a running broker would do with a new subscriber of a topic now, and why.

    The retained message is sent at once, or deferred until the next publish. Nothing changes.

    Example: nearcast policy explain plant/7/heat
    """
    found = ask_broker(target, {"newcomer": topic})
    if json:
        print_json(found)
    else:
        _print_outlook(found)


_DECISIONS = {
    "nothing": "a new subscriber gets nothing",
    "send": "a new subscriber gets the retained message at once",
    "wait": "a new subscriber waits for the next publish",
}


def _print_outlook(found: dict[str, Any]) -> None:
    for name, detail in _outlook_lines(found):
        typer.echo(f"  {name:<10}  {detail}")
    typer.secho(f"{found['topic']}: {_DECISIONS[found['decision']]}: {found['because']}", bold=True)


def _outlook_lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    lines = []
    setting, rates, model = found.get("setting"), found.get("rates"), found.get("model")
    experience = found.get("experience")
    if setting:
        where = f"[[retained]] topics = {setting['topics']}" if setting["topics"] else "none"
        detail = f"{where}: {setting['mode']}, at most {setting['hold_s']:g} s"
        lines.append(("setting", f"{detail}, ω {setting['omega']:g}, Cp {setting['cost']:g}"))
        age = "of unknown age" if found["age_s"] is None else f"{found['age_s']:.3g} s old"
        lines.append(("message", f"{age}; {found['created']}"))
    if rates:
        often = f"{rates['publish_per_s']:.3g} publishes a second"
        known = f"{rates['publishes_seen']:.0f} in memory, spread {rates['spread']:.2g}"
        lines.append(("topic", f"{often} ({known})"))
    if model:
        lines.append(("model", f"{model['policy']}: {model['decision']}"))
    if experience:
        text = f"{experience['group']}: {experience['count']:.0f} new subscribers"
        if experience["count"]:
            gains = experience["gain_of_model"], experience["gain_of_experience"]
            text += "; model {:+.1%}, experience {:+.1%} of a message's cost each".format(*gains)
        lines.append(("experience", text))
    return lines
