"""`nearcast serve` and `nearcast passwd`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from nearcast.config import Configuration
    from nearcast.server import Server

_OPTIONS = {
    "NEARCAST_LISTENER__0__HOST": "--host",
    "NEARCAST_LISTENER__0__PORT": "--port",
    "NEARCAST_NODE__DATA": "--data",
    "NEARCAST_NODE__NAME": "--name",
    "NEARCAST_NETWORK__JOIN": "--join",
    "NEARCAST_NETWORK__NAME": "--network",
}


def serve(
    *,
    config: Annotated[
        Path | None, typer.Option(help="The configuration file; without it, none is read.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="The first listener's address.")] = None,
    port: Annotated[int | None, typer.Option(help="The first listener's port.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="The data directory, for sessions and messages that survive."),
    ] = None,
    join: Annotated[
        str | None, typer.Option(help="Work with other nodes over NATS: nats://host:port,…")
    ] = None,
    name: Annotated[str | None, typer.Option(help="This node's name among others.")] = None,
    network: Annotated[str | None, typer.Option(help="The network's name.")] = None,
) -> None:
    """Run a broker until it is told to stop.

    Without a configuration it serves MQTT on 127.0.0.1:1883, for this machine only, and keeps its
    state in ./nearcast-data. `nearcast init` writes a configuration to begin with. SIGTERM or
    Ctrl-C ends it in order; SIGHUP reads the configuration and the users again, and the log says
    which changes need a restart.

    Example: nearcast serve --config nearcast.toml --port 1884

    Example: nearcast serve --join nats://10.0.0.1:4222 --name berlin
    """
    from nearcast.server import serve as run
    from nearcast.server import set_up_logging

    options = dict(zip(_OPTIONS, (host, port, data, name, join, network), strict=True))

    def read() -> Configuration:
        return _configuration(config, options)

    configuration = read()
    set_up_logging(configuration.log.format, configuration.log.level)
    run(configuration, on_ready=_announce, reread=read)


def _configuration(path: Path | None, options: Mapping[str, object]) -> Configuration:
    """Return the configuration, options above environment above file."""
    from nearcast.cli.terminal import told_by_option
    from nearcast.config import load

    given = {name: str(value) for name, value in options.items() if value is not None}
    with told_by_option({name: _OPTIONS[name] for name in given}):
        return load(path, {**os.environ, **given})


def _announce(server: Server) -> None:
    for kind, host, port in server.ports:
        typer.echo(f"Listening on {kind} {host}:{port}")
    node = server.configuration.node
    durability = server.configuration.durability.mode
    typer.echo(f"Node {node.name}; state in {node.data.resolve()} (durability: {durability})")
    if server.network is not None:
        network = server.network
        state = f"not yet: {network.problem}" if network.problem else "joined"
        typer.echo(f"Network {server.configuration.network.name} ({state})")
    elif server.configuration.network.direct is not None:
        typer.echo("Alone: [network] direct is of no use without join.")
    typer.echo("Ready. Stop with Ctrl-C.")


def passwd(
    users: Annotated[Path, typer.Argument(help="The password file.")],
    name: Annotated[str, typer.Argument(help="The user.")],
    *,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the user.")] = False,
) -> None:
    """Add a user to a password file, change a password, or remove a user.

    The file is made if it is missing. The password is asked for on a terminal, else read from
    standard input. Let the configuration name the file: [auth] users = "users.txt".

    Example: nearcast passwd users.txt alice

    Example: nearcast passwd users.txt alice --delete
    """
    import sys
    from getpass import getpass

    from nearcast.model.errors import MisuseError
    from nearcast.server import set_password

    if delete:
        set_password(users, name, None)
        typer.echo(f"{name} is no longer in {users}")
        return
    if sys.stdin.isatty():
        password = getpass("Password: ")
        if password != getpass("Again: "):
            raise MisuseError("two different passwords", todo="Try again")
    else:
        password = sys.stdin.readline().rstrip("\n")
    if not password:
        raise MisuseError("an empty password", expected="one character or more")
    set_password(users, name, password.encode())
    typer.echo(f"{name} is in {users}. A running broker reads it again on SIGHUP")
