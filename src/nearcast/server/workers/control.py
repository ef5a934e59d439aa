"""Messages between the parent and a worker, with descriptors, over a pair of sockets."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import msgspec

_MOST_BYTES = 1 << 16


def channel() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a channel: packets stay whole, and the end of a process is seen."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for one in ends:
        one.setblocking(False)
    return ends


def send(end: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> bool:
    """Send a message; return False if the other process is gone, or does not read."""
    data = msgspec.msgpack.encode(message)
    try:
        socket.send_fds(end, [data], list(descriptors))
    except OSError:
        return False
    return True


def receive(end: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next message; None if there is none now. EOFError: the other process is gone."""
    try:
        data, descriptors, _, _ = socket.recv_fds(end, _MOST_BYTES, 4)
    except BlockingIOError:
        return None
    except OSError:
        raise EOFError from None
    if not data:
        raise EOFError
    return msgspec.msgpack.decode(data), descriptors
