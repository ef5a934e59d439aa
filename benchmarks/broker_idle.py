"""What connections cost that are only held: memory, and the CPU of their pings.

    python -m benchmarks.broker_idle --connections 50000

Each broker alone, one after the other. Clients connect from several addresses of the loopback
device, as one address has ports for 28,000. Their keep-alive is a minute, and each sends a PINGREQ
in every minute, spread evenly. 50,000 need as many open files in two processes (`ulimit -n`).
"""

from __future__ import annotations

import argparse
import random
import resource
import socket
import time
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks import peers
from benchmarks.broker_load import link, read_exactly
from benchmarks.broker_processes import OURS, Broker, running

KEEP_ALIVE_S = 60
_OF_AN_ADDRESS = 20_000
_SPARE = 200


class Idle(NamedTuple):
    """What a connection takes."""

    connections: int
    bytes_each: float
    core_percent: float
    """Of a core, for the pings of all connections."""


def most_connections(wanted: int) -> int:
    """Return how many connections this process may hold, `wanted` if the system allows it."""
    needed = wanted + _SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < needed:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, needed))
        except (ValueError, OSError):  # only root may
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    elif soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(wanted, soft - _SPARE)


def idle(broker: Broker, connections: int, seconds: float) -> Idle:
    """Return the memory and the CPU of so many connections that only ping."""
    clients = _connected(broker, connections // 50, "first")  # what a broker allocates once
    before_kb = broker.rss_kb()
    clients += _connected(broker, connections, "idle")
    used_kb = broker.rss_kb() - before_kb
    used_s = _pinged(broker, clients, seconds)
    found = Idle(connections, used_kb * 1024 / connections, 100 * used_s / seconds)
    for client in clients:
        client.close()
    return found


def _connected(broker: Broker, count: int, name: str) -> list[socket.socket]:
    return [
        link(
            broker.port,
            4,
            f"{name}{number}",
            source=f"127.0.0.{2 + number // _OF_AN_ADDRESS}",
            keep_alive_s=KEEP_ALIVE_S,
        )
        for number in range(count)
    ]


def _pinged(broker: Broker, clients: Sequence[socket.socket], seconds: float) -> float:
    """Send the pings of so many seconds, evenly; return the broker's CPU time."""
    rate = len(clients) / KEEP_ALIVE_S
    due = random.Random(1).sample(range(len(clients)), min(len(clients), int(rate * seconds)))
    before_s, began_s = broker.cpu_s(), time.perf_counter()
    for number, place in enumerate(due):
        time.sleep(max(0.0, began_s + number / rate - time.perf_counter()))
        clients[place].sendall(b"\xc0\0")
        read_exactly(clients[place], 2)
    time.sleep(max(0.0, began_s + seconds - time.perf_counter()))
    return broker.cpu_s() - before_s


def measured(kinds: Sequence[str], connections: int, seconds: float) -> dict[str, Idle]:
    """Return the figures of each broker, one after the other."""
    connections = most_connections(connections + connections // 50) * 50 // 51
    found = {}
    for kind in kinds:
        with running(kind) as broker:
            found[kind] = idle(broker, connections, seconds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    peers.add_options(parser)
    given = parser.parse_args()
    for kind in peers.chosen(given, [OURS]):
        found = measured([kind], given.connections, given.seconds)[kind]
        print(
            f"{kind}: {found.connections:,} connections, {found.bytes_each:,.0f} bytes each, "
            f"{found.core_percent:.2f} % of a core for their pings",
            flush=True,
        )


if __name__ == "__main__":
    main()
