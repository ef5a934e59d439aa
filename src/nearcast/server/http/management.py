"""Opens the management address of a server: binds its port, makes its site, ends it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.config import Configuration, ListenerSection
from nearcast.config.http_section import HttpSection
from nearcast.model.errors import EnvironmentProblem
from nearcast.server.http.endpoints.overview import figures_of
from nearcast.server.http.live import LiveFeed
from nearcast.server.http.log_tail import LogTail
from nearcast.server.http.login_file import NAME, LoginFile
from nearcast.server.http.logins import Logins
from nearcast.server.http.operators import Operator, read_operators
from nearcast.server.http.protocol import HttpProtocol
from nearcast.server.http.site import Site, Sources
from nearcast.server.http.tile_source import tiles_of
from nearcast.server.listeners.listener import Listener, take_port
from nearcast.server.listeners.tls import tls_context

if TYPE_CHECKING:
    from nearcast.server.server import Server

log = logging.getLogger("nearcast.server")

_EXPIRY_CHECK_S = 30.0


async def take_management_port(section: HttpSection) -> Listener | None:
    """Return the bound port; None where it is off, or where another program has the default one."""
    if section.is_off:
        return None
    host, port = section.host_and_port
    kind, context = "http", None
    if section.certificate is not None:
        files = ListenerSection(kind="tls", certificate=section.certificate, key=section.key)
        kind, context = "https", tls_context(files)
    door = None
    try:
        door = await take_port(kind, host, port, context)
        door.claim()
    except EnvironmentProblem as problem:
        if door is not None:
            door.close()
        if not section.is_default:
            problem.todo = "Choose another [http] address, or 'off'."
            raise
        log.info(
            "port %d is in use: this broker goes on without the page and the HTTP API. "
            "Choose another port with [http] address.",
            port,
        )
        return None
    return door


def operators_of(section: HttpSection) -> dict[str, Operator] | None:
    """Return the configured operators; None where everybody on this machine is a viewer."""
    if section.operators is not None:
        return read_operators(Path(section.operators))
    return None if section.is_off or section.is_loopback else {}  # a reload has removed them


def check_files(section: HttpSection) -> None:
    """Raise for a file of operators or of tiles that cannot be read."""
    operators_of(section)
    tiles_of(section)


def _is_open(configuration: Configuration) -> bool:
    """Return whether clients without a name are welcome on this machine: then viewers are, too."""
    return configuration.auth.anonymous != "never"


class Management:
    """The management address of a running server."""

    def __init__(
        self, server: Server, port: int, sources: Callable[[LogTail, LiveFeed], Sources]
    ) -> None:
        self._server = server
        self._tail = LogTail()
        logging.getLogger("nearcast").addHandler(self._tail)
        logging.getLogger("nearcast.operators").setLevel(logging.INFO)  # whatever [log] level is
        assert server.turns is not None
        self._live = LiveFeed(
            server.node,
            server.turns,
            self._tail,
            server.node_name,
            lambda: server.configuration.http.positions,
        )
        settings = server.configuration
        logins = Logins(
            operators_of(settings.http),
            time.monotonic,
            is_open=_is_open(settings),
            file=LoginFile(Path(settings.node.data) / NAME),
        )
        self.site = Site(sources(self._tail, self._live), logins, port)
        self._live.figures = partial(figures_of, self.site)
        self._share_answers()
        self.make: Callable[[], asyncio.Protocol] = partial(HttpProtocol, self.site)
        self._alarm: asyncio.TimerHandle | None = None
        self._live.start()
        self._check_expiry()

    def _share_answers(self) -> None:
        """Answer together with the other nodes, where there is a network."""
        network = self.site.sources.network()
        if network is not None and network.mesh.is_network:
            from nearcast.server.cluster.node_requests import NodeRequests

            self.site.requests = NodeRequests(self.site, network)

    def _check_expiry(self) -> None:
        self.site.logins.end_expired()
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(_EXPIRY_CHECK_S, self._check_expiry)

    def reload(self, configuration: Configuration) -> None:
        """Use the operators and the map of a configuration; a file that cannot be read raises."""
        operators, tiles = operators_of(configuration.http), tiles_of(configuration.http)
        self.site.logins.use(operators, is_open=_is_open(configuration))
        self.site.tiles = tiles

    def stop(self) -> None:
        """Close all connections and publish nothing more."""
        logging.getLogger("nearcast").removeHandler(self._tail)
        if self._alarm is not None:
            self._alarm.cancel()
        self._live.stop()
        self.site.close()
