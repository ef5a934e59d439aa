"""`nearcast up` and `nearcast nodes`."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.serve import ConfigFile, NoConfig, found_config
from nearcast.cli.sharing import (
    Join,
    Network,
    Reassign,
    network_section,
    share_plan_file,
    share_policy_file,
)
from nearcast.cli.terminal import JSON, console, print_json
from nearcast.model.errors import MisuseError

if TYPE_CHECKING:
    from nearcast.config import HttpSection, NetworkSection
    from nearcast.server.cluster.nats_members import MemberRecord
    from nearcast.server.local_cluster import LocalCluster

_LAST_PORT = 65_535
_WIDE = 100
_PAGE = re.compile(r"^Listening on http (\S+)$", re.MULTILINE)
_NOT_YET = re.compile(r"^Network \S+ \(not yet: (.*)\)$", re.MULTILINE)


def up(
    *,
    nodes: Annotated[int, typer.Option(min=1, max=64, help="How many nodes.")] = 4,
    port: Annotated[
        int, typer.Option(min=1, max=_LAST_PORT, help="The first node's port; the others follow.")
    ] = 1883,
    config: ConfigFile = None,
    no_config: NoConfig = False,
    nats: Annotated[
        str | None, typer.Option(help="The address of a running NATS. Default: start one.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Keep state and logs here. Default: keep nothing.")
    ] = None,
    json: bool = JSON,
) -> None:
    """Start a small cluster on this machine: NATS and some nodes. Ctrl-C ends all of them.

    Like 'serve', the nodes read ./nearcast.toml if it exists.

    Example: nearcast up --nodes 4
    """
    if port + nodes - 1 > _LAST_PORT:
        last = f"{nodes} nodes from port {port} on"
        raise MisuseError(last, where="--port", expected=f"ports up to {_LAST_PORT}")
    with _held_back(signal.SIGINT):
        from nearcast.config import load
        from nearcast.server.local_cluster import LocalCluster

    config = found_config(config, no_config=no_config)
    pages = load(config, os.environ).http  # errors are reported before anything is started
    with contextlib.ExitStack() as stack:
        stack.enter_context(_interrupted_by(signal.SIGTERM))
        directory = data
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nearcast-")))
        fleet = stack.enter_context(LocalCluster(directory))
        address = nats or fleet.start_nats()
        for number in range(nodes):
            page = _page_address(pages, number)
            fleet.start_node(f"node-{number + 1}", port + number, address, config, http=page)
        fleet.wait_until_ready()
        if json:
            _print_fleet_json(fleet, address)
        else:
            _print_fleet(fleet, address, config, keeps=data is not None)
        _tell_of_islands(fleet)
        _watch_over(fleet)


def _page_address(section: HttpSection, number: int) -> str | None:
    """Return the address of a node's page: the configured port, counted up."""
    if section.is_off or section.is_default:
        return None
    host, port = section.host_and_port
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{port + number if port else 0}"


