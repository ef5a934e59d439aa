"""`nearcast ban add`, `list` and `remove`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nearcast.cli.terminal import JSON, print_json

if TYPE_CHECKING:
    from nearcast.server.auth.bans import Ban

app = typer.Typer(
    help="Ban addresses, users and clients from a broker, for a time or for ever.",
    no_args_is_help=True,
)

Kind = Annotated[
    Literal["address", "user", "client"],
    typer.Argument(help="address (or network), user, or client (identifier)."),
]
Name = Annotated[str, typer.Argument(help="The address, user or client identifier.")]
DataDirectory = Annotated[
    Path, typer.Option("--data", help="The broker's data directory.", show_default=True)
]
DEFAULT = Path("nearcast-data")


@app.command()
def add(
    kind: Kind,
    name: Name,
    *,
    lasts: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long (1h); else for ever.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; for the list.")] = "",
    data: DataDirectory = DEFAULT,
    json: bool = JSON,
) -> None:
    """Ban an address, a network, a user or a client identifier.

    A running broker applies it within a second: clients that are connected are disconnected. A ban
    of what is banned already replaces the earlier one.

    Example: nearcast ban add address 203.0.113.0/24 --for 12h --reason scans

    Example: nearcast ban add user eve
    """
    from nearcast.model import parse_duration
    from nearcast.server.auth.bans import FILE_NAME, checked_ban, read_bans, write_bans

    until = None if lasts is None else time.time() + parse_duration(lasts)
    ban = checked_ban(kind, name, until, reason)
    path = data / FILE_NAME
    write_bans(path, [*_others(read_bans(path), ban), ban])
    if json:
        print_json(_fields(ban))
    else:
        typer.echo(f"Banned: {ban.text()}. A running broker applies it within a second.")


@app.command("list")
def show(*, data: DataDirectory = DEFAULT, json: bool = JSON) -> None:
    """List the bans in force.

    Example: nearcast ban list
    """
    from nearcast.server.auth.bans import FILE_NAME, read_bans

    bans = [one for one in read_bans(data / FILE_NAME) if not one.is_over(time.time())]
    if json:
        print_json([_fields(one) for one in bans])
        return
    for one in bans:
        typer.echo(one.text())
    if not bans:
        typer.echo("Nobody is banned.")


@app.command()
def remove(kind: Kind, name: Name, *, data: DataDirectory = DEFAULT, json: bool = JSON) -> None:
    """Remove a ban.

    Example: nearcast ban remove user eve
    """
    from nearcast.model.errors import KeyMissingError
    from nearcast.server.auth.bans import FILE_NAME, checked_ban, read_bans, write_bans

    path, wanted = data / FILE_NAME, checked_ban(kind, name)
    bans = read_bans(path)
    rest = _others(bans, wanted)
    if len(rest) == len(bans):
        raise KeyMissingError(
            f"{kind} {wanted.name} is not banned", where=str(path), todo="See nearcast ban list"
        )
    write_bans(path, rest)
    if json:
        print_json({"kind": kind, "name": wanted.name, "is_banned": False})
    else:
        typer.echo(f"{kind} {wanted.name} is not banned any more.")


def _others(bans: list[Ban], ban: Ban) -> list[Ban]:
    """Return the bans in force that are about others."""
    now_s = time.time()
    return [
        one
        for one in bans
        if (one.kind, one.name) != (ban.kind, ban.name) and not one.is_over(now_s)
    ]


def _fields(ban: Ban) -> dict[str, object]:
    return {"kind": ban.kind, "name": ban.name, "until": ban.until, "reason": ban.reason}
