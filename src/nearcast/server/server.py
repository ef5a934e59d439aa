"""One broker on asyncio: listeners, storage, orderly shutdown.

Read next: `running.py` (the process), `loop_batches.py`, `listeners/listener.py`,
`cluster/runtime.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any

from nearcast import compiled_core, kernels
from nearcast.broker import Broker
from nearcast.config import Configuration
from nearcast.mqtt import ReasonCode
from nearcast.server.auth.rules import ConfiguredAccess
from nearcast.server.auth.service import AccessService, listener_contexts
from nearcast.server.broker_settings import (
    broker_settings,
    describe_spaces,
    retained_settings,
    space_settings,
)
from nearcast.server.client_log import BrokerAcceptPolicy, ClientLog
from nearcast.server.clock import Clock
from nearcast.server.config_reload import log_share, merged
from nearcast.server.http.access import PageAccess
from nearcast.server.http.live import LiveFeed
from nearcast.server.http.log_tail import LogTail
from nearcast.server.http.management import Management, check_files, take_management_port
from nearcast.server.http.site import Sources
from nearcast.server.kernel_loading import KernelLoader
from nearcast.server.learned.artefacts import LearnedArtefacts
from nearcast.server.learned.retained_learning import learn_tables
from nearcast.server.listeners.listener import (
    SPARE_DESCRIPTORS,
    Listener,
    allow_descriptors,
    take_port,
)
from nearcast.server.listeners.origins import OriginRule
from nearcast.server.listeners.tcp import MqttProtocol
from nearcast.server.listeners.websocket import WebSocketProtocol
from nearcast.server.loop_batches import LoopBatches
from nearcast.server.metrics.exposition import Read, read_here
from nearcast.server.metrics.http import MetricsProtocol
from nearcast.server.metrics.publisher import MetricsPublisher
from nearcast.server.sockets import calls
from nearcast.server.sockets.memory import keep_freed_memory
from nearcast.server.sockets.transport import SocketLoop
from nearcast.server.storage.journal_file import JournalFile
from nearcast.server.storage.restore import restore_node

if TYPE_CHECKING:
    from nearcast.cluster.cluster import Cluster
    from nearcast.server.cluster.link_runtime import LinkRuntime
    from nearcast.server.eventlog.event_log import EventLog
    from nearcast.server.feed.kafka_sender import KafkaSender
    from nearcast.server.feed.session import FeedCounts

log = logging.getLogger("nearcast.server")


class Server:
    """A broker on asyncio. `start` opens everything or nothing; `stop` closes in order."""

    worker_count = 1

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.clock = Clock()
        self.ports: list[tuple[str, str, int]] = []  # (kind, host, port) of each listener
        self.failure: BaseException | None = None  # why the server had to stop
        self._started_s = time.monotonic()
        self._began_ms = self.clock.now_ms()
        self._access_service = AccessService(configuration, self.clock)
        self._journal: JournalFile | None = None
        self._doors: list[Listener] = []  # all listeners, also those of HTTP
        self._management_door: Listener | None = None  # it is among them, too
        self._management: Management | None = None
        self.turns: LoopBatches | None = None
        self._sockets: SocketLoop | None = None
        self._log: EventLog | None = None
        self._mesh: Cluster | None = None  # None outside a cluster
        self.network: LinkRuntime | None = None
        self._leaves = configuration.network.leave  # `stop` leaves the cluster
        self._metrics: MetricsPublisher | None = None
        self._learner: asyncio.Task[None] | None = None
        self._compiling: KernelLoader | None = None
        self._compiler: asyncio.Task[None] | None = None
        self._kafka: KafkaSender | None = None
        self._feeding: asyncio.Task[None] | None = None  # of the feed into Kafka
        self._stopped = asyncio.Event()
        mode = configuration.durability.mode
        self.node = Broker(
            broker_settings(configuration),
            access=self._with_pages(self._access_service.access),
            rng=SystemRandom(),
            with_journal=mode != "off",
            spaces=[space_settings(section) for section in configuration.space],
            retained=[retained_settings(section) for section in configuration.retained],
        )
        self.node.failures.listener = _log_failure
        self.node.observe(ClientLog(self._access_service.audit))
        self._access_service.attach(self.node)
        data, own = Path(configuration.node.data), self.state_directory
        self._learned = LearnedArtefacts(self.node, self.clock.now_ms, data, own)

    @property
    def state_directory(self) -> Path:
        """The directory of what only this process reads and writes."""
        return Path(self.configuration.node.data)

    @property
    def node_name(self) -> str:
        """The name of this process in the event log."""
        return self.configuration.node.name

    @property
    def _access(self) -> ConfiguredAccess:
        """The rules of access in force."""
        return self._access_service.access

    def _with_pages(self, access: ConfiguredAccess) -> PageAccess:
        return PageAccess(access, lambda: self.configuration.http.positions)

    async def start(self) -> None:
        """Restore the state, bind all ports, join the cluster, then accept clients."""
        keep_freed_memory()
        try:
            self._bring_back()
            await self._take_ports()
            await self._join_network()
            self._begin_feed()
            await self._open_doors()
        except BaseException:
            await self.stop()
            raise
        log.info("the broker's core runs %s", compiled_core.described())
        for kind, host, port in self.ports:
            log.info("listening for %s on %s:%d", kind, host, port)
        assert self._metrics is not None
        self._metrics.start(measures_loop=self.configuration.log.metrics_port is not None)
        self._compiler = asyncio.create_task(self._compile())

    async def _compile(self) -> None:
        """Load compiled kernels while plain Python answers; learning waits for them."""
        parts, learns = self._kernel_parts(), self._learns()
        if parts and not kernels.is_switched():
            self._compiling = KernelLoader(parts, Path(self.configuration.node.data))
            learns = await self._compiling.run() and learns
        if learns:
            self._learner = asyncio.create_task(learn_tables(self.node, self.clock.now_ms))

    def _kernel_parts(self) -> list[str]:
        """Return the parts of `nearcast.kernels` that this server calls."""
        parts = [*self.node.kernel_parts, *(["learning"] if self._learns() else [])]
        return parts if self._mesh is None else [*parts, *self._mesh.kernel_parts]

    def _learns(self) -> bool:
        return any(section.learn for section in self.configuration.retained)

    def _bring_back(self) -> None:
        """Create everything behind the listeners, with its stored state."""
        self._learned.load_changed()
        self._learned.restore()
        self._make_mesh()
        if kernels.is_switched():
            kernels.load(self._kernel_parts())
        self._restore()
        self._open_log()
        self.turns = LoopBatches(
            self.node,
            self.clock,
            journal=self._journal,
            check_login=self._access.check,
            settle=self._access_service.settle,
            login_workers=self._access_service.login_workers,
            on_failure=self._failed,
            on_end=self._log.turn_ended if self._log is not None else None,
        )
        self._access_service.start(self.turns)
        self._learned.watch(self.turns)
        self._metrics = MetricsPublisher(
            self.node,
            self.turns,
            self._started_s,
            network=lambda: self.network,
            feed=self._feed_counts,
            reader=self._metric_reader,
        )

    def _metric_reader(self) -> Read:
        """Return what reads a metric for those who ask."""
        return read_here

    def _restore(self) -> None:
        mode = self.configuration.durability.mode
        if mode == "off":
            if self._mesh is not None:
                self._mesh.restored()
            return
        directory = self.state_directory / "journal"
        self._journal = JournalFile(directory, syncs=mode == "power")
        restore_node(self.node, self._journal, self.clock.now_ms())
        count = len(self.node.client_sessions()) + len(self.node.node_names())
        log.info("%d sessions came back from %s", count, directory)

    def _open_log(self) -> None:
        section = self.configuration.log
        if section.events == "off":
            return
        from nearcast.server.eventlog.event_log import EventLog

        share, data = log_share(section), Path(self.configuration.node.data)
        self._log = EventLog(data / "eventlog", self.node_name, share, section.segment)
        self.node.record_with(self._log.recorder, self.clock.now_ms())

    def _make_mesh(self) -> None:
        """Attach the cluster to the broker, before the journal restores subscriptions."""
        if self.configuration.network.join:
            from nearcast.cluster.cluster import Cluster
            from nearcast.locality.layout.adapting import AdaptRules
            from nearcast.server.cluster.member_entry import redirect_rules

            section = self.configuration.network
            self._mesh = Cluster(
                self.configuration.node.name,
                self.node,
                random=SystemRandom(),
                spaces=describe_spaces(self.configuration),
                skew_ms=round(self.configuration.network.skew * 1000),
                began_ms=0 if self._is_new() else self._began_ms,
                looseness=section.looseness,
                densities=self._learned.densities(section.histograms),
                redirect=redirect_rules(self.configuration),
                adapt=AdaptRules() if self.configuration.network.adapt else None,
            )

    def _is_new(self) -> bool:
        """Return whether this node certainly never ran before: it keeps state, and has none.

        Only then does no peer have a causal history of it that must expire first.
        """
        journal = self.state_directory / "journal"
        return self.configuration.durability.mode != "off" and not journal.exists()

    async def _join_network(self) -> None:
        """Join the cluster before clients connect: a name that is taken would send them away."""
        turns, mesh = self.turns, self._mesh
        if mesh is None or turns is None:
            return
        from nearcast.server.cluster.member_entry import client_address, entry_of
        from nearcast.server.cluster.runtime import ClusterRuntime
        from nearcast.server.feed.sender import begin_feed

        section, describe = self.configuration.network, entry_of(self)
        mesh.announce(client_address(section, self.ports))
        self.network = ClusterRuntime(
            section,
            mesh,
            turns,
            describe=describe,
            on_leave=self._leave,
            learned=self._learned,
        )
        turns.on_taken, turns.on_written = self.network.settle, self.network.turn_ended
        begin_feed(self.configuration, self.network, self.node, turns)
        await self.network.start()

    def _begin_feed(self) -> None:
        """Start the feed into Kafka, if it is configured; it connects later."""
        from nearcast.server.feed.kafka_sender import begin_kafka

        assert self.turns is not None
        self._kafka = begin_kafka(self.configuration, self.node, self.turns)
        if self._kafka is not None:
            self._feeding = asyncio.create_task(self._kafka.run())

    async def _end_feed(self) -> None:
        if self._feeding is not None:
            self._feeding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._feeding
        if self._kafka is not None:
            self._kafka.close()
        self._feeding = self._kafka = None

    def _feed_counts(self) -> FeedCounts | None:
        """Return the counters of this node's feed, wherever it goes."""
        if self._kafka is not None:
            return self._kafka.counts
        network = self.network
        return None if network is None or network.feed is None else network.feed.counts

    def _leave(self) -> None:
        """Stop the server and leave the cluster."""
        self._leaves = True
        self.request_stop()

    async def _take_ports(self) -> None:
        """Bind all ports: that may fail, so it comes before peers queue messages for this node."""
        contexts = listener_contexts(self.configuration)
        check_files(self.configuration.http)  # one that cannot be read ends the start here
        clients, metrics = await bind_listeners(self.configuration, contexts)
        self._doors = [*clients, *([] if metrics is None else [metrics])]
        self._management_door = await take_management_port(self.configuration.http)
        if self._management_door is not None:
            self._doors.append(self._management_door)
        self.ports = [(door.kind, door.host, door.port) for door in self._doors]

    async def _open_doors(self) -> None:
        entrance = BrokerAcceptPolicy(self.node, self._access.gate.admits)
        assert self.turns is not None
        self._sockets = SocketLoop(self.turns) if calls.IS_IN_C else None
        for door, make in zip(self._doors, self._protocols(), strict=True):
            if door.kind.startswith("http"):  # it may use descriptors that clients leave free
                await door.open(make, spare=SPARE_DESCRIPTORS // 2)
            else:
                plain = self._sockets if door.kind == "tcp" else None
                await door.open(make, entrance, plain=plain)

    def _protocols(self) -> Iterator[Callable[[], Any]]:
        """Yield the protocol factory of each listener."""
        turns = self.turns
        assert turns is not None
        for number, section in enumerate(self.configuration.listener):
            name = str(number)
            if section.kind in ("ws", "wss"):
                rule = OriginRule.of(section)
                yield partial(WebSocketProtocol, turns, name, section.path, rule)
            else:
                yield partial(MqttProtocol, turns, name)
        if self.configuration.log.metrics_port is not None:
            assert self._metrics is not None
            pages = {"/metrics": self._metrics.page, "/healthz": lambda: ("text/plain", "ok\n")}
            yield partial(MetricsProtocol, pages)
            if self._management_door is not None:
                log.info("[log] metrics_port goes on; /metrics is at [http] address as well")
        if self._management_door is not None:
            self._management = Management(self, self._management_door.port, self._sources)
            yield self._management.make

    def _may_read(self, client_id: str, topic: str) -> bool:
        """Return whether a client without a name may see messages of a topic, by today's rules."""
        return self._access.may_subscribe(None, client_id, topic)

    def _sources(self, tail: LogTail, live: LiveFeed) -> Sources:
        """Return what the management address shows of this server."""
        assert self.turns is not None
        assert self._metrics is not None
        return Sources(
            self.node,
            self.turns,
            self.clock,
            self._metrics,
            configuration=lambda: self.configuration,
            network=lambda: self.network,
            plan=lambda: self._learned.plan,
            is_ready=lambda: self.network is None or not self.network.problem,
            may_read=self._may_read,
            tail=tail,
            live=live,
        )

    def reload(self, configuration: Configuration) -> tuple[list[str], list[str]]:
        """Apply the settings that can change at run time; return their keys, and those that cannot.

        Password file, certificates and keys are read again in any case.
        """
        configuration, now, later = merged(self.configuration, configuration)
        # What can fail comes first: then everything stays as it was.
        access = self._access_service.prepare(configuration)
        contexts = listener_contexts(configuration)
        check_files(configuration.http)
        self.configuration = configuration
        if self._management is not None:
            self._management.reload(configuration)
        self._reload_access(access)
        for door, context in zip(self._doors, contexts, strict=False):
            door.context = context
        allow_descriptors(configuration.limits.connections)
        self.node.change_limits(broker_settings(configuration))
        if self._log is not None:
            self._log.sample(log_share(configuration.log))
        self._learned.load_changed()
        return now, later

    def _reload_access(self, access: ConfiguredAccess) -> None:
        self._access_service.take(self.configuration, access)
        self.node.set_access(self._with_pages(access), self.clock.now_ms())
        if self.turns is not None:
            self.turns.schedule()  # sessions are checked again in slices

    def _failed(self, problem: BaseException) -> None:
        self.failure = problem
        self._stopped.set()

    def request_stop(self) -> None:
        """Make `wait` return."""
        self._stopped.set()

    async def wait(self) -> None:
        """Wait until a stop is requested."""
        await self._stopped.wait()

    async def stop(self) -> None:
        """Close listeners, disconnect clients, store, close connections."""
        log.info("ending", extra={"fields": {"event": "stopped"}})
        if self.network is not None:
            self.network.drain()
        for door in self._doors:
            door.close()
        if self._management is not None:
            self._management.stop()
            self._management = None
        if self._metrics is not None:
            self._metrics.stop()
        self._learned.stop()
        self._access_service.stop()
        if self._compiling is not None:
            self._compiling.end()
        for task in (self._compiler, self._learner):
            if task is not None:
                task.cancel()
        await self._send_clients_away()
        if self.network is not None:
            await self.network.stop(leave=self._leaves)
            self.network = None
            await self._send_clients_away()  # those that connected while listeners closed
        await self._end_feed()
        if self.turns is not None:
            self.turns.stop()
        self._close_sockets()
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        if self._log is not None:
            self._log.recorder.present("", self.clock.now_ms(), is_there=False)
            self._log.close()
            self._log = None
        self._access_service.close()

    def _close_sockets(self) -> None:
        if self._sockets is not None:
            self._sockets.close()
            self._sockets = None

    async def _send_clients_away(self) -> None:
        """Disconnect all clients, and wait up to 2 s until they have closed."""
        if self.turns is None or self.failure is not None:
            return
        for connection in self.node.client_connections():  # those of peers end with the cluster
            self.node.disconnect(connection, ReasonCode.SERVER_SHUTTING_DOWN, self.clock.now_ms())
        self.turns.end()
        for _ in range(100):
            if not self.node.client_connections():
                return
            await asyncio.sleep(0.02)


async def bind_listeners(
    configuration: Configuration, contexts: Iterable[ssl.SSLContext | None]
) -> tuple[list[Listener], Listener | None]:
    """Return the bound listeners for clients, and that for metrics if there is one.

    If a port cannot be bound, none stays bound.
    """
    with contextlib.ExitStack() as undo:
        clients, metrics = [], None
        for section, context in zip(configuration.listener, contexts, strict=True):
            door = await take_port(section.kind, section.host, section.port, context)
            undo.callback(door.close)
            if section.proxy_protocol:
                door.proxies = [ip_network(one) for one in section.proxies]
            clients.append(door)
        if configuration.log.metrics_port is not None:
            host, port = configuration.log.metrics_address()
            metrics = await take_port("http", host, port)
        undo.pop_all()
    return clients, metrics


def _log_failure(fingerprint: str, doing: str, problem: BaseException) -> None:
    log.error(
        "internal error %s while %s; the broker goes on, please report it",
        fingerprint,
        doing,
        exc_info=problem,
    )
