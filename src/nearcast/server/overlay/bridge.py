"""A node of a network that is also a peer: events cross between the network and an overlay.

    clients of all nodes            bridge node                     peers
    boxes of their clients ──────►  boxes of this peer        ~~►  the tree sends what they want
    what they get  ◄─────────────  published as by a client  ◄~~
    boxes that peers want  ◄──────  what hosts above it tell  ◄~~  (`nearcast.overlay.outside`)
    what matches them  ──────────►  session "$bridge/NAME"    ~~►  published in the overlay

The session works like a client's: what the overlay has not confirmed is queued, journaled and sent
again. **A message crosses one bridge at most**: it carries the mark of the bridge that it crossed,
and a marked message is never taken to the other side. So no arrangement of bridges makes a loop.

Read next: `nearcast/cluster/bridges/bridging.py` (which bridge works, what clients want).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nearcast.broker import Broker, SpaceSettings
from nearcast.broker.counters import counter
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.session.session import BRIDGE_PREFIX
from nearcast.cluster.bridges.bridging import Bridging
from nearcast.cluster.filter_aggregation import box_filter
from nearcast.index.topic_filters import topic_matches
from nearcast.model import Event
from nearcast.model.errors import NearcastError
from nearcast.model.event_decoder import EventDecoder
from nearcast.mqtt import PacketReader, Publish
from nearcast.mqtt.properties import encode_property_content
from nearcast.mqtt.wire import TWO_BYTES, encode_string
from nearcast.overlay import Cover, Extent
from nearcast.overlay.live.member import NewEvent, PeerArrival
from nearcast.server.log_format import RateLimited
from nearcast.server.overlay.spaces import event_box, pack_message, unpack_message

if TYPE_CHECKING:
    from nearcast.broker import Connection
    from nearcast.server.loop_batches import LoopBatches
    from nearcast.server.overlay.runtime import OverlayRuntime

limited = RateLimited(logging.getLogger("nearcast.overlay"))

MARK = "nearcast-bridge"
"""The user property of a message that has crossed a bridge; its value is the overlay's name."""
_MOST_LOSSY = 10_000
_PUBACK = b"\x40\x02"


@dataclass(slots=True)
class BridgeCounts:
    """Counters of what crosses the bridge."""

    inward: int = counter("Events of peers published in the network", name="bridge_inward")
    outward: int = counter("Messages of the network sent to peers", name="bridge_outward")
    stopped: int = counter(
        "Events not taken across: they have crossed a bridge before, or another bridge works",
        name="bridge_stopped",
    )
    dropped: int = counter(
        "Messages of the network not sent to peers: unreadable, or too many at QoS 0",
        name="bridge_dropped",
    )


