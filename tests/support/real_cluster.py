"""Real nodes over a NATS of their own, and stock MQTT clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from tests.support.forked import Forked
from tests.support.waiting import START_S, WAIT_S, wait_for

from nearcast.config import NetworkSection
from nearcast.server import local_cluster
from nearcast.server.cluster.nats_admin import look
from nearcast.server.cluster.nats_members import LinkState, MemberRecord
from nearcast.server.local_cluster import ChildProcess, LocalCluster, find_nats_server, free_port

Got = tuple[str, bytes, int]


class RealCluster:
    """A NATS and nodes, each with a port and a directory that it keeps when it starts again."""

    def __init__(self, directory: Path, config: str = "") -> None:
        self.local = LocalCluster(directory)
        self.directory = directory
        self.nats_port = free_port()
        self.address = self.local.start_nats(self.nats_port)
        self.ports: dict[str, int] = {}
        self.clients: list[PahoClient] = []
        self.config: Path | None = None
        if config:
            self.config = directory / "nearcast.toml"
            self.config.write_text(config)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.clients:
            one.close()
        self.local.__exit__(None, None, None)

    def begin(
        self, name: str, prelude: str = "", config: Path | None = None, address: str = ""
    ) -> ChildProcess:
        """Start a node, or start it again, without waiting; `address`: of a relay before NATS."""
        self.local.nodes = [one for one in self.local.nodes if one.name != name]
        port = self.ports.setdefault(name, free_port())
        config = config or self.config
        join = address or self.address
        return self.local.start_node(name, port, join, config, prelude=prelude)

    def start(self, *names: str, config: Path | None = None) -> None:
        """Start nodes and wait until each is ready, or has ended."""
        for child in [self.begin(name, config=config) for name in names]:
            wait_for(lambda child=child: child.has_said("Ready.") or not child.is_alive, START_S)  # type: ignore[misc]

    def node(self, name: str) -> ChildProcess:
        return next(one for one in self.local.nodes if one.name == name)

    @property
    def nats(self) -> ChildProcess:
        assert self.local._nats is not None
        return self.local._nats

    def end(self, *names: str) -> None:
        """Ask nodes to end, and wait for them."""
        for name in names:
            self.node(name).ask_to_end()
        for name in names:
            self.node(name).end(20)

    def kill(self, name: str) -> None:
        os.kill(self.node(name).pid, signal.SIGKILL)
        self.node(name).end(5)

    def members(self) -> dict[str, MemberRecord]:
        found = asyncio.run(look(NetworkSection(join=[self.address])))
        return {one.name: one for one in found}

    def are_linked(self, *names: str) -> bool:
        """Return whether these nodes are members with links to each other."""
        members = self.members()
        return set(names) <= members.keys() and all(
            (link := members[one].links.get(other, LinkState())).is_up and not link.problem
            for one in names
            for other in names
            if one != other
        )

    def join(self, *names: str) -> None:
        """Wait until these nodes have links to each other."""
        wait_for(lambda: self.are_linked(*names))

    def client(self, node: str, name: str = "", *, lasting: bool = False) -> PahoClient:
        """Return a client of a node, which is closed with the cluster."""
        one = PahoClient(self.ports[node], name, lasting=lasting)
        self.clients.append(one)
        return one

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()


class PahoClient:
    """A paho client that keeps what it gets."""

    def __init__(self, port: int, name: str = "", *, lasting: bool = False) -> None:
        self.got: queue.Queue[Got] = queue.Queue()
        self._answers: queue.Queue[int] = queue.Queue()
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=name, clean_session=not lasting
        )
        self._client.on_message = lambda _c, _u, m: self.got.put((m.topic, bytes(m.payload), m.qos))
        self._client.on_subscribe = lambda *arguments: self._answers.put(1)
        self._client.on_publish = lambda *arguments: None
        self._client.max_inflight_messages_set(0)
        self._client.reconnect_delay_set(1, 1)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def subscribe(self, topic_filter: str, qos: int = 0) -> None:
        self._client.subscribe(topic_filter, qos)
        self._answers.get(timeout=WAIT_S)

    def publish(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        info = self._client.publish(topic, payload, qos, retain=retain)
        info.wait_for_publish(WAIT_S)
        assert info.is_published()

    def take(self, count: int) -> list[Got]:
        return [self.got.get(timeout=WAIT_S) for _ in range(count)]

    def take_all(self, wanted: Iterable[tuple[str, bytes]]) -> list[Got]:
        """Return all that comes until each of these is there, however often, and what follows."""
        out: list[Got] = []
        missing = set(wanted)
        while missing:
            out.append(self.got.get(timeout=WAIT_S))
            missing.discard(out[-1][:2])
        return out + self.rest(0.5)

    def rest(self, quiet_s: float = 0.3) -> list[Got]:
        """Return what else comes until it has been quiet for a while."""
        out = []
        with contextlib.suppress(queue.Empty):
            while True:
                out.append(self.got.get(timeout=quiet_s))
        return out

    @property
    def is_connected(self) -> bool:
        return self._client.is_connected()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@contextlib.contextmanager
def nats_with(directory: Path, text: str, *options: str) -> Iterator[ChildProcess]:
    """Run a NATS with a configuration of its own; STORE in it stands for a directory."""
    port, path = free_port(), directory / "nats.conf"
    path.write_text(text.replace("STORE", str(directory / "store")))
    command = [find_nats_server(), "-a", "127.0.0.1", "-p", str(port), "-c", str(path), *options]
    child = ChildProcess("nats", port, command, directory / "nats.log")
    try:
        wait_for(lambda: child.has_said("Server is ready") or not child.is_alive)
        assert child.is_alive, child.last_words()
        yield child
    finally:
        child.ask_to_end()
        child.end(5)


@contextlib.contextmanager
def forked_nodes() -> Iterator[None]:
    """Fork the nodes of local clusters, except for nodes with a prelude: it precedes imports."""

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        is_plain = command[2:3] == [f"\n{local_cluster._COMMAND}"]
        return (Forked if is_plain else subprocess.Popen)(command, **options)

    with pytest.MonkeyPatch.context() as patch:
        forking = SimpleNamespace(**{**vars(subprocess), "Popen": start})
        patch.setattr(local_cluster, "subprocess", forking)
        yield
