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
    from nearcast.server.running import ReadyServer

_OPTIONS = {
    "NEARCAST_LISTENER__0__HOST": "--host",
    "NEARCAST_LISTENER__0__PORT": "--port",
    "NEARCAST_NODE__DATA": "--data",
    "NEARCAST_NODE__NAME": "--name",
    "NEARCAST_NETWORK__JOIN": "--join",
    "NEARCAST_NETWORK__NAME": "--network",
    "NEARCAST_HTTP__ADDRESS": "--http",
    "NEARCAST_NODE__WORKERS": "--workers",
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
    http: Annotated[
        str | None, typer.Option(help="HOST:PORT of the page and the HTTP API, or off.")
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(help="Processes that serve clients; auto: one per processor."),
    ] = None,
    json: bool = JSON,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    Reads ./nearcast.toml if it exists, and prints that; 'nearcast init' writes one to start with.
    Without a file it serves MQTT on 127.0.0.1:1883 and a page on http://127.0.0.1:8080, for this
    machine only, and keeps its state in ./nearcast-data. SIGTERM and Ctrl-C stop it cleanly. SIGHUP
    makes it read the configuration and the users again; the log names the changes that need a
    restart.

    Example: nearcast serve

    Example: nearcast serve --config nearcast.toml --port 1884

    Example: nearcast serve --workers auto

    Example: nearcast serve --join nats://127.0.0.1:4222 --name berlin
    """
    from nearcast.server import serve as run
    from nearcast.server import set_up_logging

    values = (host, port, data, name, join, network, http, workers)
    options = dict(zip(_OPTIONS, values, strict=True))
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


def _announce(path: Path | None, server: ReadyServer) -> None:
    typer.echo(
        "No configuration file: using the defaults" if path is None else f"Configuration: {path}"
    )
    for kind, host, port in server.ports:
        typer.echo(f"Listening on {kind} {host}:{port}")
    node = server.configuration.node
    durability = server.configuration.durability.mode
    if node.workers != 1:
        typer.echo(f"Workers: {server.worker_count}")
    typer.echo(f"Node {node.name}; state in {node.data.resolve()} (durability: {durability})")
    if server.network is not None:
        network = server.network
        state = f"not yet: {network.problem}" if network.problem else "joined"
        typer.echo(f"Network {server.configuration.network.name} ({state})")
    elif server.configuration.network.direct is not None:
        typer.echo("Not in a cluster: [network] direct has no effect without join.")
    for kind, host, port in server.ports:
        if kind == "http":
            typer.echo(f"See it at http://{host}:{port}/")
    typer.echo("Ready. Stop with Ctrl-C.")


def _announce_json(path: Path | None, server: ReadyServer) -> None:
    configuration, network = server.configuration, server.network
    print_json(
        {
            "ready": True,
            "configuration": None if path is None else str(path),
            "listening": [
                {"kind": kind, "host": host, "port": port} for kind, host, port in server.ports
            ],
            "node": configuration.node.name,
            "workers": server.worker_count,
            "data": str(configuration.node.data.resolve()),
            "durability": configuration.durability.mode,
            "network": None if network is None else configuration.network.name,
            "problem": None if network is None else network.problem or None,
        }
    )


def passwd(
    users: Annotated[Path, typer.Argument(help="The password file, or the file of operators.")],
    name: Annotated[str, typer.Argument(help="The user, or the operator.")],
    *,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the user.")] = False,
    scram: Annotated[
        bool, typer.Option("--scram", help="Also for SCRAM-SHA-256, which sends no password.")
    ] = False,
    password_file: Annotated[
        Path | None, typer.Option("--password-file", help="A file whose first line it is.")
    ] = None,
    role: Annotated[
        str | None,
        typer.Option(help="Make it an operator of the HTTP API and the page: viewer or operator."),
    ] = None,
    token: Annotated[
        bool, typer.Option("--token", help="With --role: print a new token; no password.")
    ] = False,
    json: bool = JSON,
) -> None:
    r"""Add a user or an operator to a file, change a password, or remove one.

    Creates the file if it is missing. The password is the first line of --password-file, else the
    variable NEARCAST_PASSWORD, else asked for on a terminal, else read from standard input. Users
    are clients of MQTT; name their file in the configuration: \[auth] users = "users.txt". With
    --role it is a file of operators, who log in at the HTTP address: \[http] operators =
    "operators.txt". A viewer sees, an operator changes as well.

    Example: nearcast passwd users.txt alice

    Example: nearcast passwd users.txt alice --delete

    Example: nearcast passwd operators.txt ann --role operator

    Example: nearcast passwd operators.txt grafana --role viewer --token
    """
    from nearcast.model.errors import MisuseError
    from nearcast.server import set_password
    from nearcast.server.http.operators import is_operators_file, remove_operator, set_operator

    if token and role is None:
        raise MisuseError("no role", where="--token", expected="--role viewer or --role operator")
    if delete:
        remove = remove_operator if is_operators_file(users) else _without_user
        remove(users, name)
        _tell_user(users, name, f"{name} is no longer in {users}", is_there=False, as_json=json)
        return
    told = f"{name} is in {users}. A running broker reads the file again on SIGHUP"
    if role is None:
        set_password(users, name, _new_password(password_file), with_scram=scram)
        _tell_user(users, name, told, is_there=True, as_json=json)
        return
    made = set_operator(users, name, role, None if token else _new_password(password_file))
    fields: dict[str, object] = {"role": role}
    if made is not None:
        told += f". The token, which is shown only now: {made}"
        fields["token"] = made
    _tell_user(users, name, told, is_there=True, as_json=json, **fields)


def _without_user(users: Path, name: str) -> None:
    from nearcast.server import set_password

    set_password(users, name, None)


def _new_password(file: Path | None) -> bytes:
    """Return a password for a user: from a file, the environment, a terminal or standard input."""
    import sys
    from getpass import getpass

    from nearcast.cli.connecting import VARIABLE, read_password
    from nearcast.model.errors import MisuseError

    if file is not None:
        password = read_password(file)
    elif VARIABLE in os.environ:
        password = os.environ[VARIABLE].encode()
    elif not sys.stdin.isatty():
        password = sys.stdin.readline().rstrip("\n").encode()
    else:
        typed = getpass("Password: ")
        if typed != getpass("Again: "):
            raise MisuseError("two different passwords", todo="Try again")
        password = typed.encode()
    if not password:
        raise MisuseError("an empty password", expected="one character or more")
    return password


def _tell_user(
    users: Path, name: str, text: str, *, is_there: bool, as_json: bool, **more: object
) -> None:
    if as_json:
        print_json({"file": str(users), "user": name, "is_there": is_there, **more})
    else:
        typer.echo(text)
