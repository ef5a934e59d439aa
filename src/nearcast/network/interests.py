"""What the clients of a node want, as other nodes must know it: each filter once."""

from __future__ import annotations

from nearcast.network.messages import Interest
from nearcast.node.session import Subscription


class Interests:
    """The filters of a node's own clients, and how they have changed since the last telling.

    A filter of a share group stands for itself, with a number by which a message for the group
    finds it. `number` grows with each change.

    Complexity: O(1) per subscription that comes or goes.
    """

    def __init__(self) -> None:
        self.number = 0
        self.groups: dict[int, tuple[str, str]] = {}
        self._counts: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._added: dict[str, None] = {}
        self._removed: dict[str, None] = {}
        self._next_group = 1

    def whole(self) -> Interest:
        """Return all that is wanted now."""
        entries = [(text, self._numbers.get(text, 0)) for text in self._counts]
        return Interest(self.number, entries, [], whole=True)

    def take_change(self) -> Interest | None:
        """Return what has changed since the last call, or None."""
        if not (self._added or self._removed):
            return None
        added = [(text, self._numbers.get(text, 0)) for text in self._added]
        change = Interest(self.number, added, list(self._removed))
        self._added, self._removed = {}, {}
        return change

    def came(self, subscription: Subscription) -> None:
        """Take note of a subscription."""
        self.want(_wanted(subscription), (subscription.group, subscription.topic_filter))

    def went(self, subscription: Subscription) -> None:
        """Take note of its end."""
        self.forgo(_wanted(subscription))

    def want(self, text: str, group: tuple[str, str] = ("", "")) -> None:
        """Count a wish for a filter; `group` is the share group behind it, if it has a name."""
        self._counts[text] = self._counts.get(text, 0) + 1
        if self._counts[text] > 1:
            return
        self.number += 1
        if group[0]:
            self._numbers[text] = self._next_group
            self.groups[self._next_group] = group
            self._next_group += 1
        self._removed.pop(text, None)
        self._added[text] = None

    def forgo(self, text: str) -> None:
        """Count one wish less."""
        self._counts[text] -= 1
        if self._counts[text]:
            return
        del self._counts[text]
        self.number += 1
        number = self._numbers.pop(text, 0)
        self.groups.pop(number, None)
        self._added.pop(text, None)
        self._removed[text] = None


def _wanted(subscription: Subscription) -> str:
    """Return the filter without its selection: the node itself selects from what arrives."""
    group = f"$share/{subscription.group}/" if subscription.group else ""
    return group + subscription.topic_filter
