"""Delivery: from a route to the outboxes and queues of all its receivers.

At QoS 0 whole runs of packets are appended to outboxes as bytes. At QoS 1 and 2 each receiver gets
a run of messages at once (`session_queues.py`). No other module decides whether a message is sent,
queued or dropped.
"""

from __future__ import annotations

from nearcast.broker import event_log_hooks
from nearcast.broker.publish.message import Message
from nearcast.broker.publish.routes import Route
from nearcast.broker.publish.session_queues import SessionQueues
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.broker.state import BrokerState


class Delivery(SessionQueues):
    """Delivers messages to all receivers of a route."""

    def __init__(self, state: BrokerState) -> None:
        super().__init__(state)
        self._appended = 0  # counts the calls of `append_once`, for `Session.last_appended`

    # --- QoS 0 ----------------------------------------------------------------------------

    def append_to_all(self, sessions: list[Session], chunk: bytes, count: int) -> None:
        """Append `count` packets, `chunk`, to the outboxes of all connected sessions with room."""
        state, size, limit = self._state, len(chunk), self._outbox_limit
        dirty = state.dirty
        sent = 0
        reached: list[str] | None = None if state.log is None else []
        for session in sessions:
            link = session.link
            if link is None:
                continue
            total = link.outbox_bytes + size
            if total > limit and link.outbox_bytes:
                state.counters.dropped_slow += count
                event_log_hooks.note_missed(
                    state, session, self._offset, event_log_hooks.SLOW, count
                )
                continue
            link.outbox_bytes = total
            link.outbox.append(chunk)
            sent += 1
            if reached is not None:
                reached.append(session.client_id)
            if not link.is_dirty:  # `mark_dirty`, without a call for each receiver
                link.is_dirty = True
                dirty.append(link)
        if reached and state.log is not None:
            state.log.delivered(reached, count, 0, self._offset)
        counters = state.counters
        counters.publish_sent += sent * count
        counters.publish_bytes_sent += sent * size

    def append_once(self, sessions: list[Session], packet: bytes, version: int) -> list[Session]:
        """Append a packet to the outboxes of the sessions of one version, once each.

        Returns the connected sessions that need another encoding. A session may be listed several
        times.
        """
        state, size, limit = self._state, len(packet), self._outbox_limit
        self._appended += 1
        number, sent, dirty = self._appended, 0, state.dirty
        others: list[Session] = []
        reached: list[str] | None = None if state.log is None else []
        for session in sessions:
            if session.last_appended == number:
                continue
            session.last_appended = number
            link = session.link
            if link is None:
                continue
            if link.version != version or not link.is_plain:
                others.append(session)
                continue
            total = link.outbox_bytes + size
            if total > limit and link.outbox_bytes:
                state.counters.dropped_slow += 1
                event_log_hooks.note_missed(state, session, 0, event_log_hooks.SLOW)
                continue
            link.outbox_bytes = total
            link.outbox.append(packet)
            sent += 1
            if reached is not None:
                reached.append(session.client_id)
            if not link.is_dirty:  # `mark_dirty`, without a call for each receiver
                link.is_dirty = True
                dirty.append(link)
        if reached and state.log is not None:
            state.log.delivered(reached, 1, 0)
        state.counters.publish_sent += sent
        state.counters.publish_bytes_sent += sent * size
        return others

    def send_to_each(self, sessions: list[Session], message: Message) -> None:
        """Send one message at QoS 0 to many sessions, encoded once per version."""
        if message.expires_at_ms:
            for session in sessions:
                self._send_qos_0(session, [message])
            return
        groups: dict[int, list[Session]] = {}
        for session in sessions:
            link = session.link
            if link is None:
                continue
            if link.is_plain:
                groups.setdefault(session.version, []).append(session)
            else:
                self._send_qos_0(session, [message])
        for version, group in groups.items():
            chunk = message.wire(version, 0, 0, now_ms=self._state.now_ms)
            self.append_to_all(group, chunk, 1)

    def _send_qos_0(self, session: Session, messages: list[Message]) -> None:
        """Send messages at QoS 0 to one session, with the options of its connection."""
        try:
            link = session.link
            if link is None:
                return
            now_ms, version = self._state.now_ms, session.version
            if messages[0].expires_at_ms and (link.is_paused or session.queue):
                self._enqueue_all(session, messages, 0)  # may expire before the client reads
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
                    event_log_hooks.note_missed(
                        self._state, session, self._offset, event_log_hooks.TOO_LARGE
                    )
            self._offset = first
        except Exception as error:  # noqa: BLE001 - of one receiver: the others get theirs
            self._state.failures.take("delivering at QoS 0", error)

    # --- all receivers of a route ---------------------------------------------------------

    def spread(
        self, route: Route, messages: list[Message], publisher: Session | None, *, retain: bool
    ) -> None:
        """Deliver messages of one head to all receivers of a route.

        A session without room sets `was_refused` on the messages. `retain` is the publisher's flag;
        the messages themselves carry none.
        """
        self.spread_plain(route, messages, retain=retain)
        if route.special:
            self.spread_options(route, messages, publisher, retain=retain)
        if route.shared:
            self.spread_groups(route, messages, retain=retain)

    def spread_lone(self, route: Route, message: Message, publisher: Session | None) -> None:
        """Deliver one QoS 1 or 2 message without flags to all receivers of a route."""
        if route.special or route.shared:
            self.spread(route, [message], publisher, retain=False)
            return
        most = message.head.qos
        for session, limit in route.plain:
            qos = min(most, limit)
            if not qos:
                self._send_qos_0(session, [message])
            elif not self.send_lone(session, message, qos):
                self.hand_over(session, [message], qos)

    def spread_plain(self, route: Route, messages: list[Message], *, retain: bool) -> None:
        """Deliver to the receivers without options that change the packet."""
        if retain and self._state.network.is_joined:
            self._spread_flagged(route, messages)
            return
        qos = messages[0].head.qos
        for session, limit in route.plain:
            if qos and limit:
                self.hand_over(session, messages, min(qos, limit))
            else:
                self._send_qos_0(session, messages)

    def _spread_flagged(self, route: Route, messages: list[Message]) -> None:
        """Deliver retained messages, with RETAIN to peers: subscribers there may want the flag."""
        qos = messages[0].head.qos
        flagged = [message.variant(retain=True) for message in messages]
        for session, limit in route.plain:
            outgoing = flagged if session.is_peer else messages
            if qos and limit:
                self.hand_over(session, outgoing, min(qos, limit))
            else:
                self._send_qos_0(session, outgoing)
        for plain, variant in zip(messages, flagged, strict=True):
            plain.was_refused |= variant.was_refused

    def spread_groups(self, route: Route, messages: list[Message], *, retain: bool = False) -> None:
        """Deliver each message to one member of each share group without conditions."""
        for group in route.shared:
            for self._offset, message in enumerate(messages):
                member = group.pick(message.head.qos)
                if member is not None:
                    self.deliver_as(member.session, [member], [message], {}, retain)
        self._offset = 0

    def spread_options(
        self, route: Route, messages: list[Message], publisher: Session | None, *, retain: bool
    ) -> None:
        """Deliver to the receivers whose options matter."""
        variants: dict[tuple[bool, tuple[int, ...]], list[Message]] = {
            (False, ()): messages,
        }
        for session, subscriptions in route.special:
            # [MQTT-3.8.3-3]
            wanted = [one for one in subscriptions if not (one.no_local and session is publisher)]
            if wanted:
                self.deliver_as(session, wanted, messages, variants, retain)

    def deliver_as(
        self,
        session: Session,
        subscriptions: list[SessionSubscription],
        messages: list[Message],
        variants: dict[tuple[bool, tuple[int, ...]], list[Message]],
        retain: bool,
        extra: bytes = b"",
    ) -> None:
        """Deliver messages to one session once, with the options of these subscriptions.

        The highest of their QoS counts [MQTT-3.3.4-2], and all their identifiers are sent
        [MQTT-3.3.4-4]. `variants` caches encodings for the next receiver; `extra` properties are
        for this one only.
        """
        keeps = retain and (  # [MQTT-3.3.1-12], [MQTT-3.3.1-13]
            session.is_peer or any(one.retain_as_published for one in subscriptions)
        )
        numbers = tuple(sorted(one.identifier for one in subscriptions if one.identifier))
        key = (keeps, numbers)
        outgoing = None if extra else variants.get(key)
        if outgoing is None:
            outgoing = messages
            if keeps or numbers or extra:
                outgoing = [
                    one.variant(retain=keeps, identifiers=numbers, extra=extra) for one in messages
                ]
            if not extra:
                variants[key] = outgoing
        qos = min(messages[0].head.qos, max(subscription.qos for subscription in subscriptions))
        if qos:
            self.hand_over(session, outgoing, qos)
            for plain, variant in zip(messages, outgoing, strict=True):
                plain.was_refused |= variant.was_refused
        else:
            self._send_qos_0(session, outgoing)
