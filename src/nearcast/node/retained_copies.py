"""Retained messages for new subscriptions: found and sent step by step, as the client reads.

What a subscription is owed is what was retained when it took effect and still is. So nothing is
copied at SUBSCRIBE: the store is walked while there is room in the outbox, and a message that came
later is passed over, because it was delivered live.
"""

from __future__ import annotations

from collections.abc import Iterator

from nearcast.node.delivery import Delivery
from nearcast.node.message import Message
from nearcast.node.noting import aside
from nearcast.node.retaining import forget_retained
from nearcast.node.session import Subscription
from nearcast.node.state import NodeState

_FEW_RETAINED = 500  # decided about at once, where a policy may hold copies back


class NewSubscriberCopies:
    """Sends retained messages to those who have just subscribed.

    `born` is the store's sequence when a subscription took effect.
    """

    def __init__(self, state: NodeState, delivery: Delivery) -> None:
        self._state = state
        self._delivery = delivery

    def send(self, one: Subscription, born: int) -> None:
        """Send what is retained on a subscription's topics, or is wanted of it."""
        if one.selection is not None:
            self._owe(one, self._selected(one, born))
        elif not self._send_bytes(one, born):
            self._owe(one, self._plain(one, born))

    def send_or_hold(
        self, one: Subscription, born: int, handling: int, is_new: bool, now: bool
    ) -> None:
        """Send what is retained, but for what a policy holds back."""
        state = self._state
        assert state.holding is not None
        if state.retained.count > _FEW_RETAINED or one.session.copies:
            self._owe(one, self._unless_held(one, born, handling, is_new, now))
            return
        alive = [each for each in self._plain(one, born) if each is not None]
        wanted = state.holding.subscribed(one, alive, handling=handling, is_new=is_new, now=now)
        if len(wanted) == len(alive) and self._send_bytes(one, born):
            return
        if wanted:
            self._owe(one, iter(wanted))

    def _owe(self, one: Subscription, messages: Iterator[Message | None]) -> None:
        """Send messages as the client reads, instead of what an earlier SUBSCRIBE left to send."""
        copies = one.session.copies
        copies.pop(one.text, None)
        copies[one.text] = messages
        self._delivery.pump(one.session)

    def _send_bytes(self, one: Subscription, born: int) -> bool:
        """Send everything at QoS 0 as bytes that newcomers share; tell whether that was possible.

        Not where a client has so much to read already that it would have to be dropped.
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

    # --- what is owed ---------------------------------------------------------------------

    def _plain(self, one: Subscription, born: int) -> Iterator[Message | None]:
        return self._alive(self._state.retained.walk(one.topic_filter, born))

    def _alive(self, messages: Iterator[Message | None]) -> Iterator[Message | None]:
        """Yield messages; forget those whose lifetime is over."""
        for message in messages:
            if message is None or not 0 < message.expires_at_ms <= self._state.now_ms:
                yield message
            else:
                forget_retained(self._state, message.topic_text())
                yield None

    def _unless_held(
        self, one: Subscription, born: int, handling: int, is_new: bool, now: bool
    ) -> Iterator[Message | None]:
        holding = self._state.holding
        assert holding is not None
        for message in self._plain(one, born):
            found = [] if message is None else [message]
            found = holding.subscribed(one, found, handling=handling, is_new=is_new, now=now)
            yield found[0] if found else None

    def _selected(self, one: Subscription, born: int) -> Iterator[Message | None]:
        """Yield what is retained and wanted, nothing else."""
        selections = self._state.selections
        assert selections is not None
        inside = one.inside
        for kept in selections.crossing.wanted(one):
            if kept is None or self._state.retained.number(kept.topic) > born:
                yield None
                continue
            if inside is not None:
                if inside.get(kept.topic) == kept.version:
                    yield None  # the client has moved meanwhile, and has come near it
                    continue
                inside[kept.topic] = kept.version
            yield from self._alive(iter((kept.message,)))
