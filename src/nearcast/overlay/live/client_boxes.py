"""A few boxes around the subscriptions of clients, kept while they come, go and move."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nearcast.model import Space
from nearcast.model import Subscription as Selection
from nearcast.overlay.bounds import Bounds, Extent, covers
from nearcast.overlay.cover import Cover

SLACK = 0.5
"""By which share of its radius the box of a `$near` subscription is wider than it must be."""


class ClientBoxes:
    """A few boxes around the subscriptions of one space; those of `$near` follow, with slack.

    Complexity: O(boxes of the subscription) calls of `Cover` per change.
    """

    def __init__(self, space: Space, *, most: int, looseness: float) -> None:
        self._space = space
        extent = Extent(space.extent.lows, space.extent.highs)
        self._cover = Cover(extent, looseness=looseness, most=most)
        self._held: dict[int, tuple[Bounds, ...]] = {}
        self._near: dict[int, Selection] = {}
        self.is_changed = False

    def add(self, key: int, selection: Selection, position: tuple[float, float] | None) -> None:
        """Add a subscription; one that is near its client has no box before it has a position."""
        if selection.near_m is None:
            self._hold(key, _boxes(selection, self._space, None))
            return
        self._near[key] = selection
        self.move(key, position)

    def move(self, key: int, position: tuple[float, float] | None) -> None:
        """Move the boxes of a `$near` subscription, if its client has left them."""
        selection = self._near[key]
        wanted = _boxes(selection, self._space, position)
        held = self._held.get(key, ())
        if not wanted or all(any(covers(wide, box) for wide in held) for box in wanted):
            return
        assert selection.near_m is not None
        wider = replace(selection, near_m=selection.near_m * (1 + SLACK))
        self._hold(key, _boxes(wider, self._space, position))

    def remove(self, key: int) -> None:
        """Remove a subscription."""
        self._near.pop(key, None)
        self._hold(key, ())
        self._held.pop(key, None)

    def take(self) -> list[Bounds]:
        """Return the boxes, each once."""
        while not self._cover.is_settled:
            self._cover.tidy()
        self._cover.take_changes()
        self.is_changed = False
        return list(dict.fromkeys(self._cover.boxes))

    def _hold(self, key: int, boxes: Iterable[Bounds]) -> None:
        after = tuple(boxes)
        for box in after:
            self._cover.add(box)
        for box in self._held.get(key, ()):
            self._cover.remove(box)
        self._held[key] = after
        self.is_changed = True


def _boxes(
    selection: Selection, space: Space, position: tuple[float, float] | None
) -> tuple[Bounds, ...]:
    return tuple((box.lows, box.highs) for box in selection.boxes(space, position))
