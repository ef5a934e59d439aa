"""The process that writes the event log to disk: from a pipe into segments.

    python -I -S log_writer.py DIRECTORY NODE NUMBER LOCK SEGMENT_S SEGMENT_BYTES

It imports nothing of Nearcast, so that it starts at once and stays small, and is therefore started
by its path. Batches arrive on standard input, each with a header
(`nearcast.eventlog.segments.BATCH`); the kernel moves their bytes from the pipe to the file. It is
a process because a thread takes the interpreter away from the event loop for every write, which
cost more than the writing.

A header without records means an orderly shutdown of the broker: then the last segment is finished
too. An end of the pipe without it is a crash: the bytes in the pipe are written, the next start
does the rest. LOCK is the descriptor of a locked file; the lock is free once nothing more is
written.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from struct import Struct

MAGIC = b"nearcast events 3\n"
BATCH = Struct("<IIQ")
MARK = 0x5EC7104E
GAP = Struct("<BIQQ")  # kind 4, size, first, count
PIPE = 0
PORTION = 1 << 20


class LogWriter:
    """Writes batches into segments and has closed ones converted to Parquet."""

    def __init__(
        self,
        directory: str,
        node: str,
        number: int,
        lock: int,
        segment_s: float,
        segment_bytes: int,
    ) -> None:
        self.lock = lock
        self.directory = directory
        self.node = node
        self.number = number
        self.segment_s = segment_s
        self.segment_bytes = segment_bytes
        self.next_number = 0
        self.lost_from = 0  # the first number that could not be written, 0 if none
        self.workers: list[int] = []
        self.begin()

    def begin(self) -> None:
        """Open the next segment."""
        self.path = f"{self.directory}/open-{self.node}-{self.number:08d}.log"
        self.descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self.size = os.write(self.descriptor, MAGIC)
        self.opened_s = time.monotonic()

    def run(self) -> None:
        """Write batches until the pipe ends."""
        while True:
            ready, _, _ = select.select([PIPE], [], [], self.segment_s)
            if ready:
                head = read_exactly(BATCH.size)
                if head is None:
                    return  # the broker was killed
                size, check, next_number = BATCH.unpack(head)
                if size ^ MARK != check:
                    sys.exit("the event log's pipe is out of step")
                if not size:
                    self.end(next_number)
                    return
                self.take(head, size, next_number)
            self.rotate_if_due()

    def take(self, head: bytes, size: int, next_number: int) -> None:
        """Write one batch; one that cannot be written is skipped and its numbers are remembered."""
        left = size
        try:
            if self.lost_from:
                self.note_loss()
            write_all(self.descriptor, head)
            while left:
                left -= move(self.descriptor, min(left, PORTION))
            self.size += len(head) + size
        except OSError as problem:
            sys.stderr.write(f"the event log cannot be written: {problem}\n")
            self.undo()
            skip(left)
            self.lost_from = self.lost_from or max(self.next_number, 1)
        self.next_number = next_number

    def undo(self) -> None:
        """Truncate the file before a batch that was written in part."""
        os.ftruncate(self.descriptor, self.size)
        os.lseek(self.descriptor, self.size, os.SEEK_SET)

    def note_loss(self) -> None:
        """Write a gap record for the numbers that could not be written."""
        reason = b"disk"
        gap = GAP.pack(4, 16 + len(reason), self.lost_from, self.next_number - self.lost_from)
        body = gap + reason
        raw = BATCH.pack(len(body), len(body) ^ MARK, self.next_number) + body
        write_all(self.descriptor, raw)
        self.size += len(raw)
        self.lost_from = 0

    def rotate_if_due(self) -> None:
        """Start a new segment if this one is old or large enough, and not empty."""
        is_old = time.monotonic() - self.opened_s >= self.segment_s
        if self.size <= len(MAGIC) or not (is_old or self.size >= self.segment_bytes):
            return
        finished = self.path
        try:
            self.keep_place(self.number + 2)
            os.close(self.descriptor)
            self.number += 1
            self.begin()
        except OSError as problem:
            sys.exit(f"the event log cannot go on: {problem}")
        self.finish(finished)

    def keep_place(self, number: int) -> None:
        """Store the segment and sequence number for the next start."""
        path = f"{self.directory}/next-{self.node}"
        with open(f"{path}.new", "w") as file:  # noqa: PTH123 - pathlib is slow to import
            file.write(f"{number} {self.next_number}")
        os.replace(f"{path}.new", path)  # noqa: PTH105 - as above

    def finish(self, path: str) -> None:
        """Start a process that converts a closed segment to Parquet."""
        command = [sys.executable, "-m", "nearcast.eventlog.segments", path]
        nothing = (os.POSIX_SPAWN_OPEN, PIPE, os.devnull, os.O_RDONLY, 0)
        self.workers.append(
            os.posix_spawn(sys.executable, command, os.environ, file_actions=[nothing])
        )
        self.workers = [one for one in self.workers if not os.waitpid(one, os.WNOHANG)[0]]

    def end(self, next_number: int) -> None:
        """End in order: convert everything to Parquet; the next start need not wait for it."""
        self.next_number = next_number
        if self.lost_from:
            self.note_loss()
        write_all(self.descriptor, BATCH.pack(0, MARK, next_number))
        os.close(self.descriptor)
        self.keep_place(self.number + 1)
        self.finish(self.path)
        os.close(self.lock)
        for worker in self.workers:
            os.waitpid(worker, 0)


def read_exactly(size: int) -> bytes | None:
    """Return `size` bytes of the pipe; None if it ends before."""
    data = b""
    while len(data) < size:
        part = os.read(PIPE, size - len(data))
        if not part:
            return None
        data += part
    return data


def move(descriptor: int, size: int) -> int:
    """Move bytes from the pipe to a file, without a copy in this process where possible."""
    if hasattr(os, "splice"):
        moved = os.splice(PIPE, descriptor, size)
    else:
        data = os.read(PIPE, size)
        write_all(descriptor, data)
        moved = len(data)
    if not moved:
        sys.exit(0)  # the broker was killed within a batch
    return moved


def skip(size: int) -> None:
    """Discard bytes of the pipe."""
    while size:
        part = os.read(PIPE, min(size, PORTION))
        if not part:
            sys.exit(0)
        size -= len(part)


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything."""
    while data:
        data = data[os.write(descriptor, data) :]


def main() -> None:
    """Run as a process."""
    for one in (signal.SIGINT, signal.SIGTERM):  # the broker handles them, and ends first
        signal.signal(one, signal.SIG_IGN)
    directory, node, number, lock, segment_s, segment_bytes = sys.argv[1:]
    os.set_inheritable(int(lock), False)
    LogWriter(directory, node, int(number), int(lock), float(segment_s), int(segment_bytes)).run()


if __name__ == "__main__":
    main()
