"""The matcher: topic filters, boxes, exact shapes and ranks.

Read next: `filter_index.py`; `view.py` has the queries, `subscription_compiler.py` the boxes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from nearcast.matching.filter_index import FilterIndex
from nearcast.matching.moving_box import MovingBox
from nearcast.matching.subscription_compiler import Position, placed_in, spaces_for
from nearcast.matching.view import MatcherView
from nearcast.model import (
    KeyInUseError,
    KeyMissingError,
    OutOfRangeError,
    Space,
    Subscription,
)
from nearcast.model.shapes import circle_bounds
from nearcast.model.sphere import checked_place


@dataclass(slots=True)
class _Entry:
    """A subscription, and where its boxes are."""

    subscription: Subscription
    birth_number: int  # a greater one is younger
    weight: float
    position: Position | None
    boxes: list[tuple[FilterIndex, list[int]]]
    followers: list[list[MovingBox]]  # per filter index; only of `$near` without a fixed area

    @property
    def lone(self) -> MovingBox | None:
        """Return the only moving box, if there is just one: then it is one box in one filter index.

        A box at a seam (the antimeridian, a pole) may still be cut into several.
        """
        followers = self.followers
        return followers[0][0] if len(followers) == 1 and len(followers[0]) == 1 else None


class Matcher(MatcherView):
    """Subscriptions under int64 keys; finds all that match an event, or the best of them.

    Subscriptions are in filter indexes, one per topic filter and space. An event queries those
    of its space whose filter its topic matches. A `$near` subscription follows its owner (`move`);
    while the owner's position is unknown it matches nothing.

    Ranks: `narrowest`, `nearest` (metres from the event to the subscriber, or to the middle of the
    area; those without a place come last), `centre`, `weight`, or a blend of all but `nearest`.
    Ties go to the older subscription; a birth number outlives moves, not a replacement.

    Contract: a call that raises has changed nothing. Complexity: `match` as `BoxIndex.match` per
    filter index; `top` likewise, except `nearest` and events with an extent, which score all
    matches.

    >>> from nearcast.model import Attribute, Event, parse_where
    >>> age = Attribute.number("age", 0, 99)
    >>> jobs = Space(name="jobs", topic_filter="jobs/#", attributes=(age,))
    >>> matcher = Matcher([jobs])
    >>> matcher.add(1, Subscription(topic_filter="jobs/#", where=parse_where("20 <= age <= 60")))
    >>> matcher.add(2, Subscription(topic_filter="jobs/#", where=parse_where("20 <= age <= 25")))
    >>> candidate = Event.of(jobs, "jobs/berlin", {"age": 24})
    >>> sorted(matcher.match(candidate)), [match.key for match in matcher.top(candidate, 1)]
    ([1, 2], [2])
    """

    def __init__(self, spaces: Iterable[Space]) -> None:
        super().__init__(spaces)
        self._entries: dict[int, _Entry] = {}
        self._next_birth = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    # --- changes

    def add(
        self,
        key: int,
        subscription: Subscription,
        *,
        weight: float = 1.0,
        position: Position | None = None,
    ) -> None:
        """Add a subscription under a new key; `position` is where its owner is now."""
        if key in self._entries:
            raise KeyInUseError(f"the key {key}", todo="Remove it first")
        self._place(key, subscription, checked_weight(weight), position)

    def remove(self, key: int) -> None:
        """Remove a subscription."""
        self._clear(self._entry(key))
        del self._entries[key]

    def move(self, key: int, position: Position | None) -> None:
        """Set the position of a subscription's owner; None: unknown."""
        entry = self._entry(key)
        if entry.subscription.near_m is None or position == entry.position:
            entry.position = position
            return
        if not (entry.followers and position is not None and self._follow(entry, position)):
            self._put_anew(key, entry, position)
        entry.position = position

    def _follow(self, entry: _Entry, position: Position) -> bool:
        """Move a subscription's boxes in place; return False if their number changes."""
        place = checked_place(*position, "circle: the centre")
        lone = entry.lone
        covered = lone.around(*place) if lone is not None else None
        if covered is not None:
            shelf, ids = entry.boxes[0]
            if len(ids) == 1:
                shelf.move(ids[0], covered, place)
                return True
        return self._follow_several(entry, place)

    def _follow_several(self, entry: _Entry, place: Position) -> bool:
        assert entry.subscription.near_m is not None
        around = circle_bounds(*place, entry.subscription.near_m)
        cuts = [
            [covered for follower in followers for covered in follower.cut_to(around)]
            for followers in entry.followers
        ]
        if any(len(cut) != len(ids) for cut, (_, ids) in zip(cuts, entry.boxes, strict=True)):
            return False
        for cut, (shelf, ids) in zip(cuts, entry.boxes, strict=True):
            for box_id, covered in zip(ids, cut, strict=True):
                shelf.move(box_id, covered, place)
        return True

    def _put_anew(self, key: int, entry: _Entry, position: Position | None) -> None:
        wish = entry.subscription
        placed = [
            placed_in(shelf.space, wish, key, entry.birth_number, entry.weight, position)
            for shelf, _ in entry.boxes
        ]
        for (shelf, ids), new in zip(entry.boxes, placed, strict=True):
            shelf.take(ids)
            ids[:] = shelf.put(new)

    def _place(
        self, key: int, subscription: Subscription, weight: float, position: Position | None
    ) -> None:
        spaces = spaces_for(subscription, self.spaces.values())
        birth = self._next_birth
        placed = [placed_in(s, subscription, key, birth, weight, position) for s in spaces]
        entry = _Entry(subscription, birth, weight, position, [], _followers(subscription, spaces))
        for space, each in zip(spaces, placed, strict=True):
            shelf = self._shelf(space, subscription.topic_filter)
            entry.boxes.append((shelf, shelf.put(each)))
            shelf.owners += 1
        self._entries[key] = entry
        self._next_birth += 1

    def _clear(self, entry: _Entry) -> None:
        for shelf, ids in entry.boxes:
            shelf.take(ids)
            shelf.owners -= 1
            if not shelf.owners:
                topic_filter = entry.subscription.topic_filter
                self._trees[shelf.space.name].discard(topic_filter, topic_filter)

    def _shelf(self, space: Space, topic_filter: str) -> FilterIndex:
        tree = self._trees[space.name]
        shelf = tree.get(topic_filter, topic_filter)
        if shelf is None:
            shelf = FilterIndex(space)
            self.put_shelf(space, topic_filter, shelf)
        return shelf

    def _entry(self, key: int) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            raise KeyMissingError(f"the key {key}", expected="the key of a subscription")
        return entry


def _followers(wish: Subscription, spaces: list[Space]) -> list[list[MovingBox]]:
    if wish.near_m is None or wish.area is not None:
        return []
    return [
        [MovingBox.of(box, space, wish.near_m) for box in space.boxes(wish.where)]
        for space in spaces
    ]


def checked_weight(weight: float) -> float:
    """Return a weight as a float, or raise if it is no finite number."""
    if isinstance(weight, bool) or not math.isfinite(weight):
        raise OutOfRangeError(repr(weight), where="weight", expected="a finite number")
    return float(weight)
