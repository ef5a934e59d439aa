"""Retained messages for new subscriptions: found and sent step by step, as the client reads.

A subscription is owed the messages that were retained when it took effect and still are. So nothing
is copied at SUBSCRIBE: the store is walked while there is room in the outbox, and messages that
were retained later are skipped, because they were delivered live.
"""

from __future__ import annotations

from collections.abc import Iterator

from nearcast.broker.event_log_hooks import aside
from nearcast.broker.publish.delivery import Delivery
from nearcast.broker.publish.message import Message
from nearcast.broker.retained.updates import forget_retained
from nearcast.broker.session.session import SessionSubscription
from nearcast.broker.state import BrokerState

_FEW_RETAINED = 500  # up to this many, a policy decides about all copies at once


class NewSubscriberCopies:
    """Sends retained messages to new subscriptions.

    `born` is the store's sequence when a subscription took effect.
    """

    def __init__(self, state: BrokerState, delivery: Delivery) -> None:
        self._state = state
        self._delivery = delivery

    def send(self, subscription: SessionSubscription, born: int) -> None:
        """Send the retained messages that a subscription matches, unless rules have ended it."""
        if not subscription.is_in_effect:
            return
        if subscription.selection is not None:
            self._owe(subscription, self._selected(subscription, born))
        elif not self._send_bytes(subscription, born):
            self._owe(subscription, self._plain(subscription, born))

    def send_or_hold(
        self, one: SessionSubscription, born: int, handling: int, is_new: bool, now: bool
    ) -> None:
        """Send the retained messages except those that a policy defers; as `send` otherwise."""
        if not one.is_in_effect:
            return
        state = self._state
        if state.retained.count > _FEW_RETAINED or one.session.copies:
            self._owe(one, self._unless_held(one, born, handling, is_new, now))
            return
        alive = [each for each in self._plain(one, born) if each is not None]
        wanted = state.deferral.subscribed(one, alive, handling=handling, is_new=is_new, now=now)
        if len(wanted) == len(alive) and self._send_bytes(one, born):
            return
        if wanted:
            self._owe(one, iter(wanted))

    def _owe(self, subscription: SessionSubscription, messages: Iterator[Message | None]) -> None:
        """Send messages as the client reads, in place of the rest of an earlier SUBSCRIBE."""
        copies = subscription.session.copies
        copies.pop(subscription.text, None)
        copies[subscription.text] = messages
        self._delivery.pump(subscription.session)

    def _send_bytes(self, one: SessionSubscription, born: int) -> bool:
        """Send all at QoS 0 as bytes shared between subscribers; return whether that was possible.

        It is not where the client has so much to read already that the bytes would be dropped.
        """
        state, session, link = self._state, one.session, one.session.link
        is_bulk = not (one.qos or one.identifier) and link is not None and link.is_plain
        if not is_bulk or session.has_more or state.retained.sequence != born:
            return False
        assert link is not None
        known = state.retained.chunk(one.topic_filter, link.version)
        room = state.settings.session_queue_bytes // 2 - link.outbox_bytes
        if known is None or len(known[0]) > room:
            return False
        chunk, count, mortal = known
        if count:
            with aside(state):
                self._delivery.append_to_all([session], chunk, count)
        if mortal:
            self._owe(one, self._alive(iter(mortal)))
        return True

    # --- the messages to send -------------------------------------------------------------

    def _plain(self, subscription: SessionSubscription, born: int) -> Iterator[Message | None]:
        return self._alive(self._state.retained.walk(subscription.topic_filter, born))

    def _alive(self, messages: Iterator[Message | None]) -> Iterator[Message | None]:
        """Yield messages; remove expired ones from the store and yield None for them."""
        for message in messages:
            if message is None or not 0 < message.expires_at_ms <= self._state.now_ms:
                yield message
            else:
                forget_retained(self._state, message.topic_text())
                yield None

    def _unless_held(
        self, one: SessionSubscription, born: int, handling: int, is_new: bool, now: bool
    ) -> Iterator[Message | None]:
        """Yield the retained messages that a policy does not defer; None for the others."""
        deferral = self._state.deferral
        for message in self._plain(one, born):
            found = [] if message is None else [message]
            found = deferral.subscribed(one, found, handling=handling, is_new=is_new, now=now)
            yield found[0] if found else None

    def _selected(self, subscription: SessionSubscription, born: int) -> Iterator[Message | None]:
        """Yield the retained messages that match a content subscription; None for the others."""
        selections = self._state.selections
        assert selections is not None
        inside = subscription.inside
        for kept in selections.crossing.wanted(subscription):
            if kept is None or self._state.retained.number(kept.topic) > born:
                yield None
                continue
            if inside is not None:
                if inside.get(kept.topic) == kept.version:
                    yield None  # delivered by range entry: the client has moved meanwhile
                    continue
                inside[kept.topic] = kept.version
            yield from self._alive(iter((kept.message,)))
