"""The event log of a running broker: a thread writes, another process makes Parquet of it.

The loop never waits: it hands bytes over. Where the disk does not keep up, records are dropped
and a gap says so.
"""

from __future__ import annotations

import logging
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

from nearcast.eventlog.records import Recorder, sampled
from nearcast.eventlog.segments import OpenSegment, last_sequence, open_segments

log = logging.getLogger("nearcast.eventlog")

FLUSH_BYTES = 1 << 18
FLUSH_S = 0.2
MOST_WAITING_BYTES = 64 << 20


class EventLog:
    """Writes what a `Recorder` collects into segments, and has finished ones turned to Parquet."""

    def __init__(self, directory: Path, node: str, share: float, segment_s: float) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._node = node
        self._segment_s = segment_s
        self._next_path = directory / f"next-{node}"
        leftovers = open_segments(directory)
        self._number, first = self._resume(leftovers)
        self.recorder = Recorder(first, sampled(share) if share < 1 else None)
        if leftovers:
            self.recorder.gap(first, 0, "crash: nobody knows how many")
        self._segment = OpenSegment(directory, node, self._number)
        self._workers: list[subprocess.Popen[bytes]] = []
        self._finish(leftovers)
        self._queue: queue.SimpleQueue[tuple[int, list[bytes]] | None] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._flushed_s = self._opened_s = time.monotonic()
        self._thread = threading.Thread(target=self._write, name="event log", daemon=True)
        self._thread.start()

    def _resume(self, leftovers: list[Path]) -> tuple[int, int]:
        """Return the next segment's number and the first sequence number."""
        number, first = 1, 1
        if self._next_path.exists():
            number, first = (int(word) for word in self._next_path.read_text().split())
        for path in leftovers:
            number = max(number, int(path.stem.rpartition("-")[2]) + 1)
            first = max(first, last_sequence(path) + 1)
        return number, first

    def turn_ended(self) -> None:
        """Hand over what was collected, if it is enough or old enough."""
        recorder = self.recorder
        now_s = time.monotonic()
        if recorder.size < FLUSH_BYTES and now_s - self._flushed_s < FLUSH_S:
            return
        self._flushed_s = now_s
        if self._waiting_bytes > MOST_WAITING_BYTES:
            recorder.drop()
            return
        size = recorder.size
        parts = recorder.take()
        if parts:
            self._waiting_bytes += size
            self._queue.put((size, parts))

    def _write(self) -> None:
        """Write until told to stop: the body of the thread."""
        while (waiting := self._queue.get()) is not None:
            size, parts = waiting
            try:
                self._segment.append(parts)
                if time.monotonic() - self._opened_s > self._segment_s:
                    self._rotate()
            except OSError as problem:
                log.error("the event log cannot be written: %s", problem)
            self._waiting_bytes -= size

    def _rotate(self) -> None:
        finished = self._segment
        finished.close()
        self._number += 1
        self._segment = OpenSegment(self._directory, self._node, self._number)
        self._opened_s = time.monotonic()
        self._keep_place()
        self._finish([finished.path])

    def _keep_place(self) -> None:
        draft = self._next_path.with_suffix(".new")
        draft.write_text(f"{self._number + 1} {self.recorder.next}")
        draft.replace(self._next_path)

    def _finish(self, paths: list[Path]) -> None:
        """Let another process make Parquet of closed segments."""
        self._workers = [one for one in self._workers if one.poll() is None]
        if paths:
            command = [sys.executable, "-m", "nearcast.eventlog.segments", *map(str, paths)]
            self._workers.append(subprocess.Popen(command))  # noqa: S603 - our own module

    def close(self) -> None:
        """Write the rest and have it finished."""
        size = self.recorder.size
        self._queue.put((size, self.recorder.take()))
        self._queue.put(None)
        self._thread.join()
        self._segment.close()
        self._keep_place()
        self._finish([self._segment.path])
        for worker in self._workers:
            worker.wait()
