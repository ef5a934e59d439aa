"""The options for the broker that a command connects to, for credentials, and for where it is."""

from __future__ import annotations

import csv
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from nearcast.cli.terminal import os_errors_translated
from nearcast.model.errors import FileFormatError, MisuseError
from nearcast.model.quantities import parse_duration
from nearcast.model.sphere import checked_place

if TYPE_CHECKING:
    from nearcast.mqtt import Publish

Host = Annotated[str, typer.Option("--host", "-H", help="The broker's address.")]
Port = Annotated[int, typer.Option("--port", "-p", help="The broker's port.")]
ClientId = Annotated[str, typer.Option("--id", "-i", help="The client identifier.")]
User = Annotated[str | None, typer.Option("--user", "-u", help="The user's name.")]
Password = Annotated[
    str | None,
    typer.Option("--password", "-P", help="The password; others see it in the list of processes."),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        help="A file with the password (or a token). Without it: NEARCAST_PASSWORD, or asked for.",
    ),
]
Version = Annotated[str, typer.Option("--version", "-V", help="MQTT version: 5 or 3.1.1.")]
CaFile = Annotated[Path | None, typer.Option("--cafile", help="Use TLS; trust this authority.")]
Certificate = Annotated[
    Path | None, typer.Option("--cert", help="Use TLS; present this certificate to the broker.")
]
Key = Annotated[
    Path | None, typer.Option("--key", help="The certificate's key, if it is in another file.")
]
SessionTime = Annotated[
    str,
    typer.Option(
        "--session",
        metavar="TIME",
        help="Resume the session, and keep it at the broker for this long (1h); needs --id.",
    ),
]
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


def connects(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces a command's parameter `target` by the options above.

    The command gets the BrokerAddress of the options; those in `left_out` have their defaults.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        known = inspect.signature(broker_address, eval_str=True).parameters.values()
        options = [option for option in known if option.name not in left_out]
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            parameters += options if parameter.name == "target" else [parameter]

        def run(**given: Any) -> None:
            chosen = {option.name: given.pop(option.name) for option in options}
            command(target=broker_address(**chosen), **given)

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def broker_address(
    *,
    host: Host = "127.0.0.1",
    port: Port = 1883,
    client_id: ClientId = "",
    user: User = None,
    password: Password = None,
    password_file: PasswordFile = None,
    version: Version = "5",
    ca_file: CaFile = None,
    certificate: Certificate = None,
    key: Key = None,
    session: SessionTime = "",
) -> Any:
    """Return the BrokerAddress of the options, or raise MisuseError."""
    from nearcast.client.blocking import BrokerAddress
    from nearcast.model.errors import MisuseError
    from nearcast.mqtt import ProtocolVersion

    versions = {"5": ProtocolVersion.V5, "3.1.1": ProtocolVersion.V311}
    if version not in versions:
        raise MisuseError(repr(version), where="--version", expected="5 or 3.1.1")
    if key is not None and certificate is None:
        raise MisuseError("--key without --cert", expected="both")
    return BrokerAddress(
        host=host,
        port=port,
        version=versions[version],
        client_id=client_id,
        user_name=user,
        password=find_password(user, password, password_file),
        clean_start=not session,
        session_expiry_s=_session_seconds(session, client_id),
        ca_file=ca_file,
        certificate=certificate,
        key=key,
    )


def _session_seconds(session: str, client_id: str) -> int:
    from nearcast.model import parse_duration
    from nearcast.model.errors import MisuseError

    if not session:
        return 0
    if not client_id:
        raise MisuseError(
            "--session without --id",
            expected="both",
            todo="A session is found by its client identifier.",
        )
    try:
        return max(1, round(parse_duration(session)))
    except MisuseError as problem:
        problem.where = "--session"
        raise


# --- where a password comes from ---------------------------------------------------------------

VARIABLE = "NEARCAST_PASSWORD"


def find_password(user: str | None, given: str | None, file: Path | None) -> bytes | None:
    """Return the password to log in with; None if none is needed.

    For a user, it is the option, else the file, else the variable NEARCAST_PASSWORD, else what
    somebody types on a terminal. A file needs no user: it may be a token.
    """
    if given is not None:
        if file is not None:
            raise MisuseError("--password and --password-file", expected="one of them")
        return given.encode()
    if file is not None:
        return read_password(file)
    if user is None:
        return None
    found = os.environ.get(VARIABLE)
    if found is not None:
        return found.encode()
    return _asked(user).encode() if sys.stdin.isatty() else None


def read_password(file: Path) -> bytes:
    """Return the first line of a file, without its end."""
    with os_errors_translated():
        lines = file.read_bytes().splitlines()
    if not lines or not lines[0]:
        raise MisuseError("an empty first line", where=str(file), expected="the password")
    return lines[0]


def _asked(user: str) -> str:
    from getpass import getpass

    return getpass(f"Password of {user}: ")


# --- where a client is, and where it goes --------------------------------------------------------

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
