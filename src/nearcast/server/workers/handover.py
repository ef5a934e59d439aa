"""Passes a client's connection to the worker of its session, before any byte of it is read.

Whoever accepts a connection looks at its CONNECT without taking it out of the kernel (MSG_PEEK),
and sends the descriptor to the worker in question (SCM_RIGHTS). A worker that is just being started
again finds what was sent to it meanwhile: the parent keeps both ends of its queue.

Whatever is no CONNECT stays where it is: that worker's broker says what is wrong with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from nearcast.cluster.workers.places import place_of
from nearcast.server.listeners.listener import Listener, is_readable

_PEEKED = 4_096
_MOST_PEEKED = 1 << 16
_AT_A_TIME = 64
_AGAIN_S = 0.005
_CONNECT = 0x10
_HAS_USER, _HAS_WILL = 0x80, 0x04
_V5 = 5


class _Unfinished(Exception):  # noqa: N818 - it is no error
    """More bytes have to come; `wanted` of them from the beginning."""

    def __init__(self, wanted: int) -> None:
        super().__init__(wanted)
        self.wanted = wanted


def connect_name(data: bytes, *, by_user: bool = False) -> str | int | None:
    """Return the client identifier in a CONNECT, or the user name with `by_user`.

    A number is how many bytes have to be there before it can be found; None: it cannot be found.

    >>> connect_name(bytes.fromhex("100e 0004 4d515454 04 02 003c 0002 6162"))
    'ab'
    >>> connect_name(bytes.fromhex("100e 0004 4d51"))
    8
    """
    if data and data[0] != _CONNECT:
        return None
    most = _MOST_PEEKED
    try:
        at = _after_number(data, 1)
        most = min(most, at + _number(data[1:at]))
        return _name(data, at, by_user=by_user)
    except _Unfinished as unfinished:
        return unfinished.wanted if unfinished.wanted <= most else None
    except ValueError:
        return None


def _name(data: bytes, at: int, *, by_user: bool) -> str | None:
    at = _after_text(data, at)  # the protocol's name
    _has(data, at + 4)
    version, flags = data[at], data[at + 1]
    at += 4
    if version == _V5:
        at = _after_properties(data, at)
    start, at = at + 2, _after_text(data, at)
    if not by_user:
        return data[start:at].decode()
    if not flags & _HAS_USER:
        return None
    if flags & _HAS_WILL:
        if version == _V5:
            at = _after_properties(data, at)
        at = _after_text(data, _after_text(data, at))
    start, at = at + 2, _after_text(data, at)
    return data[start:at].decode()


def _has(data: bytes, size: int) -> None:
    if len(data) < size:
        raise _Unfinished(size)


def _after_number(data: bytes, at: int) -> int:
    """Return where a variable byte integer ends."""
    for end in range(at, at + 4):
        _has(data, end + 1)
        if data[end] < 0x80:
            return end + 1
    raise ValueError("a number of five bytes")


def _number(data: bytes) -> int:
    """Return a variable byte integer."""
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data))


def _after_text(data: bytes, at: int) -> int:
    _has(data, at + 2)
    end = at + 2 + int.from_bytes(data[at : at + 2], "big")
    _has(data, end)
    return end


def _after_properties(data: bytes, at: int) -> int:
    end = _after_number(data, at)
    end += _number(data[at:end])
    _has(data, end)
    return end


class Handover:
    """Keeps the connections of one worker's sessions, and passes on those of the others."""

    def __init__(
        self,
        number: int,
        arrivals: socket.socket,
        queues: Sequence[socket.socket],
        *,
        by_user: bool,
    ) -> None:
        self._number = number
        self._arrivals = arrivals
        self._queues = queues  # into each worker's arrivals
        self._by_user = by_user
        self._listeners: dict[int, Listener] = {}
        self.passed_on = 0

    def watch(self, listeners: Sequence[Listener]) -> None:
        """Look at what these listeners accept, and take over what others pass on to them."""
        for number, listener in enumerate(listeners):
            self._listeners[number] = listener
            if listener.kind == "tcp":
                listener.stays = self._stays(number)
        asyncio.get_running_loop().add_reader(self._arrivals.fileno(), self._take)

    def stop(self) -> None:
        """Take over nothing more: it waits for the next process of this worker."""
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().remove_reader(self._arrivals.fileno())

    def _stays(self, listener: int) -> Callable[[socket.socket, str], Awaitable[bool]]:
        async def stays(accepted: socket.socket, forwarded: str) -> bool:
            name = await self._read_name(accepted)
            place = place_of(name, len(self._queues)) if name else self._number
            if place == self._number:
                return True
            await self._pass_on(place, accepted, msgspec.msgpack.encode((listener, forwarded)))
            return False

        return stays

    async def _read_name(self, accepted: socket.socket) -> str | None:
        size, wanted = _PEEKED, 1
        while True:
            await is_readable(accepted)
            found = accepted.recv(size, socket.MSG_PEEK)
            name = connect_name(found, by_user=self._by_user)
            is_over = len(found) < wanted or not found  # the client has closed its side
            if not isinstance(name, int) or is_over:
                if wanted > 1:
                    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
                return None if isinstance(name, int) else name
            wanted, size = name, max(_PEEKED, name)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)

    async def _pass_on(self, place: int, accepted: socket.socket, head: bytes) -> None:
        """Send a connection to its worker; wait while the worker's queue is full."""
        while True:
            try:
                socket.send_fds(self._queues[place], [head], [accepted.fileno()])
            except BlockingIOError:
                await asyncio.sleep(_AGAIN_S)
            else:
                break
        self.passed_on += 1
        accepted.close()

    def _take(self) -> None:
        """Take over connections that other workers have accepted."""
        for _ in range(_AT_A_TIME):
            try:
                head, descriptors, _, _ = socket.recv_fds(self._arrivals, 1_024, 1)
            except OSError:
                return
            if not descriptors:  # this process has no descriptor left
                continue
            try:
                number, forwarded = msgspec.msgpack.decode(head, type=tuple[int, str])
                accepted = socket.socket(fileno=descriptors[0])
            except (msgspec.MsgspecError, OSError):
                os.close(descriptors[0])
                continue
            self._listeners[number].adopt(accepted, forwarded)
