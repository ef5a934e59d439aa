"""`nearcast demo`: a small city on four nodes, before and after it has learned."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.terminal import JSON, console, print_json

if TYPE_CHECKING:
    from nearcast.demo.story import Story


def demo(
    *,
    people: Annotated[int, typer.Option(min=8, max=2_000, help="How many live there.")] = 240,
    seconds: Annotated[float, typer.Option(min=2, help="How long it lives, twice.")] = 25.0,
    out: Annotated[Path, typer.Option(help="Where everything is written.")] = Path("demo"),
    json: bool = JSON,
) -> None:
    """Let a city live on a network of nodes, learn from its log, and live on.

    Starts four nodes on this machine (one without nats-server), real clients that move, Spark. Ends
    by itself, and leaves nothing running.

    Example: nearcast demo --people 240
    """
    import shutil

    from nearcast.demo.page import write_page
    from nearcast.demo.story import tell
    from nearcast.pipeline.session import check_spark

    check_spark()  # it is needed at the end only, a minute from now
    if (out / "nearcast.toml").exists():
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    say = (lambda _: None) if json else (lambda text: console().print(text))
    story = asyncio.run(tell(out, people, seconds, say))
    story.page = str(write_page(story, out))
    if json:
        print_json(story.to_dict())
    else:
        _show(story)


def _show(story: Story) -> None:
    from rich.table import Table

    from nearcast.demo.page import faults, rows

    table = Table(title="Before and after", title_justify="left")
    for heading in ("", "before", "after", "change, per event"):
        table.add_column(heading, justify="left" if not heading else "right")
    for label, before, after, change in rows(story):
        table.add_row(label, f"{before:,}", f"{after:,}", change)
    console().print(table)
    found = faults(story)
    console().print(f"Audit: {found or 'no'} message lost, doubled or late.")
    console().print(f"The map of the plan: {story.page}")
    console().print("\nNext: nearcast serve, and the README's tour")
