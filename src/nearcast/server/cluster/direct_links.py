"""Direct TCP connections between nodes, where `[network] direct` asks for them.

    connecting node                                                 listening node
       │── what is your key? (over NATS, where strangers cannot ask) ──►│
       │◄───────────────────────────────────────────────────── key ─────│
       │── TCP: NEARCAST 1, network, from, to, key ────────────────────►│
       │◄── + ──────────────────────────────────────────────────────────│
       │◄── frames, each behind its size ──────────────────────────────►│

A link that is down greets over such a connection, or over NATS if there is none within a second. A
link that is up over NATS moves to the connection: direct frames that overtake frames still in NATS
wait for them. The connection ends with the incarnation of the link that it belongs to
(`nearcast/cluster/links.py`).

Where nodes have keys (`sealed_frames.py`), the key comes from what the two have agreed on and is
not asked for, and frames are encrypted.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from struct import Struct

from nearcast.cluster.cluster import Cluster
from nearcast.model.errors import EnvironmentProblem
from nearcast.server.cluster.message_stream import MessageStream
from nearcast.server.cluster.nats_frames import Frames
from nearcast.server.cluster.sealed_frames import DIRECT, SealedFrames
from nearcast.server.loop_batches import LoopBatches

log = logging.getLogger("nearcast.network")

DIAL_S = 1.0
"""How long an attempt to connect may take, and a newcomer to introduce itself."""
AGAIN_S = 5.0
"""Pause after a failed attempt."""
EARLY_S = 1.0
"""How long direct frames wait for frames in NATS."""
MOST_STRANGERS = 64
"""How many connections may be open without an introduction."""
_PAUSE_S = 0.05
_WELCOME = b"+"
_MOST_LINE = 1_000
_SIZE = Struct("<I")

Ask = Callable[[str], Awaitable[str]]
Received = Callable[[str, bytes], None]


class DirectConnection(MessageStream):
    """One TCP connection between two nodes: to `name`, or from a node not yet introduced.

    `beginning` is the incarnation of the link: how many there were before (`Link.restarts`).
    """

    def __init__(
        self, doors: DirectLinks, name: str = "", beginning: int = 0, introduction: bytes = b""
    ) -> None:
        super().__init__(doors, name, _SIZE)
        self.beginning = beginning
        self.early: deque[bytes] | None = deque()
        """Frames that wait for frames in NATS; None: there can be none any more."""
        # done once the listening node accepted the key
        self.is_welcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._doors = doors
        self._introduction = introduction
        self._is_open = self._is_finished = False
        self._is_gone = asyncio.Event()

    # --- open and close ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Introduce this node, or wait for the peer's introduction."""
        super().connection_made(transport)
        assert self._transport is not None
        if self._introduction:
            self._transport.write(self._introduction)
        elif self._doors.awaits(self):
            asyncio.get_running_loop().call_later(DIAL_S, self._end_unless_open)
        else:
            self.end()

    def _end_unless_open(self) -> None:
        if not self._is_open:
            self.end()

    async def finish(self) -> None:
        """Close once the peer has read everything, or after a second."""
        self._is_finished, transport = True, self._transport
        if transport is not None and not transport.is_closing() and transport.can_write_eof():
            transport.write_eof()
            try:
                async with asyncio.timeout(1):
                    await self._is_gone.wait()
            except TimeoutError:
                log.info("node %s did not read the last that was for it", self.name)
        self.end()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Report the loss to the links."""
        self._is_gone.set()
        if not self.is_welcome.done():
            self.is_welcome.set_exception(ConnectionError("refused"))
            self.is_welcome.exception()  # marked as retrieved: nobody may be waiting
        super().connection_lost(_exc)

    # --- frames -----------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Send a frame; the link detects frames that are lost with the connection."""
        if not self._is_finished:
            self._send(frame)

    def data_received(self, data: bytes) -> None:
        """Handle bytes: the introduction, then frames, in any portions."""
        if self._is_open:
            super().data_received(data)
        else:
            self._parts.append(data)
            self._take_introduction(b"".join(self._parts))

    def _take_introduction(self, data: bytes) -> None:
        end = 1 if self._introduction else data.find(b"\n") + 1
        if not end:
            if len(data) > _MOST_LINE:
                self.end()
            return
        self._is_open = True
        if self._introduction:
            if data[:1] != _WELCOME or self.is_welcome.done():
                self.end()
                return
            self._doors.use(self)
            self.is_welcome.set_result(None)
        elif self._doors.admits(self, data[:end]):
            assert self._transport is not None
            self._transport.write(_WELCOME)
        else:
            self.end()
            return
        self._take(data[end:])

    def arrived(self, data: bytes, *_more: int) -> None:
        """Handle a frame."""
        self._doors.received(self, data)


