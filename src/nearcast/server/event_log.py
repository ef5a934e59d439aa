"""The event log of a running broker: bytes go into a pipe, `log_pump.py` writes them.

The loop never waits: what the pipe does not take at once stays here, and where that becomes too
much, records are dropped and a gap says so.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

from nearcast.eventlog.records import Recorder, sampled
from nearcast.eventlog.segments import batch_header, last_sequence, open_segments
from nearcast.model.errors import EnvironmentProblem
from nearcast.server import log_pump

log = logging.getLogger("nearcast.eventlog")

FLUSH_BYTES = 1 << 17  # little enough to stay in the cache of the processor
FLUSH_S = 0.2
PIPE_BYTES = 1 << 20
MOST_WAITING_BYTES = 64 << 20
SEGMENT_BYTES = 1 << 28
RESTART_S = 10.0
_MOST_PIECES = 1_000  # of one writev
_LOCK_S = 30.0


class EventLog:
    """Hands what a `Recorder` collects to a process that keeps it, in order."""

    def __init__(self, directory: Path, node: str, share: float, segment_s: float) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._node = node
        self._segment_s = segment_s
        self._lock = _locked(directory / f"lock-{node}")
        leftovers = open_segments(directory)
        number, first = self._resume(leftovers)
        self.recorder = Recorder(first)
        self.sample(share)
        if leftovers:
            self.recorder.gap(first, 0, "crash: nobody knows how many")
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._broken_s: float | None = None
        self._begin(number)
        self._finisher = _finishing(leftovers)

    def sample(self, share: float) -> None:
        """Keep this share of all runs from now on."""
        self.recorder.keep(sampled(share) if share < 1 else None)

    def _resume(self, leftovers: list[Path]) -> tuple[int, int]:
        """Return the next segment's number and the first sequence number."""
        number, first = 1, 1
        place = self._directory / f"next-{self._node}"
        if place.exists():
            number, first = (int(word) for word in place.read_text().split())
        for path in leftovers:
            number = max(number, int(path.stem.rpartition("-")[2]) + 1)
            first = max(first, last_sequence(path) + 1)
        return number, max(first, 1)

    def _begin(self, number: int) -> None:
        """Start the process that writes."""
        source, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        numbers = (number, self._lock, self._segment_s, SEGMENT_BYTES)
        self._pump = subprocess.Popen(  # noqa: S603 - our own file
            [
                *(sys.executable, "-I", "-S", str(log_pump.__file__)),
                *(str(self._directory), self._node),
                *map(str, numbers),
            ],
            stdin=source,
            pass_fds=[self._lock],
        )
        os.close(source)

    def turn_ended(self) -> None:
        """Hand over what was collected, if it is enough; see to it that it is not left too long."""
        if self.recorder.size >= FLUSH_BYTES:
            self._flush()
        elif self._alarm is None and self.recorder.size:
            self._alarm = asyncio.get_running_loop().call_later(FLUSH_S, self._alarmed)

    def _alarmed(self) -> None:
        self._alarm = None
        self._flush()
        if self._waiting:
            self._alarm = asyncio.get_running_loop().call_later(FLUSH_S, self._alarmed)

    def _flush(self) -> None:
        recorder = self.recorder
        if self._waiting_bytes > MOST_WAITING_BYTES:
            recorder.drop()
        else:
            self._add(recorder.take())
        if self._waiting:
            self._push()

    def _add(self, parts: list[bytes]) -> None:
        """Let records wait for the pipe, as one batch."""
        size = sum(map(len, parts))
        if size:
            header = batch_header(size, self.recorder.next)
            self._waiting += (header, *parts)
            self._waiting_bytes += len(header) + size

    def _push(self) -> None:
        """Write as much as the pipe takes."""
        pieces = self._waiting
        try:
            while pieces:
                portion = pieces[:_MOST_PIECES]
                written = os.writev(self._pipe, portion)
                self._waiting_bytes -= written
                if written < sum(map(len, portion)):
                    pieces[:_MOST_PIECES] = _behind(portion, written)
                    return
                del pieces[:_MOST_PIECES]
        except BlockingIOError:
            return
        except OSError as problem:
            self._go_on_without(problem)

    def _go_on_without(self, problem: OSError) -> None:
        """Note that the writing process is gone, and start another after a while."""
        now_s = time.monotonic()
        if self._broken_s is None:
            self._broken_s = now_s
            log.error("the event log cannot be written (%s); numbers will be missing", problem)
        self._waiting.clear()
        self._waiting_bytes = 0
        if now_s - self._broken_s >= RESTART_S:
            self._broken_s = None
            os.close(self._pipe)
            self._pump.wait()
            self._begin(self._resume(open_segments(self._directory))[0])
            self.recorder.gap(self.recorder.next, 0, "crash: nobody knows how many")

    def close(self) -> None:
        """Write the rest and have it finished."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        os.set_blocking(self._pipe, True)
        self._add(self.recorder.take())
        self._waiting.append(batch_header(0, self.recorder.next))
        while self._waiting:  # a signal may cut a write short
            self._push()
        os.close(self._pipe)
        os.close(self._lock)
        self._pump.wait()
        if self._finisher is not None:
            self._finisher.wait()


def _behind(pieces: list[bytes], size: int) -> list[bytes]:
    """Return what follows after so many bytes."""
    for place, piece in enumerate(pieces):
        if size < len(piece):
            return [piece[size:], *pieces[place + 1 :]]
        size -= len(piece)
    return []


def _locked(path: Path) -> int:
    """Return a lock on the log; wait a moment for a writer that a killed broker has left."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    until_s = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() < until_s:
                time.sleep(0.02)
                continue
            os.close(descriptor)
            raise EnvironmentProblem(
                "the event log is in use by another broker",
                where=str(path.parent),
                todo="Stop that one, or name another directory with --data.",
            ) from None
        return descriptor


def _finishing(paths: list[Path]) -> subprocess.Popen[bytes] | None:
    """Let another process make Parquet of what a killed broker has left."""
    if not paths:
        return None
    command = [sys.executable, "-m", "nearcast.eventlog.segments", *map(str, paths)]
    return subprocess.Popen(command)  # noqa: S603 - our own module
