"""`nearcast init` and `nearcast config check`."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.serve import DEFAULT
from nearcast.cli.terminal import JSON, as_fields, print_json

if TYPE_CHECKING:
    from nearcast.config import Configuration
    from nearcast.server.hardening import OpenPoint

app = typer.Typer(help="Check the configuration.", no_args_is_help=True)

ConfigFile = Annotated[Path, typer.Argument(help="The configuration file.", show_default=True)]


def init(
    path: ConfigFile = DEFAULT,
    *,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    json: bool = JSON,
) -> None:
    """Write a commented example configuration.

    Example: nearcast init fleet.toml
    """
    from nearcast.config import example
    from nearcast.model.errors import EnvironmentProblem, MisuseError

    if path.exists() and not force:
        todo = "Choose another name, or overwrite it with --force"
        raise MisuseError("the file already exists", where=str(path), todo=todo)
    try:
        path.write_text(example(), encoding="utf-8")
    except OSError as error:
        raise EnvironmentProblem(f"cannot write ({error.strerror})", where=str(path)) from None
    if json:
        print_json({"file": str(path)})
        return
    serve = "nearcast serve" if path == DEFAULT else f"nearcast serve --config {path}"
    typer.echo(f"Wrote {path}. Edit it, then: nearcast config check {path}; {serve}")


@app.command()
def check(
    path: ConfigFile = DEFAULT,
    *,
    strict: Annotated[
        bool, typer.Option("--strict", help="Also name what is open to others.")
    ] = False,
    json: bool = JSON,
) -> None:
    """Check a configuration file; report every problem with its key and line.

    Also checks the files that it names (users, certificates, keys), relative to this directory, and
    environment variables (NEARCAST_SECTION__KEY). With --strict also names what is not wrong, but
    open: listeners without encryption, everybody without a name, files that others may read.

    Example: nearcast config check fleet.toml

    Example: nearcast config check fleet.toml --strict
    """
    from nearcast.config import read_file

    reading = read_file(path, os.environ)
    problems = list(reading.problems)
    if reading.configuration is not None:
        from nearcast.server.file_checks import file_problems

        problems = file_problems(reading.configuration)
    points = _open_points(reading.configuration) if strict else []
    if json:
        told = [as_fields(problem) for problem in problems]
        fields = {"file": str(path), "ok": not told, "problems": told}
        if strict:
            fields["open"] = [asdict(point) for point in points]
        print_json(fields)
    elif reading.configuration is not None and not problems:
        spaces, listeners = reading.configuration.space, reading.configuration.listener
        addresses = ", ".join(f"{one.kind} {one.host}:{one.port}" for one in listeners)
        typer.echo(f"{path} is valid: listens on {addresses}; {len(spaces)} space(s).")
    else:
        for problem in problems:
            typer.echo(str(problem))
        typer.echo(f"{len(problems)} problem(s) in {path}.")
    if not json:
        for point in points:
            typer.echo(f"open: {point}.")
    if problems or points:
        raise typer.Exit(1)


def _open_points(configuration: Configuration | None) -> list[OpenPoint]:
    if configuration is None:
        return []
    from nearcast.server.hardening import open_points

    return open_points(configuration)
