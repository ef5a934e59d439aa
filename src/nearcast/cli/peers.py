"""`nearcast peer` and `nearcast peers`."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearcast.cli.serve import ConfigFile, NoConfig, found_config
from nearcast.cli.terminal import JSON, print_json

if TYPE_CHECKING:
    from nearcast.config import Configuration
    from nearcast.server import Server


def peer(
    *,
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT where other peers connect to this one.")
    ] = None,
    contact: Annotated[
        list[str] | None,
        typer.Option(help="HOST:PORT of a peer to join through; repeat it for more."),
    ] = None,
    config: ConfigFile = None,
    no_config: NoConfig = False,
    port: Annotated[int | None, typer.Option(help="The first MQTT listener's port.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="The directory for sessions and messages that survive a restart."),
    ] = None,
    json: bool = JSON,
) -> None:
    r"""Run a peer of an overlay without servers until Ctrl-C or SIGTERM.

    It joins the overlay of each \[\[space]] through a contact, or founds them if there is none, and
    serves MQTT clients as 'nearcast serve' does: they subscribe with $where, $area and $near, and
    get what clients of any peer publish. \[peer] of the configuration has key, certificates and
    limits; with \[network] join it is a bridge: a node of that network, too. See docs/peers.md.

    Example: nearcast peer --listen 10.0.0.7:7000

    Example: nearcast peer --listen 10.0.0.8:7000 --contact 10.0.0.7:7000
    """
    from nearcast.server import serve as run
    from nearcast.server import set_up_logging

    path = found_config(config, no_config=no_config)
    given = {"NEARCAST_LISTENER__0__PORT": port, "NEARCAST_NODE__DATA": data}

    def read() -> Configuration:
        return _configuration(path, given, listen, contact)

    configuration = read()
    set_up_logging(configuration.log.format, configuration.log.level)
    run(
        configuration,
        on_ready=partial(_announce, as_json=json),
        reread=read,
        find_kind=partial(_server_kind, configuration),
    )


def _server_kind(configuration: Configuration) -> type[Server]:
    if configuration.network.join:
        from nearcast.server.overlay.bridge_server import BridgeServer

        return BridgeServer
    from nearcast.server.overlay.peer_server import PeerServer

    return PeerServer


def _configuration(
    path: Path | None, given: dict[str, Any], listen: str | None, contacts: list[str] | None
) -> Configuration:
    """Return the configuration, options above environment above file."""
    from pydantic import ValidationError

    from nearcast.config import PeerSection, load
    from nearcast.model.errors import MisuseError

    set_there = {name: str(value) for name, value in given.items() if value is not None}
    configuration = load(path, {**os.environ, **set_there})
    changed: dict[str, Any] = {}
    if listen is not None:
        changed["listen"] = listen
    if contacts:
        changed["contacts"] = contacts
    if not changed:
        return configuration
    try:
        section = PeerSection.model_validate(configuration.peer.model_dump() | changed)
    except ValidationError as problem:
        told = problem.errors()[0]["msg"].removeprefix("Value error, ")
        raise MisuseError(told, where="--listen, --contact") from None
    return configuration.model_copy(update={"peer": section})


def _announce(server: Any, *, as_json: bool) -> None:
    runtime = server.runtime
    if as_json:
        listening = [
            {"kind": kind, "host": host, "port": port} for kind, host, port in server.ports
        ]
        print_json({"ready": True, "peer": runtime.name, "listening": listening})
        return
    for kind, host, port in server.ports:
        typer.echo(f"Listening on {kind} {host}:{port}")
    names = ", ".join(one.name for one in server.configuration.space)
    founded = "joined" if server.configuration.peer.contacts else "founded"
    typer.echo(f"Peer {runtime.name}; {founded} the overlay of {names}")
    typer.echo("Ready. Stop with Ctrl-C.")


def peers(
    *,
    contact: Annotated[list[str], typer.Option(help="HOST:PORT of a running peer.")],
    config: ConfigFile = None,
    no_config: NoConfig = False,
    picture: Annotated[
        Path | None, typer.Option(help="Write the trees as SVG files: NAME-SPACE.svg.")
    ] = None,
    json: bool = JSON,
) -> None:
    r"""Show the tree of an overlay: parents, levels, boxes, load, overhead, repairs.

    Asks the contact, then all peers that it knows, and so on. Key and certificates come from
    \[peer] of the configuration.

    Example: nearcast peers --contact 10.0.0.7:7000

    Example: nearcast peers --contact 10.0.0.7:7000 --picture tree.svg
    """
    from nearcast.config import load
    from nearcast.server.overlay.peer_server import link_settings
    from nearcast.server.overlay.tree import survey

    path = found_config(config, no_config=no_config)
    settings = link_settings(load(path, os.environ).peer)
    states, problems = asyncio.run(survey(contact, settings))
    files = _draw(picture, states)
    if json:
        print_json(_as_json(states, problems, files))
    else:
        _print(states, problems, files)


def _spaces(states: list[dict[str, Any]]) -> list[str]:
    return sorted({name for state in states for name in state["spaces"]})


def _as_json(
    states: list[dict[str, Any]], problems: list[str], files: list[Path]
) -> dict[str, Any]:
    from nearcast.server.overlay.tree import summary

    return {
        "spaces": {name: summary(states, name) for name in _spaces(states)},
        "peers": states,
        "problems": problems,
        "pictures": [str(one) for one in files],
    }


def _print(states: list[dict[str, Any]], problems: list[str], files: list[Path]) -> None:
    from nearcast.server.overlay.tree import summary, tree_lines

    for name in _spaces(states):
        found = summary(states, name)
        typer.echo(
            f"Space {name}: {found['peers']} peers, {found['boxes']} boxes, {found['roots']} "
            f"{'root' if found['roots'] == 1 else 'roots'}, height {found['height']}; "
            f"{found['delivered']} events delivered, overhead {found['overhead']:g}, "
            f"{found['repairs']} repairs, {found['unconfirmed']} unconfirmed"
        )
        for line in tree_lines(states, name):
            typer.echo(line)
    for problem in problems:
        typer.echo(f"No answer: {problem}")
    for file in files:
        typer.echo(f"Picture: {file}")


def _draw(path: Path | None, states: list[dict[str, Any]]) -> list[Path]:
    if path is None:
        return []
    from nearcast.server.overlay.tree import picture

    files = []
    for name in _spaces(states):
        file = path.with_name(f"{path.stem}-{name}.svg")
        file.write_text(picture(states, name), encoding="utf-8")
        files.append(file)
    return files
