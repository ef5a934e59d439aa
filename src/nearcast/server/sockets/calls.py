"""Many sockets in one call, in Python: what `calls.c` does where the core is compiled.

A `SocketSet` watches sockets, each with an owner. `gather` reads all that are ready, `scatter`
writes what many connections have to send: two calls a batch, however many sockets there are.
This is the oracle of the module in C.

Read next: `transport.py`.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Callable

IS_IN_C = False
"""True in `calls.c`. A server reads its sockets together only then: uvloop is quicker than this."""
_MOST_EVENTS = 256
_READ_BYTES = 1 << 18  # of one socket in a call
_GATHERED_BYTES = 1 << 20  # of all sockets; the rest is read by the next call
_MOST_ACCEPTED = 16  # of one listening socket in a call: connected clients wait
_LIMIT = 1 << 30
_READS, _WRITES, _BROKEN = 0x1, 0x4, 0x18  # EPOLLIN, EPOLLOUT, EPOLLERR | EPOLLHUP of Linux


class SocketSet:
    """Non-blocking sockets that are read together. O(sockets that are ready) per call."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._owners: dict[int, object] = {}
        self._events: dict[int, int] = {}  # what epoll watches; without an entry it does not
        self._listeners: set[int] = set()
        self._buffer = bytearray(_READ_BYTES)

    def fileno(self) -> int:
        """Return the descriptor that is readable while a socket of the set is ready."""
        return self._epoll.fileno()

    def close(self) -> None:
        """Forget all sockets, and close what watches them."""
        self._epoll.close()
        self._owners.clear()
        self._events.clear()
        self._listeners.clear()

    def add(self, descriptor: int, owner: object) -> None:
        """Watch a socket for bytes to read; `gather` names it by its owner."""
        if not 0 <= descriptor <= _LIMIT:
            raise ValueError(f"{descriptor} is no descriptor")
        if descriptor in self._owners:
            raise ValueError(f"descriptor {descriptor} is in this set")
        self._watch(descriptor, _READS)
        self._owners[descriptor] = owner

    def add_listener(self, descriptor: int, owner: object) -> None:
        """Watch a listening socket, which does not block, for connections to accept."""
        self.add(descriptor, owner)
        self._listeners.add(descriptor)

    def watch(self, descriptor: int, reads: bool, writes: bool) -> None:
        """Watch a socket for bytes to read, for room to write, for both or for neither."""
        self._find(descriptor)
        self._watch(descriptor, (_READS if reads else 0) | (_WRITES if writes else 0))

    def remove(self, descriptor: int) -> None:
        """Forget a socket, before it is closed."""
        self._find(descriptor)
        del self._owners[descriptor]
        self._listeners.discard(descriptor)
        try:
            self._watch(descriptor, 0)
        except OSError:  # it was closed already
            self._events.pop(descriptor, None)

    def _find(self, descriptor: int) -> object:
        if not 0 <= descriptor <= _LIMIT:
            raise ValueError(f"{descriptor} is no descriptor")
        if descriptor not in self._owners:
            raise KeyError(f"descriptor {descriptor} is not in this set")
        return self._owners[descriptor]

    def _watch(self, descriptor: int, events: int) -> None:
        before = self._events.get(descriptor, 0)
        if events == before:
            return
        if not events:
            self._epoll.unregister(descriptor)
            del self._events[descriptor]
            return
        if before:
            self._epoll.modify(descriptor, events)
        else:
            self._epoll.register(descriptor, events)
        self._events[descriptor] = events

    def gather(self) -> list[object]:
        """Return owners and what happened, by turns: [owner, what, owner, what, …].

        What happened is the bytes that were read, b"" once the other side has sent all it will, the
        number of an error, or None where there is room to write. A socket may be named twice, for
        writing and then for reading. Of a listening socket it is the connections that were
        accepted, [descriptor, (host, port), …], which do not block. It never waits.
        """
        found: list[object] = []
        total = 0
        for descriptor, seen in self._epoll.poll(0, _MOST_EVENTS):
            wanted, owner = self._events.get(descriptor, 0), self._owners.get(descriptor)
            if wanted & _WRITES and seen & (_WRITES | _BROKEN):
                found += (owner, None)
            if not (wanted & _READS and seen & (_READS | _BROKEN)):
                continue
            if descriptor in self._listeners:
                found += (owner, _accept_some(descriptor))
                continue
            if total >= _GATHERED_BYTES:
                continue
            try:
                size = os.readv(descriptor, [self._buffer])
            except BlockingIOError:
                continue
            except OSError as problem:
                found += (owner, problem.errno)
                continue
            total += size
            found += (owner, bytes(self._buffer[:size]))
        return found

    def follow(
        self, _loop: object, _library: str, _on_found: Callable[[list[object]], None]
    ) -> bool:
        """Wait for an event loop of libuv with the sockets, in its place; False: it cannot be done.

        Each time before the loop would wait, it is waited for here, with the sockets. `on_found`
        gets what `gather` would return, until the loop has something to do. So each wait is one
        call of the system and not two. `loop` is a capsule of its `uv_loop_t`, `library` the file
        that libuv is in.
        """
        return False


def _accept_some(listener: int) -> list[object] | int:
    """Return connections that wait, or the number of an error."""
    found: list[object] = []
    ours = socket.socket(fileno=os.dup(listener))
    ours.settimeout(0)
    with ours:
        while len(found) < 2 * _MOST_ACCEPTED:
            try:
                accepted, address = ours.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as problem:
                return found or problem.errno or errno.EIO
            accepted.setblocking(False)
            found += (accepted.detach(), address[:2])
    return found


def scatter(descriptors: list[int], outboxes: list[list[bytes]]) -> list[int] | None:
    """Send each outbox, a list of bytes, to the socket beside it.

    Returns None if all was sent, else places and results of those that were not, by turns: how many
    bytes the socket took (0 if it takes none now), or the number of an error, below 0.
    """
    if len(descriptors) != len(outboxes):
        raise TypeError("scatter(descriptors, outboxes): two lists of one length")
    short: list[int] = []
    chunks = [b"".join(outbox) for outbox in outboxes]  # raises, if at all, before anything is sent
    for place, (descriptor, data) in enumerate(zip(descriptors, chunks, strict=True)):
        if not data:
            continue
        try:
            sent = os.write(descriptor, data)
        except BlockingIOError:
            sent = 0
        except OSError as problem:
            sent = -(problem.errno or 1)
        if sent != len(data):
            short += (place, sent)
    return short or None
