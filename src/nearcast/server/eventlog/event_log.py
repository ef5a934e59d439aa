"""The event log of a running broker: records go into a pipe, `log_writer.py` writes them.

The event loop never waits: records that the pipe does not accept are buffered, and above a limit
records are dropped, and a gap record says so.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import select
import subprocess
import sys
import time
from pathlib import Path

from nearcast.eventlog.records import Recorder, sampled
from nearcast.eventlog.segments import (
    batch_header,
    is_complete,
    last_sequence,
    open_segments,
)
from nearcast.model.errors import EnvironmentProblem
from nearcast.server.eventlog import log_writer

log = logging.getLogger("nearcast.eventlog")

FLUSH_BYTES = 1 << 17  # small enough for the processor's cache
FLUSH_S = 0.2
PIPE_BYTES = 1 << 20
MOST_WAITING_BYTES = 64 << 20
SEGMENT_BYTES = 1 << 28
RESTART_S = 10.0
END_S = 60.0
"""The end waits so long for the log: less than service managers wait before they kill."""
_MOST_PIECES = 1_000  # of one writev
_LOCK_S = 30.0


class EventLog:
    """Passes the records of a `Recorder` to the writer process, in order."""

    def __init__(self, directory: Path, node: str, share: float, segment_s: float) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._node = node
        self._segment_s = segment_s
        self._lock = _locked(directory / f"lock-{node}")
        leftovers = [one for one in open_segments(directory) if not self._is_others(one)]
        number, first = self._resume(leftovers)
        self.recorder = Recorder(first)
        self.sample(share)
        if not all(map(is_complete, leftovers)):
            self.recorder.gap(first, 0, "crash: nobody knows how many")
        self._waiting: list[bytes] = []  # not yet accepted by the pipe
        self._waiting_bytes = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._broken_s: float | None = None  # since when the writer is gone
        self._begin(number)
        self._finisher = _finishing(leftovers)

    def sample(self, share: float) -> None:
        """Keep this fraction of all runs from now on."""
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

    def _is_others(self, segment: Path) -> bool:
        """Return whether another node, a worker of this broker, is writing a segment now."""
        name = segment.stem.rpartition("-")[0].removeprefix("open-")
        if name == self._node:
            return False
        try:
            lock = os.open(self._directory / f"lock-{name}", os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    def _begin(self, number: int) -> None:
        """Start the writer process."""
        source, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        numbers = (number, self._lock, self._segment_s, SEGMENT_BYTES)
        self._pump = subprocess.Popen(  # noqa: S603 - our own file
            [
                *(sys.executable, "-I", "-S", str(log_writer.__file__)),
                *(str(self._directory), self._node),
                *map(str, numbers),
            ],
            stdin=source,
            pass_fds=[self._lock],
        )
        os.close(source)

    def turn_ended(self) -> None:
        """Flush the records of the batch if they are many, else within `FLUSH_S`."""
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
        """Buffer records for the pipe, as one batch."""
        size = sum(map(len, parts))
        if size:
            header = batch_header(size, self.recorder.next)
            self._waiting += (header, *parts)
            self._waiting_bytes += len(header) + size

    def _push(self) -> None:
        """Write as much as the pipe accepts."""
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
        """Handle that the writer process is gone; start another after `RESTART_S`."""
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
        """Write the rest and wait until it is converted to Parquet, `END_S` at most.

        A segment that is not a table by then becomes one without us, or after the next start.
        """
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        until_s = time.monotonic() + END_S
        self._add(self.recorder.take())
        self._waiting.append(batch_header(0, self.recorder.next))
        self._push_all(until_s)
        os.close(self._pipe)
        os.close(self._lock)
        try:
            for process in (self._pump, self._finisher):
                if process is not None:
                    process.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            log.warning("the broker ends before its event log is turned into tables; that goes on")

    def _push_all(self, until_s: float) -> None:
        """Write all that waits; give up where the pipe takes nothing until an instant."""
        writable = select.poll()
        writable.register(self._pipe, select.POLLOUT)
        self._push()
        while self._waiting:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                log.error("the end of the event log could not be written: numbers will be missing")
                return
            writable.poll(left_s * 1000)
            self._push()


def _behind(pieces: list[bytes], size: int) -> list[bytes]:
    """Return the pieces without their first `size` bytes."""
    for place, piece in enumerate(pieces):
        if size < len(piece):
            return [piece[size:], *pieces[place + 1 :]]
        size -= len(piece)
    return []


def _locked(path: Path) -> int:
    """Lock the log; wait a moment for a writer left by a killed broker."""
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
    """Start a process that converts the segments left by a killed broker to Parquet."""
    if not paths:
        return None
    command = [sys.executable, "-m", "nearcast.eventlog.segments", *map(str, paths)]
    return subprocess.Popen(command)  # noqa: S603 - our own module
