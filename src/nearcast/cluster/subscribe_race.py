"""The race between SUBSCRIBE at one node and a retained PUBLISH at another.

    B: SUBSCRIBE ── Interest ──────────────►  A          from here on A forwards publications
       gets the retained messages of B        │          to B live
    B:            ◄── Retained ── published ──┘ earlier: A knew of no subscriber at B
       the new subscriber gets it now
    B:            ◄── InterestKnown ─────────  A         the subscriber misses nothing of A any more

Links keep the order, so each message takes one of the two ways, and never both.
"""

from __future__ import annotations

from collections.abc import Callable

from nearcast.broker.session.session import SessionSubscription
from nearcast.cluster.messages import RetainedEntry
from nearcast.cluster.subscription_gossip import SubscriptionGossip
from nearcast.index.topic_filters import topic_matches
from nearcast.model import Event, MisuseError

_MOST = 100_000
"""How many subscriptions are remembered; more only if a peer is disconnected for long."""


class SubscribeRace:
    """New subscriptions, by the gossip number that a peer confirms once it knows of them.

    `subscribers` returns the subscriptions without conditions to a topic.

    Complexity: O(1) per new subscription; they are dropped in the order of arrival.
    """

    def __init__(
        self,
        subscribers: Callable[[str], list[SessionSubscription]],
        interests: SubscriptionGossip,
    ) -> None:
        self._subscribers = subscribers
        self._interests = interests
        self._numbers: dict[SessionSubscription, int] = {}
        # content subscriptions: time of SUBSCRIBE in ms
        self._choosy: dict[SessionSubscription, int] = {}
        self._last = 0  # greatest number so far
        self._arrived: set[str] = set()  # topics that the current frame brought live

    def add(self, one: SessionSubscription, number: int, now_ms: int) -> None:
        """Add a subscription that has just been sent the retained messages of this node."""
        self._numbers[one] = number  # older if peers know the filter already
        self._last = max(self._last, number)
        if one.selection is not None:
            self._choosy[one] = now_ms
        if len(self._numbers) > _MOST:  # a peer has been disconnected for long
            self._drop_first()

    def settle(self, confirmed: int) -> None:
        """Forget subscriptions that every peer has confirmed."""
        while self._numbers and next(iter(self._numbers.values())) <= confirmed:
            self._drop_first()

    def _drop_first(self) -> None:
        first = next(iter(self._numbers))
        del self._numbers[first]
        self._choosy.pop(first, None)

    def begin(self) -> None:
        """Begin with a new frame of a peer."""
        self._arrived.clear()

    def arrived(self, topic: str) -> None:
        """Record that the current frame brought a message with RETAIN live."""
        if self._numbers:
            self._arrived.add(topic)

    def missed(
        self, kept: RetainedEntry, confirmed: int, event: Event | None
    ) -> list[SessionSubscription]:
        """Return the subscriptions that a retained message did not reach live.

        The node of publication did not know of them yet; `confirmed` is the number that it has
        confirmed by now. If it knew of any subscriber here to the topic, it has forwarded the
        message, or will, and all subscribers here get it; likewise if it has just arrived live
        (`arrived`). Subscriptions with a place get it from holders if it was published after they
        subscribed. O(subscriptions to the topic).
        """
        if not self._numbers or self._last <= confirmed:
            return []
        plain = self._subscribers(kept.topic)
        is_live = kept.topic in self._arrived
        is_live = is_live or any(self._interests.since(one) <= confirmed for one in plain)
        found = [one for one in plain if self._is_unknown(one, confirmed) and not is_live]
        if event is None:
            return found
        for one, came_ms in self._choosy.items():
            is_due = (kept.said_ms or kept.at_ms) < came_ms if one.has_place else not is_live
            if is_due and self._is_unknown(one, confirmed) and _wants(one, event):
                found.append(one)
        return found

    def _is_unknown(self, one: SessionSubscription, confirmed: int) -> bool:
        return self._numbers.get(one, 0) > confirmed


def _wants(one: SessionSubscription, event: Event) -> bool:
    """Return whether a content subscription still exists and matches an event."""
    assert one.selection is not None
    is_there = one.session.subscriptions.get(one.text) is one
    if not (is_there and topic_matches(one.topic_filter, event.topic)):
        return False
    try:
        return one.selection.covers(event, one.session.position)
    except MisuseError:  # its conditions are about another space
        return False
