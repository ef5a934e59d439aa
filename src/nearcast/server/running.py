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

from nearcast import kernels
from nearcast.config import Configuration
from nearcast.model.errors import EnvironmentProblem, NearcastError
from nearcast.server.file_modes import PRIVATE_UMASK
from nearcast.server.listeners.listener import allow_descriptors
from nearcast.server.server import Server

log = logging.getLogger("nearcast.server")


async def run(
    configuration: Configuration,
    *,
    on_ready: Callable[[Server], None] | None = None,
    reread: Callable[[], Configuration] | None = None,
    kind: type[Server] = Server,
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
    gc.set_threshold(50_000, 20, 50)
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
    on_ready: Callable[[Server], None] | None = None,
    reread: Callable[[], Configuration] | None = None,
    find_kind: Callable[[], type[Server]] = lambda: Server,
) -> None:
    """Serve on uvloop until a signal stops the broker; return after an orderly shutdown.

    The process does not wait for kernels: plain Python answers until they are compiled. `find_kind`
    returns the class of the server; it may import kernels.
    """
    kernels.interpret()
    os.umask(PRIVATE_UMASK)
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):  # there is no uvloop for Windows
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run(configuration, on_ready=on_ready, reread=reread, kind=find_kind()))
