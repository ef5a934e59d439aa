"""Output of commands: tables and lines for people, JSON for machines, exit codes for scripts.

| code | meaning |
|------|---------|
| 0    | done |
| 1    | done, and the answer is no (problems found, a target missed) |
| 2    | the caller's mistake: arguments, expression, configuration |
| 3    | the other end of a connection did something wrong |
| 4    | a file is damaged or of another version |
| 5    | the machine lacks something: Java, a free port, disk space |
| 6    | a bug of Nearcast |
| 130  | interrupted |
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from nearcast.model.errors import (
    ConfigurationError,
    EnvironmentProblem,
    FileFormatError,
    NearcastError,
    PeerProtocolError,
)

if TYPE_CHECKING:
    from rich.console import Console

JSON = typer.Option(False, "--json", help="Print JSON for machines instead of text.")

_CODES: tuple[tuple[type[NearcastError], int], ...] = (
    (PeerProtocolError, 3),
    (FileFormatError, 4),
    (EnvironmentProblem, 5),
)


def exit_code(error: NearcastError) -> int:
    """Return the process's exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), 2)


def as_fields(error: NearcastError) -> dict[str, object]:
    """Return an error as fields for JSON: kind, message, and its parts by name.

    Typer attaches its own objects to an exception that passes through it; their names begin with _.
    """
    parts = {key: value for key, value in vars(error).items() if not key.startswith("_")}
    return {
        "error": type(error).__name__,
        "message": str(error),
        **{key: value for key, value in parts.items() if value not in ("", None)},
    }


def report_error(error: NearcastError, *, as_json: bool) -> None:
    """Print an error to standard error."""
    if as_json:
        report_fields(as_fields(error))
    else:
        typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
        typer.echo(str(error), err=True)


def report_fields(fields: Mapping[str, object]) -> None:
    """Print one line of JSON to standard error."""
    typer.echo(json.dumps(fields, ensure_ascii=False, default=str), err=True)


@contextmanager
def os_errors_translated() -> Iterator[None]:
    """Convert an OSError, as of a missing or forbidden file, into an EnvironmentProblem."""
    try:
        yield
    except OSError as problem:
        reason, name = problem.strerror or str(problem), str(problem.filename or "")
        raise EnvironmentProblem(reason, where=name) from None


@contextmanager
def errors_by_option(options: Mapping[str, str]) -> Iterator[None]:
    """Name the option in errors, not its variable: {"NEARCAST_NODE__NAME": "--name"}."""
    try:
        yield
    except ConfigurationError as problem:
        for variable, option in options.items():
            prefix = f"environment {variable}: "
            if problem.where.startswith(prefix):
                problem.where = option
        raise


def print_json(value: object) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def console() -> Console:
    """Return the console for tables and colours."""
    from rich.console import Console

    return Console(highlight=False)
