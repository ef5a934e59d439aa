"""The workers of a broker that runs as several processes: which they are, and clients by worker."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_for

from nearcast.cluster.workers.places import place_of


def worker_pids(broker: BrokerProcess) -> dict[int, int]:
    """Return the process of each worker that runs, by its place (the first has 0)."""
    path = Path(f"/proc/{broker.pid}/task/{broker.pid}/children")
    found = {}
    for pid in map(int, path.read_text().split()):
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        if name.startswith("nearcast-"):
            found[int(name.removeprefix("nearcast-")) - 1] = pid
    return found


def kill_worker(broker: BrokerProcess, place: int) -> None:
    """Kill a worker, and wait until another process has its place."""
    before = worker_pids(broker)[place]
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: worker_pids(broker).get(place, before) != before, said=broker.said)


def name_at(place: int, count: int, prefix: str = "client") -> str:
    """Return a client identifier whose session is at a place among `count` workers."""
    names = (f"{prefix}-{number}" for number in itertools.count())
    return next(name for name in names if place_of(name, count) == place)
