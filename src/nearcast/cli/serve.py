"""`nearcast serve` and `nearcast passwd`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.terminal import JSON, errors_by_option, print_json

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


DEFAULT = Path("nearcast.toml")
ConfigFile = Annotated[
    Path | None,
    typer.Option(help="The configuration file. Default: ./nearcast.toml, if it exists."),
]
NoConfig = Annotated[bool, typer.Option("--no-config", help="Read no configuration file.")]


def found_config(path: Path | None, *, no_config: bool) -> Path | None:
    """Return the configuration file to read: the one given, else ./nearcast.toml if it exists."""
    from nearcast.model.errors import MisuseError

    if no_config:
        if path is not None:
            raise MisuseError("--config and --no-config", expected="one of them")
        return None
    return path if path is not None else DEFAULT if DEFAULT.exists() else None


def serve(
    *,
    config: ConfigFile = None,
    no_config: NoConfig = False,
    host: Annotated[str | None, typer.Option(help="The first listener's address.")] = None,
    port: Annotated[int | None, typer.Option(help="The first listener's port.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="The directory for sessions and messages that survive a restart."),
    ] = None,
    join: Annotated[
        str | None, typer.Option(help="Join a cluster over NATS: nats://host:port,…")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The name of this node in the cluster.")] = None,
    network: Annotated[str | None, typer.Option(help="The network's name.")] = None,
    json: bool = JSON,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    Reads ./nearcast.toml if it exists, and prints that; 'nearcast init' writes one to start with.
    Without a file it serves MQTT on 127.0.0.1:1883, for this machine only, and keeps its state in
    ./nearcast-data. SIGTERM and Ctrl-C stop it cleanly. SIGHUP makes it read the configuration and
    the users again; the log names the changes that need a restart.

    Example: nearcast serve

    Example: nearcast serve --config nearcast.toml --port 1884

    Example: nearcast serve --join nats://127.0.0.1:4222 --name berlin
    """
    from nearcast.server import serve as run
    from nearcast.server import set_up_logging

    options = dict(zip(_OPTIONS, (host, port, data, name, join, network), strict=True))
    path = found_config(config, no_config=no_config)

    def read() -> Configuration:
        return _configuration(path, options)

    configuration = read()
    set_up_logging(configuration.log.format, configuration.log.level)
    announce = _announce_json if json else _announce
    run(configuration, on_ready=partial(announce, path), reread=read)


def _configuration(path: Path | None, options: Mapping[str, object]) -> Configuration:
    """Return the configuration, options above environment above file."""
    from nearcast.config import load

    given = {name: str(value) for name, value in options.items() if value is not None}
    with errors_by_option({name: _OPTIONS[name] for name in given}):
        return load(path, {**os.environ, **given})


def _announce(path: Path | None, server: Server) -> None:
    typer.echo(
        "No configuration file: using the defaults" if path is None else f"Configuration: {path}"
    )
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
        typer.echo("Not in a cluster: [network] direct has no effect without join.")
    typer.echo("Ready. Stop with Ctrl-C.")


def _announce_json(path: Path | None, server: Server) -> None:
    configuration, network = server.configuration, server.network
    print_json(
        {
            "ready": True,
            "configuration": None if path is None else str(path),
            "listening": [
                {"kind": kind, "host": host, "port": port} for kind, host, port in server.ports
            ],
            "node": configuration.node.name,
            "data": str(configuration.node.data.resolve()),
            "durability": configuration.durability.mode,
            "network": None if network is None else configuration.network.name,
            "problem": None if network is None else network.problem or None,
        }
    )


def passwd(
    users: Annotated[Path, typer.Argument(help="The password file.")],
    name: Annotated[str, typer.Argument(help="The user.")],
    *,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the user.")] = False,
    scram: Annotated[
        bool, typer.Option("--scram", help="Also for SCRAM-SHA-256, which sends no password.")
    ] = False,
    password_file: Annotated[
        Path | None, typer.Option("--password-file", help="A file whose first line it is.")
    ] = None,
    json: bool = JSON,
) -> None:
    r"""Add a user to a password file, change a password, or remove a user.

    Creates the file if it is missing. The password is the first line of --password-file, else the
    variable NEARCAST_PASSWORD, else asked for on a terminal, else read from standard input. Name
    the file in the configuration: \[auth] users = "users.txt".

    Example: nearcast passwd users.txt alice

    Example: nearcast passwd users.txt alice --delete
    """
    from nearcast.model.errors import MisuseError
    from nearcast.server import set_password

    if delete:
        set_password(users, name, None)
        _tell_user(users, name, f"{name} is no longer in {users}", is_there=False, as_json=json)
        return
    password = _new_password(password_file)
    if not password:
        raise MisuseError("an empty password", expected="one character or more")
    set_password(users, name, password, with_scram=scram)
    told = f"{name} is in {users}. A running broker reads the file again on SIGHUP"
    _tell_user(users, name, told, is_there=True, as_json=json)


def _new_password(file: Path | None) -> bytes:
    """Return a password for a user: from a file, the environment, a terminal or standard input."""
    import sys
    from getpass import getpass

    from nearcast.cli.connecting import VARIABLE, read_password
    from nearcast.model.errors import MisuseError

    if file is not None:
        return read_password(file)
    if VARIABLE in os.environ:
        return os.environ[VARIABLE].encode()
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\n").encode()
    password = getpass("Password: ")
    if password != getpass("Again: "):
        raise MisuseError("two different passwords", todo="Try again")
    return password.encode()


def _tell_user(users: Path, name: str, text: str, *, is_there: bool, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(users), "user": name, "is_there": is_there})
    else:
        typer.echo(text)
