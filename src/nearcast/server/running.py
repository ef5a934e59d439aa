"""The broker as a process: the event loop, signals, an orderly end.

Read next: `server.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nearcast import kernels
from nearcast.config import Configuration
from nearcast.model.errors import EnvironmentProblem, MisuseError, NearcastError
from nearcast.server.file_modes import PRIVATE_UMASK
from nearcast.server.listeners.listener import allow_descriptors
from nearcast.server.server import Server

if TYPE_CHECKING:
    from nearcast.server.cluster.link_runtime import LinkRuntime

log = logging.getLogger("nearcast.server")

_COLLECTIONS = (5_000, 20, 500)
"""Of the garbage collector: all clients wait for it, 1 µs for each object that it frees."""


class ReadyServer(Protocol):
    """A broker that serves clients: one process, or the parent of several."""

    @property
    def configuration(self) -> Configuration:
        """Its settings."""

    @property
    def ports(self) -> list[tuple[str, str, int]]:
        """Kind, host and port of each listener."""

    @property
    def worker_count(self) -> int:
        """How many processes serve its clients."""

    @property
    def network(self) -> LinkRuntime | None:
        """Its side of a cluster, if it is in one."""


def has_workers(data: Path) -> bool:
    """Return whether the state in a data directory is that of several workers."""
    return (data / "workers.json").exists()


async def run(
    configuration: Configuration,
    *,
    on_ready: Callable[[Server], None] | None = None,
    reread: Callable[[], Configuration] | None = None,
    kind: Callable[[Configuration], Server] = Server,
) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP reloads the configuration and the users."""
    allow_descriptors(configuration.limits.connections)
    server = kind(configuration)
    loop = asyncio.get_running_loop()
    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, server.request_stop)
    if not await _started(server):
        return
    # Imported and restored objects stay alive: the collector need not scan them again and again.
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)
    if reread is not None:
        loop.add_signal_handler(signal.SIGHUP, _reload, server, reread)
    try:
        if on_ready is not None:
            on_ready(server)
        await server.wait()
    finally:
        await server.stop()
    if server.failure is not None:
        raise EnvironmentProblem(
            f"the journal cannot be written ({server.failure})",
            where=str(configuration.node.data),
            todo="Free some space; what was acknowledged is on disk.",
        )


async def _started(server: Server) -> bool:
    """Start a server; return False if a stop is requested meanwhile."""
    starting, ending = (asyncio.ensure_future(one) for one in (server.start(), server.wait()))
    await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    if not starting.done():
        starting.cancel()  # `start` then closes everything that it has opened
        await asyncio.wait({starting})
        return False
    starting.result()
    return True


def _reload(server: Server, reread: Callable[[], Configuration]) -> None:
    try:
        now, later = server.reload(reread())
    except NearcastError as problem:
        log.error("the new configuration was refused, the old one stays: %s", problem)
    except Exception:  # no configuration file may end a running broker
        log.exception("the new configuration was refused, the old one stays")
    else:
        told = {"event": "configuration_reloaded", "changed": now, "needs_restart": later}
        log.info(
            "configuration and users read again; changed: %s",
            ", ".join(now) or "nothing",
            extra={"fields": told},
        )
        if later:
            log.warning("changed in the file, but needs a restart: %s", ", ".join(later))


def serve(
    configuration: Configuration,
    *,
    on_ready: Callable[[ReadyServer], None] | None = None,
    reread: Callable[[], Configuration] | None = None,
    find_kind: Callable[[], type[Server]] | None = None,
) -> None:
    """Serve on uvloop until a signal stops the broker; return after an orderly shutdown.

    The process does not wait for kernels: plain Python answers until they are compiled. `find_kind`
    returns the class of the server; it may import kernels.
    """
    kernels.interpret()
    os.umask(PRIVATE_UMASK)
    workers = configuration.node.workers
    if find_kind is not None and workers != 1:
        raise MisuseError(
            f"workers = {workers}", where="[node]", expected="1: a peer is one process"
        )
    if find_kind is None and (workers != 1 or has_workers(Path(configuration.node.data))):
        from nearcast.server.workers.starting import serve_with_workers

        if serve_with_workers(configuration, on_ready, reread):
            return
    kind = Server if find_kind is None else find_kind()
    with asyncio.Runner(loop_factory=new_loop()) as runner:
        runner.run(run(configuration, on_ready=on_ready, reread=reread, kind=kind))


def new_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes an event loop: uvloop's where there is one, else None for asyncio's own."""
    with contextlib.suppress(ImportError):  # there is no uvloop for Windows
        import uvloop

        return uvloop.new_event_loop
    return None
