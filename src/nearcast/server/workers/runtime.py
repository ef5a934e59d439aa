"""The links between the workers of one broker: a pair of Unix sockets for each two of them.

The parent makes the pair when a worker is started, and gives each of the two its end. Frames are
those of the links between nodes (`nearcast/cluster/links.py`); requests of the HTTP API travel
beside them. A worker that dies closes its ends: the others know at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from struct import Struct

from nearcast.cluster.workers.registry import ACKS_MS, WorkerRegistry
from nearcast.cluster.workers.worker_cluster import WorkerCluster
from nearcast.server.cluster.link_runtime import LinkRuntime
from nearcast.server.cluster.message_stream import MessageStream
from nearcast.server.loop_batches import LoopBatches

log = logging.getLogger("nearcast.network")

JOIN_S = 30.0
"""How long a worker that starts waits for the retained messages of the others."""
ASK_S = 5.0
"""How long another worker may take for an answer."""
_AGAIN_S = 0.02
_HEAD = Struct("<IB")
"""Precedes a message: its size and its kind."""
_NUMBER = Struct("<I")
_FRAME, _REQUEST, _ANSWER = range(3)


class WorkerLink(MessageStream):
    """This worker's end of a pair of sockets: messages, each behind its size and kind."""

    def __init__(self, runtime: WorkerRuntime, name: str) -> None:
        super().__init__(runtime, name, _HEAD)
        self._runtime = runtime

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Use the connection."""
        super().connection_made(transport)
        self._runtime.use(self)

    def send(self, kind: int, data: bytes) -> None:
        """Send a message; links detect what is lost with the connection."""
        self._send(data, kind)

    def arrived(self, data: bytes, *more: int) -> None:
        """Handle a message; `more` is its kind."""
        (kind,) = more
        self._runtime.arrived(self.name, kind, data)


class WorkerRuntime(LinkRuntime):
    """The cluster side of a worker. `start` returns once all other workers have answered."""

    mesh: WorkerCluster

    def __init__(self, mesh: WorkerCluster, turns: LoopBatches, names: tuple[str, ...]) -> None:
        super().__init__(mesh, turns)
        self.names = names
        self.answer: Callable[[bytes], Awaitable[bytes]] | None = None  # to requests of workers
        self._ways: dict[str, WorkerLink] = {}
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[str, asyncio.Future[bytes]]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._is_over = False
        assert isinstance(mesh.neighbours, WorkerRegistry)
        self._registry = mesh.neighbours
        self._acks: asyncio.TimerHandle | None = None  # set: acknowledgements wait

    async def start(self) -> None:
        """Greet the other workers, and wait for their retained messages."""
        self.mesh.meet_all(self.names, self._turns.clock.now_ms())
        self._tick()
        until_s = time.monotonic() + JOIN_S
        others = [name for name in self.names if name != self.mesh.name]
        while missing := self.mesh.without_retained(others):
            if time.monotonic() > until_s:
                log.warning("ready without all retained messages of %s", ", ".join(missing))
                break
            await asyncio.sleep(_AGAIN_S)

    async def connect(self, name: str, end: socket.socket) -> None:
        """Use this end of a pair of sockets as the link to a worker."""
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: WorkerLink(self, name), sock=end)

    def drain(self) -> None:
        """Do nothing: the parent ends all workers together."""

    async def stop(self, *, leave: bool) -> None:  # noqa: ARG002 - as every runtime
        """Close the links, once what was sent is written."""
        self._is_over = True
        self._registry.hurry()
        self._turns.end()
        for _ in range(50):
            if all(way.is_empty for way in self._ways.values()):
                break
            await asyncio.sleep(_AGAIN_S)
        self._end_ticks()
        for way in self._ways.values():
            way.end()

    @property
    def is_settled(self) -> bool:
        """Whether all workers are connected and have answered for everything."""
        peers = self.mesh.peers.values()
        is_up = all(peer.connection is not None for peer in peers)
        return is_up and not self.mesh.has_unsettled()

    # --- frames -----------------------------------------------------------------------------

    def turn_ended(self) -> None:
        """Send the batch's frames; its journal is written."""
        for name, frame in self.mesh.take_frames():
            way = self._ways.get(name)
            if way is not None:
                way.send(_FRAME, frame)
        self._look_at_order()
        if self._registry.waits and self._acks is None:
            loop = asyncio.get_running_loop()
            self._acks = loop.call_later(ACKS_MS / 1000, self._send_acks)

    def _send_acks(self) -> None:
        self._acks = None
        self._registry.hurry()
        self._turns.schedule()

    def arrived(self, name: str, kind: int, data: bytes) -> None:
        """Handle a message of another worker."""
        if kind == _FRAME:
            self._received(name, data)
        elif kind == _REQUEST:
            task = asyncio.get_running_loop().create_task(self._reply(name, data))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        else:
            (number,) = _NUMBER.unpack_from(data)
            _, future = self._asked.get(number, ("", None))
            if future is not None and not future.done():
                future.set_result(data[_NUMBER.size :])

    # --- connections ------------------------------------------------------------------------

    def use(self, way: WorkerLink) -> None:
        """Send over this connection from now on."""
        before = self._ways.get(way.name)
        self._ways[way.name] = way
        if before is not None:
            before.end()
            self.mesh.neighbours.begin_anew(way.name, "the worker was started again")
        if way.name in self.mesh.peers:
            self.mesh.neighbours.greet(way.name, self._turns.clock.now_ms())
        self._turns.schedule()

    def lost(self, way: WorkerLink) -> None:
        """Restart the link of a worker that has ended; its answers do not come any more."""
        if self._ways.get(way.name) is not way:
            return
        del self._ways[way.name]
        for name, future in self._asked.values():
            if name == way.name and not future.done():
                future.set_exception(ConnectionError(f"worker {name} has ended"))
        if not self._is_over:
            self.mesh.neighbours.begin_anew(way.name, "the worker has ended")
            self._turns.schedule()

    def crowded(self, way: WorkerLink, *, is_crowded: bool) -> None:
        """Pause or resume delivery to a worker, as to a slow client."""
        peer = self.mesh.peers.get(way.name)
        if self._ways.get(way.name) is not way or peer is None or peer.connection is None:
            return
        if is_crowded:
            peer.connection.is_paused = True
        elif peer.connection.is_paused:
            self._turns.resumed(peer.connection)

    # --- requests ---------------------------------------------------------------------------

    async def ask(self, name: str, data: bytes) -> bytes:
        """Return another worker's answer; an OSError if there is none."""
        way = self._ways.get(name)
        if way is None:
            raise ConnectionError(f"worker {name} is not there")
        number = next(self._numbers) & 0xFFFFFFFF
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[number] = (name, future)
        way.send(_REQUEST, _NUMBER.pack(number) + data)
        try:
            async with asyncio.timeout(ASK_S):
                return await future
        finally:
            del self._asked[number]

    async def _reply(self, name: str, data: bytes) -> None:
        answer = b""
        if self.answer is not None:
            try:
                answer = await self.answer(data[_NUMBER.size :])
            except Exception as error:  # noqa: BLE001 - a mistake of ours in one request
                self.mesh.node.failures.take("answering another worker", error)
        way = self._ways.get(name)
        if way is not None:
            way.send(_ANSWER, data[: _NUMBER.size] + answer)
