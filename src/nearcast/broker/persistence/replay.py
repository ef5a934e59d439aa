"""From records to a broker's state, and from the state to the fewest records that describe it.

Read next: `unapplied_records.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from nearcast.broker.content.spaces import at_grid
from nearcast.broker.persistence import journal as records
from nearcast.broker.persistence.journal import Journal, RecordKind
from nearcast.broker.persistence.unapplied_records import (
    PartlyAppliedError,
    SetAside,
    describe,
    kind_name,
    reason_of,
)
from nearcast.broker.publish.message import Message
from nearcast.broker.session.session import RETAINED, Session, SessionSubscription, WillMessage
from nearcast.broker.state import BrokerState
from nearcast.model import read_subscription, split_prefixes
from nearcast.model.errors import FileFormatError, MisuseError
from nearcast.model.requests import SELECTING, decoded
from nearcast.mqtt.topics import split_shared

_TOLD = "one that an earlier record tells"
_PORTION_BYTES = 1 << 24  # of a snapshot, so that the size of a batch always fits its field


class Replay:
    """Applies records in order to an empty `BrokerState`.

    Contract: the records are those of one journal, from its beginning or its last snapshot. A
    record about a session that has ended is skipped. A record that cannot be applied is set aside
    (`aside`) and the others are applied: `apply` never raises. Complexity: O(records), but O(queue)
    for a queued message that was dropped.
    """

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._sessions: dict[int, Session] = {}
        self._messages: dict[int, Message] = {}
        self._was_connected: set[int] = set()
        self._over: set[int] = set()  # sessions that have ended
        self._batch = 0
        self.aside: list[SetAside] = []
        self.next_message = 1
        self._steps: dict[RecordKind, Callable[[bytes], None]] = {
            RecordKind.MESSAGE: self._message,
            RecordKind.SENT: self._sent,
            RecordKind.QUEUED: self._queued,
            RecordKind.UNQUEUED: self._unqueued,
            RecordKind.SETTLED: self._settled,
            RecordKind.RECORDED: self._recorded,
            RecordKind.INCOMING: self._incoming,
            RecordKind.RELEASED: self._released,
            RecordKind.SESSION: self._session,
            RecordKind.ENDED: self._ended,
            RecordKind.SUBSCRIBED: self._subscribed,
            RecordKind.UNSUBSCRIBED: self._unsubscribed,
            RecordKind.RETAINED: self._retained,
            RecordKind.FORGOTTEN: self._forgotten,
            RecordKind.WILL: self._will,
            RecordKind.NO_WILL: self._no_will,
            RecordKind.NOTE: self._note,
            RecordKind.LONG_NOTE: self._long_note,
            RecordKind.SELECTED: self._selected,
            RecordKind.POSITION: self._position,
            RecordKind.CAME: self._came,
        }

    def apply(self, data: bytes) -> None:
        """Apply the records of a batch; set aside those that cannot be applied."""
        self._batch += 1
        done = 0
        try:
            for position, kind, body in records.split_records(data):
                self._apply_one(position, kind, body)
                done = position + records.HEADER.size + len(body)
        except FileFormatError as problem:
            rest = data[done:]
            about = f"the rest of the batch, {len(rest)} bytes"
            reason = reason_of(problem)
            self.aside.append(SetAside(self._batch, done, "?", about, reason, rest))

    def _apply_one(self, position: int, kind: int, body: bytes) -> None:
        try:
            if kind not in RecordKind._value2member_map_:
                raise FileFormatError(f"record kind {kind}", expected="one of this version")
            self._steps[RecordKind(kind)](body)
        except Exception as problem:  # noqa: BLE001 - whatever one record does, the others count
            about = self.describe(kind, body)
            record = records.HEADER.pack(kind, len(body)) + body
            reason, name = reason_of(problem), kind_name(kind)
            kept = problem.kept if isinstance(problem, PartlyAppliedError) else b""
            self.aside.append(SetAside(self._batch, position, name, about, reason, record, kept))

    def describe(self, kind: int, body: bytes) -> str:
        """Return what a record is about, by the names that are known so far."""
        return describe(kind, body, self._client, self._topic)

    def _client(self, number: int) -> str:
        session = self._sessions.get(number)
        return f"session {number}" if session is None else f"client {session.client_id!r}"

    def _topic(self, number: int) -> str:
        message = self._messages.get(number)
        return str(number) if message is None else f"{number} ({message.topic_text()!r})"

    @property
    def sessions(self) -> list[Session]:
        """The sessions of the records so far."""
        return list(self._sessions.values())

    def finish(self) -> list[Session]:
        """Complete the state; return the sessions that were connected when the broker stopped."""
        state = self._state
        for session in self._sessions.values():
            state.sessions[session.client_id] = session
            state.next_session = max(state.next_session, session.number + 1)
            held = [message for message, _ in session.queue]
            held += session.in_flight.values()
            for message in held:
                session.held_bytes += message.size
                state.held_bytes += 0 if message.holder_count else message.size
                message.holder_count += 1
        self._messages.clear()
        self._add_subscriptions()
        return [one for one in self._sessions.values() if one.number in self._was_connected]

    def _add_subscriptions(self) -> None:
        """Put all subscriptions into effect, oldest first; a space may have been removed since."""
        everyone = [one for s in self._sessions.values() for one in s.subscriptions.values()]
        everyone.sort(key=lambda one: one.number)
        for one in everyone:
            try:
                if one.selection is not None and self._state.selections is None:
                    raise MisuseError(one.text, expected="a declared space")
                self._state.add_subscription(one)
            except Exception as problem:  # noqa: BLE001 - the others come back all the same
                del one.session.subscriptions[one.text]
                self._state.counters.subscriptions_lost += 1
                self.aside.append(_lost_subscription(one, problem))

    def _told(self, number: int) -> Session | None:
        """Return a session by number, None if it has ended; raises if no record had it."""
        session = self._sessions.get(number)
        if session is None and number not in self._over:
            raise FileFormatError(f"session {number}", expected=_TOLD)
        return session

    def _message_of(self, number: int) -> Message:
        message = self._messages.get(number)
        if message is None:
            raise FileFormatError(f"message {number}", expected=_TOLD)
        return message

    # --- deliveries -----------------------------------------------------------------------

    def _message(self, body: bytes) -> None:
        message = records.decode_message(body)
        self._messages[message.number] = message
        self.next_message = max(self.next_message, message.number + 1)

    def _sent(self, body: bytes) -> None:
        number, qos = records.SENT.unpack_from(body)
        session = self._told(number)
        if session is None:
            return
        missing: list[int] = []
        pairs = records.SENT_ONE.iter_unpack(body[records.SENT.size :])
        for message_number, packet_id in pairs:
            message = self._messages.get(message_number)
            if message is None:
                missing.append(message_number)
                continue
            if session.queue and session.queue[0][0] is message:
                session.queue.popleft()
            session.in_flight[packet_id] = message
            session.last_packet_id = packet_id
            if qos == 2:
                session.exact.add(packet_id)
        if missing:
            numbers = ", ".join(map(str, missing))
            raise PartlyAppliedError(f"message {numbers}", expected=_TOLD, kept=self._known(body))

    def _known(self, body: bytes) -> bytes:
        """Return a SENT record with only those messages that are known; b"" for none."""
        number, qos = records.SENT.unpack_from(body)
        pairs = list(records.SENT_ONE.iter_unpack(body[records.SENT.size :]))
        known = [(self._messages[one], at) for one, at in pairs if one in self._messages]
        journal = Journal()
        if known:
            journal.sent(number, [one for one, _ in known], [at for _, at in known], qos)
        return journal.take()

    def _queued(self, body: bytes) -> None:
        number, message_number, qos = records.QUEUED.unpack(body)
        session = self._told(number)
        if session is not None:
            session.queue.append((self._message_of(message_number), qos))

    def _unqueued(self, body: bytes) -> None:
        number, message_number, _ = records.QUEUED.unpack(body)
        session = self._sessions.get(number)
        if session is None:
            return
        for place, (message, _) in enumerate(session.queue):
            if message.number == message_number:
                del session.queue[place]
                return

    def _packet(self, body: bytes) -> tuple[Session | None, int]:
        number, packet_id = records.PACKET.unpack(body)
        return self._sessions.get(number), packet_id

    def _settled(self, body: bytes) -> None:
        session, packet_id = self._packet(body)
        if session is not None:
            session.in_flight.pop(packet_id, None)
            session.exact.discard(packet_id)
            session.released.pop(packet_id, None)

    def _recorded(self, body: bytes) -> None:
        number, packet_id = records.PACKET.unpack(body)
        session = self._told(number)
        if session is not None:
            session.in_flight.pop(packet_id, None)
            session.exact.discard(packet_id)
            session.released[packet_id] = None
            session.last_packet_id = max(session.last_packet_id, packet_id)

    def _incoming(self, body: bytes) -> None:
        number, packet_id = records.PACKET.unpack(body)
        session = self._told(number)
        if session is not None:
            session.incoming.add(packet_id)

    def _released(self, body: bytes) -> None:
        session, packet_id = self._packet(body)
        if session is not None:
            session.incoming.discard(packet_id)

    # --- sessions -------------------------------------------------------------------------

    def _session(self, body: bytes) -> None:
        told, was_connected = records.session_of(body)
        session = self._sessions.setdefault(told.number, told)
        session.version = told.version
        session.expiry_s = told.expiry_s
        session.ends_at_ms = told.ends_at_ms
        session.owner = told.owner
        session.is_durable = told.expiry_s > 0 and self._state.journal.is_kept
        (self._was_connected.add if was_connected else self._was_connected.discard)(told.number)

    def _ended(self, body: bytes) -> None:
        number = int.from_bytes(body, "little")
        self._sessions.pop(number, None)
        self._over.add(number)
        self._was_connected.discard(number)

    def _subscribed(self, body: bytes) -> None:
        number, options, identifier = records.SUBSCRIBED.unpack_from(body)
        session = self._told(number)
        if session is None:
            return
        text = body[records.SUBSCRIBED.size :].decode()
        shared = split_shared(text)
        session.subscriptions[text] = SessionSubscription(
            session,
            text,
            shared.group,
            shared.topic_filter,
            options & 3,
            no_local=bool(options & 4),
            retain_as_published=bool(options & 8),
            identifier=identifier,
        )

    def _selected(self, body: bytes) -> None:
        number, options, identifier, age, weight, label_size = records.SELECTED.unpack_from(body)
        session = self._told(number)
        if session is None:
            return
        start = records.SELECTED.size + label_size
        named, _, step = body[records.SELECTED.size : start].decode().partition("\0")
        label = named if options & 0x80 else None
        text = body[start:].decode()
        shared = split_shared(text)
        bare, selection = shared.topic_filter, None
        if options & 0x40:
            prefixes, bare = split_prefixes(shared.topic_filter, SELECTING)
            selection = read_subscription(bare, decoded(prefixes)).subscription
        subscription = SessionSubscription(
            session,
            text,
            shared.group,
            bare,
            options & 3,
            no_local=bool(options & 4),
            retain_as_published=bool(options & 8),
            identifier=identifier,
        )
        subscription.select(
            selection,
            explain=bool(options & 0x10),
            label=label,
            weight=weight,
            shares_m=float(step) if step else None,
        )
        subscription.crosses = bool(options & 0x20)
        subscription.number = age
        session.subscriptions[text] = subscription

    def _position(self, body: bytes) -> None:
        number, lon, lat = records.POSITION.unpack(body)
        session = self._told(number)
        if session is not None:
            session.position = at_grid(self._state.settings, (lon, lat))

    def _unsubscribed(self, body: bytes) -> None:
        session = self._sessions.get(int.from_bytes(body[:4], "little"))
        if session is not None:
            session.subscriptions.pop(body[4:].decode(), None)

    def _will(self, body: bytes) -> None:
        number, delay_s, expiry_s, will_at_ms = records.WILL.unpack_from(body)
        session = self._told(number)
        if session is not None:
            message = records.decode_message(body, records.WILL.size)
            session.will = WillMessage(message, delay_s, expiry_s)
            session.will_at_ms = will_at_ms

    def _came(self, body: bytes) -> None:
        number, came_ms = records.CAME.unpack(body)
        session = self._told(number)
        if session is not None:
            session.came_ms = came_ms

    def _no_will(self, body: bytes) -> None:
        session = self._sessions.get(int.from_bytes(body, "little"))
        if session is not None:
            session.will = None
            session.will_at_ms = 0

    def _note(self, body: bytes) -> None:
        until_ms, size = records.NOTE.unpack_from(body)
        self._take_note(until_ms, body[records.NOTE.size :], size)

    def _long_note(self, body: bytes) -> None:
        until_ms, size = records.LONG_NOTE.unpack_from(body)
        self._take_note(until_ms, body[records.LONG_NOTE.size :], size)

    def _take_note(self, until_ms: int, content: bytes, size: int) -> None:
        if size > len(content):
            raise FileFormatError(f"a key of {size} bytes", expected=f"at most {len(content)}")
        self._state.set_note(content[:size], content[size:], until_ms)

    # --- retained -------------------------------------------------------------------------

    def _retained(self, body: bytes) -> None:
        message = records.decode_message(body)
        message.number = 0
        self._state.retained.put(message.topic_text(), message)

    def _forgotten(self, body: bytes) -> None:
        self._state.retained.forget(body[2:].decode())


def _lost_subscription(subscription: SessionSubscription, problem: Exception) -> SetAside:
    journal = Journal(keeps_ages=True)
    journal.subscribed(subscription)
    about = f"client {subscription.session.client_id!r}, filter {subscription.text!r}"
    return SetAside(0, 0, RecordKind.SELECTED.name, about, reason_of(problem), journal.take())


def snapshot(state: BrokerState, live: Journal) -> Iterator[bytes]:
    """Yield the fewest records that describe all that must survive, in portions.

    The records go to a journal separate from `live`, the broker's own: if the snapshot is abandoned
    half-way, none of its records may be in the live journal. A retained message keeps its number
    only if a session has it: only then the snapshot explains the number to later records.
    Complexity: O(messages, subscriptions and notes).
    """
    journal = Journal(keeps_ages=live.keeps_ages)
    size = 0
    numbered: list[Message] = []
    for message in state.retained.all():
        if message.number:
            numbered.append(message)
        if not message.head.topic.startswith(b"$SYS/", 2):
            journal.retained(message)
            size += message.size
            if size >= _PORTION_BYTES:
                size = 0
                yield journal.take()
    for key, (until_ms, value) in state.notes.items():
        if until_ms > state.now_ms:
            journal.note(key, value, until_ms)
    yield journal.take()
    told: set[int] = set()
    for session in state.sessions.values():
        if session.is_durable or session.will is not None:
            _name_messages(session, live)
            tell_session(session, journal, told)
            yield journal.take()
    for message in numbered:
        if message.number not in told:
            message.number = 0


def _name_messages(session: Session, live: Journal) -> None:
    """Give all messages of a session numbers that the live journal has recorded."""
    if session.is_durable:
        for message in session.in_flight.values():
            live.named(message)
        for message, mark in session.queue:
            if mark & 3 and not mark & RETAINED:
                live.named(message)


def tell_session(session: Session, journal: Journal, told: set[int]) -> None:
    """Record one session, and those of its messages whose numbers are not in `told`."""
    journal.session(session)
    if session.will is not None:
        journal.will(session, session.will)
    if not session.is_durable:
        return
    for subscription in session.subscriptions.values():
        journal.subscribed(subscription)
    journal.position(session)
    waiting = [(one, mark & 3) for one, mark in session.queue if mark & 3 and not mark & RETAINED]
    _tell_messages([*session.in_flight.values(), *(one for one, _ in waiting)], journal, told)
    for packet_id, message in session.in_flight.items():
        qos = 2 if packet_id in session.exact else 1
        journal.sent(session.number, [message], [packet_id], qos)
    journal.recorded(session.number, session.released)
    for message, qos in waiting:
        journal.queued(session.number, message, qos)
    journal.incoming(session.number, session.incoming)


def _tell_messages(messages: Iterable[Message], journal: Journal, told: set[int]) -> None:
    for message in messages:
        if not message.number or message.number not in told:
            journal.message(message)
            told.add(message.number)
