"""Ports of a server: taken first, served later.

A node takes all its ports before it joins a network. Who cannot have one, because somebody listens
there, ends before any other node has heard of it. Clients are refused until the door is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Callable, Iterator

from nearcast.config import ListenerSection
from nearcast.model.errors import EnvironmentProblem

_BACKLOG = 4_096


class Door:
    """A port that is taken, on all addresses of its host; served once `open` was called."""

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
        self._servers: list[asyncio.Server] = []

    async def open(self, make: Callable[[], asyncio.Protocol]) -> None:
        """Let clients in; `make` makes the protocol of one connection."""
        loop = asyncio.get_running_loop()
        while self._sockets:
            taken = self._sockets[0]
            with _told_of_port(self.host, self.port):
                taken.listen(_BACKLOG)  # of two who start at once only one can
                server = await loop.create_server(
                    make, sock=taken, ssl=self._context, backlog=_BACKLOG
                )
            self._servers.append(server)
            del self._sockets[0]

    def close(self) -> None:
        """Let nobody in any more."""
        for one in self._servers:
            one.close()
        for taken in self._sockets:
            taken.close()


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
