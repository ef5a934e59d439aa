"""Ports of a server: taken first, served later.

A node takes all its ports before it joins a network. Who cannot have one, because somebody listens
there, ends before any other node has heard of it. Clients are refused until the door is open.
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
from collections.abc import Callable, Iterator

from nearcast.config import ListenerSection
from nearcast.model.errors import EnvironmentProblem
from nearcast.server.logs import RateLimited

_BACKLOG = 4_096
_ACCEPTS = 64  # at a time: those who are here need not wait for a crowd at the door
_PAUSE_S = 0.2
SPARE_DESCRIPTORS = 64
"""That clients leave free: for the journal, for the network, and half of them for the operator."""

log = logging.getLogger("nearcast.server")
limited = RateLimited(log)


class Entrance:
    """Who may come in: asked for each connection as soon as it is accepted, before TLS."""

    def __init__(self) -> None:
        self.handshakes = 0  # TLS handshakes that are under way

    def is_full(self) -> bool:
        """Tell whether no more connections are taken."""
        return False

    def timeout_s(self) -> float:
        """Return how long a TLS handshake may take."""
        return 10.0

    def refused(self) -> None:
        """Take note that a connection was closed at once."""

    def failed(self, address: str, problem: Exception) -> None:
        """Take note that a TLS handshake came to nothing."""


class Door:
    """A port that is taken, on all addresses of its host; served once `open` was called.

    Connections are accepted here and not by the loop, so that one that is too many is closed
    before it costs anything, and so that the last `spare` descriptors of the process stay free for
    files and for the operator.
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
        self._context = context
        self._sockets = sockets
        self._handshakes: set[asyncio.Task[None]] = set()
        self._make: Callable[[], asyncio.Protocol] = asyncio.Protocol
        self._entrance = Entrance()
        self._spare = 0
        self._is_closed = False

    async def open(
        self,
        make: Callable[[], asyncio.Protocol],
        entrance: Entrance | None = None,
        *,
        spare: int = SPARE_DESCRIPTORS,
    ) -> None:
        """Let clients in; `make` makes the protocol of one connection."""
        self._make, self._entrance, self._spare = make, entrance or self._entrance, spare
        loop = asyncio.get_running_loop()
        for taken in self._sockets:
            with _told_of_port(self.host, self.port):
                taken.listen(_BACKLOG)  # of two who start at once only one can
        for taken in self._sockets:
            loop.add_reader(taken.fileno(), self._accept, taken)

    def _accept(self, taken: socket.socket) -> None:
        """Accept the connections that wait, a few at a time."""
        for _ in range(_ACCEPTS):
            try:
                accepted, address = taken.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as problem:
                self._pause(taken, problem)
                return
            # The system hands out the lowest free number: this one tells how many are in use.
            most = most_descriptors()
            if accepted.fileno() >= most - min(self._spare, most // 4):
                self._refuse(accepted, "few descriptors are left (see ulimit -n)")
            elif self._entrance.is_full():
                self._refuse(accepted, "all connections of [limits] are in use")
            else:
                accepted.setblocking(False)
                task = asyncio.get_running_loop().create_task(self._begin(accepted, address))
                self._handshakes.add(task)
                task.add_done_callback(self._handshakes.discard)

    def _refuse(self, accepted: socket.socket, reason: str) -> None:
        accepted.close()
        self._entrance.refused()
        limited.warning("connections to port %d are refused: %s", self.port, reason)

    def _pause(self, taken: socket.socket, problem: OSError) -> None:
        """Accept nothing for a moment: descriptors or memory of the whole machine are used up."""
        limited.warning("no connection can be accepted on port %d: %s", self.port, problem)
        loop = asyncio.get_running_loop()
        loop.remove_reader(taken.fileno())
        loop.call_later(_PAUSE_S, self._go_on, taken)

    def _go_on(self, taken: socket.socket) -> None:
        if not self._is_closed:
            asyncio.get_running_loop().add_reader(taken.fileno(), self._accept, taken)

    async def _begin(self, accepted: socket.socket, address: tuple[str, int]) -> None:
        """Give a connection its protocol, after the TLS handshake where there is one."""
        loop, entrance = asyncio.get_running_loop(), self._entrance
        if self._context is None:
            with contextlib.suppress(OSError):  # it is gone already
                await loop.connect_accepted_socket(self._make, accepted)
            return
        entrance.handshakes += 1
        try:
            await loop.connect_accepted_socket(
                self._make, accepted, ssl=self._context, ssl_handshake_timeout=entrance.timeout_s()
            )
        except (OSError, ssl.SSLError) as problem:
            entrance.failed(f"{address[0]}:{address[1]}", problem)
        finally:
            entrance.handshakes -= 1

    def close(self) -> None:
        """Let nobody in any more."""
        self._is_closed = True
        for task in self._handshakes:
            task.cancel()
        for taken in self._sockets:
            with contextlib.suppress(RuntimeError):  # there is no loop any more
                asyncio.get_running_loop().remove_reader(taken.fileno())
            taken.close()
        self._sockets = []


def most_descriptors() -> int:
    """Return how many descriptors this process may have."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def allow_descriptors(connections: int) -> None:
    """Raise the process's own limit of open files as far as it may, at least to what is needed."""
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


async def take_port(kind: str, host: str, port: int, context: ssl.SSLContext | None = None) -> Door:
    """Return a door to a port that nobody else listens on; an EnvironmentProblem says why not."""
    with _told_of_port(host, port):
        return Door(kind, host, await _bound(host, port), context)


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
    """Return a socket for each address of a host."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    with contextlib.ExitStack() as undo:
        sockets = []
        for family, _, protocol, _, address in dict.fromkeys(found):
            try:
                one = undo.enter_context(socket.socket(family, socket.SOCK_STREAM, protocol))
            except OSError:  # a family of addresses that this machine does not have
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


def tls_context(section: ListenerSection) -> ssl.SSLContext:
    """Return the context of an encrypted listener."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert section.certificate is not None
    try:
        context.load_cert_chain(section.certificate, section.key)
        if section.client_ca is not None:
            context.load_verify_locations(section.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as problem:
        raise EnvironmentProblem(
            f"a certificate or key that cannot be read ({problem})",
            where=f"listener on port {section.port}",
            expected="PEM files",
        ) from None
    return context
