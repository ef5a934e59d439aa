"""What workers cost: messages per second of CPU of two processes beside those of one.

    python -m benchmarks.workers [--quick] [--only TEXT]

Both brokers run by turns. Two workers get twice the clients and twice the messages of one process,
so that each process has as much to do (a busier one needs less CPU for each message). The sessions
of two workers are

- *local*: each pair at one worker,
- *random*: where the hash puts them, so that about half the messages cross,
- *crossing*: each pair at two workers.

Two processors can serve at most twice the ratio. `capacity` is what they serve as busy as they are
(`balance` is the share of the busier one, at best 0.5), where the clients need neither processor.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.broker_load import link
from benchmarks.broker_paced import PacedClients, PacedLoad, crowd, fan_out, pairs, requests
from benchmarks.broker_processes import used_ns

from nearcast.cluster.workers.places import place_of
from nearcast.server.local_cluster import free_port

COUNT = 2
LOCAL, RANDOM, CROSSING = "local", "random", "crossing"
_SERVE = """
import json, sys
from nearcast.config import Configuration
from nearcast.server import serve
serve(Configuration.model_validate_json(sys.argv[1]))
"""


class WorkersBroker:
    """A broker of one or more processes, and what they have used."""

    def __init__(self, count: int, durability: str) -> None:
        self.directory = tempfile.mkdtemp(prefix="nearcast-bench-")
        self.port = free_port()
        settings = {
            "node": {"data": self.directory, "workers": count},
            "listener": [{"port": self.port}],
            "http": {"address": "off"},
            "durability": {"mode": durability},
            "limits": {"queue": 256 << 20},
        }
        command = [sys.executable, "-c", _SERVE, json.dumps(settings)]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        for _ in range(2_000):
            with contextlib.suppress(OSError, EOFError):
                for number in range(8):  # at each worker
                    link(self.port, 4, f"first-{number}").close()
                break
            time.sleep(0.01)
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        self.pids = list(map(int, children.split())) or [self._process.pid]

    def cpu_s(self) -> list[float]:
        """Return the CPU time of each process that serves clients."""
        return [used_ns(pid) / 1e9 for pid in self.pids]

    def rss_kb(self) -> int:
        """Return the memory of all processes that serve clients, shared pages once for each."""
        texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in self.pids]
        return sum(int(text.partition("\nPss:")[2].split()[0]) for text in texts)

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


class PlacedClients(PacedClients):
    """The clients of a load, with the sessions at the workers that a placing says.

    `batch`: each publisher sends so many packets at once.
    """

    def __init__(self, port: int, load: PacedLoad, placing: str, batch: int = 1) -> None:
        self._placing = placing
        self._batch = 1
        self._acked: list[int] = []
        super().__init__(port, load)
        self._batch = batch
        self._packets = {key: packet * batch for key, packet in self._packets.items()}

    def _client(self, port: int, name: str) -> socket.socket:
        number = int(name[1:])
        if self._placing == LOCAL:
            name = _name_at(number % COUNT, name)
        elif self._placing == CROSSING:
            name = _name_at((number + (name[0] == "p")) % COUNT, name)
        return super()._client(port, name)

    @property
    def copies(self) -> int:
        return super().copies * self._batch


def _name_at(place: int, name: str) -> str:
    names = (f"{name}-{more}" for more in itertools.count())
    return next(one for one in names if place_of(one, COUNT) == place)


Loads = Callable[[int], PacedLoad]  # of so many times the clients, at so many times the rate


def _bulk(qos: int) -> Loads:
    return lambda times: replace(
        pairs(10 * times, 100 * times, qos), name=f"10 pairs in bulk, QoS {qos}"
    )


def _many(load: PacedLoad) -> Loads:
    """Return a load with more subscribers of the same messages."""
    return lambda times: replace(load, filters=load.filters * times)


def _crowds(times: int) -> PacedLoad:
    topics = tuple(f"c/{number % (100 * times):03d}" for number in range(1000 * times))
    return replace(
        crowd(4_000 * times),
        name="crowd of 1,000 publishers, 4,000/s, QoS 0",
        publishers=topics,
        filters=tuple(f"c/{number:03d}" for number in range(100 * times)),
    )


def _asking(times: int) -> PacedLoad:
    names = tuple(f"{number:03d}" for number in range(100 * times))
    asked, answered = (tuple(f"{kind}/{name}" for name in names) for kind in "qa")
    load = requests(1)
    return replace(load, publishers=asked, filters=asked + answered, rate=load.rate * times)


ROWS: tuple[tuple[Loads, tuple[str, ...], int], ...] = (
    (lambda times: pairs(1000 * times, 2_000 * times, 0), (LOCAL, RANDOM, CROSSING), 1),
    (lambda times: pairs(1000 * times, 2_000 * times, 1), (LOCAL, RANDOM, CROSSING), 1),
    (lambda times: pairs(1000 * times, 1_000 * times, 2), (LOCAL, RANDOM), 1),
    (lambda times: pairs(100 * times, 0, 1), (LOCAL, RANDOM), 1),
    (_crowds, (LOCAL, RANDOM), 1),
    (_many(fan_out(0)), (RANDOM,), 1),
    (_many(fan_out(1)), (RANDOM,), 1),
    (_asking, (LOCAL, RANDOM), 1),
    (_bulk(0), (LOCAL, RANDOM), 200),
    (_bulk(1), (LOCAL, RANDOM), 200),
)


def measure(
    load: Loads, placing: str, batch: int, seconds: float, rounds: int, durability: str
) -> dict[str, Any]:
    """Return messages per second of CPU of one process and of two workers, medians of rounds."""
    found: dict[int, list[float]] = {1: [], COUNT: []}
    shares: list[float] = []
    with _both(durability) as brokers:
        clients = {
            count: PlacedClients(one.port, load(count), placing, batch)
            for count, one in brokers.items()
        }
        for one in clients.values():
            one.run(0.5)
        for _ in range(rounds):
            for count, broker in brokers.items():
                before = broker.cpu_s()
                delivered = clients[count].run(seconds)
                used = [now - then for now, then in zip(broker.cpu_s(), before, strict=True)]
                found[count].append(delivered / sum(used))
                if count == COUNT:
                    shares.append(max(used) / sum(used))
        for one in clients.values():
            one.close()
    single, both = (statistics.median(found[count]) for count in (1, COUNT))
    return {"one": single, "both": both, "balance": statistics.median(shares)}


@contextlib.contextmanager
def _both(durability: str) -> Iterator[dict[int, WorkersBroker]]:
    brokers: dict[int, WorkersBroker] = {}
    try:
        for count in (1, COUNT):
            brokers[count] = WorkersBroker(count, durability)
        yield brokers
    finally:
        for one in brokers.values():
            one.close()


def run(quick: bool = False, only: str = "", durability: str = "off") -> dict[str, Any]:
    """Return a row for each load and placing."""
    rows: list[dict[str, Any]] = []
    seconds, rounds = (1.0, 3) if quick else (3.0, 5)
    for load, placings, batch in ROWS:
        for placing in placings:
            name = f"{load(1).name}, {placing}"
            if only not in name:
                continue
            found = measure(load, placing, batch, seconds, rounds, durability)
            ratio = found["both"] / found["one"]
            capacity = ratio / found["balance"]
            target = 1.7 if placing == LOCAL else 1.3
            row = {
                "name": name,
                "ours": round(found["both"]),
                "peer": {"one process": round(found["one"])},
                "ratio": round(ratio, 2),
                "capacity": round(capacity, 2),
                "balance": round(found["balance"], 2),
                "target": f">= 0.8, capacity >= {target}" if placing != CROSSING else "",
                "holds": None if placing == CROSSING else ratio >= 0.8 and capacity >= target,
            }
            rows.append(row)
            print(
                f"{name:60} one {found['one']:>9,.0f}/s  two {found['both']:>9,.0f}/s  "
                f"ratio {ratio:.2f}  capacity {capacity:.2f}  balance {found['balance']:.2f}",
                file=sys.stderr,
            )
    return {"rows": rows}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--durability", default="off")
    asked = parser.parse_args()
    run(asked.quick, asked.only, asked.durability)
