"""`nearcast journal check` and `nearcast journal repair`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.terminal import JSON, os_errors_translated, print_json

if TYPE_CHECKING:
    from nearcast.server.storage.journal_report import JournalReport

app = typer.Typer(help="Check and repair the journal of a broker.", no_args_is_help=True)

DEFAULT = Path("nearcast-data")
_MOST_LINES = 20  # per kind; --json has all

JournalPath = Annotated[
    Path, typer.Argument(help="A data directory, or a journal file.", show_default=True)
]


@app.command()
def check(path: JournalPath = DEFAULT, *, json: bool = JSON) -> None:
    """List what a journal has and what is lost, by name. Changes nothing.

    The exit code is 1 if something is damaged or cannot be applied. While the broker runs, its last
    batch may look cut short: it is being written.

    Example: nearcast journal check /var/lib/nearcast
    """
    from nearcast.server.storage.journal_report import find_journal, inspect

    with os_errors_translated():
        report = inspect(find_journal(path))
    if json:
        print_json(report.as_fields())
    else:
        _print(report)
    if not report.is_whole:
        raise typer.Exit(1)


@app.command()
def repair(path: JournalPath = DEFAULT, *, json: bool = JSON) -> None:
    """Write a journal without the damaged parts, and list what is lost, by name.

    The damaged file is kept beside it, and so are records that could not be applied. A broker
    does the same when it starts. Stop the broker first.

    Example: nearcast journal repair /var/lib/nearcast
    """
    from nearcast.model.errors import MisuseError
    from nearcast.server.storage.journal_file import newest_journal
    from nearcast.server.storage.journal_report import find_journal, inspect
    from nearcast.server.storage.journal_report import repair as write_anew

    with os_errors_translated():
        found = find_journal(path)
        if found != newest_journal(found.parent):
            raise MisuseError(
                found.name, where=str(path), expected="the newest journal of its directory"
            )
        report = inspect(found)
        if not json:
            _print(report)
        if report.is_whole and not report.tail:
            if json:
                print_json({"journal": str(found), "damaged": None, "aside": None})
            return
        fresh, damaged, aside = write_anew(found.parent)
    if json:
        kept = {"damaged": damaged, "aside": aside}
        names = {name: None if one is None else str(one) for name, one in kept.items()}
        print_json({"journal": str(fresh), **names})
        return
    typer.echo(f"Wrote {fresh} with everything that could be read.")
    if damaged is not None:
        typer.echo(f"Kept the damaged file as {damaged}.")
    if aside is not None:
        typer.echo(f"Wrote the records that could not be applied to {aside}.")


def _print(report: JournalReport) -> None:
    typer.echo(
        f"{report.path}: format {report.format}, {report.size:,} bytes, {report.batches:,} batches"
    )
    typer.echo(
        f"found: {len(report.sessions):,} sessions, {len(report.retained):,} retained messages, "
        f"{report.notes:,} notes"
    )
    _print_some(
        [
            f"  {one.client!r}: {one.subscriptions} subscriptions, {one.queued} queued, "
            f"{one.in_flight} in flight{', a will' if one.has_will else ''}"
            for one in report.sessions
        ]
    )
    _print_some([f"  retained {topic!r}" for topic in report.retained])
    if report.tail:
        typer.echo(report.tail)
    for text, names in report.damages:
        typer.echo(f"damaged: {text}")
        _print_some([f"  lost: {name}" for name in names])
    _print_some([f"cannot be applied: {about}: {reason}" for about, reason in report.aside])
    typer.echo("Nothing is lost." if report.is_whole else "Something is lost: see above.")


def _print_some(lines: list[str]) -> None:
    for line in lines[:_MOST_LINES]:
        typer.echo(line)
    if len(lines) > _MOST_LINES:
        typer.echo(f"  … and {len(lines) - _MOST_LINES:,} more (--json has all)")
