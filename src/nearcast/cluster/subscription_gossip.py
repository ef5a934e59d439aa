"""What a node announces of its clients' subscriptions to its peers: each filter once.

Subscriptions with conditions are announced as boxes around them (`filter_aggregation.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.cluster.filter_aggregation import Changes, FilterAggregation, bare_of_wishes
from nearcast.cluster.messages import Interest

if TYPE_CHECKING:  # NumPy stays out of a node without spaces
    from nearcast.overlay import Density

_MOST_LEFT = 10_000
"""How many share groups without members are remembered."""
_TAKEN_FOR_GRANTED = 1
"""How many members of a share group peers assume to be connected until they are told."""


class SubscriptionGossip:
    """The filters of a node's own clients, and the changes since the last announcement.

    A filter of a share group has its own entry, with a number by which a message for the group
    finds it. Shared subscriptions with conditions are announced one by one, since a message that is
    sent to a node must find a member there. The number of connected members is announced as well,
    so that peers can balance between nodes; large numbers only roughly, so that not every connect
    is a change. `number` grows with each change.

    Complexity: O(1) per plain subscription added or removed, else as `FilterAggregation`.
    """

    def __init__(self, summaries: FilterAggregation | None = None) -> None:
        self.number = 0  # of the last change; peers confirm it (`InterestKnown`)
        self._summaries = summaries or FilterAggregation(())
        self._groups: dict[int, tuple[str, str]] = {}  # share group and filter by number
        self._left_groups: dict[int, tuple[str, str]] = {}  # groups without members, oldest first
        self._counts: dict[str, int] = {}  # subscriptions per announced filter
        self._numbers: dict[str, int] = {}  # group number per announced filter
        self._added: dict[str, None] = {}  # since the last announcement, in order
        self._removed: dict[str, None] = {}  # since the last announcement, in order
        self._next_group = 1
        self._ready: dict[str, int] = {}  # connected members per shared filter
        self._told_ready: dict[str, int] = {}  # the count that peers know
        self._stirred: dict[str, None] = {}  # dirty: filters whose count may have changed
        self._since: dict[str, int] = {}  # `number` when a filter was added
        self._is_marked = False  # `mark` was called: announce, even without a change

    def whole(self) -> Interest:
        """Return all current filters, for a peer whose link has come up."""
        entries = [(text, self._numbers.get(text, 0)) for text in self._counts]
        ready = [(text, self._ready[text]) for text in self._numbers]
        return Interest(self.number, entries, [], whole=True, ready=ready)

    @property
    def has_news(self) -> bool:
        """Whether `take_change` may have something to return; asked once a batch."""
        return bool(
            self._added
            or self._removed
            or self._stirred
            or self._is_marked
            or not self._summaries.is_settled
        )

    def take_change(self) -> Interest | None:
        """Return the changes since the last call, or None."""
        self._count(self._summaries.tidy())
        ready = self._news_of_ready()
        if not (self._added or self._removed or ready or self._is_marked):
            return None
        self._is_marked = False
        added = [(text, self._numbers.get(text, 0)) for text in self._added]
        change = Interest(self.number, added, list(self._removed), ready=ready)
        self._added, self._removed = {}, {}
        return change

    def _news_of_ready(self) -> list[tuple[str, int]]:
        news = [
            (text, self._ready[text])
            for text in self._stirred
            if text in self._ready and _is_news(self._told_ready[text], self._ready[text])
        ]
        self._told_ready.update(news)
        self._stirred = {}
        return news

    def use_densities(self, densities: Mapping[str, Density]) -> None:
        """Merge boxes by other densities, in slices: peers are told as boxes change."""
        self._summaries.use_densities(densities)

    @property
    def is_settled(self) -> bool:
        """Whether all boxes are tight: nothing to announce unless a subscription changes."""
        return self._summaries.is_settled

    def came(self, subscription: SessionSubscription) -> None:
        """Add a subscription."""
        text = _wanted(subscription)
        if text is None:
            assert subscription.selection is not None
            self._count(self._summaries.came(subscription.selection))
        else:
            self.want(text, (subscription.group, subscription.topic_filter))
            if subscription.group and subscription.session.link is not None:
                self._stir(text, 1)

    def went(self, subscription: SessionSubscription) -> None:
        """Remove a subscription."""
        text = _wanted(subscription)
        if text is None:
            assert subscription.selection is not None
            self._count(self._summaries.went(subscription.selection))
        else:
            if subscription.group and subscription.session.link is not None:
                self._stir(text, -1)
            self.forgo(text)

    def there(self, session: Session) -> None:
        """Update share groups after a client connected or disconnected. O(its filters)."""
        change = 1 if session.link is not None else -1
        for subscription in session.subscriptions.values():
            text = _wanted(subscription) if subscription.group else None
            if text is not None:
                self._stir(text, change)

    def _stir(self, text: str, change: int) -> None:
        """Change the number of connected members of a share group."""
        self._ready[text] += change
        self._stirred[text] = None

    def _count(self, changes: Changes) -> None:
        for text, change in changes:
            for _ in range(abs(change)):
                (self.want if change > 0 else self.forgo)(text)

    def want(self, text: str, group: tuple[str, str] = ("", "")) -> None:
        """Add one subscription to a filter; `group` is its share group and filter, if shared."""
        self._counts[text] = self._counts.get(text, 0) + 1
        if self._counts[text] > 1:
            return
        self.number += 1
        if group[0]:
            self._numbers[text] = self._next_group
            self._ready[text], self._told_ready[text] = 0, _TAKEN_FOR_GRANTED
            self._stirred[text] = None
            self._groups[self._next_group] = group
            self._next_group += 1
        self._removed.pop(text, None)
        self._added[text] = None
        self._since[text] = self.number

    def forgo(self, text: str) -> None:
        """Remove one subscription from a filter."""
        self._counts[text] -= 1
        if self._counts[text]:
            return
        del self._counts[text]
        self.number += 1
        self._leave_group(self._numbers.pop(text, 0))
        self._ready.pop(text, None)
        self._told_ready.pop(text, None)
        self._added.pop(text, None)
        self._removed[text] = None
        del self._since[text]

    def mark(self) -> int:
        """Return a new number for peers to confirm, although no filter has changed."""
        self.number += 1
        self._is_marked = True
        return self.number

    def since(self, subscription: SessionSubscription) -> int:
        """Return the number from which on peers know of a subscription, once confirmed."""
        text = _wanted(subscription)
        return self.number if text is None else self._since.get(text, self.number)

    def group(self, number: int) -> tuple[str, str] | None:
        """Return the share group and filter of a number, even if the group has no member left.

        Messages that peers sent before they knew that must still find another member.
        """
        return self._groups.get(number) or self._left_groups.get(number)

    def _leave_group(self, number: int) -> None:
        group = self._groups.pop(number, None)
        if group is not None:
            self._left_groups[number] = group
            if len(self._left_groups) > _MOST_LEFT:
                del self._left_groups[next(iter(self._left_groups))]


def _wanted(subscription: SessionSubscription) -> str | None:
    """Return the filter to announce for a subscription; None: it is part of a box."""
    selection, group = subscription.selection, subscription.group
    shared = f"$share/{group}/" if group else ""
    if selection is None or (selection.where is None and selection.area is None):
        return shared + subscription.topic_filter
    if selection.near_m is not None:  # only this node knows the client's position
        return shared + subscription.topic_filter
    return shared + bare_of_wishes(selection).identity if group else None


def _is_news(told: int, count: int) -> bool:
    """Return whether a count must be announced: from or to 0, or a change by over an eighth."""
    return 8 * abs(count - told) > told
