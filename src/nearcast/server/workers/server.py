"""One worker: a server whose ports are bound already, with links to the other workers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from random import SystemRandom
from typing import Any

from nearcast.cluster.workers.worker_cluster import WorkerCluster
from nearcast.config import Configuration
from nearcast.model.errors import NearcastError
from nearcast.server.broker_settings import describe_spaces
from nearcast.server.http.live import LiveFeed
from nearcast.server.http.log_tail import LogTail
from nearcast.server.http.management import Management
from nearcast.server.http.site import Sources
from nearcast.server.log_format import mark_lines
from nearcast.server.metrics.exposition import Read, read_here
from nearcast.server.running import new_loop, run
from nearcast.server.server import Server
from nearcast.server.workers import control
from nearcast.server.workers.figures import SharedFigures
from nearcast.server.workers.handover import Handover
from nearcast.server.workers.requests import WorkerRequests
from nearcast.server.workers.runtime import WorkerRuntime
from nearcast.server.workers.worker_setup import WorkerSetup, with_share

log = logging.getLogger("nearcast.server")

_SKEW_MS = 1
"""All workers have one clock."""
_LOOK_S = 0.05


class WorkerServer(Server):
    """One of the workers of a broker."""

    network: WorkerRuntime | None

    def __init__(self, configuration: Configuration, setup: WorkerSetup) -> None:
        self.setup = setup
        super().__init__(configuration)
        self._started_s = setup.started_s
        section = configuration.auth
        self._handover = Handover(
            setup.number, setup.arrivals, setup.queues, by_user=section.use_username_as_clientid
        )
        self._links: set[asyncio.Task[None]] = set()
        self._figures: SharedFigures | None = None

    @property
    def state_directory(self) -> Path:
        """Where this worker's journal is."""
        return self.setup.directory

    @property
    def node_name(self) -> str:
        """The name of this worker, among the others and in the event log."""
        return self.setup.name

    def _make_mesh(self) -> None:
        mesh = WorkerCluster(
            self.setup.name,
            self.node,
            random=SystemRandom(),
            spaces=describe_spaces(self.configuration),
            skew_ms=_SKEW_MS,
            began_ms=0 if self._is_new() else self._began_ms,
            looseness=self.configuration.network.looseness,
            densities=self._learned.densities(self.configuration.network.histograms),
        )
        mesh.name_all(self.setup.names)
        self._mesh = mesh

    async def _join_network(self) -> None:
        """Take the links from the parent, and wait until the other workers have answered."""
        turns, mesh = self.turns, self._mesh
        assert turns is not None
        assert isinstance(mesh, WorkerCluster)
        self.network = WorkerRuntime(mesh, turns, self.setup.names)
        turns.on_taken, turns.on_written = self.network.settle, self.network.turn_ended
        asyncio.get_running_loop().add_reader(self.setup.control.fileno(), self._take_orders)
        await self.network.start()

    def _take_orders(self) -> None:
        """Handle what the parent says; its end is ours."""
        try:
            while (found := control.receive(self.setup.control)) is not None:
                message, descriptors = found
                end = socket.socket(fileno=descriptors[0])
                end.setblocking(False)
                assert self.network is not None
                task = asyncio.create_task(self.network.connect(message["peer"], end))
                self._links.add(task)
                task.add_done_callback(self._links.discard)
        except EOFError:
            asyncio.get_running_loop().remove_reader(self.setup.control.fileno())
            self.request_stop()

    async def _take_ports(self) -> None:
        ports = self.setup.ports
        if self.setup.is_settling:
            return
        self._doors = list(ports.clients)
        if self.setup.number == 0:
            self._doors += [] if ports.metrics is None else [ports.metrics]
            self._management_door = ports.management
            self._doors += [] if ports.management is None else [ports.management]
        self.ports = [(door.kind, door.host, door.port) for door in self._doors]

    def _protocols(self) -> Iterator[Callable[[], Any]]:
        """Yield what the first worker serves, or the others: they have no page and no metrics."""
        return islice(super()._protocols(), len(self._doors))

    async def _open_doors(self) -> None:
        await super()._open_doors()
        if not self.setup.is_settling:
            self._handover.watch(self.setup.ports.clients)
        assert self._metrics is not None
        self._answer_for_others()
        metrics, mesh = self._metrics, self._mesh
        assert isinstance(mesh, WorkerCluster)
        metrics.counters = mesh.client_counters
        self._figures = SharedFigures(
            self.setup.board, self.setup.number, metrics.source, mesh.client_counters
        )
        self._figures.start()

    def _sources(self, tail: LogTail, live: LiveFeed) -> Sources:
        found = super()._sources(tail, live)
        found.configuration = lambda: self.setup.whole  # limits undivided
        return found

    def _answer_for_others(self) -> None:
        """Answer the HTTP API's requests together with the other workers."""
        if self._management is None and self.setup.ports.management is not None:
            self._management = Management(self, 0, self._sources)
        if self._management is not None and self.network is not None:
            site = self._management.site
            site.requests = WorkerRequests(site, self.network, self.setup.number)

    def _metric_reader(self) -> Read:
        return read_here if self._figures is None else self._figures.reader()

    def told_ready(self) -> None:
        """Report to the parent that clients are served."""
        control.send(self.setup.control, {"ready": True})
        if self.setup.is_settling:
            task = asyncio.create_task(self._report_settled())
            self._links.add(task)

    async def _report_settled(self) -> None:
        """Report to the parent whenever it changes whether something waits for another worker."""
        before = False
        while self.network is not None:
            now = self.network.is_settled
            if now != before:
                control.send(self.setup.control, {"settled": now})
                before = now
            await asyncio.sleep(_LOOK_S)

    async def stop(self) -> None:
        """Take over no more connections, then end as any server."""
        self._handover.stop()
        if self._figures is not None:
            self._figures.stop()
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().remove_reader(self.setup.control.fileno())
        await super().stop()


def run_worker(
    setup: WorkerSetup, configuration: Configuration, reread: Callable[[], Configuration] | None
) -> None:
    """Be a worker until SIGTERM, then end the process: it was forked off the parent."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        mark_lines(setup.number + 1)
        code = _run(setup, configuration, reread)
    except BaseException:
        log.exception("a worker has failed")
    finally:
        logging.shutdown()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)


def _run(
    setup: WorkerSetup, configuration: Configuration, reread: Callable[[], Configuration] | None
) -> int:
    def read() -> Configuration:
        assert reread is not None
        setup.whole = reread()
        return with_share(setup.whole, setup.count)

    def ready(server: Server) -> None:
        assert isinstance(server, WorkerServer)
        server.told_ready()

    own = with_share(configuration, setup.count)
    kind = partial(WorkerServer, setup=setup)
    rereads = None if reread is None else read
    try:
        with asyncio.Runner(loop_factory=new_loop()) as runner:
            runner.run(run(own, on_ready=ready, reread=rereads, kind=kind))
    except NearcastError as problem:
        parts = (problem.found, problem.where, problem.expected, problem.todo)
        control.send(setup.control, {"failed": parts})
        return 1
    return 0