class DirectLinks:
    """The direct connections to peers, and the listener for them (`door` in the code).

    `ask` requests a peer's key over NATS; `received` handles frames. Of two listening nodes the one
    with the lesser name connects; if only one listens, the other connects.
    """

    def __init__(
        self,
        network: str,
        door: str | None,
        mesh: Cluster,
        turns: LoopBatches,
        ask: Ask,
        received: Received,
        sealed: SealedFrames | None = None,
    ) -> None:
        self._sealed = sealed  # None: frames are sent as they are
        self.key = secrets.token_hex(16)  # that a connecting peer must know
        self.local_host = "127.0.0.1"
        """The address under which other machines reach this one, for a wildcard listener."""
        self._network = network
        self._door = door
        self._mesh = mesh
        self._turns = turns
        self._ask = ask
        self._received = received
        self._server: asyncio.Server | None = None
        self._strangers: set[DirectConnection] = set()  # accepted, not introduced
        self._is_closed = False
        self._known: dict[str, str] = {}  # addresses of peers to connect to
        self._ways: dict[str, DirectConnection] = {}  # connections in use, by peer
        self._dialing: dict[str, asyncio.Task[None]] = {}
        self._tried: dict[str, float] = {}  # loop time of the last failure, by peer
        self._told: dict[str, str] = {}  # last log line, by peer

    async def open(self) -> None:
        """Listen, if this node is configured to."""
        if self._door is None:
            return
        host, _, port = self._door.rpartition(":")
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: DirectConnection(self), host.strip("[]"), int(port)
            )
        except (OSError, UnicodeError) as problem:
            raise EnvironmentProblem(
                f"cannot listen on {self._door} ({getattr(problem, 'strerror', None) or problem})",
                where="network.direct",
                todo="Give an address of this machine and a free port; port 0 takes any",
            ) from None

    @property
    def address(self) -> str:
        """The listener's numeric address: peers need no name resolution."""
        if self._server is None or not self._server.sockets:
            return ""
        host, port = self._server.sockets[0].getsockname()[:2]
        if ip_address(host).is_unspecified:
            host = self.local_host
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def close(self) -> None:
        """Close everything, once the peers have read all frames."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        for task in self._dialing.values():
            task.cancel()
        for stranger in self._strangers:
            stranger.end()
        await asyncio.gather(*(way.finish() for way in self._ways.values()))

    def is_direct(self, name: str) -> bool:
        """Return whether frames to a peer take a direct connection."""
        return name in self._ways

    def know(self, name: str, address: str) -> None:
        """Record a peer's address, if this node is to connect there; empty: it does not listen."""
        if not address or (self._server is not None and name < self._mesh.name):
            self._known.pop(name, None)
        elif self._known.get(name) != address:
            self._known[name] = address
            self._tried.pop(name, None)

    def forget(self, name: str) -> None:
        """Drop a peer that has left the cluster."""
        for memory in (self._known, self._tried, self._told):
            memory.pop(name, None)
        if name in self._dialing:
            self._dialing[name].cancel()
        way = self._ways.pop(name, None)
        if way is not None:
            way.end()

    # --- frames -----------------------------------------------------------------------------

    def send(self, frames: Frames) -> Frames:
        """Send the frames of directly connected peers; return the others, for NATS."""
        if not (self._known or self._ways):
            return frames
        return [one for one in frames if not self._takes(*one)]

    def _takes(self, name: str, frame: bytes) -> bool:
        """Send a frame directly if possible; during an attempt to connect greetings are dropped."""
        way, link = self._ways.get(name), self._mesh.peers[name].link
        if way is not None and way.beginning != link.restarts:
            del self._ways[name]
            way.end()
            way = None
        if way is not None:
            data = frame if self._sealed is None else self._sealed.seal(name, frame, DIRECT)
            if data is not None:
                way.send(data)
            return True
        if name not in self._dialing and self._may_dial(name):
            task = asyncio.create_task(self._dial(name, self._known[name], link.restarts))
            self._dialing[name] = task
        return name in self._dialing and not link.is_up

    def _may_dial(self, name: str) -> bool:
        last = self._tried.get(name)
        is_time = last is None or asyncio.get_running_loop().time() - last > AGAIN_S
        return name in self._known and is_time and not self._is_closed

    async def _dial(self, name: str, address: str, beginning: int) -> None:
        said = f"node {name} is not reached at {address}: over NATS, then"
        try:
            async with asyncio.timeout(DIAL_S):
                await self._knock(name, address, beginning)
            said = f"node {name} is reached directly at {address}"
            self._tell(name, said)
        except Exception as problem:  # noqa: BLE001 - whatever it is: there is another way
            self._tell(name, f"{said} ({str(problem) or type(problem).__name__})")
            self._tried[name] = asyncio.get_running_loop().time()
        finally:
            self._dialing.pop(name, None)
        if name in self._mesh.peers:
            self._mesh.neighbours.greet(name, self._turns.clock.now_ms())
            self._turns.schedule()

    async def _knock(self, name: str, address: str, beginning: int) -> None:
        """Connect; retry if refused: the peer may not know of this node yet."""
        host, _, port = address.rpartition(":")
        number = str(ip_address(host.strip("[]")))
        while True:
            key = await self._ask(name)
            line = f"NEARCAST 1 {self._network} {self._mesh.name} {name} {key}\n"
            way = DirectConnection(self, name, beginning, line.encode())
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda way=way: way, number, int(port))  # type: ignore[misc]
            try:
                await way.is_welcome
            except ConnectionError:
                await asyncio.sleep(_PAUSE_S)
            except asyncio.CancelledError:
                way.end()
                raise
            else:
                return

    def _tell(self, name: str, said: str) -> None:
        if self._told.get(name) != said:
            self._told[name] = said
            log.info("%s", said)

    # --- called by connections --------------------------------------------------------------

    def awaits(self, stranger: DirectConnection) -> bool:
        """Accept a connection that is to introduce itself; return False if there are too many."""
        if self._is_closed or len(self._strangers) >= MOST_STRANGERS:
            return False
        self._strangers.add(stranger)
        return True

    def admits(self, way: DirectConnection, line: bytes) -> bool:
        """Return whether an introduction has the right key, and use its connection."""
        self._strangers.discard(way)
        words = line.decode(errors="replace").split()
        if len(words) != 6 or words[:3] != ["NEARCAST", "1", self._network]:
            return False
        name, to, key = words[3:]
        wanted = self.key if self._sealed is None else self._sealed.direct_key(name)
        is_known = bool(wanted) and secrets.compare_digest(key.encode(), wanted.encode())
        if not is_known or to != self._mesh.name or name not in self._mesh.peers:
            return False
        way.name, way.beginning = name, self._mesh.peers[name].link.restarts
        self.use(way)
        self._tell(name, f"node {name} is connected directly")
        return True

    def use(self, way: DirectConnection) -> None:
        """Send over this connection from now on, unless the peer has left."""
        peer, before = self._mesh.peers.get(way.name), self._ways.pop(way.name, None)
        if before is not None:
            before.end()
        if peer is None or self._is_closed:
            way.end()
            return
        self._ways[way.name] = way
        self._go_on(way.name)  # delivery may be paused because NATS was full

    def received(self, way: DirectConnection, frame: bytes) -> None:
        """Handle a frame, unless it has overtaken frames that are still in NATS."""
        if self._sealed is not None:
            opened = self._sealed.open(way.name, frame, DIRECT)
            if opened is None:
                way.end()
                return
            frame = opened
        if way.early is None:
            self._received(way.name, frame)
            return
        way.early.append(frame)
        self.catch_up(way.name)
        if way.early is not None and len(way.early) == 1:
            asyncio.get_running_loop().call_later(EARLY_S, self._end_if_early, way)

    def catch_up(self, name: str) -> None:
        """Handle the direct frames that waited for frames in NATS."""
        way, peer = self._ways.get(name), self._mesh.peers.get(name)
        if way is None or not way.early or peer is None:
            return
        early, way.early = way.early, None
        while early and not peer.link.is_early(early[0]):
            self._received(name, early.popleft())
        if early:
            way.early = early

    def _end_if_early(self, way: DirectConnection) -> None:
        """Close a connection whose frames still wait: NATS has lost those before them."""
        if way.early:
            way.end()

    def lost(self, way: DirectConnection) -> None:
        """Restart the link of a connection that is lost."""
        self._strangers.discard(way)
        if self._ways.get(way.name) is way:
            del self._ways[way.name]
            self._told.pop(way.name, None)
            self._mesh.neighbours.begin_anew(way.name, "the direct connection is lost")
            self._turns.schedule()

    def crowded(self, way: DirectConnection, *, is_crowded: bool) -> None:
        """Pause or resume delivery to a peer that reads slowly, as for a slow client."""
        peer = self._mesh.peers.get(way.name)
        if self._ways.get(way.name) is not way or peer is None or peer.connection is None:
            return
        if is_crowded:
            peer.connection.is_paused = True
        else:
            self._go_on(way.name)

    def _go_on(self, name: str) -> None:
        connection = self._mesh.peers[name].connection
        if connection is not None and connection.is_paused:
            self._turns.resumed(connection)
