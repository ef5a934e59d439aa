"""A peer for Python programs: subscribe with conditions, publish, no broker anywhere."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearcast import kernels
from nearcast.broker import SpaceSettings
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.index.topic_filters import topic_matches
from nearcast.model import Event, MisuseError, Space, read_subscription
from nearcast.model import Subscription as Selection
from nearcast.model.errors import LimitError, NearcastError
from nearcast.model.event_decoder import EventDecoder
from nearcast.overlay.live.client_boxes import ClientBoxes
from nearcast.overlay.live.codec import BESIDE_PAYLOAD
from nearcast.overlay.live.member import NewEvent, PeerArrival
from nearcast.server.clock import Clock
from nearcast.server.overlay.links import LinkSettings
from nearcast.server.overlay.runtime import OverlayRuntime, PeerSettings
from nearcast.server.overlay.spaces import (
    TreeSettings,
    event_box,
    overlay_space,
    pack_message,
    unpack_message,
)

log = logging.getLogger("nearcast.overlay")

_loaded: list[bool] = []  # kernels are loaded once, for all peers of this process
MOST_EVENTS = 10_000
"""How many events may wait for the program; beyond that the oldest are dropped."""


@dataclass(frozen=True, slots=True)
class PeerEvent:
    """An event that matches a subscription of the peer."""

    topic: str
    payload: bytes
    values: Mapping[str, Any]
    """The attributes by name; a value that is missing is None."""


class PeerEvents:
    """The events that have arrived, in order: `async for event in peer.events`."""

    def __init__(self, most: int) -> None:
        self.dropped = 0
        self._most = most
        self._waiting: asyncio.Queue[PeerEvent | None] = asyncio.Queue()

    def put(self, event: PeerEvent | None) -> None:
        """Add an event; None ends the iteration."""
        if self._waiting.qsize() >= self._most:
            self._waiting.get_nowait()
            self.dropped += 1
        self._waiting.put_nowait(event)

    async def __aiter__(self) -> AsyncIterator[PeerEvent]:
        while (event := await self._waiting.get()) is not None:
            yield event
        self._waiting.put_nowait(None)  # for others that iterate


class Peer:
    """A peer of the overlay of one space; use it as an asynchronous context manager.

    Contract: after `subscribe` returns, matching events that others publish arrive, each once. An
    event at QoS 1 is sent again until every branch of the tree has answered (at most 30 s).
    """

    def __init__(
        self,
        space: Space | SpaceSettings,
        *,
        contact: str | Sequence[str] = (),
        host: str = "127.0.0.1",
        port: int = 0,
        key: str = "",
        links: LinkSettings | None = None,
        tree: TreeSettings | None = None,
        most_boxes: int = 8,
        looseness: float = 0.25,
        histogram: Path | None = None,
    ) -> None:
        settings = space if isinstance(space, SpaceSettings) else SpaceSettings(space=space)
        self._space = settings.space
        self._tree = tree or TreeSettings()
        contacts = [contact] if isinstance(contact, str) else list(contact)
        self._settings = PeerSettings(
            host, port, contacts, links=links or LinkSettings(key=key.encode())
        )
        self._overlay_space = overlay_space(settings, self._tree, histogram)
        self._runtime: OverlayRuntime | None = None
        self._decoder = EventDecoder(settings.space, settings.values, settings.paths)
        self._wanted: dict[int, Selection] = {}
        self._boxes = ClientBoxes(settings.space, most=most_boxes, looseness=looseness)
        self._next_key = 1
        self._clock = Clock()
        self.events = PeerEvents(MOST_EVENTS)

    async def __aenter__(self) -> Peer:
        """Join the overlay through the contact, or found one."""
        if kernels.is_switched() and not _loaded:  # otherwise plain Python answers
            await asyncio.to_thread(kernels.load, ["overlay"])
            _loaded.append(True)
        self._runtime = OverlayRuntime(self._settings, [self._overlay_space], self._arrived)
        await self._runtime.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave the overlay; the iteration over `events` ends."""
        await self.runtime.stop()
        self.events.put(None)

    @property
    def runtime(self) -> OverlayRuntime:
        """The running peer."""
        if self._runtime is None:
            raise MisuseError("a peer that has not joined", todo="Use `async with Peer(…)`.")
        return self._runtime

    @property
    def address(self) -> str:
        """HOST:PORT of this peer: the contact for others."""
        return self.runtime.links.address

    async def subscribe(self, where: str = "", *, area: str = "", topics: str = "") -> int:
        """Subscribe to events that fulfil the conditions; return a key for `unsubscribe`."""
        pairs = [(name, text) for name, text in (("$where", where), ("$area", area)) if text]
        asked = read_subscription(topics or self._space.topic_filter, pairs).subscription
        key = self._next_key
        self._boxes.add(key, asked, None)
        self._wanted[key] = asked
        self._next_key += 1
        await self._use_boxes()
        return key

    async def unsubscribe(self, key: int) -> None:
        """End a subscription."""
        del self._wanted[key]
        self._boxes.remove(key)
        await self._use_boxes()

    async def publish(
        self, topic: str, payload: bytes | str | Mapping[str, Any], *, qos: int = 0
    ) -> None:
        """Publish an event to all peers that it concerns, this one included.

        A mapping is sent as JSON. Raises MisuseError if it is no event of the space or too large,
        and LimitError if too many events at QoS 1 wait for answers.
        """
        if isinstance(payload, Mapping):
            payload = json.dumps(payload)
        data = payload.encode() if isinstance(payload, str) else payload
        if not topic_matches(self._space.topic_filter, topic) or qos not in (0, 1):
            raise MisuseError(
                f"topic {topic!r}, QoS {qos}",
                expected=f"a topic of {self._space.topic_filter}, QoS 0 or 1",
            )
        event = self._decoder.read(topic, data, (), None)
        raw = topic.encode()
        message = Message(MessageHead(len(raw).to_bytes(2, "big") + raw, len(data), qos), data)
        packed = pack_message(message, self._clock.now_ms())
        most = self._settings.links.most_frame - BESIDE_PAYLOAD
        if len(packed) > most:
            raise MisuseError(f"an event of {len(packed)} bytes", expected=f"at most {most}")
        if not self.runtime.publish(0, [NewEvent(event_box(event), packed, qos > 0)]):
            raise LimitError("too many events that wait for answers", todo="Publish more slowly.")
        self._offer(event, data)
        await asyncio.sleep(0)  # others run, although nothing here waits

    async def _use_boxes(self) -> None:
        self.runtime.set_boxes(0, self._boxes.take())
        await self.runtime.wait_until_placed()

    def _arrived(self, _space: int, arrivals: list[PeerArrival]) -> None:
        for one in arrivals:
            try:
                message = unpack_message(one.payload, self._space, self._clock.now_ms())
                event = self._decoder.read(message.topic_text(), message.payload, (), None)
            except NearcastError as problem:
                log.info("an event of another peer is dropped: %s", problem)
                continue
            self._offer(event, message.payload)

    def _offer(self, event: Event, payload: bytes) -> None:
        if any(
            topic_matches(one.topic_filter, event.topic) and one.covers(event)
            for one in self._wanted.values()
        ):
            names = (one.name for one in self._space.attributes)
            values = dict(zip(names, event.values, strict=True))
            self.events.put(PeerEvent(event.topic, payload, values))
