"""Nodes that are not there: one that could not start leaves no trace, one that is away is known."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.commands import nearcast
from tests.support.waiting import wait_for

from nearcast.config import NetworkSection
from nearcast.model.errors import KeyMissingError
from nearcast.server.cluster.nats_admin import forget_node, look
from nearcast.server.cluster.nats_members import LinkState
from nearcast.server.local_cluster import ChildProcess, LocalCluster, free_port

pytestmark = pytest.mark.server


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "fleet") as fleet:
        yield fleet


def links_of(address: str, name: str) -> dict[str, LinkState]:
    members = {one.name: one for one in asyncio.run(look(NetworkSection(join=[address])))}
    return members[name].links if name in members else {}


def is_linked(address: str, name: str, other: str) -> bool:
    return links_of(address, name).get(other, LinkState()).is_up


def kill(fleet: LocalCluster, child: ChildProcess) -> None:
    os.kill(child.pid, signal.SIGKILL)
    child.end(5)
    fleet.nodes.remove(child)


@pytest.mark.parametrize("reason", ["port", "certificate"])
def test_a_node_that_cannot_listen_was_never_there(
    fleet: LocalCluster, tmp_path: Path, reason: str
):
    address = fleet.start_nats(free_port())
    a = fleet.start_node("a", free_port(), address)
    fleet.wait_until_ready()
    options = ["--name", "phantom", "--join", address, "--data", str(tmp_path / "phantom")]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        if reason == "port":
            options += ["--port", str(taken.getsockname()[1])]
        else:
            config = tmp_path / "tls.toml"
            config.write_text(
                f'[[listener]]\nkind = "tls"\nport = {free_port()}\n'
                f'certificate = "{config}"\nkey = "{config}"\n'
            )
            options += ["--config", str(config)]
        done = nearcast("serve", *options)
    said = done.stdout + done.stderr
    assert done.returncode == 5, said
    assert ("cannot be opened" if reason == "port" else "that cannot be used") in said

    b = fleet.start_node("b", free_port(), address)  # who comes later than a phantom, and is heard
    wait_for(lambda: a.has_said("the link to node b is up"))
    wait_for(lambda: b.has_said("the link to node a is up"))
    assert not a.has_said("phantom")
    assert not b.has_said("phantom")
    wait_for(lambda: is_linked(address, "a", "b"))
    assert links_of(address, "a").keys() == {"b"}


def test_a_node_that_is_away_is_known_by_who_has_begun_anew_until_it_is_forgotten(
    fleet: LocalCluster, tmp_path: Path
):
    config = tmp_path / "kept.toml"
    config.write_text('[durability]\nmode = "process"\n')
    address = fleet.start_nats(free_port())
    section = NetworkSection(join=[address])
    port = free_port()
    a, b = (fleet.start_node(name, free_port(), address, config) for name in ("a", "b"))
    c = fleet.start_node("c", port, address, config)
    fleet.wait_until_ready()
    for name in ("a", "b"):
        wait_for(lambda name=name: is_linked(address, "c", name))  # type: ignore[misc]
    for one in (a, b, c):
        kill(fleet, one)
    wait_for(lambda: asyncio.run(look(section)) == [])

    c = fleet.start_node("c", port, address, config)
    fleet.wait_until_ready()
    wait_for(lambda: links_of(address, "c") == {"a": LinkState(), "b": LinkState()})
    with pytest.raises(KeyMissingError, match="no node 'B'; expected one that is away: a, b"):
        asyncio.run(forget_node(section, "B"))
    asyncio.run(forget_node(section, "b"))
    wait_for(lambda: links_of(address, "c") == {"a": LinkState()})
