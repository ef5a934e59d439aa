"""`nearcast demo`: what it does, then a city on four nodes before and after it has learned."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.terminal import JSON, console, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from nearcast.demo.city import City, News
    from nearcast.demo.story import Say, Show, Story


def demo(
    *,
    people: Annotated[int, typer.Option(min=8, max=2_000, help="How many live there.")] = 160,
    seconds: Annotated[float, typer.Option(min=2, help="How long it lives, each time.")] = 12.0,
    out: Annotated[Path, typer.Option(help="Where everything is written.")] = Path("demo"),
    wait_for: Annotated[Path | None, typer.Option(hidden=True)] = None,
    json: bool = JSON,
) -> None:
    """Show what Nearcast does: near, nearest, a city on four nodes, and what it learns.

    Starts four nodes on this machine (one without nats-server), real clients that move, and Spark;
    without PySpark or Java learning is left out. Ends by itself, and leaves nothing running.

    Example: nearcast demo --people 160
    """
    import shutil

    from nearcast.demo.needs import Needs
    from nearcast.demo.page import write_page
    from nearcast.demo.story import tell

    needs, screen = Needs(wait_for), console()
    missing = "" if needs.is_arriving() else needs.missing()
    if missing and not json:
        _printer(screen)(f"Learning will be left out: {missing}")
    if (out / "nearcast.toml").exists():
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    with _shown(screen, is_silent=json) as (say, show):
        say("Four nodes start ...")
        story = asyncio.run(tell(out, people, seconds, needs, say, show))
    if story.learned is not None:
        story.page = str(write_page(story, out))
    if json:
        print_json(story.to_dict())
    else:
        _show(story, screen)


@contextlib.contextmanager
def _shown(screen: Console, *, is_silent: bool) -> Iterator[tuple[Say, Show]]:
    """Yield how to say something, and how to show the map: it moves below what is said."""
    from rich.live import Live
    from rich.text import Text

    from nearcast.demo.city import draw_map

    if is_silent:
        yield _nothing, _nothing
    elif not screen.is_terminal:
        yield _printer(screen), _nothing
    else:
        with Live(console=screen, transient=True, refresh_per_second=4) as live:

            def show(city: City, news: Sequence[News]) -> None:
                live.update(Text(draw_map(city, news) + "\n  · walks  o drives  * happens now"))

            yield _printer(live.console), show


def _printer(screen: Console) -> Say:
    return lambda text: screen.print(text, markup=False, soft_wrap=True)


def _nothing(*_: object) -> None:
    """Say and show nothing."""


def _show(story: Story, screen: Console) -> None:
    from rich.table import Table

    from nearcast.demo.page import faults, tables, verdicts

    say: Callable[[str], None] = _printer(screen)
    for one in tables(story):
        table = Table(title=one.title, title_justify="left")
        for heading in one.headings:
            table.add_column(heading, justify="right" if heading else "left")
        for row in one.rows:
            table.add_row(*row)
        say("")
        screen.print(table)
    for line in verdicts(story):
        say(line)
    if story.audit is not None:
        say(f"Audit: {faults(story) or 'no'} message lost, doubled or late.")
        say(f"The map of the plan: {story.page}")
    for line in story.missing:
        say(f"Left out: {line}")
    say("\nNext: nearcast serve, and the README's three commands")
