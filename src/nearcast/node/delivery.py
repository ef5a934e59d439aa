"""From routes to outboxes, in-flight windows and queues: delivery is decided here alone.

At QoS 0 whole runs of packets are passed on as bytes. At QoS 1 and 2 a run of messages is handed
to each receiver at once; what cannot go out now waits in the session's queue, within its quota.
"""

from __future__ import annotations

from collections import deque

from nearcast.mqtt.wire import TWO_BYTES
from nearcast.node import noting
from nearcast.node.connection import Connection
from nearcast.node.message import Head, Message
from nearcast.node.routes import Route
from nearcast.node.session import RETAINED, Session, Subscription
from nearcast.node.slices import Work
from nearcast.node.state import NodeState

_MOST_STEPS = 500  # towards retained messages that are owed, in one go
_NO_MORE = Message(Head(b"\0\0", 0, 0), b"")


class Delivery:
    """Hand messages to sessions, and take their answers."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self.take_limits()
        self._is_copying = False
        self._mark = 0  # of the message at hand, to find who has it already
        self._offset = 0  # of the message at hand within the run that the event log has noted

    def take_limits(self) -> None:
        """Go by the limits of the node's settings from now on."""
        settings = self._state.settings
        self._outbox_limit = self._session_limit = settings.session_queue_bytes
        self._total_limit = settings.total_queue_bytes
        self._window_bytes = settings.outbox_window_bytes

    # --- QoS 0 ----------------------------------------------------------------------------

    def append_to_all(self, sessions: list[Session], chunk: bytes, count: int) -> None:
        """Put `count` packets, `chunk`, into the outboxes of all who are there and have room."""
        state, size, limit = self._state, len(chunk), self._outbox_limit
        grown = state.grown
        sent = 0
        reached: list[str] | None = None if state.log is None else []
        for session in sessions:
            link = session.link
            if link is None:
                continue
            total = link.outbox_bytes + size
            if total > limit and link.outbox_bytes:
                session.dropped += count
                state.counters.dropped_slow += count
                noting.note_missed(state, session, self._offset, noting.SLOW, count)
                continue
            link.outbox_bytes = total
            link.outbox.append(chunk)
            sent += 1
            if reached is not None:
                reached.append(session.client_id)
            if not link.has_grown:
                link.has_grown = True
                grown.append(link)
        if reached and state.log is not None:
            state.log.delivered(reached, count, 0, self._offset)
        counters = state.counters
        counters.publish_sent += sent * count
        counters.publish_bytes_sent += sent * size

    def append_once(self, sessions: list[Session], packet: bytes, version: int) -> list[Session]:
        """Put a packet into the outboxes of those of a version, once each; return the others.

        Sessions may stand there several times. The event log is not told.
        """
        state, size, limit = self._state, len(packet), self._outbox_limit
        self._mark += 1
        mark, sent, grown = self._mark, 0, state.grown
        others: list[Session] = []
        for session in sessions:
            if session.mark == mark:
                continue
            session.mark = mark
            link = session.link
            if link is None:
                continue
            if link.version != version or not link.is_plain:
                others.append(session)
                continue
            total = link.outbox_bytes + size
            if total > limit and link.outbox_bytes:
                session.dropped += 1
                state.counters.dropped_slow += 1
                continue
            link.outbox_bytes = total
            link.outbox.append(packet)
            sent += 1
            if not link.has_grown:
                link.has_grown = True
                grown.append(link)
        state.counters.publish_sent += sent
        state.counters.publish_bytes_sent += sent * size
        return others

    def send_to_each(self, sessions: list[Session], message: Message) -> None:
        """Send one message at QoS 0 to many, encoded once for each version."""
        if message.expires_at_ms:
            for session in sessions:
                self._send_lossy(session, [message])
            return
        groups: dict[int, list[Session]] = {}
        for session in sessions:
            link = session.link
            if link is None:
                continue
            if link.is_plain:
                groups.setdefault(session.version, []).append(session)
            else:
                self._send_lossy(session, [message])
        for version, group in groups.items():
            chunk = message.wire(version, 0, 0, now_ms=self._state.now_ms)
            self.append_to_all(group, chunk, 1)

    def _send_lossy(self, session: Session, messages: list[Message]) -> None:
        """Send at QoS 0 to one session, with whatever its connection wants."""
        try:
            link = session.link
            if link is None:
                return
            now_ms, version = self._state.now_ms, session.version
            if messages[0].expires_at_ms and (link.is_paused or session.queue):
                self._enqueue_all(session, messages, 0)  # it may be too late once the client reads
                return
            if link.is_plain:
                chunk = b"".join([one.wire(version, 0, 0, now_ms=now_ms) for one in messages])
                self.append_to_all([session], chunk, len(messages))
                return
            first = self._offset
            for self._offset, message in enumerate(messages, first):
                packet = self._fitted(link, message, 0, 0, duplicate=False)
                if packet is not None:
                    self.append_to_all([session], packet, 1)
                else:
                    noting.note_missed(self._state, session, self._offset, noting.TOO_LARGE)
            self._offset = first
        except Exception as error:  # noqa: BLE001 - of one receiver: the others get theirs
            self._state.failures.take("delivering at QoS 0", error)

    def _fitted(
        self, link: Connection, message: Message, qos: int, packet_id: int, *, duplicate: bool
    ) -> bytes | None:
        """Return the packet for one connection: aliased if it wants that, None if too large.

        None as well for a message that cannot be written, which may have been stored long ago:
        those behind it are still delivered.
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
        if link.max_packet_bytes and len(packet) > link.max_packet_bytes:
            state.counters.dropped_too_large += 1
            return None
        return packet

    # --- all receivers of a route ---------------------------------------------------------

    def spread(
        self, route: Route, messages: list[Message], publisher: Session | None, *, retain: bool
    ) -> None:
        """Deliver messages of one head to all receivers; those without room mark the messages.

        `retain` is the flag that the publisher set; the messages themselves carry none.
        """
        self.spread_plain(route, messages, retain=retain)
        self.spread_special(route, messages, publisher, retain=retain)

    def spread_plain(self, route: Route, messages: list[Message], *, retain: bool) -> None:
        """Deliver to those who get messages as they are."""
        if retain and self._state.network is not None:
            self._spread_flagged(route, messages)
            return
        qos = messages[0].head.qos
        for session, limit in route.plain:
            if qos and limit:
                self.hand_over(session, messages, min(qos, limit))
            else:
                self._send_lossy(session, messages)

    def _spread_flagged(self, route: Route, messages: list[Message]) -> None:
        """Deliver retained messages: other nodes must know, for those who want the flag there."""
        qos = messages[0].head.qos
        flagged = [one.variant(retain=True) for one in messages]
        for session, limit in route.plain:
            dressed = flagged if session.is_peer else messages
            if qos and limit:
                self.hand_over(session, dressed, min(qos, limit))
            else:
                self._send_lossy(session, dressed)
        for plain, variant in zip(messages, flagged, strict=True):
            plain.was_refused |= variant.was_refused

    def spread_special(
        self, route: Route, messages: list[Message], publisher: Session | None, *, retain: bool
    ) -> None:
        """Deliver to those whose options matter, and to share groups."""
        self.spread_options(route, messages, publisher, retain=retain)
        for group in route.shared:
            for self._offset, message in enumerate(messages):
                member = group.pick(message.head.qos)
                if member is not None:
                    self.deliver_as(member.session, [member], [message], {}, retain)
        self._offset = 0

    def spread_options(
        self, route: Route, messages: list[Message], publisher: Session | None, *, retain: bool
    ) -> None:
        """Deliver to those whose options matter."""
        variants: dict[tuple[bool, tuple[int, ...]], list[Message]] = {
            (False, ()): messages,
        }
        for session, subscriptions in route.special:
            wanted = [one for one in subscriptions if not (one.no_local and session is publisher)]
            if wanted:
                self.deliver_as(session, wanted, messages, variants, retain)

    def deliver_as(
        self,
        session: Session,
        subscriptions: list[Subscription],
        messages: list[Message],
        variants: dict[tuple[bool, tuple[int, ...]], list[Message]],
        retain: bool,
        extra: bytes = b"",
    ) -> None:
        """Deliver as these subscriptions of one session want it, once.

        `variants` keeps encodings for the next receiver; `extra` properties are for this one only.
        """
        keeps = retain and (
            session.is_peer or any(one.retain_as_published for one in subscriptions)
        )
        numbers = tuple(sorted(one.identifier for one in subscriptions if one.identifier))
        key = (keeps, numbers)
        dressed = None if extra else variants.get(key)
        if dressed is None:
            dressed = messages
            if keeps or numbers or extra:
                dressed = [
                    one.variant(retain=keeps, identifiers=numbers, extra=extra) for one in messages
                ]
            if not extra:
                variants[key] = dressed
        qos = min(messages[0].head.qos, max(one.qos for one in subscriptions))
        if qos:
            self.hand_over(session, dressed, qos)
            for plain, variant in zip(messages, dressed, strict=True):
                plain.was_refused |= variant.was_refused
        else:
            self._send_lossy(session, dressed)

    # --- QoS 1 and 2 ----------------------------------------------------------------------

    def hand_over(self, session: Session, messages: list[Message], qos: int) -> None:
        """Send what the window allows and queue the rest, within the quotas."""
        try:
            link = session.link
            if (
                link is not None
                and link.is_plain
                and not link.is_paused
                and not session.queue
                and not messages[0].expires_at_ms
                and session.room >= len(messages)
                and self._has_room(session, messages[0].size * len(messages))
            ):
                self._send_run(session, link, messages, qos)
                return
            self._enqueue_all(session, messages, qos)
            if link is not None:
                self.pump(session)
        except Exception as error:  # noqa: BLE001 - of one receiver: the others get theirs
            self._state.failures.take("delivering at QoS 1 or 2", error)

    def _enqueue_all(self, session: Session, messages: list[Message], qos: int) -> None:
        if session.is_over:
            return
        log = self._state.log
        for place, message in enumerate(messages, self._offset):
            mark = noting.mark_of(self._state, place)
            is_queued = self._enqueue(session, message, qos, mark)
            if log is not None and is_queued:
                log.delivered([session.client_id], 1, qos, place)
            else:
                noting.note_drop(self._state, session, mark, noting.QUOTA)

    def _has_room(self, session: Session, size: int) -> bool:
        return (
            session.held_bytes + size <= self._session_limit
            and self._state.held_bytes + size <= self._total_limit
        )

    def _send_run(
        self, session: Session, link: Connection, messages: list[Message], qos: int
    ) -> None:
        """Give identifiers to messages of one head and append them to the outbox: the hot path."""
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
        if state.journal is not None and session.is_durable:  # before memory changes
            state.journal.sent(session.number, messages, identifiers, qos)
        in_flight.update(zip(identifiers, messages, strict=True))
        session.last_packet_id = last
        if qos == 2:
            session.exact.update(identifiers)
        size = messages[0].size
        fresh = 0
        for message in messages:
            if not message.holders:
                fresh += size
            message.holders += 1
        session.held_bytes += size * len(messages)
        state.held_bytes += fresh
        if state.log is not None:
            state.log.delivered([session.client_id], len(messages), qos, self._offset)
        self._count_and_append(link, b"".join(parts), len(messages))

    def _count_and_append(self, link: Connection, data: bytes, count: int) -> None:
        state = self._state
        link.outbox.append(data)
        link.outbox_bytes += len(data)
        if not link.has_grown:
            link.has_grown = True
            state.grown.append(link)
        counters = state.counters
        counters.publish_sent += count
        counters.publish_bytes_sent += len(data)

    def _enqueue(self, session: Session, message: Message, qos: int, mark: int) -> bool:
        """Let a message wait; tell whether there was room."""
        size = message.size
        if not (self._has_room(session, size) or self._has_room_at_last(session, size)):
            session.dropped += 1
            self._state.counters.dropped_quota += 1
            message.was_refused |= bool(qos)
            return False
        journal = self._state.journal
        if journal is not None and session.is_durable and qos:  # before memory changes
            journal.queued(session.number, message, qos)
        self._hold(session, message, size)
        session.queue.append((message, qos | mark))
        return True

    def _has_room_at_last(self, session: Session, size: int) -> bool:
        """Throw out what is past its lifetime, and look again; O(queue), when there is no room."""
        now_ms, kept = self._state.now_ms, session.queue
        if not any(0 < message.expires_at_ms <= now_ms for message, _ in kept):
            return False
        session.queue = deque()
        for message, mark in kept:
            if 0 < message.expires_at_ms <= now_ms:
                self._state.counters.dropped_expired += 1
                noting.note_drop(self._state, session, mark, noting.EXPIRED)
                self._discard_queued(session, message, 0 if mark & RETAINED else mark & 3)
            else:
                session.queue.append((message, mark))
        return self._has_room(session, size)

    def enqueue_retained(self, session: Session, message: Message, qos: int) -> None:
        """Let a retained message wait for a newcomer, if there is room."""
        if not (self._has_room(session, message.size) or not session.held_bytes):
            session.dropped += 1
            self._state.counters.dropped_quota += 1
            return
        self._hold(session, message, message.size)
        session.queue.append((message, qos | RETAINED))

    def _hold(self, session: Session, message: Message, size: int) -> None:
        session.held_bytes += size
        if not message.holders:
            self._state.held_bytes += size
        message.holders += 1

    def _let_go(self, session: Session, message: Message) -> None:
        size = message.size
        session.held_bytes -= size
        message.holders -= 1
        if not message.holders:
            self._state.held_bytes -= size

    def pump(self, session: Session) -> None:
        """Send from the queue while the window, the outbox and the client allow."""
        link, queue = session.link, session.queue
        if link is None:
            return
        while queue and not link.is_paused and link.outbox_bytes < self._window_bytes:
            message, mark = queue[0]
            qos = mark & 3
            if qos and session.room < 1:
                return
            queue.popleft()
            if self._is_stale(message, mark):
                noting.note_drop(self._state, session, mark, noting.EXPIRED)
                self._discard_queued(session, message, 0 if mark & RETAINED else qos)
            else:
                self._send_from_queue(session, link, message, qos, mark)
        if session.copies:
            self._pump_copies(session, link)

    def _pump_copies(self, session: Session, link: Connection) -> None:
        """Send retained messages that are owed, a number of steps at a time."""
        if self._is_copying:
            return  # a step may let go of copies that were held back, to the same client
        self._is_copying = True
        copies, steps = session.copies, 0
        try:
            while copies and not link.is_paused and link.outbox_bytes < self._window_bytes:
                steps += 1
                if steps > _MOST_STEPS:
                    self._state.mark_grown(link)
                    return
                if not self._copy_next(session, link, next(iter(copies))):
                    return
        finally:
            self._is_copying = False

    def _copy_next(self, session: Session, link: Connection, text: str) -> bool:
        """Make a step towards what a subscription is owed; False if the client has to answer."""
        one = session.subscriptions.get(text)
        if one is not None and one.qos:
            is_full = session.in_flight and not self._has_room(session, 0)
            if session.room < 1 or is_full:
                return False
        message: Message | None = None
        with self._state.failures.kept("finding retained messages"):
            message = None if one is None else next(session.copies[text], _NO_MORE)
        if one is None or message is _NO_MORE:
            del session.copies[text]
        elif message is not None and not self._is_stale(message, RETAINED):
            if one.identifier:
                message = message.variant(retain=True, identifiers=(one.identifier,))
            qos = min(message.head.qos, one.qos)
            self._hold(session, message, message.size)
            with self._state.failures.kept("sending a retained message"):
                self._send_from_queue(session, link, message, qos, qos | RETAINED)
        return True

    def _is_stale(self, message: Message, mark: int) -> bool:
        state = self._state
        if message.expires_at_ms and message.expires_at_ms <= state.now_ms:
            state.counters.dropped_expired += 1
            return True
        if not mark & RETAINED:
            return False
        # A newcomer has had the newer message live: the older one must not follow it.
        current = state.retained.get(message.topic_text())
        return current is None or current.payload is not message.payload

    def _discard_queued(self, session: Session, message: Message, qos: int) -> None:
        journal = self._state.journal
        if journal is not None and session.is_durable and qos:
            journal.unqueued(session.number, message)
        self._let_go(session, message)

    def _send_from_queue(
        self, session: Session, link: Connection, message: Message, qos: int, mark: int
    ) -> None:
        packet_id = session.next_packet_id() if qos else 0
        packet = self._fitted(link, message, qos, packet_id, duplicate=False)
        if packet is None:
            noting.note_drop(self._state, session, mark, noting.TOO_LARGE)
            self._discard_queued(session, message, 0 if mark & RETAINED else qos)
            return
        noting.note_sent(self._state, session, message, mark)
        if not qos:
            self._let_go(session, message)
        else:
            journal = self._state.journal
            if journal is not None and session.is_durable:  # before memory changes
                journal.sent(session.number, [message], [packet_id], qos)
            session.in_flight[packet_id] = message
            if qos == 2:
                session.exact.add(packet_id)
        self._count_and_append(link, packet, 1)

    def resume(self, session: Session) -> None:
        """Send again, in the order first sent, what the client has not answered (4.4)."""
        link = session.link
        assert link is not None
        for packet_id in session.released:
            self._state.send(link, b"\x62\x02" + TWO_BYTES[packet_id])
        for packet_id, message in list(session.in_flight.items()):
            qos = 2 if packet_id in session.exact else 1
            packet = self._fitted(link, message, qos, packet_id, duplicate=True)
            if packet is None:
                self.settle(session, packet_id)
            else:
                self._count_and_append(link, packet, 1)
        self.pump(session)

    # --- answers --------------------------------------------------------------------------

    def settle(self, session: Session, packet_id: int) -> bool:
        """End the delivery of an in-flight message; tell whether there was one."""
        message = session.in_flight.pop(packet_id, None)
        if message is None:
            return False
        session.exact.discard(packet_id)
        self._let_go(session, message)
        journal = self._state.journal
        if journal is not None and session.is_durable:
            journal.settled(session.number, packet_id)
        return True

    def record(self, session: Session, packet_id: int) -> bool:
        """Take a PUBREC: the message is the client's now, only its identifier is still ours."""
        if packet_id not in session.exact:
            return packet_id in session.released
        message = session.in_flight.pop(packet_id)
        session.exact.discard(packet_id)
        session.released[packet_id] = None
        self._let_go(session, message)
        journal = self._state.journal
        if journal is not None and session.is_durable:
            journal.recorded(session.number, packet_id)
        return True

    def complete(self, session: Session, packet_id: int) -> bool:
        """Take a PUBCOMP; tell whether it was awaited."""
        if packet_id not in session.released:
            return False
        del session.released[packet_id]
        journal = self._state.journal
        if journal is not None and session.is_durable:
            journal.settled(session.number, packet_id)
        return True

    def drop_all(self, session: Session) -> Work:
        """Let go of everything that a session holds, because it ends. May be interrupted."""
        session.copies.clear()
        self._state.counters.dropped_ended += len(session.queue)
        while session.queue:
            message, mark = session.queue.popleft()
            noting.note_drop(self._state, session, mark, noting.ENDED)
            self._let_go(session, message)
            yield
        while session.in_flight:
            self._let_go(session, session.in_flight.popitem()[1])
            yield
        session.exact.clear()
        session.released.clear()
        session.incoming.clear()
