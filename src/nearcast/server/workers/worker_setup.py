"""What the parent gives to each worker when it is forked: its number, its ends, the bound ports."""

from __future__ import annotations

import math
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from nearcast.cluster.workers.places import worker_name
from nearcast.config import Configuration, NodeSection
from nearcast.config.node_sections import MOST_WORKERS
from nearcast.server.auth.service import listener_contexts
from nearcast.server.http.management import take_management_port
from nearcast.server.listeners.listener import Listener
from nearcast.server.server import bind_listeners
from nearcast.server.workers.board import Board

_SHARED = ("connections", "sessions", "subscriptions", "total_queue")
"""The limits of a broker of which each worker has its share."""


def worker_count(section: NodeSection) -> int:
    """Return how many processes serve clients: with `auto` one per processor."""
    if isinstance(section.workers, int):
        return section.workers
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(MOST_WORKERS, found or 1))


def with_share(configuration: Configuration, count: int) -> Configuration:
    """Return the configuration of one of `count` workers: limits of the broker are divided."""
    limits = configuration.limits
    shares = {key: math.ceil(getattr(limits, key) / count) for key in _SHARED}
    return configuration.model_copy(update={"limits": limits.model_copy(update=shares)})


@dataclass(slots=True)
class BoundPorts:
    """The listeners of a broker, bound by the parent: those for clients, for metrics, for HTTP."""

    clients: list[Listener]
    metrics: Listener | None
    management: Listener | None

    @property
    def all(self) -> list[Listener]:
        """All listeners, in the order in which they are announced."""
        others = [one for one in (self.metrics, self.management) if one is not None]
        return [*self.clients, *others]

    def close(self) -> None:
        """Close them in this process."""
        for one in self.all:
            one.close()


async def take_ports(configuration: Configuration) -> BoundPorts:
    """Bind all ports, and listen on them."""
    contexts = listener_contexts(configuration)
    clients, metrics = await bind_listeners(configuration, contexts)
    management = await take_management_port(configuration.http)
    ports = BoundPorts(clients, metrics, management)
    for one in ports.all:
        one.claim()
    return ports


@dataclass(slots=True)
class WorkerSetup:
    """One worker's place among the others."""

    number: int
    count: int
    node: str
    directory: Path
    """Of its journal and of what it learned itself."""
    ports: BoundPorts
    control: socket.socket
    """Its end of the channel to the parent."""
    arrivals: socket.socket
    """Connections that others have accepted for it."""
    queues: list[socket.socket]
    """Into the arrivals of each worker."""
    board: Board
    whole: Configuration
    """The configuration of the broker, limits undivided."""
    started_s: float
    """When the broker was started, on the monotonic clock."""
    is_settling: bool = False
    """Whether it serves no clients, and only exchanges what waits for other workers."""
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.names = tuple(worker_name(self.node, one) for one in range(self.count))

    @property
    def name(self) -> str:
        """The name of the worker."""
        return self.names[self.number]
