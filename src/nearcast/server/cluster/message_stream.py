"""A connection between two processes of ours: messages, each behind its size."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from struct import Struct
from typing import Any, Protocol

from nearcast.server.listeners.tcp import write_now

HIGH_WATER_BYTES = 4 << 20
"""How much may wait for a peer; above it, delivery to it pauses as to a slow client."""
_MOST_MESSAGE = 1 << 30


class StreamOwner(Protocol):
    """Whoever has the streams to several peers."""

    def lost(self, way: Any, /) -> None:
        """Handle the end of a stream."""

    def crowded(self, way: Any, /, *, is_crowded: bool) -> None:
        """Pause or resume delivery to a peer that does not read as fast as it is sent to."""


class MessageStream(asyncio.Protocol):
    """Splits what arrives into messages, and calls `arrived` with each.

    `head` precedes a message; its first field is the size of the message, the others go to
    `arrived` as well.
    """

    def __init__(self, owner: StreamOwner, name: str, head: Struct) -> None:
        self.name = name
        self._owner = owner
        self._head = head
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        self._parts: list[bytes] = []
        self._size, self._wanted = 0, head.size

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Use the connection."""
        self._transport = transport  # type: ignore[assignment]
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._descriptor = transport.get_extra_info("socket").fileno()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Report the loss to the owner."""
        self._owner.lost(self)

    def pause_writing(self) -> None:
        """Pause delivery to the peer."""
        self._owner.crowded(self, is_crowded=True)

    def resume_writing(self) -> None:
        """Resume delivery to the peer."""
        self._owner.crowded(self, is_crowded=False)

    def end(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_empty(self) -> bool:
        """Whether everything was written."""
        return self._transport is None or not self._transport.get_write_buffer_size()

    def _send(self, data: bytes, *more: int) -> None:
        """Send a message; `more` are the fields of the head behind the size."""
        if self._transport is not None and not self._transport.is_closing():
            head = self._head.pack(len(data), *more)
            write_now(self._transport, self._descriptor, head + data)

    def data_received(self, data: bytes) -> None:
        """Handle messages in any portions."""
        if self._parts:
            self._parts.append(data)
            self._size += len(data)
            if self._size < self._wanted:
                return
            data = b"".join(self._parts)
        self._take(data)

    def _take(self, data: bytes) -> None:
        """Handle the whole messages in `data`, and keep the rest."""
        at, most, before = 0, len(data), self._head.size
        self._wanted = before
        while most - at >= before:
            size, *more = self._head.unpack_from(data, at)
            if size > _MOST_MESSAGE:
                self.end()
                return
            stop = at + before + size
            if stop > most:
                self._wanted = before + size
                break
            self.arrived(data[at + before : stop], *more)
            at = stop
        self._parts = [data[at:]] if at < most else []
        self._size = most - at

    @abstractmethod
    def arrived(self, data: bytes, *more: int) -> None:
        """Handle a message, with the fields of its head behind the size."""
