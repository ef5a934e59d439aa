"""The start of a broker with workers: their number may be another one than last time."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable
from pathlib import Path

from nearcast.config import Configuration
from nearcast.model.errors import EnvironmentProblem, MisuseError
from nearcast.server.running import ReadyServer
from nearcast.server.workers import layout
from nearcast.server.workers.supervisor import Supervisor
from nearcast.server.workers.worker_setup import worker_count

log = logging.getLogger("nearcast.server")


def serve_with_workers(
    configuration: Configuration,
    on_ready: Callable[[ReadyServer], None] | None,
    reread: Callable[[], Configuration] | None,
) -> bool:
    """Serve with several processes; return False, once the state is that of one, for one."""
    if not hasattr(os, "fork"):
        raise MisuseError(
            f"workers = {configuration.node.workers}",
            where="[node]",
            expected="1: workers need a system with fork, such as Linux",
        )
    count, data = worker_count(configuration.node), Path(configuration.node.data)
    lock = _locked(data)
    try:
        if configuration.durability.mode != "off":
            _change(configuration, data, count)
        if count == 1:
            return False
        directory = layout.worker_directory(data, count)
        Supervisor(configuration, count, directory, reread=reread).run(on_ready)
    finally:
        os.close(lock)
    return True


def _change(configuration: Configuration, data: Path, count: int) -> None:
    """Move the sessions if the number of workers is another one than last time."""
    before = layout.known_count(data)
    layout.finish(data, before)
    if before == count:
        return
    if before > 1:
        directory = layout.worker_directory(data, before)
        Supervisor(configuration, before, directory, is_settling=True).run()
    moved = layout.in_child(configuration, before, count)
    layout.set_count(data, count)
    layout.finish(data, count)
    if moved:
        text = "the broker had %d workers and has %d now: %d sessions have moved"
        log.info(text, before, count, moved)


def _locked(data: Path) -> int:
    """Return a lock of the data directory; workers of a killed parent keep it until they end."""
    data.mkdir(parents=True, exist_ok=True)
    lock = os.open(data / "workers.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise EnvironmentProblem(
            "the data directory is in use by another broker",
            where=str(data),
            todo="Stop that one, or name another directory with --data.",
        ) from None
    return lock
