"""What one session gets at QoS 1 and 2: its in-flight window, its queue, its acknowledgements.

A message is sent as far as the window and the outbox allow; the rest waits in the session's queue,
within its quota. What must survive a restart is journaled before it takes effect.

Read next: `delivery.py` (all receivers of a message), `acks.py` (acknowledgements as packets).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from typing import Final

from nearcast.broker import event_log_hooks
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.session.connection import Connection
from nearcast.broker.session.session import RETAINED, Session
from nearcast.broker.slices import Work
from nearcast.broker.state import BrokerState
from nearcast.mqtt.wire import TWO_BYTES

_LARGE: Final = 1 << 12  # of a payload: to copy it costs more than to send it apart
_NO_MORE: Final = Message(MessageHead(b"\0\0", 0, 0), b"")


class SessionQueues:
    """Sends and queues messages session by session, and completes acknowledged deliveries."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.take_limits()
        self._offset = 0  # the current message's index within its run, for the event log

    def take_limits(self) -> None:
        """Read the limits from the broker's settings, at the start and after they changed."""
        settings = self._state.settings
        self._outbox_limit = self._session_limit = settings.session_queue_bytes
        self._total_limit = settings.total_queue_bytes
        self._window_bytes = settings.outbox_window_bytes

    def hand_over(self, session: Session, messages: list[Message], qos: int) -> None:
        """Send messages at QoS 1 or 2 as far as the window allows; queue the rest within quotas."""
        try:
            link = session.link
            if (
                link is not None
                and link.is_plain
                and not link.is_paused
                and not session.queue
                and not session.resends
                and not messages[0].expires_at_ms
                and session.room >= len(messages)
                and self._has_room(session, messages[0].size * len(messages))
            ):
                self._send_run(session, link, messages, qos)
                return
            self._enqueue_all(session, messages, qos)
            self.pump(session)
        except Exception as error:  # noqa: BLE001 - of one receiver: the others get theirs
            self._state.failures.take("delivering at QoS 1 or 2", error)

    def send_lone(self, session: Session, message: Message, qos: int) -> bool:
        """Send one new message at QoS 1 or 2, if nothing is in its way; return whether it was."""
        link = session.link
        size = message.head.size
        number = session.last_packet_id % 65_535 + 1
        if (
            link is None
            or not link.is_plain
            or link.is_paused
            or session.is_durable
            or session.queue
            or session.resends
            or number in session.in_flight
            or number in session.released
            or len(session.in_flight) + len(session.released) >= session.window
            or not self._has_room(session, size)
        ):
            return False
        session.last_packet_id = number
        session.in_flight[number] = message
        if qos == 2:
            session.exact.add(number)
        session.held_bytes += size
        if not message.holder_count:
            self._state.held_bytes += size
        message.holder_count += 1
        before, middle = message.head.form(session.version, qos)
        payload = message.payload
        if len(payload) >= _LARGE and link.descriptor >= 0:  # it is sent from where it is
            self._count_and_append(link, b"".join((before, TWO_BYTES[number], middle)), 0)
            self._count_and_append(link, payload, 1)
        else:
            packet = b"".join((before, TWO_BYTES[number], middle, payload))
            self._count_and_append(link, packet, 1)
        return True

    def _enqueue_all(self, session: Session, messages: list[Message], qos: int) -> None:
        if session.is_over:
            return
        log = self._state.log
        for place, message in enumerate(messages, self._offset):
            mark = event_log_hooks.mark_of(self._state, place)
            is_queued = self._enqueue(session, message, qos, mark)
            if log is not None and is_queued:
                log.delivered([session.client_id], 1, qos, place)
            else:
                event_log_hooks.note_drop(self._state, session, mark, event_log_hooks.QUOTA)

    def _has_room(self, session: Session, size: int) -> bool:
        return (
            session.held_bytes + size <= self._session_limit
            and self._state.held_bytes + size <= self._total_limit
        )

    def _send_run(
        self, session: Session, link: Connection, messages: list[Message], qos: int
    ) -> None:
        """Assign identifiers to messages of one head and append them to the outbox (hot path)."""
        before, middle = messages[0].head.form(session.version, qos)
        in_flight, released, last = session.in_flight, session.released, session.last_packet_id
        parts: list[bytes] = []
        identifiers: list[int] = []
        for message in messages:
            last = last % 65_535 + 1
            while last in in_flight or last in released:
                last = last % 65_535 + 1
            identifiers.append(last)
            parts += (before, TWO_BYTES[last], middle, message.payload)
        state = self._state
        if session.is_durable:  # first: it may raise
            state.journal.sent(session.number, messages, identifiers, qos)
        in_flight.update(zip(identifiers, messages, strict=True))
        session.last_packet_id = last
        if qos == 2:
            session.exact.update(identifiers)
        size = messages[0].size
        fresh = 0
        for message in messages:
            if not message.holder_count:
                fresh += size
            message.holder_count += 1
        session.held_bytes += size * len(messages)
        state.held_bytes += fresh
        if state.log is not None:
            state.log.delivered([session.client_id], len(messages), qos, self._offset)
        self._count_and_append(link, b"".join(parts), len(messages))

    def _count_and_append(self, link: Connection, data: bytes, count: int) -> None:
        state = self._state
        link.outbox.append(data)
        link.outbox_bytes += len(data)
        if not link.is_dirty:
            state.mark_dirty(link)
        counters = state.counters
        counters.publish_sent += count
        counters.publish_bytes_sent += len(data)

    def _enqueue(self, session: Session, message: Message, qos: int, mark: int) -> bool:
        """Queue a message; return whether there was room."""
        size = message.size
        if not (self._has_room(session, size) or self._has_room_at_last(session, size)):
            self._state.counters.dropped_quota += 1
            message.was_refused |= bool(qos) and not session.moving  # else it tells that it is near
            return False
        if session.is_durable and qos:  # first: it may raise
            self._state.journal.queued(session.number, message, qos)
        self._hold(session, message, size)
        session.queue.append((message, qos | mark))
        return True

    def _has_room_at_last(self, session: Session, size: int) -> bool:
        """Drop expired messages from the queue, then check again; O(queue)."""
        now_ms, kept = self._state.now_ms, session.queue
        if not any(0 < message.expires_at_ms <= now_ms for message, _ in kept):
            return False
        session.queue = deque()
        for message, mark in kept:
            if 0 < message.expires_at_ms <= now_ms:
                self._state.counters.dropped_expired += 1
                event_log_hooks.note_drop(self._state, session, mark, event_log_hooks.EXPIRED)
                self._discard_queued(session, message, 0 if mark & RETAINED else mark & 3)
            else:
                session.queue.append((message, mark))
        return self._has_room(session, size)

    def enqueue_retained(self, session: Session, message: Message, qos: int) -> None:
        """Queue a retained message for a new subscription, if there is room."""
        if not (self._has_room(session, message.size) or not session.held_bytes):
            self._state.counters.dropped_quota += 1
            return
        self._hold(session, message, message.size)
        session.queue.append((message, qos | RETAINED))

    def _hold(self, session: Session, message: Message, size: int) -> None:
        session.held_bytes += size
        if not message.holder_count:
            self._state.held_bytes += size
        message.holder_count += 1

    def _let_go(self, session: Session, message: Message) -> None:
        size = message.size
        session.held_bytes -= size
        message.holder_count -= 1
        if not message.holder_count:
            self._state.held_bytes -= size

    def _fitted(
        self, link: Connection, message: Message, qos: int, packet_id: int, *, duplicate: bool
    ) -> bytes | None:
        """Return the packet for one connection, with its topic alias; None if it is too large.

        None also for a message that cannot be encoded, which may have been stored long ago: the
        messages behind it are still delivered.
        """
        state = self._state
        try:
            packet = message.wire(
                link.version, qos, packet_id, now_ms=state.now_ms, duplicate=duplicate
            )
            if link.aliases_out is not None:
                packet = link.with_alias(message.head.topic, packet, qos)
        except Exception as error:  # noqa: BLE001 - a mistake of ours
            state.failures.take("writing a message", error)
            return None
        if link.max_packet_bytes and len(packet) > link.max_packet_bytes:  # [MQTT-3.1.2-25]
            state.counters.dropped_too_large += 1
            return None
        return packet

    def pump(self, session: Session) -> None:
        """Send queued messages while the window, the outbox and the client allow.

        Work beyond the current slice is done in later ones; to a peer all is sent at once.
        """
        if session.is_pumped or not session.has_more:
            return  # re-entrant: a step may release deferred retained copies for the same client
        work = self._pumping(session)
        if session.is_peer:
            deque(work, maxlen=0)
        else:
            self._state.slices.begin(work)

    def _pumping(self, session: Session) -> Work:
        session.is_pumped = True
        link, window_bytes = session.link, self._window_bytes
        try:
            while link is not None and not link.is_paused and link.outbox_bytes < window_bytes:
                if session.resends:
                    self._send_again(session, link, session.resends.pop())
                elif session.queue:
                    if not self._send_first(session, link):
                        return
                elif not (session.copies and self._copy_next(session, link)):
                    return
                yield
                link = session.link  # another client may have come in the meantime
        finally:
            session.is_pumped = False

    def _send_first(self, session: Session, link: Connection) -> bool:
        """Send the oldest message of the queue; False if the window is full."""
        message, mark = session.queue[0]
        qos = mark & 3
        if qos and session.room < 1:
            return False
        session.queue.popleft()
        if self._is_stale(message, mark):
            event_log_hooks.note_drop(self._state, session, mark, event_log_hooks.EXPIRED)
            self._discard_queued(session, message, 0 if mark & RETAINED else qos)
        else:
            self._send_from_queue(session, link, message, qos, mark)
        return True

    def _copy_next(self, session: Session, link: Connection) -> bool:
        """Do one step of sending retained messages to a subscription; False if there is no room."""
        text = next(iter(session.copies))
        subscription = session.subscriptions.get(text)
        if subscription is not None and subscription.qos:
            is_full = session.in_flight and not self._has_room(session, 0)
            if session.room < 1 or is_full:
                return False
        message: Message | None = None
        with self._state.failures.kept("finding retained messages"):
            message = None if subscription is None else next(session.copies[text], _NO_MORE)
        if subscription is None or message is _NO_MORE:
            del session.copies[text]
        elif message is not None and not self._is_stale(message, RETAINED):
            if subscription.identifier:
                message = message.variant(retain=True, identifiers=(subscription.identifier,))
            qos = min(message.head.qos, subscription.qos)
            self._hold(session, message, message.size)
            with self._state.failures.kept("sending a retained message"):
                self._send_from_queue(session, link, message, qos, qos | RETAINED)
        return True

    def _is_stale(self, message: Message, mark: int) -> bool:
        """Return whether a message has expired [MQTT-3.3.2-5], or a retained copy was replaced."""
        state = self._state
        if message.expires_at_ms and message.expires_at_ms <= state.now_ms:
            state.counters.dropped_expired += 1
            return True
        if not mark & RETAINED:
            return False
        # The subscriber has got the newer message live: the older one must not follow it.
        current = state.retained.get(message.topic_text())
        return current is None or current.payload is not message.payload

    def _discard_queued(self, session: Session, message: Message, qos: int) -> None:
        if session.is_durable and qos:
            self._state.journal.unqueued(session.number, message)
        self._let_go(session, message)

    def _send_from_queue(
        self, session: Session, link: Connection, message: Message, qos: int, mark: int
    ) -> None:
        packet_id = session.next_packet_id() if qos else 0
        packet = self._fitted(link, message, qos, packet_id, duplicate=False)
        if packet is None:
            event_log_hooks.note_drop(self._state, session, mark, event_log_hooks.TOO_LARGE)
            self._discard_queued(session, message, 0 if mark & RETAINED else qos)
            return
        event_log_hooks.note_sent(self._state, session, message, mark)
        if not qos:
            self._let_go(session, message)
        else:
            if session.is_durable:  # first: it may raise
                self._state.journal.sent(session.number, [message], [packet_id], qos)
            session.in_flight[packet_id] = message
            if qos == 2:
                session.exact.add(packet_id)
        self._count_and_append(link, packet, 1)

    def resume(self, session: Session) -> None:
        """Resend, in the order first sent, what the client has not acknowledged [MQTT-4.4.0-1]."""
        session.resends = [*session.released, *session.in_flight][::-1]
        self.pump(session)

    def _send_again(self, session: Session, link: Connection, packet_id: int) -> None:
        """Resend a PUBREL or a message, unless it was acknowledged meanwhile."""
        message = session.in_flight.get(packet_id)
        if packet_id in session.released:
            self._state.send(link, b"\x62\x02" + TWO_BYTES[packet_id])
        elif message is not None:
            qos = 2 if packet_id in session.exact else 1
            packet = self._fitted(link, message, qos, packet_id, duplicate=True)  # [MQTT-3.3.1-1]
            if packet is None:
                self.settle(session, [packet_id])
            else:
                self._count_and_append(link, packet, 1)

    # --- acknowledgements -----------------------------------------------------------------

    def settle(self, session: Session, numbers: Iterable[int]) -> None:
        """Complete the deliveries of in-flight messages; other identifiers are ignored."""
        in_flight = session.in_flight
        known = [number for number in dict.fromkeys(numbers) if number in in_flight]
        if session.is_durable:  # first: it may raise
            self._state.journal.settled(session.number, known)
        session.exact.difference_update(known)
        self._let_go_all(session, [in_flight.pop(number) for number in known])

    def settle_lone(self, session: Session, number: int) -> None:
        """Complete the delivery of one in-flight message; another identifier is ignored."""
        message = session.in_flight.get(number)
        if message is None:
            return
        if session.is_durable:  # first: it may raise
            self._state.journal.settled(session.number, [number])
        del session.in_flight[number]
        self._let_go(session, message)

    def record(self, session: Session, numbers: list[int]) -> list[int]:
        """Handle PUBRECs: discard the messages and keep their identifiers until PUBCOMP.

        Returns the identifiers that are in use.
        """
        in_flight, exact, released = session.in_flight, session.exact, session.released
        fresh = [number for number in dict.fromkeys(numbers) if number in exact]
        if session.is_durable:  # first: it may raise
            self._state.journal.recorded(session.number, fresh)
        released.update(dict.fromkeys(fresh))
        exact.difference_update(fresh)
        self._let_go_all(session, [in_flight.pop(number) for number in fresh])
        return [number for number in numbers if number in released]

    def record_lone(self, session: Session, number: int) -> bool:
        """Handle one PUBREC as `record` does; return whether its identifier is in use."""
        if number in session.exact:
            if session.is_durable:  # first: it may raise
                self._state.journal.recorded(session.number, [number])
            session.released[number] = None
            session.exact.discard(number)
            message = session.in_flight[number]
            del session.in_flight[number]
            self._let_go(session, message)
        return number in session.released

    def complete_lone(self, session: Session, number: int) -> None:
        """Handle one PUBCOMP as `complete` does."""
        if number in session.released:
            if session.is_durable:  # first: it may raise
                self._state.journal.settled(session.number, [number])
            del session.released[number]

    def complete(self, session: Session, numbers: Iterable[int]) -> None:
        """Handle PUBCOMPs: free the identifiers; others are ignored."""
        known = [number for number in dict.fromkeys(numbers) if number in session.released]
        if session.is_durable:  # first: it may raise
            self._state.journal.settled(session.number, known)
        for number in known:
            del session.released[number]

    def _let_go_all(self, session: Session, messages: list[Message]) -> None:
        """Release messages that were in flight (hot path)."""
        held = in_all = 0
        for message in messages:
            size = message.head.size
            held += size
            message.holder_count -= 1
            if not message.holder_count:
                in_all += size
        session.held_bytes -= held
        self._state.held_bytes -= in_all

    def drop_topics(self, session: Session, topics: Collection[bytes]) -> None:
        """Drop what waits for a client that may no longer read these topics. O(queue).

        In flight are also messages that the client has got and not acknowledged: those stay.
        """
        kept, session.queue = session.queue, deque()
        for message, mark in kept:
            if message.head.topic not in topics:
                session.queue.append((message, mark))
                continue
            self._state.counters.dropped_revoked += 1
            event_log_hooks.note_drop(self._state, session, mark, event_log_hooks.REVOKED)
            self._discard_queued(session, message, 0 if mark & RETAINED else mark & 3)
        unsent = list(session.in_flight) if session.link is None else session.resends
        held = session.in_flight
        stale = [one for one in unsent if one in held and held[one].head.topic in topics]
        self._state.counters.dropped_revoked += len(stale)
        self.settle(session, stale)

    def give_away(self, session: Session) -> None:
        """Release the queue of a session that another node has adopted with it."""
        while session.queue:
            self._let_go(session, session.queue.popleft()[0])

    def drop_all(self, session: Session) -> Work:
        """Release all messages of a session that has ended. May be interrupted."""
        session.copies.clear()
        self._state.counters.dropped_ended += len(session.queue)
        while session.queue:
            message, mark = session.queue.popleft()
            event_log_hooks.note_drop(self._state, session, mark, event_log_hooks.ENDED)
            self._let_go(session, message)
            yield
        while session.in_flight:
            self._let_go(session, session.in_flight.popitem()[1])
            yield
        session.exact.clear()
        session.released.clear()
        session.incoming.clear()
