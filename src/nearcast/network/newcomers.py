"""New subscriptions that some node does not know of yet: what was retained there in the meantime.

    B: SUBSCRIBE ── Interest ──────────────►  A          what A's clients publish from here on comes
       gets what is retained at B             │          to B live
    B:            ◄── Retained ── published ──┘ before: A had nobody to send it to at B
       the newcomer gets it now
    B:            ◄── InterestKnown ─────────  A         the newcomer misses nothing of A any more

Links keep order, so that each message comes in one of the two ways, and not in both.
"""

from __future__ import annotations

from nearcast.index.topic_filters import topic_matches
from nearcast.model import Event, MisuseError
from nearcast.network.interests import Interests
from nearcast.network.messages import Kept
from nearcast.node.routes import Router
from nearcast.node.session import Subscription

_MOST = 100_000


class Newcomers:
    """Subscriptions by the number that other nodes must have confirmed to know of them.

    Complexity: O(1) to add one; they are dropped in the order in which they came.
    """

    def __init__(self, router: Router, interests: Interests) -> None:
        self._router = router
        self._interests = interests
        self._numbers: dict[Subscription, int] = {}
        self._choosy: dict[Subscription, int] = {}  # with conditions: when they came
        self._last = 0
        self._arrived: set[str] = set()

    def add(self, one: Subscription, number: int, now_ms: int) -> None:
        """Take note of a subscription that has just been sent what is retained here."""
        self._numbers[one] = number  # a filter that is known at most nodes has an older one
        self._last = max(self._last, number)
        if one.selection is not None:
            self._choosy[one] = now_ms
        if len(self._numbers) > _MOST:  # a node has been away for long
            self._drop_first()

    def settle(self, confirmed: int) -> None:
        """Forget those that every node knows of."""
        while self._numbers and next(iter(self._numbers.values())) <= confirmed:
            self._drop_first()

    def _drop_first(self) -> None:
        first = next(iter(self._numbers))
        del self._numbers[first]
        self._choosy.pop(first, None)

    def begin(self) -> None:
        """Begin with a frame of another node."""
        self._arrived.clear()

    def arrived(self, topic: str) -> None:
        """Take note that the frame has brought a message live that is retained as well."""
        if self._numbers:
            self._arrived.add(topic)

    def missed(self, kept: Kept, confirmed: int, event: Event | None) -> list[Subscription]:
        """Return who is not sent a retained message live: its node did not know of them.

        `confirmed` is what that node has confirmed by now. If it knew of anybody here who wants the
        topic, it has sent the message, or will, and all who want it here get it; so too if it has
        just come (`arrived`). Those with a place have it from holders if it was published after
        they came. O(subscriptions to the topic).
        """
        if not self._numbers or self._last <= confirmed:
            return []
        plain = self._router.subscribers(kept.topic)
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

    def _is_unknown(self, one: Subscription, confirmed: int) -> bool:
        return self._numbers.get(one, 0) > confirmed


def _wants(one: Subscription, event: Event) -> bool:
    """Say whether a subscription with conditions is still there and wants an event."""
    assert one.selection is not None
    is_there = one.session.subscriptions.get(one.text) is one
    if not (is_there and topic_matches(one.topic_filter, event.topic)):
        return False
    try:
        return one.selection.covers(event, one.session.position)
    except MisuseError:  # its conditions are about another space
        return False
