"""Ports of a server: bound first, served later.

A node binds all its ports before it joins a network. If one is taken, the node stops before any
peer knows of it. Clients are refused until `Listener.open` is called.

Read next: `tcp.py`, `websocket.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any, Protocol, TypeVar, cast

from nearcast.model.errors import EnvironmentProblem, PeerProtocolError
from nearcast.server.listeners.proxy_header import read_header, wanted_bytes
from nearcast.server.log_format import RateLimited

_BACKLOG = 4_096
_ACCEPTS = 16  # at a time: each costs half a millisecond, and connected clients wait for it
_PAUSE_S = 0.2
_RECORD_HEAD, _LARGEST_RECORD, _HANDSHAKE = 5, 1 << 14, 22  # of TLS (RFC 8446, 5.1)
SPARE_DESCRIPTORS = 64
"""File descriptors that clients leave free: for the journal and the cluster, half for the operator.
"""

_PEEKED = 8_192  # more than the largest PROXY header

R = TypeVar("R")
log = logging.getLogger("nearcast.server")
limited = RateLimited(log)


class AcceptPolicy:
    """Decides on each connection as soon as it is accepted, before TLS."""

    def __init__(self) -> None:
        self.handshakes = 0  # TLS handshakes in progress

    def is_full(self) -> bool:
        """Return whether further connections are refused."""
        return False

    def timeout_s(self) -> float:
        """Return the time limit of a TLS handshake."""
        return 10.0

    def admits(self, _address: str) -> bool:
        """Return whether an address may connect now; it counts as a connection of it."""
        return True

    def refused(self) -> None:
        """Handle that a connection was closed at once."""

    def failed(self, address: str, problem: Exception) -> None:
        """Handle that a TLS handshake failed."""


class Forwarded(Protocol):
    """The protocol of a connection, as far as it concerns what comes before its first byte."""

    def forwarded_from(self, address: str) -> None:
        """Handle that a proxy has forwarded the connection of a client at this `HOST:PORT`."""


class PlainSockets(Protocol):
    """What serves plain connections in place of asyncio."""

    def listen(self, listening: socket.socket, acceptor: Any) -> None:
        """Accept the connections of a listening socket."""

    def ignore(self, listening: socket.socket) -> None:
        """Accept them no longer."""

    def attach(self, descriptor: int, address: tuple[str, int], protocol: Any) -> None:
        """Serve an accepted connection; if it raises, the descriptor is still the caller's."""


