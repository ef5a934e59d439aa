"""A line between a node and NATS on which what one other node sends can be made slow.

A relay on a port of this machine. Frames of that node wait in it, in their order; everything else
passes at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

from nearcast.server.cluster.nats_members import key_of

_LONGEST_LINE = 1 << 20  # NATS's first line may be long


class SlowLine:
    """Relays connections to a port; `delay_s` is how long frames of the node `sender` take."""

    def __init__(self, port: int, sender: str) -> None:
        self.delay_s = 0.0
        self._port, self._sender = port, key_of(sender).encode()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Return the port that it listens at."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Close all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def slow(self, delay_s: float) -> AsyncIterator[None]:
        """Make the line slow while the body runs."""
        self.delay_s = delay_s
        try:
            yield
        finally:
            self.delay_s = 0.0

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        far_writer: asyncio.StreamWriter | None = None
        try:
            far, far_writer = await asyncio.open_connection(
                "127.0.0.1", self._port, limit=_LONGEST_LINE
            )
            there = asyncio.create_task(_pass_on(reader, far_writer))
            back = asyncio.create_task(self._pass_back(far, writer))
            try:
                await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            finally:
                there.cancel()
                back.cancel()
                await asyncio.gather(there, back, return_exceptions=True)
        except OSError:
            pass  # NATS is not there: the node finds its connection closed, and tries again
        finally:
            for one in (writer, far_writer):
                if one is not None:
                    one.close()

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what NATS sends: lines, and messages, which are a line and their content."""
        loop = asyncio.get_running_loop()
        waiting: deque[bytes] = deque()
        due_s = 0.0
        while line := await reader.readline():
            data = line
            if line.startswith((b"MSG ", b"HMSG ")):
                data += await reader.readexactly(int(line.split()[-1]) + 2)
            is_slow = line.startswith(b"MSG ") and self._is_of_sender(line.split()[1])
            if is_slow and (waiting or self.delay_s):
                due_s = max(due_s, loop.time() + self.delay_s)
                waiting.append(data)
                loop.call_at(due_s, lambda: writer.write(waiting.popleft()))
            else:
                writer.write(data)
                await writer.drain()

    def _is_of_sender(self, subject: bytes) -> bool:
        """Return whether a subject is nearcast.NETWORK.frames.RECEIVER.SENDER."""
        words = subject.split(b".")
        return len(words) > 4 and words[2] == b"frames" and words[4] == self._sender


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
