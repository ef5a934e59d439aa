"""`--position` and `--track`: where a client is, and where it goes."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from nearcast.cli.terminal import os_errors_translated
from nearcast.model.errors import FileFormatError, MisuseError
from nearcast.model.quantities import parse_duration
from nearcast.model.sphere import checked_place

if TYPE_CHECKING:
    from nearcast.mqtt import Publish

Positions = Annotated[
    list[str] | None,
    typer.Option(
        "--position",
        metavar="LON,LAT",
        help="The position of this client. May be repeated with times: 2.35,48.85 2.36,48.86@10s",
    ),
]
TrackFile = Annotated[
    Path | None,
    typer.Option(
        "--track", help="Its positions over time: a CSV file with the columns t, lon, lat."
    ),
]

_FORM = "LON,LAT or LON,LAT@TIME, such as 2.35,48.85@10s"


class Fix(NamedTuple):
    """A position, and the seconds after the start at which the client is there."""

    after_s: float
    lon: float
    lat: float


def read_track(texts: Iterable[str] | None, path: Path | None) -> list[Fix]:
    """Return the fixes of `--position` or of `--track`, by time."""
    given = list(texts or [])
    if given and path is not None:
        raise MisuseError("--position and --track", expected="one of them")
    fixes = _read_file(path) if path is not None else [parse_fix(text) for text in given]
    return sorted(fixes)


def parse_fix(text: str) -> Fix:
    """Return the fix of a `--position`.

    >>> parse_fix("2.35,48.85@10s")
    Fix(after_s=10.0, lon=2.35, lat=48.85)
    """
    place, at, time = text.partition("@")
    lon, comma, lat = (part.strip() for part in place.partition(","))
    if not comma or not lon or not lat or (at and not time):
        raise MisuseError(repr(text), where="--position", expected=_FORM)
    try:
        return Fix(parse_duration(time) if at else 0.0, *checked_place(lon, lat, "--position"))
    except MisuseError as problem:
        problem.where = problem.where or "--position"
        raise


def _read_file(path: Path) -> list[Fix]:
    """Read t (seconds, or instants in ISO 8601), lon and lat; the first time is the start."""
    with os_errors_translated(), path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        missing = [name for name in ("t", "lon", "lat") if name not in (rows.fieldnames or ())]
        if missing:
            columns = ", ".join(rows.fieldnames or ()) or "none"
            raise FileFormatError(
                f"the columns {columns}", where=str(path), expected="the columns t, lon, lat"
            )
        found = [_row(row, f"{path}:{number}") for number, row in enumerate(rows, 2)]
    if not found:
        raise FileFormatError("no row", where=str(path), expected="one position or more")
    start_s = min(fix.after_s for fix in found)
    return [fix._replace(after_s=fix.after_s - start_s) for fix in found]


def _row(row: dict[str, str], where: str) -> Fix:
    return Fix(_seconds(row["t"], where), *checked_place(row["lon"], row["lat"], where))


def _seconds(text: str, where: str) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        pass
    try:
        instant = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise MisuseError(
            repr(text), where=f"{where}: t", expected="seconds, or an instant in ISO 8601"
        ) from None
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()


def position_messages(track: Iterable[Fix]) -> list[tuple[float, Publish]]:
    """Return the publications to `$position`, each with the seconds after the start."""
    from nearcast.client import POSITION_TOPIC, position
    from nearcast.mqtt import Publish

    return [(fix.after_s, Publish(POSITION_TOPIC, position(fix.lon, fix.lat), 1)) for fix in track]