class Listener:
    """A bound port, on all addresses of its host; served once `open` is called.

    Connections are accepted here and not by asyncio, so that one above the limit is closed before
    it costs anything, and so that the last `spare` descriptors of the process stay free for files
    and for the operator.
    """

    def __init__(
        self,
        kind: str,
        host: str,
        sockets: list[socket.socket],
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.kind = kind
        self.host = host
        self.port: int = sockets[0].getsockname()[1]
        self.context = context  # of further connections
        self.proxies: Sequence[IPv4Network | IPv6Network] = ()  # they send PROXY headers
        # Of a broker with workers: whether a connection stays at this one, else it is passed on.
        self.stays: Callable[[socket.socket, str], Awaitable[bool]] | None = None
        self._sockets = sockets
        self._handshakes: set[asyncio.Task[None]] = set()
        self._make: Callable[[], Any] = asyncio.Protocol
        self._entrance = AcceptPolicy()
        self._plain: PlainSockets | None = None  # what serves plain connections, if not asyncio
        self._spare = 0
        self._is_closed = False

    def claim(self) -> None:
        """Listen at once: a port that is only bound may be bound by another program as well."""
        for taken in self._sockets:
            with _told_of_port(self.host, self.port):
                taken.listen(_BACKLOG)

    async def open(
        self,
        make: Callable[[], Any],
        entrance: AcceptPolicy | None = None,
        *,
        spare: int = SPARE_DESCRIPTORS,
        plain: PlainSockets | None = None,
    ) -> None:
        """Accept clients; `make` creates the protocol of a connection."""
        self._plain = plain
        self._make, self._entrance, self._spare = make, entrance or self._entrance, spare
        for taken in self._sockets:
            with _told_of_port(self.host, self.port):
                taken.listen(_BACKLOG)  # fails in the slower of two servers
        for taken in self._sockets:
            self._watch(taken)

    def _watch(self, taken: socket.socket) -> None:
        if self._plain is not None:
            self._plain.listen(taken, self)
        else:
            asyncio.get_running_loop().add_reader(taken.fileno(), self._accept, taken)

    def _ignore(self, taken: socket.socket) -> None:
        if self._plain is not None:
            self._plain.ignore(taken)
        else:
            asyncio.get_running_loop().remove_reader(taken.fileno())

    def _accept(self, taken: socket.socket) -> None:
        """Accept waiting connections, a few at a time."""
        for _ in range(_ACCEPTS):
            try:
                accepted, address = taken.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as problem:
                self._pause(taken, problem)
                return
            objection = self._objection(accepted.fileno(), address)
            if objection:
                self._refuse(accepted.detach(), objection)
            else:
                accepted.setblocking(False)
                self._begin_soon(accepted, address)

    def accepted(self, descriptor: int, address: tuple[str, int]) -> None:
        """Serve a plain connection that `PlainSockets` has accepted, or close it."""
        objection = self._objection(descriptor, address)
        if objection:
            self._refuse(descriptor, objection)
        elif self._plain is None or self.proxies or self.stays is not None:
            accepted = socket.socket(fileno=descriptor)
            accepted.setblocking(False)
            self._begin_soon(accepted, address)
        else:
            try:
                self._plain.attach(descriptor, address, self._make())
            except OSError as problem:
                self._refuse(descriptor, str(problem))

    def _objection(self, descriptor: int, address: tuple[str, int]) -> str:
        """Return why a connection is refused, "" if it is not."""
        # The kernel assigns the lowest free descriptor: it shows about how many are in use.
        most = most_descriptors()
        if descriptor >= most - min(self._spare, most // 4):
            return "few descriptors are left (see ulimit -n)"
        if self._entrance.is_full():
            return "all connections of [limits] are in use"
        if not self.proxies and not self._entrance.admits(f"{address[0]}:{address[1]}"):
            return "their address is banned, or connects too often"
        return ""

    def _begin_soon(self, accepted: socket.socket, address: tuple[str, int]) -> None:
        task = asyncio.get_running_loop().create_task(self._begin(accepted, address))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    def _refuse(self, descriptor: int, reason: str) -> None:
        self._entrance.refused()
        limited.warning("connections to port %d are refused: %s", self.port, reason)
        os.close(descriptor)

    def stalled(self, descriptor: int, problem: OSError) -> None:
        """Handle that `PlainSockets` cannot accept the connections of a listening socket."""
        for taken in self._sockets:
            if taken.fileno() == descriptor:
                self._pause(taken, problem)

    def _pause(self, taken: socket.socket, problem: OSError) -> None:
        """Stop accepting for a moment: the machine is out of descriptors or memory."""
        limited.warning("no connection can be accepted on port %d: %s", self.port, problem)
        self._ignore(taken)
        asyncio.get_running_loop().call_later(_PAUSE_S, self._go_on, taken)

    def _go_on(self, taken: socket.socket) -> None:
        if not self._is_closed:
            self._watch(taken)

    async def _begin(self, accepted: socket.socket, address: tuple[str, int]) -> None:
        """Create a connection's protocol, after the PROXY header and the TLS handshake, if any."""
        loop, entrance = asyncio.get_running_loop(), self._entrance
        if self.context is None and not self.proxies:
            if self.stays is None or await self._stays(accepted, ""):
                await self._serve(accepted, address, self._make())
            return
        entrance.handshakes += 1
        until_s = loop.time() + entrance.timeout_s()
        protocol = self._make()  # now: the client's deadline for CONNECT begins with it
        name = f"{address[0]}:{address[1]}"
        try:
            if self.proxies:
                forwarded = await self._take_header(accepted, address[0], protocol, until_s)
                name = forwarded or name
                if self.stays is not None and not await self._stays(accepted, forwarded or ""):
                    return
            await self._connect(accepted, protocol, until_s)
        except (OSError, ssl.SSLError, PeerProtocolError) as problem:
            entrance.failed(name, problem)
        finally:
            entrance.handshakes -= 1

    async def _stays(self, accepted: socket.socket, forwarded: str) -> bool:
        """Return whether a connection is to be served here; close it if nobody can tell in time."""
        assert self.stays is not None
        entrance = self._entrance
        entrance.handshakes += 1
        try:
            async with asyncio.timeout(entrance.timeout_s()):
                return await self.stays(accepted, forwarded)
        except OSError:
            accepted.close()
            return False
        except BaseException:
            accepted.close()
            raise
        finally:
            entrance.handshakes -= 1

    def adopt(self, accepted: socket.socket, forwarded: str) -> None:
        """Serve a connection that another worker has accepted and passed on."""
        if self._is_closed:
            accepted.close()
        elif self._entrance.is_full():
            self._refuse(accepted.detach(), "all connections of [limits] are in use")
        else:
            accepted.setblocking(False)
            task = asyncio.get_running_loop().create_task(self._adopt(accepted, forwarded))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _adopt(self, accepted: socket.socket, forwarded: str) -> None:
        protocol = self._make()
        if forwarded:
            cast("Forwarded", protocol).forwarded_from(forwarded)
        with contextlib.suppress(OSError):  # it is gone already
            await self._serve(accepted, accepted.getpeername(), protocol)

    async def _serve(
        self, accepted: socket.socket, address: tuple[str, int], protocol: asyncio.Protocol
    ) -> None:
        """Serve a plain connection."""
        with contextlib.suppress(OSError):  # it is gone already
            if self._plain is not None:
                self._plain.attach(accepted.fileno(), address, protocol)
                accepted.detach()
            else:
                loop = asyncio.get_running_loop()
                await loop.connect_accepted_socket(lambda: protocol, accepted)

    async def _connect(
        self, accepted: socket.socket, protocol: asyncio.Protocol, until_s: float
    ) -> None:
        loop = asyncio.get_running_loop()
        if self.context is None:
            await loop.connect_accepted_socket(lambda: protocol, accepted)
            return
        await self._await(accepted, until_s, _hello_has_come(accepted), "no ClientHello in time")
        await loop.connect_accepted_socket(
            lambda: protocol,
            accepted,
            ssl=self.context,
            ssl_handshake_timeout=max(0.001, until_s - loop.time()),
        )

    async def _take_header(
        self, accepted: socket.socket, host: str, protocol: asyncio.Protocol, until_s: float
    ) -> str | None:
        """Return the address that a proxy names; None if the proxy connects for itself."""
        address: str | None = None
        try:
            if not _is_among(host, self.proxies):
                raise PeerProtocolError("no proxy of this listener", where=host)
            header = _proxy_header(accepted)
            address = await self._await(accepted, until_s, header, "no PROXY header in time")
            if address is not None and not self._entrance.admits(address):
                raise PeerProtocolError("it is banned, or connects too often", where=address)
        except PeerProtocolError:
            accepted.close()
            raise
        if address is not None:
            cast("Forwarded", protocol).forwarded_from(address)
        return address

    async def _await(
        self, accepted: socket.socket, until_s: float, what: Coroutine[None, None, R], late: str
    ) -> R:
        """Return what a connection begins with; close it if that does not come in time."""
        try:
            async with asyncio.timeout_at(until_s):
                return await what
        except BaseException as problem:
            accepted.close()
            if isinstance(problem, TimeoutError):
                raise TimeoutError(late) from None
            raise

    def close(self) -> None:
        """Stop accepting and close the port."""
        self._is_closed = True
        for task in self._handshakes:
            task.cancel()
        for taken in self._sockets:
            with contextlib.suppress(RuntimeError):  # there is no loop any more
                self._ignore(taken)
            taken.close()
        self._sockets = []


def _is_among(host: str, networks: Sequence[IPv4Network | IPv6Network]) -> bool:
    address = ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    address = address if mapped is None else mapped
    return any(address in network for network in networks)


async def _proxy_header(accepted: socket.socket) -> str | None:
    """Take the PROXY header, and nothing behind it, from a connection; return its address."""
    wanted = 1
    while True:
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
        await is_readable(accepted)
        found = accepted.recv(_PEEKED, socket.MSG_PEEK)
        if len(found) < wanted:
            raise ConnectionAbortedError("closed before its PROXY header was whole")
        header = read_header(found)
        if header is not None:
            accepted.recv(header.size)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            return header.address
        wanted = max(len(found) + 1, wanted_bytes(found))


async def _hello_has_come(accepted: socket.socket) -> None:
    """Wait until the first TLS record is complete; OSError if the client closes before.

    TLS state costs 40 kB and more from its first byte on. The record stays in the kernel, so that a
    client that sends nothing, or half of it, costs next to nothing.
    """
    wanted = _RECORD_HEAD
    while True:
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
        await is_readable(accepted)
        found = accepted.recv(wanted, socket.MSG_PEEK)
        if len(found) < wanted:
            raise ConnectionAbortedError("closed before its ClientHello was whole")
        size = int.from_bytes(found[3:5], "big")
        is_other = found[0] != _HANDSHAKE or size > _LARGEST_RECORD
        if is_other or wanted == _RECORD_HEAD + size:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            return  # OpenSSL refuses anything else
        wanted = _RECORD_HEAD + size


async def is_readable(accepted: socket.socket) -> None:
    """Wait until SO_RCVLOWAT bytes have arrived, or the client has closed."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(accepted, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_reader(accepted)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def most_descriptors() -> int:
    """Return the process's limit of open descriptors."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def allow_descriptors(connections: int) -> None:
    """Raise the process's limit of open files as far as allowed; warn if it is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 1_200
    if soft == resource.RLIM_INFINITY:
        return
    allowed = max(soft, wanted) if hard == resource.RLIM_INFINITY else hard
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning(
            "the system allows %d open files, %d connections need %d (see ulimit -n)",
            allowed,
            connections,
            wanted,
        )


async def take_port(
    kind: str, host: str, port: int, context: ssl.SSLContext | None = None
) -> Listener:
    """Return a listener on a port; an EnvironmentProblem says why it cannot be bound."""
    with _told_of_port(host, port):
        return Listener(kind, host, await _bound(host, port), context)


@contextlib.contextmanager
def _told_of_port(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise EnvironmentProblem(
            f"port {port} on {host} cannot be opened ({problem.strerror or problem})",
            todo="Stop what uses it, or choose another with --port.",
        ) from None


async def _bound(host: str, port: int) -> list[socket.socket]:
    """Return a bound socket for each address of a host."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    with contextlib.ExitStack() as undo:
        sockets = []
        for family, _, protocol, _, address in dict.fromkeys(found):
            try:
                one = undo.enter_context(socket.socket(family, socket.SOCK_STREAM, protocol))
            except OSError:  # an address family that this machine does not support
                continue
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.setblocking(False)
            one.bind(address)
            sockets.append(one)
        if not sockets:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        undo.pop_all()
    return sockets
