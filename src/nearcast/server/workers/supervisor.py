"""The parent of the workers of a broker: binds the ports, starts workers, and starts them again.

It has no event loop and serves nobody: it waits for signals, for what workers say, and for their
end. A worker is forked, so that it begins with everything imported.

Read next: `server.py` (a worker), `layout.py` (what happens when their number changes).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import math
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.config import Configuration
from nearcast.model.errors import EnvironmentProblem, NearcastError
from nearcast.server.listeners.listener import allow_descriptors
from nearcast.server.workers import control
from nearcast.server.workers.board import Board
from nearcast.server.workers.server import run_worker
from nearcast.server.workers.worker_setup import BoundPorts, WorkerSetup, take_ports

if TYPE_CHECKING:
    from nearcast.server.cluster.link_runtime import LinkRuntime

log = logging.getLogger("nearcast.server")

MOST_DEATHS = 6
"""So many deaths of a worker in `_WINDOW_S` end the broker."""
_WINDOW_S = 60.0
_LONGEST_PAUSE_S = 2.0
_SETTLING_S = 60.0
_END_S = 90.0  # the log writers of workers may take a minute
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_DIE_WITH_PARENT, _SET_NAME = 1, 15  # PR_SET_PDEATHSIG and PR_SET_NAME of prctl
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None) if os.name == "posix" else None


@dataclass(slots=True)
class WorkerProcess:
    """A worker as the parent sees it."""

    number: int
    name: str
    pid: int = 0
    """0: it does not run."""
    control: socket.socket | None = None
    is_ready: bool = False
    is_settled: bool = False
    starts_at_s: float | None = None
    """When it is started again."""
    deaths_s: deque[float] = field(default_factory=deque)


class Supervisor:
    """The workers of one broker; `run` returns when they have ended in order."""

    network: LinkRuntime | None = None  # as of a server that is in no network

    def __init__(
        self,
        configuration: Configuration,
        count: int,
        directory: Path,
        *,
        reread: Callable[[], Configuration] | None = None,
        is_settling: bool = False,
    ) -> None:
        self.configuration = configuration
        self.ports: list[tuple[str, str, int]] = []
        self.worker_count = count
        self._directory = directory
        self._reread = reread
        self._is_settling = is_settling
        self._started_s = time.monotonic()
        self._bound = BoundPorts([], None, None)
        self._board = Board(count)
        self._pairs = [control.channel() for _ in range(count)]  # of connections passed on
        names = self._setup(0, self._pairs[0][0]).names
        self._workers = [WorkerProcess(number, name) for number, name in enumerate(names)]
        self._selector = selectors.DefaultSelector()
        self._failure: NearcastError | None = None
        self._is_ending = self._was_ready = False
        self._kills_at_s = math.inf

    def _setup(self, number: int, end: socket.socket) -> WorkerSetup:
        return WorkerSetup(
            number,
            self.worker_count,
            self.configuration.node.name,
            self._directory / str(number + 1),
            self._bound,
            end,
            self._pairs[number][0],
            [tx for _, tx in self._pairs],
            self._board,
            self.configuration,
            self._started_s,
            self._is_settling,
        )

    # --- the whole life -----------------------------------------------------------------------

    def run(self, on_ready: Callable[[Supervisor], None] | None = None) -> None:
        """Serve until SIGTERM or SIGINT; raise what makes it impossible."""
        if not self._is_settling:
            allow_descriptors(self.configuration.limits.connections)
            self._bound = asyncio.run(take_ports(self.configuration))
            self.ports = [(one.kind, one.host, one.port) for one in self._bound.all]
        waker, woken = socket.socketpair()
        for end in (waker, woken):
            end.setblocking(False)
        before = {number: signal.signal(number, _ignore) for number in _SIGNALS}
        earlier = signal.set_wakeup_fd(woken.fileno())
        self._selector.register(waker, selectors.EVENT_READ, None)
        gc.collect()
        gc.freeze()  # the workers share these pages
        try:
            self._serve(waker, on_ready)
        finally:
            self._kill_rest()
            signal.set_wakeup_fd(earlier)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.close()
            for end in (waker, woken, *(one for pair in self._pairs for one in pair)):
                end.close()
            self._bound.close()
        if self._failure is not None:
            raise self._failure

    def _serve(self, waker: socket.socket, on_ready: Callable[[Supervisor], None] | None) -> None:
        for worker in self._workers:
            self._start(worker)
        until_s = time.monotonic() + _SETTLING_S
        while any(worker.pid for worker in self._workers) or not self._is_ending:
            for key, _ in self._selector.select(self._pause_s()):
                if key.data is None:
                    for number in waker.recv(1_024):
                        self._signalled(number)
                else:
                    self._listen_to(key.data)
            self._reap()
            now_s = time.monotonic()
            if now_s > self._kills_at_s:
                return
            for worker in self._workers:
                due_s = worker.starts_at_s
                if due_s is not None and due_s <= now_s and not self._is_ending:
                    self._start(worker)
            if not self._was_ready and all(worker.is_ready for worker in self._workers):
                self._was_ready = True
                if on_ready is not None:
                    on_ready(self)
            if self._is_settling and not self._is_ending:
                self._end_if_settled(is_late=now_s > until_s)

    def _pause_s(self) -> float | None:
        times = [one.starts_at_s for one in self._workers if one.starts_at_s is not None]
        if self._is_settling or self._is_ending:
            return 0.2
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _end_if_settled(self, *, is_late: bool) -> None:
        if all(worker.is_settled for worker in self._workers):
            self._end()
        elif is_late:
            self._fail(
                EnvironmentProblem(
                    "messages between the workers of before were not answered",
                    where=str(self._directory),
                    todo=f"Start once with workers = {self.worker_count}, and look at the log.",
                )
            )

    # --- workers ------------------------------------------------------------------------------

    def _start(self, worker: WorkerProcess) -> None:
        """Fork a worker, and link it with all others that run."""
        worker.starts_at_s, worker.is_ready, worker.is_settled = None, False, False
        ours, theirs = control.channel()
        parent = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # a child must not take one as we do
        worker.pid = os.fork()
        if not worker.pid:
            self._become(worker, ours, theirs, parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        theirs.close()
        worker.control = ours
        self._selector.register(ours, selectors.EVENT_READ, worker)
        for other in self._workers:
            if other is not worker and other.pid and other.control is not None:
                self._link(worker, other)

    def _become(
        self, worker: WorkerProcess, ours: socket.socket, theirs: socket.socket, parent: int
    ) -> None:
        """Be the worker; does not return."""
        os.setpgid(0, 0)  # Ctrl-C is for the parent, which ends its workers in order
        if _PRCTL is not None:
            _PRCTL(_DIE_WITH_PARENT, signal.SIGTERM)
            _PRCTL(_SET_NAME, f"nearcast-{worker.number + 1}".encode())  # as `top` has it
        if os.getppid() != parent:
            os._exit(1)
        ours.close()
        for other in self._workers:
            if other.control is not None:
                other.control.close()  # their end is to be seen when the parent ends
        run_worker(self._setup(worker.number, theirs), self.configuration, self._reread)

    @staticmethod
    def _link(one: WorkerProcess, other: WorkerProcess) -> None:
        ends = socket.socketpair()
        for worker, peer, end in ((one, other, ends[0]), (other, one, ends[1])):
            assert worker.control is not None
            control.send(worker.control, {"peer": peer.name}, [end.fileno()])
        for end in ends:
            end.close()

    def _listen_to(self, worker: WorkerProcess) -> None:
        """Handle what a worker says."""
        assert worker.control is not None
        try:
            while (found := control.receive(worker.control)) is not None:
                message = found[0]
                worker.is_ready |= "ready" in message
                worker.is_settled = message.get("settled", worker.is_settled)
                if "failed" in message:
                    self._failed(worker, message["failed"])
        except EOFError:
            self._forget_control(worker)

    def _failed(self, worker: WorkerProcess, parts: list[str]) -> None:
        found, where, expected, todo = parts
        problem = EnvironmentProblem(found, where=where, expected=expected, todo=todo)
        if self._was_ready:
            log.error("worker %d cannot serve: %s", worker.number + 1, problem)
        else:
            self._fail(problem)

    def _forget_control(self, worker: WorkerProcess) -> None:
        if worker.control is not None:
            self._selector.unregister(worker.control)
            worker.control.close()
            worker.control = None

    def _reap(self) -> None:
        """Handle the end of workers."""
        for worker in self._workers:
            if not worker.pid:
                continue
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if pid:
                if worker.control is not None:
                    self._listen_to(worker)  # its last words
                self._forget_control(worker)
                worker.pid, worker.is_ready = 0, False
                self._died(worker, pid, os.waitstatus_to_exitcode(status))

    def _died(self, worker: WorkerProcess, pid: int, code: int) -> None:
        if self._is_ending:
            return
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        now_s, deaths = time.monotonic(), worker.deaths_s
        deaths.append(now_s)
        while deaths[0] < now_s - _WINDOW_S:
            deaths.popleft()
        if len(deaths) >= MOST_DEATHS or not self._was_ready:
            self._fail(
                EnvironmentProblem(
                    f"worker {worker.number + 1} has ended ({how}), for the {len(deaths)}th time",
                    where="workers",
                    todo="The log says why.",
                )
            )
            return
        pause_s = 0.0 if len(deaths) == 1 else min(_LONGEST_PAUSE_S, 0.05 * 2 ** len(deaths))
        worker.starts_at_s = now_s + pause_s
        told = {"event": "worker_ended", "worker": worker.number + 1, "pid": pid, "how": how}
        text = "worker %d has ended (%s): it is started again with its sessions"
        log.error(text, worker.number + 1, how, extra={"fields": told})

    # --- signals and the end ------------------------------------------------------------------

    def _signalled(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self._end()
        elif number == signal.SIGHUP:
            self._tell_all(signal.SIGHUP)

    def _fail(self, problem: NearcastError) -> None:
        self._failure = self._failure or problem
        self._end()

    def _end(self) -> None:
        """End all workers in order: each sends its clients away, and stores what it has."""
        if not self._is_ending:
            self._kills_at_s = time.monotonic() + _END_S
        self._is_ending = True
        self._bound.close()
        self._tell_all(signal.SIGTERM)

    def _tell_all(self, number: int) -> None:
        for worker in self._workers:
            if worker.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, number)

    def _kill_rest(self) -> None:
        """Leave no worker behind, whatever has happened."""
        left = [worker for worker in self._workers if worker.pid]
        self._tell_all(signal.SIGTERM)
        until_s = time.monotonic() + (_END_S if self._kills_at_s is math.inf else 1.0)
        for worker in left:
            while not os.waitpid(worker.pid, os.WNOHANG)[0]:
                if time.monotonic() > until_s:
                    os.kill(worker.pid, signal.SIGKILL)
                    os.waitpid(worker.pid, 0)
                    break
                time.sleep(0.02)
            worker.pid = 0


def _ignore(_number: int, _frame: object) -> None:
    """Do nothing: the number is read from the wake-up descriptor."""
