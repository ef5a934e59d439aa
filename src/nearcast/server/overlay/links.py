"""TCP connections between peers: made when there is something to send, closed when idle.

The name of a peer begins with its address, so a peer that knows another one's name can connect to
it. A connection begins with the introductions of both (`nearcast.overlay.live.introduction`);
whoever is not one of the overlay is told why, and cut off. If a peer reads too slowly, events for
it are dropped and counted: those of QoS 1 are sent again by their publisher.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nearcast.broker.counters import counter
from nearcast.model.errors import EnvironmentProblem, PeerProtocolError
from nearcast.overlay.live.codec import MOST_FRAME, FrameReader, encode_frame
from nearcast.overlay.live.introduction import (
    ASK_STATE,
    HELLO,
    MOST_HELLO,
    NO_PROOF,
    PROOF,
    REFUSED,
    STATE,
    Hello,
    SpaceDigest,
    decode_hello,
    encode_hello,
    is_proof,
    objection,
    proof,
)
from nearcast.server.log_format import RateLimited
from nearcast.server.overlay.dialing import ONCE, PROBES, address_of, dial

log = logging.getLogger("nearcast.overlay")
limited = RateLimited(log)

DIAL_S = 5.0
"""How long an attempt to connect may take, and a stranger to introduce itself."""
AGAIN_S = 2.0
"""Pause after a failed attempt to connect to a peer."""
IDLE_S = 60.0
"""After how long without a message a connection is closed."""
_MOST_STRANGERS = 64
_MOST_WAITING = 1 << 20  # bytes for a peer that is not connected yet


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """What the connections of one peer have in common."""

    key: bytes = b""
    listen_tls: ssl.SSLContext | None = None
    dial_tls: ssl.SSLContext | None = None
    most_links: int = 256
    most_frame: int = MOST_FRAME
    queue_bytes: int = 8 << 20
    """How many bytes may wait for a peer that reads slowly."""


@dataclass(slots=True)
class LinkCounts:
    """Counters of the connections."""

    frames_sent: int = counter("Messages to other peers", "peers/frames/sent")
    bytes_sent: int = counter("Bytes to other peers", "peers/bytes/sent")
    frames_received: int = counter("Messages from other peers", "peers/frames/received")
    bytes_received: int = counter("Bytes from other peers", "peers/bytes/received")
    refused: int = counter("Strangers refused, and peers cut off", name="links_refused")
    dropped: int = counter(
        "Messages with events not sent, because a peer read too slowly", name="frames_dropped"
    )


class LinkOwner(Protocol):
    """What connections report to."""

    def received(self, peer: str, frames: list[tuple[int, bytes]]) -> None:
        """Process frames of a peer; PeerProtocolError cuts it off."""

    def lost(self, peer: str) -> None:
        """Handle that the last connection to a peer is lost."""

    def ended(self, peer: str) -> None:
        """Handle that a peer has ended: nothing listens there, or another start of it."""

    def state(self) -> bytes:
        """Return the state of this peer, for an observer."""


class PeerLink(asyncio.Protocol):
    """One connection; `peer` is the name of the other side once it has introduced itself."""

    def __init__(self, links: PeerLinks, *, is_caller: bool) -> None:
        self.peer = ""
        self.is_caller = is_caller
        self.is_open = False  # both sides have introduced themselves
        self.is_full = False
        self.used_s = 0.0
        self.introduced: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._links = links
        self._theirs: Hello | None = None
        self._ours = links.hello()
        self._reader = FrameReader(MOST_HELLO)
        self._transport: asyncio.Transport | None = None
        self._pending: list[bytes] = []
        self._alarm: asyncio.TimerHandle | None = None

    # --- open and close ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Introduce this side, if it connected."""
        self._transport = transport  # type: ignore[assignment]
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=self._links.settings.queue_bytes)
        if not self._links.awaits(self):
            self.end()
            return
        self._alarm = asyncio.get_running_loop().call_later(DIAL_S, self._end_unless_open)
        if self.is_caller:
            self._write(encode_frame(HELLO, encode_hello(self._ours)))

    def _end_unless_open(self) -> None:
        if not self.is_open:
            self._fail("no introduction in time")

    def connection_lost(self, problem: Exception | None) -> None:
        """Report the loss."""
        if self._alarm is not None:
            self._alarm.cancel()
        if not self.introduced.done():
            why = str(problem) if problem is not None else "it closed the connection"
            self._set_problem(f"{why} (do both sides use TLS, or neither?)")
        self._links.gone(self)

    def end(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def finish(self) -> None:
        """Close once everything is sent."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        """Send no events to a peer that reads too slowly."""
        self.is_full = True

    def resume_writing(self) -> None:
        """Send events again."""
        self.is_full = False

    # --- frames --------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Send a frame, at the next `flush`."""
        self._pending.append(frame)

    def flush(self) -> None:
        """Send all frames that wait, with one write."""
        pending, self._pending = self._pending, []
        if pending:
            self._write(b"".join(pending))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Handle bytes: introductions, then messages."""
        links = self._links
        links.counts.bytes_received += len(data)
        self.used_s = asyncio.get_running_loop().time()
        try:
            frames = self._reader.read(data)
            while frames and not self.is_open:
                self._introduce(*frames.pop(0))
            if frames:
                links.counts.frames_received += len(frames)
                self._take(frames)
        except PeerProtocolError as problem:
            self._refuse(str(problem))

    def _take(self, frames: list[tuple[int, bytes]]) -> None:
        if self._ours.is_observer and frames[0][0] == STATE:
            self._links.observed(frames[0][1])
        elif self.peer and not self._ours.is_observer:
            self._links.owner.received(self.peer, frames)
        elif [kind for kind, _ in frames] == [ASK_STATE]:
            self._write(encode_frame(STATE, self._links.owner.state()))
        else:
            raise PeerProtocolError("messages of an observer", expected="a question only")

    # --- introductions -------------------------------------------------------------------------

    def _introduce(self, kind: int, body: bytes) -> None:
        if kind == REFUSED:
            self._fail(body[:1_000].decode(errors="replace"))
        elif kind == HELLO and self._theirs is None:
            self._meet(decode_hello(body))
        elif kind == PROOF and self._theirs is not None:
            self._check(body)
        else:
            raise PeerProtocolError(f"a frame of kind {kind}", expected="an introduction")

    def _meet(self, theirs: Hello) -> None:
        problem = objection(self._ours, theirs)
        if problem:
            self._refuse(problem)
            return
        self._theirs = theirs
        if self.is_caller:
            self._write(encode_frame(PROOF, proof(self._key, "caller", self._ours, theirs)))
        else:
            self._write(encode_frame(HELLO, encode_hello(self._ours)))

    def _check(self, given: bytes) -> None:
        assert self._theirs is not None
        sides = (self._ours, self._theirs) if self.is_caller else (self._theirs, self._ours)
        role = "callee" if self.is_caller else "caller"
        if not is_proof(given, self._key, role, *sides):
            self._refuse(NO_PROOF)
            return
        problem = "" if self._theirs.is_observer else self._links.admits(self)
        if problem:
            self._refuse(problem)
            return
        if not self.is_caller:
            self._write(encode_frame(PROOF, proof(self._key, "callee", *sides)))
        self.is_open, self.peer = True, self._theirs.name
        self._reader.most = self._links.settings.most_frame
        self._links.use(self)
        if not self.introduced.done():
            self.introduced.set_result(self.peer)

    @property
    def _key(self) -> bytes:
        return self._links.settings.key

    def _refuse(self, why: str) -> None:
        """Report to the other side why it is cut off."""
        self._links.counts.refused += 1
        where = self.peer or self._where()
        limited.warning("a peer is cut off: %s: %s", where, why)
        self._pending.clear()
        self._write(encode_frame(REFUSED, why.encode()[:1_000]))
        self._set_problem(why)
        if self._transport is not None:
            self._transport.close()

    def _where(self) -> str:
        name = self._transport.get_extra_info("peername") if self._transport is not None else None
        return f"{name[0]}:{name[1]}" if name else "unknown"

    def _fail(self, why: str) -> None:
        self._set_problem(why)
        self.end()

    def _set_problem(self, why: str) -> None:
        if not self.introduced.done():
            self.introduced.set_exception(ConnectionError(why))
            self.introduced.exception()  # marked as retrieved: nobody may be waiting


class PeerLinks:
    """All connections of one peer, and its listener.

    Contract: `send` never waits and never raises. Frames to one peer keep their order while its
    connection lasts; they are lost with it.
    """

    def __init__(
        self, owner: LinkOwner, settings: LinkSettings, spaces: tuple[SpaceDigest, ...]
    ) -> None:
        self.owner = owner
        self.settings = settings
        self.counts = LinkCounts()
        self.name = ""
        self._spaces = spaces
        self._server: asyncio.Server | None = None
        self._links: dict[str, PeerLink] = {}
        self._all: set[PeerLink] = set()
        self._unsent: set[PeerLink] = set()
        self._dialing: dict[str, tuple[asyncio.Task[None], list[bytes]]] = {}
        self._tried: dict[str, float] = {}
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self._sweeper: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def open(self, host: str, port: int, advertised: str | None) -> None:
        """Listen; the peer's name is the address that others use, and a number of this start."""
        loop = asyncio.get_running_loop()
        tls = self.settings.listen_tls
        try:
            self._server = await loop.create_server(
                lambda: PeerLink(self, is_caller=False),
                host,
                port,
                ssl=tls,
                ssl_handshake_timeout=DIAL_S if tls is not None else None,
            )
        except (OSError, UnicodeError) as problem:
            raise EnvironmentProblem(
                f"cannot listen on {host}:{port} ({getattr(problem, 'strerror', None) or problem})",
                where="--listen",
                todo="Give an address of this machine and a free port; port 0 takes any.",
            ) from None
        taken = self._server.sockets[0].getsockname()[1]
        shown = f"[{host}]:{taken}" if ":" in host else f"{host}:{taken}"
        self.name = f"{advertised or shown}/{secrets.token_hex(4)}"
        self._sweeper = loop.call_later(IDLE_S / 4, self._sweep)

    @property
    def address(self) -> str:
        """The address that other peers use."""
        return self.name.partition("/")[0]

    @property
    def peers(self) -> list[str]:
        """The names of the peers that are connected."""
        return list(self._links)

    async def close(self) -> None:
        """Close all connections, once what waits is sent."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for task, _ in list(self._dialing.values()):
            task.cancel()
        for link in list(self._all):
            link.finish()
        for _ in range(50):
            if not self._all:
                return
            await asyncio.sleep(0.02)
        for link in list(self._all):
            link.end()

    def hello(self) -> Hello:
        """Return an introduction with a new nonce."""
        return Hello(
            name=self.name,
            nonce=secrets.token_bytes(16),
            spaces=self._spaces,
            has_key=bool(self.settings.key),
        )

    # --- sending -------------------------------------------------------------------------------

    def send(self, peer: str, frame: bytes, *, may_drop: bool = False) -> None:
        """Send a frame at the next `flush`; connect first if need be.

        With `may_drop`, a peer that reads slowly does not get it.
        """
        link = self._links.get(peer)
        if link is not None:
            if may_drop and link.is_full:
                self.counts.dropped += 1
                return
            self.counts.frames_sent += 1
            self.counts.bytes_sent += len(frame)
            link.used_s = asyncio.get_running_loop().time()
            link.send(frame)
            self._unsent.add(link)
        elif peer in self._dialing:
            waiting = self._dialing[peer][1]
            if sum(map(len, waiting)) < _MOST_WAITING:
                waiting.append(frame)
        elif not self._is_closed and self._may_dial(peer):
            task = asyncio.get_running_loop().create_task(self._dial(peer))
            self._dialing[peer] = task, [frame]

    def flush(self) -> None:
        """Write what was sent, once for each connection."""
        for link in self._unsent:
            link.flush()
        self._unsent.clear()

    def probe(self, peer: str) -> None:
        """Find out whether a peer whose connection is lost has ended, and tell the owner."""
        if peer not in self._dialing and not self._is_closed and self._may_dial(peer):
            task = asyncio.get_running_loop().create_task(self._dial(peer, PROBES))
            self._dialing[peer] = task, []

    def _may_dial(self, peer: str) -> bool:
        last = self._tried.get(peer)
        return last is None or asyncio.get_running_loop().time() - last > AGAIN_S

    async def _dial(self, peer: str, pauses_s: Sequence[float] = ONCE) -> None:
        """Connect, and send what waits; or tell the owner that the peer is not reached, or over."""
        found, has_ended = await dial(self.connect, peer, pauses_s)
        _, waiting = self._dialing.pop(peer)
        if found == peer:
            for frame in waiting:
                self.send(peer, frame)
            self.flush()
            return
        self._tried[peer] = asyncio.get_running_loop().time()
        if not self._is_closed:
            self.owner.lost(peer)
            if has_ended:
                self.owner.ended(peer)

    async def connect(self, address: str) -> str:
        """Connect to an address; return the name of the peer there, ConnectionError if refused."""
        host, port = address_of(address)
        link = PeerLink(self, is_caller=True)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(DIAL_S):
                await loop.create_connection(lambda: link, host, port, ssl=self.settings.dial_tls)
                return await link.introduced
        except ssl.SSLError as problem:
            raise ConnectionError(f"TLS: {problem.reason or problem}") from None
        except BaseException:
            link.end()
            raise

    async def ask_state(self, address: str) -> bytes:
        """Return the state of the peer at an address; only for an observer, which has no name."""
        host, port = address_of(address)
        link = PeerLink(self, is_caller=True)
        async with asyncio.timeout(DIAL_S):
            await asyncio.get_running_loop().create_connection(
                lambda: link, host, port, ssl=self.settings.dial_tls
            )
            await link.introduced
            link.send(encode_frame(ASK_STATE, b""))
            link.flush()
            answer = await self._answers.get()
        link.end()
        return answer

    # --- called by connections -----------------------------------------------------------------

    def awaits(self, link: PeerLink) -> bool:
        """Accept a connection that is to introduce itself; return False if there are too many."""
        strangers = sum(not one.is_open for one in self._all)
        if self._is_closed or (strangers >= _MOST_STRANGERS and not link.is_caller):
            self.counts.refused += 1
            return False
        self._all.add(link)
        return True

    def admits(self, link: PeerLink) -> str:
        """Return why a peer that knows the key is refused all the same; "" if it is not."""
        if len(self._all) > self.settings.most_links and not link.is_caller:
            return f"this peer has {self.settings.most_links} links already: ask another one"
        return ""

    def use(self, link: PeerLink) -> None:
        """Send over a connection from now on, unless there is one already."""
        if link.peer:
            self._tried.pop(link.peer, None)
            self._links.setdefault(link.peer, link)

    def observed(self, answer: bytes) -> None:
        """Take the state of a peer that was asked for."""
        self._answers.put_nowait(answer)

    def gone(self, link: PeerLink) -> None:
        """Handle that a connection is closed; another one to the same peer takes its place."""
        self._all.discard(link)
        if self._links.get(link.peer) is not link:
            return
        other = next((one for one in self._all if one.peer == link.peer and one.is_open), None)
        if other is not None:
            self._links[link.peer] = other
            return
        del self._links[link.peer]
        if not self._is_closed:
            self.owner.lost(link.peer)

    def _sweep(self) -> None:
        """Close connections that are not used, and forget failures of long ago."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for link in list(self._all):
            if link.is_open and now_s - link.used_s > IDLE_S:
                link.finish()
        self._tried = {peer: at for peer, at in self._tried.items() if now_s - at < AGAIN_S}
        self._sweeper = loop.call_later(IDLE_S / 4, self._sweep)
