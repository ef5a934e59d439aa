"""Range entry: retained messages by place, and which of them a client has just come near.

Retained messages in a space are in a box index, so that a move of a client costs a query around it.
A subscription remembers which messages it is in range of (`inside`); one is delivered again only
after the client has gone beyond the space's hysteresis, or if it is a new message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nearcast.broker.content.spaces import SpaceSettings, SpaceTable
from nearcast.broker.publish.message import Message
from nearcast.broker.session.session import SessionSubscription
from nearcast.index.topic_filters import topic_matches
from nearcast.model import Box, Circle, Event
from nearcast.model.event import area_boxes

if TYPE_CHECKING:
    from nearcast.index.boxes.boxes import AnyBoxes


class PlacedRetained:
    """A retained message with a place in a space; `version` distinguishes successive ones."""

    __slots__ = ("event", "message", "topic", "version")

    def __init__(self, topic: str, version: int, event: Event, message: Message) -> None:
        self.topic = topic
        self.version = version
        self.event = event
        self.message = message


class _Shelf:
    """The retained messages of one space, by their boxes."""

    def __init__(self, settings: SpaceSettings) -> None:
        from nearcast.index.boxes.boxes import new_boxes

        self.settings = settings
        self.index: AnyBoxes = new_boxes(settings.space.dimensions)
        self.boxes: dict[int, PlacedRetained] = {}  # by box id


class RangeEntry:
    """Retained messages by place, and which of them a subscription matches.

    Complexity: `put` and `forget` O(log n); a query as `BoxIndex.match_box`, plus the exact check
    of each message found.
    """

    def __init__(self, spaces: SpaceTable) -> None:
        self.count = 0
        self._shelves = {one.space.name: _Shelf(one) for one in spaces.all}
        self._kept: dict[str, tuple[PlacedRetained, list[int]]] = {}
        self._next_version = 1
        self._next_box = 1

    def put(self, topic: str, event: Event, message: Message) -> PlacedRetained:
        """Index the retained message of a topic by its place, in place of an earlier one."""
        self.forget(topic)
        kept = PlacedRetained(topic, self._next_version, event, message)
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
        """Remove the retained message of a topic from the index, if it is there."""
        kept, ids = self._kept.pop(topic, (None, []))
        if kept is None:
            return
        shelf = self._shelves[kept.event.space.name]
        for box_id in ids:
            shelf.index.remove(box_id)
            del shelf.boxes[box_id]
        self.count -= 1

    def get(self, topic: str) -> PlacedRetained | None:
        """Return the retained message of a topic, if it has a place."""
        found = self._kept.get(topic)
        return None if found is None else found[0]

    # --- queries --------------------------------------------------------------------------

    def wanted(self, subscription: SessionSubscription) -> Iterator[PlacedRetained | None]:
        """Yield the retained messages that match a content subscription; None for a step without.

        Messages may be added and removed between steps.
        """
        selection, position = subscription.selection, subscription.session.position
        assert selection is not None
        for shelf in self._shelves.values():
            if not shelf.boxes or not _can_ask(shelf.settings, subscription):
                continue
            boxes = selection.boxes(shelf.settings.space, position)
            for kept in _meeting(shelf, boxes):
                is_wanted = topic_matches(
                    subscription.topic_filter, kept.topic
                ) and selection.covers(kept.event, position)
                yield kept if is_wanted else None

    def entered(self, one: SessionSubscription) -> list[PlacedRetained]:
        """Update `inside` of a `$near` subscription; return the messages newly in range."""
        inside, selection, position = one.inside, one.selection, one.session.position
        assert inside is not None
        assert selection is not None
        assert selection.near_m is not None
        if position is None:
            return []
        around = Circle(*position, selection.near_m)
        if inside:
            self._leave(inside, selection.near_m, position)
        entered: list[PlacedRetained] = []
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
        """Remove messages that were replaced, or are out of range by the hysteresis."""
        for topic, version in list(inside.items()):
            kept = self.get(topic)
            if kept is None or kept.version != version:
                del inside[topic]
                continue
            share = self._shelves[kept.event.space.name].settings.hysteresis
            if not _touches(Circle(*position, _widened(radius_m, share)), kept.event):
                del inside[topic]


def _can_ask(settings: SpaceSettings, subscription: SessionSubscription) -> bool:
    """Return whether the space has the attributes that the subscription's conditions name."""
    from nearcast.matching.subscription_compiler import spaces_for
    from nearcast.model import MisuseError

    assert subscription.selection is not None
    try:
        return bool(spaces_for(subscription.selection, [settings.space]))
    except MisuseError:
        return False


def _meeting(shelf: _Shelf, boxes: tuple[Box, ...]) -> Iterator[PlacedRetained]:
    """Yield each message with a box that intersects one of these, once, the oldest first."""
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
