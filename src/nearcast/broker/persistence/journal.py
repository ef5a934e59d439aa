"""The journal: changes that must survive, as records; the server stores them.

A record is a kind (one byte), a length (four), and a body. The server writes all records of a loop
batch (`take`) before it sends the acknowledgements of the same batch, and passes them to
`replay.py` after a restart. Records are about sessions that outlive their connection, retained
messages and wills.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from struct import Struct
from struct import error as struct_error

from mypy_extensions import mypyc_attr

from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.session.session import (
    Session,
    SessionSubscription,
    WillMessage,
    new_session,
)
from nearcast.model.errors import FileFormatError
from nearcast.mqtt.packets import ProtocolVersion
from nearcast.mqtt.wire import TWO_BYTES


class RecordKind(IntEnum):
    """The kind of a record; the numbers are on disk and never change."""

    MESSAGE = 1
    SENT = 2
    QUEUED = 3
    UNQUEUED = 4
    SETTLED = 5
    RECORDED = 6
    INCOMING = 7
    RELEASED = 8
    SESSION = 9
    ENDED = 10
    SUBSCRIBED = 11
    UNSUBSCRIBED = 12
    RETAINED = 13
    FORGOTTEN = 14
    WILL = 15
    NO_WILL = 16
    SELECTED = 17
    POSITION = 18
    NOTE = 19
    CAME = 20
    LONG_NOTE = 21


HEADER = Struct("<BI")
# number, QoS and retain, expiry, topic size (its two length bytes included) modulo 65,536, property
# size. A topic takes 2 to 65,537 bytes, so the remainder is unambiguous; older versions wrote the
# size itself.
MESSAGE = Struct("<QBQHI")
SENT = Struct("<IB")
SENT_ONE = Struct("<QH")
QUEUED = Struct("<IQB")
PACKET = Struct("<IH")
SESSION = Struct("<IBIQ")  # number, version, expiry in s, ends at ms (0: connected)
CAME = Struct("<IQ")
SUBSCRIBED = Struct("<IBI")
SELECTED = Struct("<IBIQdH")  # session, options, identifier, number, weight, label size
POSITION = Struct("<Idd")
NOTE = Struct("<QH")  # until_ms, key size
LONG_NOTE = Struct("<QI")  # the same, for a key of a long filter and a long topic
WILL = Struct("<IIqQ")

_MESSAGE_RECORD = Struct("<BI" + "QBQHI")  # HEADER and MESSAGE
_PACKET_RECORD = Struct("<BI" + "IH")  # HEADER and PACKET


@mypyc_attr(allow_interpreted_subclasses=True)
class Journal:
    """Turns changes into records; `take` returns those since the last call.

    `keeps_ages`: the number (age) of every subscription is recorded, since a space ranks by it.
    """

    __slots__ = ("_next_message", "_parts", "keeps_ages")
    is_kept = True

    def __init__(self, next_message: int = 1, *, keeps_ages: bool = False) -> None:
        self._parts: list[bytes] = []
        self._next_message = next_message
        self.keeps_ages = keeps_ages

    def take(self) -> bytes:
        """Return the records since the last call, joined."""
        parts = self._parts
        if not parts:
            return b""
        self._parts = []
        return b"".join(parts)

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Remove the records of the block if it raises."""
        before = len(self._parts)
        try:
            yield
        except BaseException:
            del self._parts[before:]
            raise

    def _add(self, kind: int, body: bytes) -> None:
        self._parts.append(HEADER.pack(kind, len(body)) + body)

    def named(self, message: Message) -> int:
        """Return the message's number; record the message the first time."""
        if not message.number:
            self.message(message)
        return message.number

    def message(self, message: Message) -> None:
        """Record a message, with a new number if it has none."""
        number = message.number or self._next_message
        self._add(RecordKind.MESSAGE, encode_message(message, number))
        message.number = number  # only once its record exists: other records refer to it
        self._next_message = max(self._next_message, number + 1)

    def _add_messages(self, messages: list[Message]) -> None:
        """Record messages without a number, as `message` does; most are of one head (hot path)."""
        pack, kind, first = _MESSAGE_RECORD.pack, RecordKind.MESSAGE, self._next_message
        parts: list[bytes] = []
        last: MessageHead | None = None
        for number, message in enumerate(messages, first):
            head, payload = message.head, message.payload
            if head is not last:
                last, middle = head, head.topic + head.properties
                size, flags = MESSAGE.size + len(middle), head.qos | head.retain << 2
                sizes = len(head.topic) & 0xFFFF, len(head.properties)
            fixed = pack(kind, size + len(payload), number, flags, message.expires_at_ms, *sizes)
            parts += (fixed, middle, payload)
        self._parts += parts
        for number, message in enumerate(messages, first):
            message.number = number
        self._next_message = first + len(messages)

    # --- deliveries -----------------------------------------------------------------------

    def sent(self, session: int, messages: list[Message], packet_ids: list[int], qos: int) -> None:
        """Record that messages have got identifiers and are in flight."""
        fresh = [one for one in messages if not one.number]
        if fresh:
            self._add_messages(fresh)
        pack = SENT_ONE.pack
        pairs = [
            pack(one.number, packet_id) for one, packet_id in zip(messages, packet_ids, strict=True)
        ]
        self._add(RecordKind.SENT, SENT.pack(session, qos) + b"".join(pairs))

    def queued(self, session: int, message: Message, qos: int) -> None:
        """Record that a message is queued for a session."""
        self._add(RecordKind.QUEUED, QUEUED.pack(session, self.named(message), qos))

    def unqueued(self, session: int, message: Message) -> None:
        """Record that a queued message was dropped."""
        self._add(RecordKind.UNQUEUED, QUEUED.pack(session, message.number, 0))

    def settled(self, session: int, packet_ids: Iterable[int]) -> None:
        """Record that deliveries are complete: PUBACK or PUBCOMP was received."""
        self._add_packets(RecordKind.SETTLED, session, packet_ids)

    def recorded(self, session: int, packet_ids: Iterable[int]) -> None:
        """Record that PUBRECs were received: the client owns the messages."""
        self._add_packets(RecordKind.RECORDED, session, packet_ids)

    def incoming(self, session: int, packet_ids: Iterable[int]) -> None:
        """Record that QoS 2 identifiers of the client are in use."""
        self._add_packets(RecordKind.INCOMING, session, packet_ids)

    def released(self, session: int, packet_ids: Iterable[int]) -> None:
        """Record that the client has released QoS 2 identifiers."""
        self._add_packets(RecordKind.RELEASED, session, packet_ids)

    def _add_packets(self, kind: int, session: int, packet_ids: Iterable[int]) -> None:
        """Add one record per identifier: all, or none where it raises."""
        pack, size = _PACKET_RECORD.pack, PACKET.size
        records = [pack(kind, size, session, packet_id) for packet_id in packet_ids]
        self._parts.append(b"".join(records))

    # --- sessions -------------------------------------------------------------------------

    def session(self, session: Session) -> None:
        """Record the state of a session; a later record replaces an earlier one."""
        body = SESSION.pack(session.number, session.version, session.expiry_s, session.ends_at_ms)
        owner = session.owner
        owner_bytes = b"" if owner is None else b"\1" + owner.encode()
        client_id = session.client_id.encode()
        self._add(
            RecordKind.SESSION, body + len(client_id).to_bytes(2, "big") + client_id + owner_bytes
        )
        if session.came_ms:
            self._add(RecordKind.CAME, CAME.pack(session.number, session.came_ms))

    def ended(self, session: int) -> None:
        """Record that a session has ended with all its state."""
        self._add(RecordKind.ENDED, session.to_bytes(4, "little"))

    def subscribed(self, subscription: SessionSubscription) -> None:
        """Record that a subscription was added or replaced.

        The longer SELECTED record has the fields that a space needs; conditions are in the text.
        """
        one = subscription
        options = one.qos | one.no_local << 2 | one.retain_as_published << 3
        text = one.text.encode()
        is_ordinary = one.selection is None and one.label is None and one.weight == 1.0
        is_ordinary = is_ordinary and one.shares_m is None
        if is_ordinary and not (one.explain or self.keeps_ages):
            body = SUBSCRIBED.pack(one.session.number, options, one.identifier)
            self._add(RecordKind.SUBSCRIBED, body + text)
            return
        options |= one.explain << 4 | one.crosses << 5 | (one.selection is not None) << 6
        options |= (one.label is not None) << 7
        label = (one.label or "").encode()
        if one.shares_m is not None:  # no label has a NUL
            label += b"\0" + str(one.shares_m).encode()
        body = SELECTED.pack(
            one.session.number, options, one.identifier, one.number, one.weight, len(label)
        )
        self._add(RecordKind.SELECTED, body + label + text)

    def position(self, session: Session) -> None:
        """Record the position of a client."""
        if session.position is not None:
            self._add(RecordKind.POSITION, POSITION.pack(session.number, *session.position))

    def unsubscribed(self, session: int, text: str) -> None:
        """Record that a subscription was removed."""
        self._add(RecordKind.UNSUBSCRIBED, session.to_bytes(4, "little") + text.encode())

    def will(self, session: Session, will: WillMessage) -> None:
        """Record a will, also of a session without expiry."""
        body = WILL.pack(session.number, will.delay_s, will.expiry_s, session.will_at_ms)
        self._add(RecordKind.WILL, body + encode_message(will.message))

    def no_will(self, session: int) -> None:
        """Record that the will was published or withdrawn."""
        self._add(RecordKind.NO_WILL, session.to_bytes(4, "little"))

    # --- retained -------------------------------------------------------------------------

    def retained(self, message: Message) -> None:
        """Record the retained message of a topic."""
        self._add(RecordKind.RETAINED, encode_message(message))

    def note(self, key: bytes, value: bytes, until_ms: int) -> None:
        """Record a value under a key until an instant; one that has passed deletes it."""
        kind, head = (
            (RecordKind.NOTE, NOTE) if len(key) <= 0xFFFF else (RecordKind.LONG_NOTE, LONG_NOTE)
        )
        self._add(kind, head.pack(until_ms, len(key)) + key + value)

    def forgotten(self, topic: bytes) -> None:
        """Record that the retained message of a topic was deleted."""
        self._add(RecordKind.FORGOTTEN, topic)


