"""Coming near a retained message: where they are, and who has just come into range.

Retained messages of a space's topics stand in an index by place, so that a step of a client costs
a look at those around it. A subscription remembers which it is in range of (`inside`); to be
delivered again, a message has to have been left behind by the space's hysteresis, or be a new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nearcast.index.topic_filters import topic_matches
from nearcast.model import Box, Circle, Event
from nearcast.model.event import area_boxes
from nearcast.node.message import Message
from nearcast.node.session import Subscription
from nearcast.node.spaces import SpaceSettings, SpaceTable

if TYPE_CHECKING:
    from nearcast.index.boxes import AnyBoxes


class Kept:
    """A retained message that has a place in a space; `version` tells it from its forerunners."""

    __slots__ = ("event", "message", "topic", "version")

    def __init__(self, topic: str, version: int, event: Event, message: Message) -> None:
        self.topic = topic
        self.version = version
        self.event = event
        self.message = message


class _Shelf:
    """The retained messages of one space, by their boxes."""

    def __init__(self, settings: SpaceSettings) -> None:
        from nearcast.index.boxes import new_boxes

        self.settings = settings
        self.index: AnyBoxes = new_boxes(settings.space.dimensions)
        self.boxes: dict[int, Kept] = {}  # box id: whose it is


class Crossing:
    """Retained messages by place, and which of them a subscription meets.

    Complexity: `put` and `forget` O(log n); a question as `BoxIndex.match_box`, plus the exact
    look at what it finds.
    """

    def __init__(self, spaces: SpaceTable) -> None:
        self.count = 0
        self._shelves = {one.space.name: _Shelf(one) for one in spaces.all}
        self._kept: dict[str, tuple[Kept, list[int]]] = {}
        self._next_version = 1
        self._next_box = 1

    def put(self, topic: str, event: Event, message: Message) -> Kept:
        """Note what is now retained on a topic, and where."""
        self.forget(topic)
        kept = Kept(topic, self._next_version, event, message)
        self._next_version += 1
        shelf = self._shelves[event.space.name]
        ids: list[int] = []
        for box in event.boxes():
            shelf.index.add(self._next_box, box.lows, box.highs)
            shelf.boxes[self._next_box] = kept
            ids.append(self._next_box)
            self._next_box += 1
        self._kept[topic] = (kept, ids)
        self.count += 1
        return kept

    def forget(self, topic: str) -> None:
        """Note that nothing with a place is retained on a topic."""
        kept, ids = self._kept.pop(topic, (None, []))
        if kept is None:
            return
        shelf = self._shelves[kept.event.space.name]
        for box_id in ids:
            shelf.index.remove(box_id)
            del shelf.boxes[box_id]
        self.count -= 1

    def get(self, topic: str) -> Kept | None:
        """Return what is retained on a topic, if it has a place."""
        found = self._kept.get(topic)
        return None if found is None else found[0]

    # --- questions ------------------------------------------------------------------------

    def wanted(self, one: Subscription) -> Iterator[Kept | None]:
        """Yield the retained messages that a selective subscription wants; None for a step.

        Messages may come and go between steps.
        """
        selection, position = one.selection, one.session.position
        assert selection is not None
        for shelf in self._shelves.values():
            if not shelf.boxes or not _can_ask(shelf.settings, one):
                continue
            boxes = selection.boxes(shelf.settings.space, position)
            for kept in _meeting(shelf, boxes):
                is_wanted = topic_matches(one.topic_filter, kept.topic) and selection.covers(
                    kept.event, position
                )
                yield kept if is_wanted else None

    def entered(self, one: Subscription) -> list[Kept]:
        """Note where a `$near` subscription is now; return what it has just come near."""
        inside, selection, position = one.inside, one.selection, one.session.position
        assert inside is not None
        assert selection is not None
        assert selection.near_m is not None
        if position is None:
            return []
        around = Circle(*position, selection.near_m)
        if inside:
            self._leave(inside, selection.near_m, position)
        entered: list[Kept] = []
        for shelf in self._shelves.values():
            if not shelf.boxes or not _can_ask(shelf.settings, one):
                continue
            boxes = area_boxes(
                shelf.settings.space, around, Box.everything(shelf.settings.space.dimensions)
            )
            for kept in _meeting(shelf, boxes):
                if inside.get(kept.topic) == kept.version:
                    continue
                if topic_matches(one.topic_filter, kept.topic) and selection.covers(
                    kept.event, position
                ):
                    inside[kept.topic] = kept.version
                    entered.append(kept)
        return entered

    def _leave(
        self, inside: dict[str, int], radius_m: float, position: tuple[float, float]
    ) -> None:
        """Forget what is no longer there, or far enough behind."""
        for topic, version in list(inside.items()):
            kept = self.get(topic)
            if kept is None or kept.version != version:
                del inside[topic]
                continue
            share = self._shelves[kept.event.space.name].settings.hysteresis
            if not _touches(Circle(*position, _widened(radius_m, share)), kept.event):
                del inside[topic]


def _can_ask(settings: SpaceSettings, one: Subscription) -> bool:
    """Say whether the space has what the subscription asks about."""
    from nearcast.matching.placing import spaces_for
    from nearcast.model import MisuseError

    assert one.selection is not None
    try:
        return bool(spaces_for(one.selection, [settings.space]))
    except MisuseError:
        return False


def _meeting(shelf: _Shelf, boxes: tuple[Box, ...]) -> Iterator[Kept]:
    """Yield each message that has a box meeting one of these, once, the oldest first."""
    found: set[int] = set()
    for box in boxes:
        found.update(shelf.index.match_box(box.lows, box.highs).tolist())
    seen: set[str] = set()
    for box_id in sorted(found):
        kept = shelf.boxes.get(box_id)
        if kept is not None and kept.topic not in seen:
            seen.add(kept.topic)
            yield kept


def _touches(circle: Circle, event: Event) -> bool:
    if event.area is not None:
        return circle.touches(event.area)
    return event.position is None or circle.contains(*event.position)


def _widened(radius_m: float, share: float) -> float:
    return min(radius_m * (1 + share), 20_015_000.0) if share else radius_m