class Bridge:
    """Carries events between a node and the overlay that it is a peer of.

    `tend` is called about once a beat, `settle` at the end of each batch, `write` and `finish` by
    the broker: the bridge is the transport of its session's connection.
    """

    def __init__(
        self,
        node: Broker,
        bridging: Bridging,
        turns: LoopBatches,
        spaces: list[SpaceSettings],
        *,
        most_boxes: int,
        looseness: float,
    ) -> None:
        self.counts = BridgeCounts()
        self._node = node
        self._bridging = bridging
        self._turns = turns
        self._spaces = sorted(spaces, key=lambda one: one.space.name)
        self._decoders = [EventDecoder(one.space, one.values, one.paths) for one in self._spaces]
        self._most_boxes, self._looseness = most_boxes, looseness
        self._runtime: OverlayRuntime | None = None
        self._connection: Connection | None = None
        self._reader = PacketReader()
        self._waiting: deque[Publish] = deque()
        self._unconfirmed: dict[bytes, int] = {}  # identity of an event to its packet identifier
        self._answers: list[bytes] = []
        self._outside: list[list[str]] = [[] for _ in self._spaces]
        self._boxes: list[object] = [None] * len(self._spaces)
        self._worked = False
        bridging.carrier = self

    @property
    def runtime(self) -> OverlayRuntime | None:
        """The runtime; None before the overlay is joined, and while the node stops."""
        return self._runtime

    # --- begin and end -----------------------------------------------------------------------

    def attach(self, runtime: OverlayRuntime) -> None:
        """Begin to carry events; the runtime has joined the overlay."""
        self._runtime = runtime
        for member in runtime.members:
            member.acks.on_settled = self._settled
        self._open()
        self.tend()

    def _open(self) -> None:
        self._reader = PacketReader()
        name = BRIDGE_PREFIX + self._bridging.federation
        now_ms = self._turns.clock.now_ms()
        self._connection = self._node.peering.attach_bridge(name, self, now_ms)
        self._turns.schedule()

    def detach(self) -> None:
        """Carry nothing any more."""
        self._runtime = None
        if self._connection is not None:
            self._node.lost(self._connection, self._turns.clock.now_ms())
            self._connection = None

    # --- from the overlay into the network ----------------------------------------------------

    def arrived(self, number: int, arrivals: list[PeerArrival]) -> None:
        """Publish events of peers at this node and the others, as a client would."""
        now_ms = self._turns.clock.now_ms()
        for one in arrivals:
            try:
                message = unpack_message(one.payload, self._spaces[number].space, now_ms)
            except NearcastError as problem:
                self.counts.dropped += 1
                limited.warning("an event of a peer is dropped: %s", problem)
                continue
            if not self._bridging.works or is_marked(message.head.properties):
                self.counts.stopped += 1
                continue
            self.counts.inward += 1
            self._node.bring(self._marked(message), now_ms)
        self._turns.schedule()

    def _marked(self, message: Message) -> Message:
        head = message.head
        properties = head.properties + mark(self._bridging.federation)
        marked = MessageHead(head.topic, head.payload_size, head.qos, properties)
        return Message(marked, message.payload, message.expires_at_ms)

    # --- from the network into the overlay ----------------------------------------------------

    def write(self, chunks: list[bytes]) -> None:
        """Take messages that peers want; those of QoS 0 are dropped above a limit."""
        for packet in self._reader.feed(b"".join(chunks)):
            if not isinstance(packet, Publish):
                continue
            if not packet.qos and len(self._waiting) >= _MOST_LOSSY:
                self.counts.dropped += 1
            else:
                self._waiting.append(packet)
        self._send_waiting()

    def _send_waiting(self) -> None:
        """Publish what waits in the overlay, as far as it has room."""
        runtime = self._runtime
        if runtime is None:
            return
        batches: list[list[tuple[NewEvent, int]]] = [[] for _ in self._spaces]
        while self._waiting:
            found = self._event_of(self._waiting[0])
            if found is not None:
                number, event = found
                if event.sure and not runtime.members[number].acks.has_room:
                    break
                batches[number].append((event, self._waiting[0].packet_id))
            else:
                self._acknowledge(self._waiting[0].packet_id)
            self._waiting.popleft()
        for number, batch in enumerate(batches):
            if batch:
                self._publish(runtime, number, batch)

    def _publish(
        self, runtime: OverlayRuntime, number: int, batch: list[tuple[NewEvent, int]]
    ) -> None:
        self.counts.outward += len(batch)
        member = runtime.members[number]
        for event, packet_id in batch:
            confirmed: list[bytes] = []
            member.acks.on_settled = confirmed.append  # a lone peer confirms at once
            accepted = runtime.publish(number, [event])
            member.acks.on_settled = self._settled
            if packet_id and accepted and accepted[0] not in confirmed:
                self._unconfirmed[accepted[0]] = packet_id
            else:
                self._acknowledge(packet_id)
            for identity in confirmed:
                self._settled(identity)

    def _event_of(self, packet: Publish) -> tuple[int, NewEvent] | None:
        """Return the event of a message and the number of its space; None if it may not cross."""
        pairs = packet.properties.user_properties
        if any(name == MARK for name, _ in pairs):
            self.counts.stopped += 1
            return None
        for number, one in enumerate(self._spaces):
            if topic_matches(one.space.topic_filter, packet.topic):
                try:
                    event: Event = self._decoders[number].read(packet.topic, packet.payload, pairs)
                    return number, self._as_event(packet, event)
                except NearcastError as problem:
                    limited.warning("a message does not cross the bridge: %s", problem)
        self.counts.dropped += 1
        return None

    def _as_event(self, packet: Publish, event: Event) -> NewEvent:
        now_ms = self._turns.clock.now_ms()
        expiry_s = packet.properties.message_expiry_interval
        plain = _without_expiry(packet)
        topic = encode_string(packet.topic)
        head = MessageHead(topic, len(packet.payload), packet.qos, plain)
        message = Message(head, packet.payload, now_ms + 1_000 * expiry_s if expiry_s else 0)
        packed = pack_message(self._marked(message), now_ms)
        return NewEvent(event_box(event), packed, packet.qos > 0)

    def _settled(self, identity: bytes) -> None:
        """Acknowledge a message: the overlay has confirmed it, or given it up."""
        self._acknowledge(self._unconfirmed.pop(identity, 0))

    def _acknowledge(self, packet_id: int) -> None:
        if packet_id:
            if not self._answers:
                asyncio.get_running_loop().call_soon(self._give_answers)
            self._answers.append(_PUBACK + TWO_BYTES[packet_id])

    def _give_answers(self) -> None:
        answers, self._answers = b"".join(self._answers), []
        if self._connection is not None and answers:
            self._turns.schedule()
            self._node.receive(self._connection, answers, self._turns.now_ms)
        self._send_waiting()

    def pause_reading(self) -> None:
        """Do nothing: the session's window limits what crosses."""

    resume_reading = pause_reading

    def finish(self) -> None:
        """Handle that the broker has closed the session's connection: the node ends."""
        self.detach()

    # --- what each side wants -----------------------------------------------------------------

    def settle(self) -> None:
        """Subscribe in the overlay to what clients of all nodes want, if that has changed."""
        runtime, bridging = self._runtime, self._bridging
        if runtime is None or not (bridging.is_changed or bridging.works != self._worked):
            return
        self._worked = bridging.works
        for number, one in enumerate(self._spaces):
            found = bridging.wanted(one.space.name)
            cover = Cover(
                Extent(one.space.extent.lows, one.space.extent.highs),
                looseness=self._looseness,
                most=self._most_boxes,
            )
            for box in found if self._worked else ():
                cover.add(box)
            while not cover.is_settled:
                cover.tidy()
            boxes = list(dict.fromkeys(cover.boxes))
            if boxes != self._boxes[number]:
                self._boxes[number] = boxes
                runtime.set_boxes(number, boxes)
        self._subscribe()

    def tend(self) -> None:
        """Learn what peers want, and subscribe to it in the network."""
        runtime = self._runtime
        if runtime is None:
            return
        for number, (member, one) in enumerate(zip(runtime.members, self._spaces, strict=True)):
            found = member.core.boxes_outside()
            if found is not None:
                space = one.space
                self._outside[number] = sorted(
                    {box_filter(space.topic_filter, space, box) for box in found}
                )
        self._subscribe()
        runtime.ask_outside()
        self.settle()

    def _subscribe(self) -> None:
        if self._connection is None or self._connection.session is None:
            return
        wanted = [text for texts in self._outside for text in texts] if self._worked else []
        session = self._connection.session
        if session.subscriptions.keys() != set(wanted):
            self._node.peering.bridge_wants(session, wanted, self._turns.clock.now_ms())
            self._turns.schedule()


def mark(overlay: str) -> bytes:
    """Return the mark of a message that crosses a bridge, as an encoded property."""
    return b"\x26" + encode_string(MARK) + encode_string(overlay)


def is_marked(properties: bytes) -> bool:
    """Return whether a message has crossed a bridge.

    >>> is_marked(mark("edge")), is_marked(b"")
    (True, False)
    """
    return b"\x26" + encode_string(MARK) in properties


def _without_expiry(packet: Publish) -> bytes:
    bare = replace(
        packet.properties,
        message_expiry_interval=None,
        subscription_identifiers=(),
        topic_alias=None,
    )
    return encode_property_content(bare)
