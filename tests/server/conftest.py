"""Real broker processes for tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nearcast.model.errors import EnvironmentProblem
from nearcast.server.local_cluster import find_nats_server, free_port

_SERVE = """
import json, sys
from nearcast.config import Configuration
from nearcast.server import serve
configuration = Configuration.model_validate_json(sys.argv[1])
def ready(server):
    print(json.dumps(server.ports), flush=True)
serve(configuration, on_ready=ready,
      reread=lambda: Configuration.model_validate_json(open(sys.argv[2]).read()))
"""


class Broker:
    """A broker in a process of its own."""

    def __init__(self, directory: Path, **sections: Any) -> None:
        self.directory = directory
        self.sections = {
            "node": {"data": str(directory)},
            "listener": [{"kind": "tcp", "port": free_port()}],
            "durability": {"mode": "off"},
            **sections,
            "limits": {"connections": 500, **sections.get("limits", {})},
        }
        self.ports: dict[str, int] = {}
        self.process: subprocess.Popen[str] | None = None
        self._errors = Path()

    def start(self) -> Broker:
        """Start it, on the same ports as before if it ran already."""
        if self.ports:
            for section in self.sections["listener"]:
                section["port"] = self.ports[section["kind"]]
        errors, path = tempfile.mkstemp(".err", "broker-", self.directory)
        self._errors = Path(path)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, json.dumps(self.sections), self.reload_path],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        os.close(errors)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(self.end())
        self.ports = {kind: port for kind, _, port in json.loads(line)}
        return self

    @property
    def reload_path(self) -> str:
        return str(self.directory / "reload.json")

    @property
    def port(self) -> int:
        return self.ports["tcp"]

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def rss_kb(self) -> int:
        text = Path(f"/proc/{self.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0])

    def said(self) -> str:
        """Return what it said on its error output since it was started."""
        return self._errors.read_text()

    def wait_until_said(self, words: str) -> None:
        deadline = time.monotonic() + 60
        while words not in self.said():
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)

    def end(self, how: int = signal.SIGTERM) -> str:
        """End the process; return what it said on its error output."""
        process = self.process
        if process is None:
            return ""
        if process.poll() is None:
            os.kill(process.pid, how)
        process.communicate(timeout=60)
        self.process = None
        return self.said()


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    brokers: list[Broker] = []

    def start(**sections: Any) -> Broker:
        directory = tmp_path / f"broker{len(brokers)}"
        directory.mkdir()
        broker = Broker(directory, **sections)
        brokers.append(broker)
        return broker.start()

    yield start
    for broker in brokers:
        broker.end(signal.SIGKILL)


@pytest.fixture(scope="session")
def wait_for() -> Callable[[Callable[[], object]], None]:
    """Return what waits until something is so, asking a network that may be busy."""

    def wait(is_so: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(EnvironmentProblem):  # a busy NATS may ask for patience
                if is_so():
                    return
            assert time.monotonic() < deadline, "waited too long"
            time.sleep(0.05)

    return wait


@pytest.fixture(scope="module")
def all_doors(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[Broker]:
    """Return a broker that listens in all four ways, one for all tests of a file."""
    files = {
        "certificate": str(certificates / "server.pem"),
        "key": str(certificates / "server.key"),
    }
    broker = Broker(
        tmp_path_factory.mktemp("doors"),
        listener=[
            {"kind": "tcp", "port": 0},
            {"kind": "tls", "port": 0, **files},
            {"kind": "ws", "port": 0},
            {"kind": "wss", "port": 0, **files},
        ],
    )
    yield broker.start()
    broker.end(signal.SIGKILL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a NATS, by name, where there is none; `make setup` installs it."""
    try:
        find_nats_server()
    except EnvironmentProblem:
        missing = pytest.mark.skip(reason="nats-server is not installed (make setup)")
        for item in items:
            if item.path.name.startswith("test_network"):
                item.add_marker(missing)
