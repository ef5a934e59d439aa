"""An index of registrations by rectangle: which of them an event may concern."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from nearcast.locality.layout.rect import Rect

if TYPE_CHECKING:
    from nearcast.index.boxes.boxes import AnyBoxes

Name = TypeVar("Name", bound=Hashable)
MANY = 64
"""From this size on an index is faster than a scan; only then are kernels loaded."""


class RegistrationIndex(Generic[Name]):
    """Rectangles under names; finds those that meet another rectangle.

    Complexity: O(n) up to `MANY`; beyond, as `BoxIndex`: O(log n) to change, O(log n + found) to
    find.
    """

    def __init__(self) -> None:
        self._rects: dict[Name, Rect] = {}
        self._numbers: dict[Name, int] = {}
        self._names: dict[int, Name] = {}
        self._next = 0
        self._index: AnyBoxes | None = None

    def __len__(self) -> int:
        return len(self._rects)

    def put(self, name: Name, rects: Sequence[Rect]) -> None:
        """Set the rectangles of a name, replacing earlier ones."""
        around = rects[0]
        for rect in rects[1:]:
            around = around.joined(rect)
        is_new = name not in self._rects
        self._rects[name] = around
        if self._index is not None:
            lows, highs = (around.west, around.south), (around.east, around.north)
            if is_new:
                self._index.add(self._number(name), lows, highs)
            else:
                self._index.move(self._numbers[name], lows, highs)
        elif len(self._rects) >= MANY:
            self._build()

    def drop(self, name: Name) -> None:
        """Remove a name; no effect if it is not known."""
        if self._rects.pop(name, None) is not None and self._index is not None:
            number = self._numbers.pop(name)
            del self._names[number]
            self._index.remove(number)

    def meeting(self, area: Rect) -> list[Name]:
        """Return the names whose rectangle meets an area, in no particular order."""
        if self._index is None:
            return [name for name, rect in self._rects.items() if rect.intersects(area)]
        found = self._index.match_box((area.west, area.south), (area.east, area.north))
        return [self._names[number] for number in found.tolist()]

    def _build(self) -> None:
        from nearcast.index.boxes.boxes import new_boxes

        self._index = new_boxes(2)
        for name, rect in self._rects.items():
            self._index.add(self._number(name), (rect.west, rect.south), (rect.east, rect.north))

    def _number(self, name: Name) -> int:
        number = self._numbers[name] = self._next
        self._names[number] = name
        self._next += 1
        return number