@contextlib.contextmanager
def _interrupted_by(number: signal.Signals) -> Iterator[None]:
    """Treat a signal like Ctrl-C."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(number, interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextlib.contextmanager
def _held_back(number: signal.Signals) -> Iterator[None]:
    """Defer a signal: compiled packages lose an interrupt in the middle of their import."""
    came: list[int] = []
    before = signal.signal(number, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(number, before)
    if came:
        signal.raise_signal(number)


def _print_fleet_json(fleet: LocalCluster, address: str) -> None:
    nodes = [{"node": one.name, "port": one.port, "process": one.pid} for one in fleet.nodes]
    print_json({"ready": True, "nats": address, "nodes": nodes})
    sys.stdout.flush()


def _print_fleet(fleet: LocalCluster, address: str, config: Path | None, *, keeps: bool) -> None:
    from rich.table import Table

    table = Table(title=f"NATS at {address}", title_justify="left")
    for heading in ("node", "clients connect to", "process", "log"):
        table.add_column(heading, overflow="fold")
    for child in fleet.nodes:
        where = str(child.log) if keeps else ""
        table.add_row(child.name, f"mqtt://127.0.0.1:{child.port}", str(child.pid), where)
    console().print(table)
    typer.echo(f"Configuration: {config or 'none, using the defaults'}")
    typer.echo(f"See it with: nearcast nodes --join {address}")
    for child in fleet.nodes:
        page = _PAGE.search(child.log.read_text(encoding="utf-8", errors="replace"))
        if page is not None:
            typer.echo(f"or, {child.name}: http://{page[1]}/")
    typer.echo("Ready. Stop with Ctrl-C.")
    sys.stdout.flush()


def _tell_of_islands(fleet: LocalCluster) -> None:
    """Report nodes that serve clients, but have not found the others."""
    for child in fleet.nodes:
        reason = _NOT_YET.search(child.log.read_text(encoding="utf-8", errors="replace"))
        if reason is not None:
            typer.echo(
                f"{child.name} serves its clients alone and keeps trying: {reason[1]}", err=True
            )


def _watch_over(fleet: LocalCluster) -> None:
    """Wait for Ctrl-C; report processes that end by themselves, and restart none."""
    try:
        while fleet.is_alive:
            for child in fleet.take_ended():
                typer.echo(f"{child.name} has ended ({child.how}): {child.last_words()}", err=True)
            time.sleep(0.2)
    except KeyboardInterrupt:
        typer.echo("Stopping all nodes.")
        return
    typer.echo("All nodes have ended.", err=True)
    raise typer.Exit(1)


def nodes(
    *,
    join: Join = None,
    network: Network = None,
    config: ConfigFile = None,
    no_config: NoConfig = False,
    leave: Annotated[
        str | None,
        typer.Option(
            metavar="NODE", help="Make a node hand over its state, leave for good and stop."
        ),
    ] = None,
    forget: Annotated[
        str | None,
        typer.Option(metavar="NODE", help="Drop what is kept for a node that will not come back."),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Apply this plan, or schedule of plans, to all nodes."),
    ] = None,
    reassign: Reassign = False,
    policies: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Apply this policy file to all nodes."),
    ] = None,
    json: bool = JSON,
) -> None:
    """Show the nodes of a cluster, remove one for good, or apply a plan or policies to all.

    Example: nearcast nodes --join nats://127.0.0.1:4222

    Example: nearcast nodes --leave node-3
    """
    import asyncio

    from nearcast.server.cluster.nats_admin import ask_to_leave, forget_node, look

    changes = {"--leave": leave, "--forget": forget, "--plan": plan, "--policies": policies}
    given = [name for name, value in changes.items() if value is not None]
    if len(given) > 1:
        raise MisuseError(" and ".join(given), where="nodes", expected="one of them at a time")
    if reassign and plan is None:
        raise MisuseError("no plan", where="--reassign", expected="--plan FILE")
    section = network_section(found_config(config, no_config=no_config), join, network)
    if leave is not None:
        asyncio.run(ask_to_leave(section, leave))
        _report([f"{leave} is leaving."], {"leaving": leave}, as_json=json)
        return
    if forget is not None:
        asyncio.run(forget_node(section, forget))
        told = f"The network keeps nothing for {forget} any more."
        _report([told], {"forgotten": forget}, as_json=json)
        return
    if plan is not None:
        _report(*share_plan_file(section, plan, reassigns=reassign), as_json=json)
        return
    if policies is not None:
        _report(*share_policy_file(section, policies), as_json=json)
        return
    members = asyncio.run(look(section))
    if json:
        import msgspec

        print_json(msgspec.to_builtins(members))
    else:
        _print_members(section, members)
    if not members:
        raise typer.Exit(1)


def _report(lines: Sequence[str], fields: Mapping[str, object], *, as_json: bool) -> None:
    if as_json:
        print_json(fields)
        return
    for line in lines:
        typer.echo(line)


def _print_members(section: NetworkSection, members: list[MemberRecord]) -> None:
    from rich.table import Table

    from nearcast.nats.connection import public_address

    where = ", ".join(public_address(one) for one in section.join)
    if not members:
        typer.echo(f"No node of network {section.name} is at {where}.")
        return
    screen = console()
    table = Table(title=f"Network {section.name} at {where}", title_justify="left")
    if screen.width < _WIDE:
        table.box, table.padding = None, (0, 1, 0, 0)
    table.add_column("node", no_wrap=True)
    table.add_column("address", overflow="fold")
    table.add_column("up since", no_wrap=True)
    headings = ["links up", "clients", "sent", "received", "skew"]
    adapts = any(one.load for one in members)
    for heading in [*headings, "plan", "load"] if adapts else headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for one in members:
        table.add_row(*_cells(one), *([str(one.plan), f"{one.load:,}"] if adapts else []))
    screen.print(table)
    for one in members:
        for link in one.links.values():
            if link.problem:
                typer.echo(f"{one.name}: {link.problem}")


def _cells(one: MemberRecord) -> tuple[str, ...]:
    """Return a row; sent and received are frames to and from other nodes."""
    is_recent = time.time() - one.started_ms / 1000 < 86_400
    since = time.localtime(one.started_ms / 1000)
    up_count = sum(link.is_up and not link.problem for link in one.links.values())
    direct_count = sum(link.is_up and link.is_direct for link in one.links.values())
    skew_ms = max((abs(link.skew_ms) for link in one.links.values() if link.is_up), default=0.0)
    return (
        one.name,
        "\n".join(one.addresses),
        time.strftime("%H:%M:%S" if is_recent else "%Y-%m-%d", since),
        f"{up_count} of {len(one.links)}" + (f", {direct_count} direct" if direct_count else ""),
        str(one.clients),
        f"{one.frames_sent:,}",
        f"{one.frames_received:,}",
        f"{skew_ms:.0f} ms",
    )
