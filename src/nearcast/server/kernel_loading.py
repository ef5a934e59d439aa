"""Compiled kernels for a running broker: other processes compile them, then it loads them.

Until then plain Python and NumPy answer (see `nearcast.kernels`): correctly, and slower.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from nearcast import kernel_files, kernels
from nearcast.warming import processors, worker_command

log = logging.getLogger("nearcast.server")


class KernelLoader:
    """Loads compiled kernels into a running process without blocking it."""

    def __init__(self, parts: Sequence[str], data: Path) -> None:
        self._parts = list(parts)
        self._data = data
        self._workers: list[asyncio.subprocess.Process] = []

    async def run(self) -> bool:
        """Compile missing kernels, load all, and switch to them; return False if that failed."""
        began = time.monotonic()
        directory = kernel_files.choose(self._parts, self._data)
        if not kernel_files.is_warm(directory.parent, self._parts):
            what = ", ".join(self._parts)
            log.info(
                "compiling kernels (%s) into %s: until then %s is slower", what, directory, what
            )
            try:
                await self._compile(directory)
            except OSError as problem:
                log.warning("kernels cannot be compiled (%s): %s stays slower", problem, what)
                return False
            if not kernel_files.is_warm(directory.parent, self._parts):
                log.warning("kernels could not be compiled: %s stays slower", what)
                return False
        await self._load()
        kernels.switch_on()
        log.info("kernels are compiled: full speed after %.1f s", time.monotonic() - began)
        return True

    async def _compile(self, directory: Path) -> None:
        command = worker_command(directory, self._parts)
        for _ in range(processors()):
            self._workers.append(
                await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.PIPE,  # its EOF tells a worker that we are gone
                    stderr=asyncio.subprocess.PIPE,
                )
            )
        for said in await asyncio.gather(*(one.communicate() for one in self._workers)):
            if said[1]:
                log.warning("a compiler said: %s", said[1].decode(errors="replace")[-2000:])
        self._workers.clear()

    async def _load(self) -> None:
        """Load in a daemon thread: the process can exit without waiting for it."""
        loop = asyncio.get_running_loop()
        loaded: asyncio.Future[BaseException | None] = loop.create_future()

        def load() -> None:
            problem: BaseException | None = None
            try:
                kernels.load(self._parts)
            except BaseException as found:  # noqa: BLE001 - raised again where it is awaited
                problem = found
            loop.call_soon_threadsafe(_settle, loaded, problem)

        threading.Thread(target=load, name="kernels", daemon=True).start()
        problem = await loaded
        if problem is not None:
            raise problem

    def end(self) -> None:
        """Kill the workers."""
        for one in self._workers:
            if one.returncode is None:
                one.send_signal(signal.SIGKILL)


def _settle(future: asyncio.Future[BaseException | None], problem: BaseException | None) -> None:
    if not future.done():
        future.set_result(problem)
