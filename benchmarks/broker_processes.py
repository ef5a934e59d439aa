"""Brokers as processes, for `broker.py`: ours in several settings, Mosquitto, amqtt."""

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

from benchmarks.broker_load import link

from nearcast.server.local_cluster import free_port

TICKS = os.sysconf("SC_CLK_TCK")
OURS, PEER, DURABLE, POWER, AMQTT = "nearcast", "mosquitto", "process", "power", "amqtt"
LOGGED, SAVING = "nearcast with event log", "mosquitto saving"
PLAIN = "nearcast as plain Python"
"""A kind that begins with "/" is another checkout's `src`, as plain Python."""

_SERVE = """
import sys
from nearcast.config import (Configuration, DurabilitySection, LimitsSection, ListenerSection,
    LogSection, NodeSection)
from nearcast.server import serve
mode, port, data, log = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
serve(Configuration(
    node=NodeSection(data=data),
    listener=[ListenerSection(port=port)],
    durability=DurabilitySection(mode=mode),
    limits=LimitsSection(queue=256 << 20),
    log=LogSection(events=log),
))
"""
_MOSQUITTO = """
listener {port} 127.0.0.1
allow_anonymous true
max_inflight_messages 0
max_queued_messages 0
log_dest none
"""
_AMQTT = """
import asyncio, sys
from amqtt.broker import Broker
async def main():
    broker = Broker({"listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{sys.argv[1]}"}},
                     "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin":
                                 {"allow_anonymous": True}}})
    await broker.start()
    await asyncio.Event().wait()
asyncio.run(main())
"""


_START_S = 120  # on a busy machine


class Broker:
    """A broker process and what it has used."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
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
                link(self.port, 4, "first").close()
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
        if self.kind in (PEER, SAVING):
            text = _MOSQUITTO.format(port=self.port)
            if self.kind == SAVING:
                text += (
                    f"persistence true\npersistence_location {self.directory}/\n"
                    "autosave_on_changes true\nautosave_interval 1\n"
                )
            path = Path(self.directory) / "mosquitto.conf"
            path.write_text(text)
            return ["mosquitto", "-c", str(path)]
        if self.kind == AMQTT:
            return [sys.executable, "-c", _AMQTT, str(self.port)]
        mode = self.kind if self.kind in (DURABLE, POWER) else "off"
        log = "full" if self.kind == LOGGED else "off"
        return [sys.executable, "-c", _SERVE, mode, str(self.port), self.directory, log]

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
def running(kind: str) -> Iterator[Broker]:
    broker = Broker(kind)
    try:
        yield broker
    finally:
        broker.close()