class NoJournal(Journal):
    """The journal of a broker whose state need not survive: no session there is durable."""

    __slots__ = ()
    is_kept = False

    def _add(self, kind: int, body: bytes) -> None:
        """Record nothing: sessions that end, wills."""

    def note(self, key: bytes, value: bytes, until_ms: int) -> None:
        """Record nothing, without a copy of the value."""


def encode_message(message: Message, number: int | None = None) -> bytes:
    """Return a message as bytes, with its number or another one."""
    head = message.head
    fixed = MESSAGE.pack(
        message.number if number is None else number,
        head.qos | head.retain << 2,
        message.expires_at_ms,
        len(head.topic) & 0xFFFF,
        len(head.properties),
    )
    return b"".join((fixed, head.topic, head.properties, message.payload))


def decode_message(body: bytes, start: int = 0) -> Message:
    """Return the message that `encode_message` wrote, from `start` to the end of `body`.

    Raises FileFormatError for one that is truncated or whose sizes contradict each other.
    """
    try:
        number, flags, expires_at_ms, topic_size, property_size = MESSAGE.unpack_from(body, start)
    except struct_error:
        raise FileFormatError("a message cut short", where="its sizes") from None
    topic_size = (topic_size - 2) % 0x1_0000 + 2
    at = start + MESSAGE.size
    topic = body[at : at + topic_size]
    properties = body[at + topic_size : at + topic_size + property_size]
    payload = body[at + topic_size + property_size :]
    if at + topic_size + property_size > len(body) or topic[:2] != TWO_BYTES[topic_size - 2]:
        raise FileFormatError("a message cut short", where=f"topic {topic[2:40]!r}")
    head = MessageHead(topic, len(payload), flags & 3, properties, bool(flags & 4))
    message = Message(head, payload, expires_at_ms)
    message.number = number
    return message


def split_records(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the position, kind (possibly unknown) and body of each record of a batch.

    Raises FileFormatError at a record that is longer than the data.
    """
    position = 0
    while position < len(data):
        if position + HEADER.size > len(data):
            raise FileFormatError("a record cut short", where=f"byte {position}")
        kind, size = HEADER.unpack_from(data, position)
        start = position + HEADER.size
        if start + size > len(data):
            raise FileFormatError(f"record kind {kind} of {size} bytes", where=f"byte {position}")
        yield position, kind, data[start : start + size]
        position = start + size


def session_of(body: bytes) -> tuple[Session, bool]:
    """Return the session of a SESSION record, and whether it was connected."""
    number, version, expiry_s, ends_at_ms = SESSION.unpack_from(body)
    size = int.from_bytes(body[SESSION.size : SESSION.size + 2], "big")
    start = SESSION.size + 2
    session = new_session(body[start : start + size].decode(), number)
    session.version = ProtocolVersion(version)
    session.expiry_s = expiry_s
    session.ends_at_ms = ends_at_ms
    rest = body[start + size :]
    session.owner = rest[1:].decode() if rest else None
    return session, not ends_at_ms
