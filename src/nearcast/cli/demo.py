"""`nearcast demo`: what the product does, then a city on four nodes before and after learning."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearcast.cli.terminal import JSON, console, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from nearcast.demo.city import DemoCity, News
    from nearcast.demo.story import DemoStory, Say, Show


def demo(
    *,
    people: Annotated[int, typer.Option(min=8, max=2_000, help="How many clients move.")] = 160,
    seconds: Annotated[float, typer.Option(min=2, help="How long they move, each time.")] = 8.0,
    seed: Annotated[int, typer.Option(help="Another number is another town.")] = 1,
    out: Annotated[Path, typer.Option(help="Where everything is written.")] = Path("demo"),
    wait_for: Annotated[Path | None, typer.Option(hidden=True)] = None,
    json: bool = JSON,
) -> None:
    """Show what Nearcast does: near, nearest, a city on four nodes, and what it learns.

    Starts four nodes on this machine (one without nats-server), MQTT clients that move, and Spark.
    It prints the address of its page, and opens it where there is a browser. Without PySpark or
    Java it leaves learning out. At a terminal the city lives on until Ctrl-C; elsewhere it ends by
    itself. It leaves nothing running.

    Example: nearcast demo --people 160
    """
    import shutil

    from nearcast.demo.needs import Needs
    from nearcast.demo.page import write_page
    from nearcast.demo.story import tell

    screen = console()
    if (out / "nearcast.toml").exists():
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    lives_on = screen.is_terminal and not json

    def end(story: DemoStory) -> None:
        if story.learned is not None:
            story.page = str(write_page(story, out))
        if json:
            print_json(story.to_dict())
        else:
            _show(story, screen)
        if lives_on:
            screen.print("The city lives on. Stop with Ctrl-C.")

    with _shown(screen, is_silent=json) as (say, show):
        work = tell(
            out, people, seconds, seed, Needs(wait_for), say, show, end if lives_on else None
        )
        story = _until_ctrl_c(work) if lives_on else asyncio.run(work)
    if story is not None:
        end(story)


def _until_ctrl_c(work: Coroutine[Any, Any, DemoStory]) -> DemoStory | None:
    """Run the demonstration; Ctrl-C is its usual end."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        return None


@contextlib.contextmanager
def _shown(screen: Console, *, is_silent: bool) -> Iterator[tuple[Say, Show]]:
    """Yield two functions: one prints a line, one shows the map below the lines."""
    from rich.live import Live
    from rich.text import Text

    from nearcast.demo.city import draw_map

    if is_silent:
        yield _nothing, _nothing
    elif not screen.is_terminal:
        yield _printer(screen), _nothing
    else:
        with Live(console=screen, transient=True, refresh_per_second=4) as live:

            def show(city: DemoCity, news: Sequence[News]) -> None:
                live.update(Text(draw_map(city, news) + "\n  · walker  o car  * event"))

            yield _printer(live.console), show


def _printer(screen: Console) -> Say:
    return lambda text: screen.print(text, markup=False, soft_wrap=True)


def _nothing(*_: object) -> None:
    """Print and show nothing."""


def _show(story: DemoStory, screen: Console) -> None:
    from rich.table import Table

    from nearcast.demo.page import RUNS_DIFFER, audit_verdict, tables, verdicts

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
        screen.print(RUNS_DIFFER)
        say(audit_verdict(story))
        say(f"\nFigures, and a map of the plan: {story.page}")
    for line in story.missing:
        say(f"Left out: {line}")
    say("Next: start a broker (nearcast serve) and try the three commands of the README.")
