"""Compiled kernels for a running broker: other processes compile them, then it loads them.

Until then plain Python and NumPy answer (see `nearcast.kernels`): correctly, and slower.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from nearcast import kernel_files, kernels
from nearcast.warming import processors, worker_command

log = logging.getLogger("nearcast.server")

R = TypeVar("R")

_SWITCH_S = 0.0005  # how long the loading thread runs before the event loop gets its turn


class KernelLoader:
    """Loads compiled kernels into a running process without blocking it."""

    def __init__(self, parts: Sequence[str], data: Path) -> None:
        self._parts = list(parts)
        self._data = data
        self._workers: list[asyncio.subprocess.Process] = []

    async def run(self) -> bool:
        """Compile missing kernels, load all, and switch to them; return False if that failed."""
        began = time.monotonic()
        # It reads the sources of all kernels.
        directory = await _in_thread(partial(kernel_files.choose, self._parts, self._data))
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
        """Load in a thread; let this one interrupt it often.

        The event loop gives up the interpreter's lock at each read and write, and gets it back
        only when the loading thread's interval is over.
        """
        before_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        try:
            await _in_thread(partial(kernels.load, self._parts))
        finally:
            sys.setswitchinterval(before_s)

    def end(self) -> None:
        """Kill the workers."""
        for one in self._workers:
            if one.returncode is None:
                one.send_signal(signal.SIGKILL)


async def _in_thread(call: Callable[[], R]) -> R:
    """Call a function in a daemon thread: the process can exit without waiting for it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[R] = loop.create_future()

    def run() -> None:
        try:
            end = partial(end_with, done.set_result, call())
        except BaseException as problem:  # noqa: BLE001 - raised again where it is awaited
            end = partial(end_with, done.set_exception, problem)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(end)

    def end_with(set_outcome: Callable[[Any], None], outcome: object) -> None:
        if not done.done():
            set_outcome(outcome)

    threading.Thread(target=run, name="kernels", daemon=True).start()
    return await done
