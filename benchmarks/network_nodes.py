"""A network as processes, for `network.py`: a NATS, nodes, what they used and counted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nearcast.config import NetworkSection
from nearcast.server.cluster.nats_admin import look
from nearcast.server.cluster.nats_members import MemberRecord
from nearcast.server.local_cluster import ChildProcess, LocalCluster, free_port

_SERVE = """
import sys
from nearcast.config import Configuration
from nearcast.server import serve
configuration = Configuration.model_validate_json(sys.argv[1])
serve(configuration, on_ready=lambda server: print("Ready.", flush=True))
"""


class Nodes:
    """`count` nodes of one network, linked to each other."""

    def __init__(
        self,
        directory: Path,
        count: int,
        durability: str,
        spaces: Sequence[dict[str, Any]] = (),
        *,
        direct: bool = False,
    ) -> None:
        self._spaces = spaces
        self._network = {"direct": "127.0.0.1:0"} if direct else {}
        self.fleet = LocalCluster(directory)
        self.ports = [free_port() for _ in range(count)]
        self._metrics = [free_port() for _ in range(count)]
        try:
            self.address = self.fleet.start_nats(free_port())
            for number in range(count):
                self.fleet.nodes.append(self._start(directory, number, durability))
            self.fleet.wait_until_ready()
            self._wait_for_links(count)
        except BaseException:
            self.close()
            raise

    def _start(self, directory: Path, number: int, durability: str) -> ChildProcess:
        configuration = {
            "node": {"name": f"node-{number}", "data": str(directory / f"node-{number}")},
            "listener": [{"port": self.ports[number]}],
            "durability": {"mode": durability},
            "limits": {"queue": 256 << 20},
            "log": {"level": "warning", "metrics_port": self._metrics[number]},
            "network": {"join": [self.address], **self._network},
            "space": list(self._spaces),
        }
        command = [sys.executable, "-c", _SERVE, json.dumps(configuration)]
        log = directory / f"node-{number}.log"
        return ChildProcess(f"node-{number}", self.ports[number], command, log)

    def _wait_for_links(self, count: int) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            members = self.members()
            links = [link for one in members for link in one.links.values()]
            is_there = all(one.is_up and one.is_direct == bool(self._network) for one in links)
            if len(links) == count * (count - 1) and is_there:
                return
            time.sleep(0.1)
        message = "the nodes do not find each other"
        raise RuntimeError(message)

    def members(self) -> list[MemberRecord]:
        return asyncio.run(look(NetworkSection(join=[self.address])))

    def kill(self, number: int) -> None:
        """Let a node die without a word."""
        os.kill(self.fleet.nodes[number].pid, signal.SIGKILL)

    def cpu_s(self) -> tuple[float, float]:
        """Return the CPU time of all nodes, and of NATS."""
        nats = self.fleet._nats
        assert nats is not None
        return sum(_cpu_s(one.pid) for one in self.fleet.nodes), _cpu_s(nats.pid)

    def total(self, counter: str) -> int:
        """Return a counter, summed over all nodes."""
        found = 0
        for port in self._metrics:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                text = answer.read().decode()
            found += int(re.findall(rf"^nearcast_{counter}_total (\d+)", text, re.MULTILINE)[0])
        return found

    def close(self) -> None:
        self.fleet.__exit__(None, None, None)


def _cpu_s(pid: int) -> float:
    used_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            used_ns += int((task / "schedstat").read_text().split()[0])
    return used_ns / 1e9


@contextlib.contextmanager
def network_of(
    count: int,
    durability: str = "off",
    spaces: Sequence[dict[str, Any]] = (),
    *,
    direct: bool = False,
) -> Iterator[Nodes]:
    with tempfile.TemporaryDirectory(prefix="nearcast-bench-") as directory:
        nodes = Nodes(Path(directory), count, durability, spaces, direct=direct)
        try:
            yield nodes
        finally:
            nodes.close()
