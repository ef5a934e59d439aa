"""Brokers as processes, for `broker.py`: ours in several settings, and those of `peers.py`."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import peers
from benchmarks.broker_load import link

from nearcast.server.local_cluster import free_port

TICKS = os.sysconf("SC_CLK_TCK")
OURS, PEER, DURABLE, POWER, AMQTT = "nearcast", "mosquitto", "process", "power", "amqtt"
LOGGED, SAVING = "nearcast with event log", "mosquitto saving"
PLAIN = "nearcast as plain Python"
"""A kind that begins with "/" is another checkout's `src`, as plain Python."""
SETTINGS = (OURS, DURABLE, POWER, LOGGED, PLAIN)

_SERVE = """
import sys
from nearcast.config import (Configuration, DurabilitySection, LimitsSection, ListenerSection,
    LogSection, NodeSection)
from nearcast.server import serve
mode, port, data, log, kind, certificate = sys.argv[1:]
secret = {"certificate": certificate, "key": certificate + ".key"} if kind == "tls" else {}
serve(Configuration(
    node=NodeSection(data=data),
    listener=[ListenerSection(port=int(port), kind=kind, **secret)],
    durability=DurabilitySection(mode=mode),
    limits=LimitsSection(queue=256 << 20, connections=1_000_000),
    log=LogSection(events=log),
))
"""
_SAVING = """
persistence true
persistence_location {folder}/
autosave_on_changes true
autosave_interval 1
"""


_START_S = 120  # on a busy machine


def certificate(folder: Path) -> Path:
    """Return a certificate for a TLS listener, made now; its key is beside it."""
    path = folder / "server.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    files = ["-subj", "/CN=127.0.0.1", "-keyout", f"{path}.key", "-out", str(path)]
    subprocess.run([*command.split(), *files], check=True, stderr=subprocess.DEVNULL)
    return path


class Broker:
    """A broker process and what it has used; `listener` is tcp, tls or ws."""

    def __init__(self, kind: str, listener: str = "tcp") -> None:
        self.kind = kind
        self.listener = listener
        self.directory = tempfile.mkdtemp(prefix="nearcast-bench-")
        self.port = free_port()
        started = time.perf_counter()
        environment = dict(os.environ)
        if kind == PLAIN or kind.startswith("/"):
            environment["NEARCAST_PLAIN"] = "1"
        if kind.startswith("/"):
            environment["PYTHONPATH"] = kind
        self.process = subprocess.Popen(
            self._command(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        while True:
            try:
                link(self.port, 4, "first", kind=listener).close()
                break
            except (OSError, EOFError):
                has_ended = self.process.poll() is not None
                if has_ended or time.perf_counter() - started > _START_S:
                    how = "it has ended" if has_ended else f"not within {_START_S} s"
                    message = f"{kind} does not start: {how}"
                    raise RuntimeError(message) from None
                time.sleep(0.002)
        self.start_s = time.perf_counter() - started

    def _command(self) -> list[str]:
        folder = Path(self.directory)
        shown = certificate(folder) if self.listener == "tls" else folder
        if self.kind in SETTINGS or self.kind.startswith("/"):
            mode = self.kind if self.kind in (DURABLE, POWER) else "off"
            log = "full" if self.kind == LOGGED else "off"
            words = [mode, str(self.port), self.directory, log, self.listener, str(shown)]
            return [sys.executable, "-c", _SERVE, *words]
        if self.kind == SAVING:
            command = peers.command(PEER, self.listener, self.port, folder, shown)
            with (folder / "conf").open("a") as file:
                file.write(_SAVING.format(folder=folder))
            return command
        return peers.command(self.kind, self.listener, self.port, folder, shown)

    def cpu_s(self) -> float:
        """Return the CPU time of all threads: in nanoseconds where the kernel says it so."""
        if process_ns := used_ns(self.process.pid):
            return process_ns / 1e9
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def family_cpu_s(self) -> float:
        """Return the CPU time with that of the processes it has started and that still run."""
        used_s = self.cpu_s()
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                used_s += used_ns(int(child)) / 1e9
        return used_s

    def rss_kb(self) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0])

    def close(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def used_ns(process_id: int) -> int:
    """Return the CPU time of all threads of a process; 0 where the kernel does not say it."""
    total_ns = 0
    for task in Path(f"/proc/{process_id}/task").iterdir():
        with contextlib.suppress(OSError):
            total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns


@contextlib.contextmanager
def running(kind: str, listener: str = "tcp") -> Iterator[Broker]:
    broker = Broker(kind, listener)
    try:
        yield broker
    finally:
        broker.close()
