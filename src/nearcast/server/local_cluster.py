"""A cluster on this machine: a NATS server and some nodes that end with their parent process."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from nearcast.model.errors import EnvironmentProblem

_PLACES = ("/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/opt/nats-server")  # not on all PATHs
_USUAL_PORT = 4222
_BELOW_CLIENTS = range(20_000, 32_000)
"""Ports below the ephemeral range."""
_START_S = 120.0
_END_S = 10.0
_DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG
# Linux only. Looked up here: a forked child of a threaded process must not wait for the loader.
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None) if os.name == "posix" else None
_marks: list[socket.socket] = []
_COMMAND = "import sys; from nearcast.cli import main; sys.argv[0] = 'nearcast'; main()"


class ChildProcess:
    """A process that was started, and its output."""

    def __init__(self, name: str, port: int, command: list[str], log: Path) -> None:
        self.name = name
        self.port = port
        self.log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - it makes two system calls
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    @property
    def how(self) -> str:
        """How it ended."""
        code = self._process.poll()
        return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"

    def has_said(self, words: str) -> bool:
        """Return whether its output contains a text."""
        return words in self.log.read_text(encoding="utf-8", errors="replace")

    def last_words(self) -> str:
        """Return the last line of its output."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")

    def ask_to_end(self) -> None:
        """Send SIGTERM, and SIGCONT so that a stopped process receives it."""
        for number in (signal.SIGTERM, signal.SIGCONT):
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def end(self, within_s: float) -> None:
        """Wait for its end; kill it after `within_s`."""
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class LocalCluster:
    """A NATS server and some nodes; a context manager that leaves no process behind."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.nodes: list[ChildProcess] = []
        self._directory = directory
        self._nats: ChildProcess | None = None
        self._told: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the nodes first, so that they can withdraw from the member list."""
        deadline = time.monotonic() + _END_S
        for group in (self.nodes, [] if self._nats is None else [self._nats]):
            for child in group:
                child.ask_to_end()
            for child in group:
                child.end(max(0.5, deadline - time.monotonic()))

    def start_nats(self, port: int | None = None) -> str:
        """Start nats-server with JetStream, on its usual port if free; return its address."""
        program = find_nats_server()
        if port is None:
            port = _USUAL_PORT if _take(_USUAL_PORT) else free_port()
        store = self._directory / "nats"
        command = [program, "-js", "-sd", str(store), "-a", "127.0.0.1", "-p", str(port)]
        self._nats = ChildProcess("nats-server", port, command, self._directory / "nats.log")
        self._wait([self._nats], "Server is ready")
        return f"nats://127.0.0.1:{port}"

    def start_node(
        self,
        name: str,
        port: int,
        address: str | None,
        config: Path | None = None,
        *,
        http: str | None = None,
        prelude: str = "",
    ) -> ChildProcess:
        """Start a node, which need not be ready yet; without an address it runs alone.

        `http` is the address of its page, where that of the configuration does not hold.

        `prelude` is Python code that runs first: tests use it to make a node of another version.
        """
        if port and not _is_free(port):
            raise EnvironmentProblem(f"port {port} is in use", todo="Choose others with --port.")
        options = ["--name", name, "--port", str(port)]
        options += ["--join", address] if address is not None else []
        options += ["--http", http] if http is not None else []
        options += ["--data", str(self._directory / name)]
        options += ["--config", str(config)] if config is not None else ["--no-config"]
        command = [sys.executable, "-c", f"{prelude}\n{_COMMAND}", "serve", *options]
        child = ChildProcess(name, port, command, self._directory / f"{name}.log")
        self.nodes.append(child)
        return child

    def wait_until_ready(self) -> None:
        """Wait until all nodes serve clients."""
        self._wait(self.nodes, "Ready.")

    def _wait(self, children: list[ChildProcess], words: str) -> None:
        deadline = time.monotonic() + _START_S
        for child in children:
            while not child.has_said(words):
                is_alive = child.is_alive  # checked first: only then is its output complete
                said = child.last_words() or "it has said nothing"
                if not is_alive:
                    raise EnvironmentProblem(f"{child.name} does not start ({child.how}): {said}")
                if time.monotonic() > deadline:
                    raise EnvironmentProblem(f"{child.name} runs, but is not ready yet: {said}")
                time.sleep(0.02)

    @property
    def is_alive(self) -> bool:
        """Whether any node runs."""
        return any(child.is_alive for child in self.nodes)

    def take_ended(self) -> list[ChildProcess]:
        """Return the processes that have ended without being asked, each once."""
        everyone = [*self.nodes, *([] if self._nats is None else [self._nats])]
        ended = [one for one in everyone if not one.is_alive and one.pid not in self._told]
        self._told.update(one.pid for one in ended)
        return ended


def find_nats_server() -> str:
    """Return the path of nats-server: on PATH, in this environment, or in a usual place.

    The environment has one if the extra `cluster` is installed; its bin directory need not be on
    PATH, as when `.venv/bin/nearcast` is run by its path.
    """
    environment = str(Path(sys.executable).parent)
    places = os.pathsep.join([os.environ.get("PATH", ""), environment, *_PLACES])
    found = shutil.which("nats-server", path=places)
    if found is None:
        raise EnvironmentProblem(
            "there is no nats-server on this machine",
            todo="Install it (pip install 'nearcast[cluster]'; Debian: apt install nats-server), "
            "or name one that runs with --nats.",
        )
    return found


def free_port() -> int:
    """Return a free port below the ephemeral range.

    A client that connects to a node which is down could be assigned the node's own port; it would
    then talk to itself and keep the node from coming back. The same port is not returned again, in
    this process or another, as long as this process runs.
    """
    ports = random.SystemRandom().sample(_BELOW_CLIENTS, 1_000)
    return next(port for port in ports if _take(port))


def _take(port: int) -> bool:
    """Reserve a port if it is free, by binding the UDP port of the same number."""
    mark = socket.socket(type=socket.SOCK_DGRAM)
    try:
        mark.bind(("127.0.0.1", port))
    except OSError:
        mark.close()
        return False
    if not _is_free(port):
        mark.close()
        return False
    _marks.append(mark)
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _die_with_parent() -> None:
    """Make the kernel end this child when its parent is killed; Linux only."""
    os.setpgid(0, 0)  # Ctrl-C is for the parent, which ends its children in order
    if _PRCTL is not None:
        _PRCTL(_DIE_WITH_PARENT, signal.SIGTERM)
