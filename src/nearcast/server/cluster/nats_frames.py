"""Frames between nodes over core NATS: one subject per pair of nodes, one flush per batch.

The subject is `nearcast.<network>.frames.<receiver>.<sender>`, with a further token for a piece of
a long frame. Frames that cannot be sent because NATS is unreachable are dropped: links detect the
loss, and restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nats.errors import Error as NatsError

from nearcast.nats.connection import NatsConnection
from nearcast.server.cluster.nats_members import key_of, name_of
from nearcast.server.cluster.nats_pieces import Assembly, check_room, cut

HIGH_WATER_BYTES = 4 << 20
"""How much may be queued for NATS; above it, delivery to peers pauses as for slow clients."""

Frames = list[tuple[str, bytes]]


class FrameCarrier:
    """Sends and receives frames while there is a connection."""

    def __init__(
        self,
        network: str,
        name: str,
        *,
        received: Callable[[str, bytes], None],
        has_room: Callable[[], None],
    ) -> None:
        self.dropped = 0  # frames without a connection to NATS
        self.backlog_bytes = 0  # queued for NATS
        self._name = key_of(name)
        self._prefix = f"nearcast.{network}.frames."
        self._received = received
        self._has_room = has_room
        self._client: NatsConnection | None = None
        self._is_pumping = self._was_crowded = False
        self._outgoing: Frames = []
        self._wake = asyncio.Event()
        self._subjects: dict[str, str] = {}
        self._senders: dict[str, str] = {}  # node names by subject
        self._assemblies: dict[str, Assembly] = {}
        self._pieces_sent = 0

    @property
    def is_crowded(self) -> bool:
        """Whether more is queued for NATS than the high-water mark."""
        return self.backlog_bytes > HIGH_WATER_BYTES

    def send(self, frames: Frames) -> None:
        """Send or queue frames for peers, in order."""
        client = self._client
        if client is None:
            self.dropped += len(frames)
            return
        if not (self._outgoing or self._is_pumping):
            frames = self._without_the_first(client, frames)
        if not frames:
            return
        self._outgoing += frames
        self.backlog_bytes += sum(len(data) for _, data in frames)
        self._was_crowded = self._was_crowded or self.is_crowded
        self._wake.set()

    def _without_the_first(self, client: NatsConnection, frames: Frames) -> Frames:
        """Write frames at once as long as NATS accepts them; return the rest."""
        most = int(client.max_payload)
        for count, (name, data) in enumerate(frames):
            if len(data) > most or not client.publish_directly(self._subject(name), data):
                return frames[count:]
        return []

    async def run(self, client: NatsConnection) -> None:
        """Carry frames until the connection breaks.

        Raises EnvironmentProblem if NATS's maximum payload is too small.
        """
        check_room(int(client.max_payload))
        subject = f"{self._prefix}{self._name}.>"
        subscription = await client.subscribe_directly(subject, self._arrived)
        self._assemblies.clear()
        self._client = client
        try:
            await self._pump(client)
        finally:
            self._client = None
            self._is_pumping = False
            self._outgoing, self.backlog_bytes = [], 0
            self._has_room()
            if not client.is_closed:
                await subscription.unsubscribe()

    async def _pump(self, client: NatsConnection) -> None:
        most = int(client.max_payload)
        while True:
            await self._wake.wait()
            self._wake.clear()
            frames, self._outgoing = self._outgoing, []
            self._is_pumping = True
            for name, data in frames:
                await self._publish(client, name, data, most)
                self.backlog_bytes -= len(data)
            self._is_pumping = False
            if self._was_crowded and not self.is_crowded:
                self._was_crowded = False
                self._has_room()

    async def _publish(self, client: NatsConnection, name: str, data: bytes, most: int) -> None:
        subject = self._subject(name)
        if len(data) <= most:
            await client.publish(subject, data)
            return
        self._pieces_sent += 1
        for piece in cut(data, most, self._pieces_sent):
            await client.publish(f"{subject}.piece", piece)

    def _subject(self, name: str) -> str:
        subject = self._subjects.get(name)
        if subject is None:
            subject = self._subjects[name] = f"{self._prefix}{key_of(name)}.{self._name}"
        return subject

    async def flush(self, client: NatsConnection) -> None:
        """Wait until NATS has received all frames."""
        for _ in range(1_000):
            if not self._outgoing or self._client is None:
                break
            await asyncio.sleep(0)
        try:
            await client.flush(timeout=1)
        except (NatsError, OSError):
            self.dropped += 1

    def _arrived(self, subject: str, content: bytes) -> None:
        sender = self._senders.get(subject)
        if sender is None:
            sender = self._sender(subject)
        data: bytes | None = content
        if subject.endswith(".piece"):
            data = self._assemblies.setdefault(sender, Assembly()).add(content)
        if data is not None:
            self._received(sender, data)

    def _sender(self, subject: str) -> str:
        word = subject.removesuffix(".piece").rpartition(".")[2]
        name = name_of(word)
        if len(self._senders) < 10_000:
            self._senders[subject] = name
        return name
