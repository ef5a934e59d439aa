"""What the clients of a node want, as other nodes must know it: each filter once.

Subscriptions with conditions are told as boxes around them (`summaries`).
"""

from __future__ import annotations

from nearcast.network.messages import Interest
from nearcast.network.summaries import Changes, Summaries, bare_of_wishes
from nearcast.node.session import Session, Subscription

_MOST_LEFT = 10_000
_TAKEN_FOR_GRANTED = 1
"""How many members of a share group others think are connected until they are told."""


class Interests:
    """The filters of a node's own clients, and how they have changed since the last telling.

    A filter of a share group stands for itself, with a number by which a message for the group
    finds it; of those with conditions each is told by itself, since a message that is given to a
    node must find a member there. How many of its members are connected is told as well, so that
    each has its turn; of many only about, so that not everyone who comes is news. `number` grows
    with each change.

    Complexity: O(1) per plain subscription that comes or goes, else as `Summaries`.
    """

    def __init__(self, summaries: Summaries | None = None) -> None:
        self.number = 0
        self._summaries = summaries or Summaries(())
        self._groups: dict[int, tuple[str, str]] = {}
        self._left_groups: dict[int, tuple[str, str]] = {}  # the last few, in that order
        self._counts: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._added: dict[str, None] = {}
        self._removed: dict[str, None] = {}
        self._next_group = 1
        self._ready: dict[str, int] = {}
        self._told_ready: dict[str, int] = {}
        self._stirred: dict[str, None] = {}
        self._since: dict[str, int] = {}
        self._is_marked = False

    def whole(self) -> Interest:
        """Return all that is wanted now."""
        entries = [(text, self._numbers.get(text, 0)) for text in self._counts]
        ready = [(text, self._ready[text]) for text in self._numbers]
        return Interest(self.number, entries, [], whole=True, ready=ready)

    def take_change(self) -> Interest | None:
        """Return what has changed since the last call, or None."""
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

    @property
    def is_settled(self) -> bool:
        """Say whether there is nothing left to tell that no client asked for."""
        return self._summaries.is_settled

    def came(self, subscription: Subscription) -> None:
        """Take note of a subscription."""
        text = _wanted(subscription)
        if text is None:
            assert subscription.selection is not None
            self._count(self._summaries.came(subscription.selection))
        else:
            self.want(text, (subscription.group, subscription.topic_filter))
            if subscription.group and subscription.session.link is not None:
                self._stir(text, 1)

    def went(self, subscription: Subscription) -> None:
        """Take note of its end."""
        text = _wanted(subscription)
        if text is None:
            assert subscription.selection is not None
            self._count(self._summaries.went(subscription.selection))
        else:
            if subscription.group and subscription.session.link is not None:
                self._stir(text, -1)
            self.forgo(text)

    def there(self, session: Session) -> None:
        """Take note that a client has connected, or is not connected any longer. O(its filters)."""
        change = 1 if session.link is not None else -1
        for subscription in session.subscriptions.values():
            text = _wanted(subscription) if subscription.group else None
            if text is not None:
                self._stir(text, change)

    def _stir(self, text: str, change: int) -> None:
        """Count more or fewer connected members of a share group."""
        self._ready[text] += change
        self._stirred[text] = None

    def _count(self, changes: Changes) -> None:
        for text, change in changes:
            for _ in range(abs(change)):
                (self.want if change > 0 else self.forgo)(text)

    def want(self, text: str, group: tuple[str, str] = ("", "")) -> None:
        """Count a wish for a filter; `group` is the share group behind it, if it has a name."""
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
        """Count one wish less."""
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
        """Return a new number, for others to confirm though nothing has changed for them."""
        self.number += 1
        self._is_marked = True
        return self.number

    def since(self, subscription: Subscription) -> int:
        """Return the number from which on others know of a subscription, if they are told."""
        text = _wanted(subscription)
        return self.number if text is None else self._since.get(text, self.number)

    def group(self, number: int) -> tuple[str, str] | None:
        """Return the share group and filter behind a number, also of one that has no member left.

        What others sent before they heard of that is still to find somebody.
        """
        return self._groups.get(number) or self._left_groups.get(number)

    def _leave_group(self, number: int) -> None:
        group = self._groups.pop(number, None)
        if group is not None:
            self._left_groups[number] = group
            if len(self._left_groups) > _MOST_LEFT:
                del self._left_groups[next(iter(self._left_groups))]


def _wanted(subscription: Subscription) -> str | None:
    """Return what is told of a subscription by itself; None: it is one of those in a box."""
    selection, group = subscription.selection, subscription.group
    shared = f"$share/{group}/" if group else ""
    if selection is None or (selection.where is None and selection.area is None):
        return shared + subscription.topic_filter
    if selection.near_m is not None:  # nobody else knows where its client is
        return shared + subscription.topic_filter
    return shared + bare_of_wishes(selection).identity if group else None


def _is_news(told: int, count: int) -> bool:
    """Say whether others must know: some instead of none, or more than an eighth more or less."""
    return 8 * abs(count - told) > told
