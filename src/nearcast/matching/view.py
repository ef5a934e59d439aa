"""The queries that a matcher answers; `matcher.py` adds the changes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from nearcast.index.topic_tree import TopicTree
from nearcast.matching.event_pairs import joined
from nearcast.matching.filter_index import FilterIndex, Ids
from nearcast.matching.query import Query
from nearcast.matching.ranking import Match, Rank, checked_k, checked_rank
from nearcast.model import MISSING, Event, MisuseError, OutOfRangeError, Space

_NONE = np.empty(0, np.int64)


class MatcherView:
    """Filter indexes of subscriptions, one for each topic filter and space, read-only.

    `nearcast.matching.open_matcher` returns one from files; a `Matcher` is one that can change.
    """

    def __init__(self, spaces: Iterable[Space]) -> None:
        self.spaces = {space.name: space for space in spaces}
        self._trees: dict[str, TopicTree[str, FilterIndex]] = {
            name: TopicTree() for name in self.spaces
        }

    @classmethod
    def of_boxes(
        cls,
        space: Space,
        keys: npt.ArrayLike,
        lows: npt.ArrayLike,
        highs: npt.ArrayLike,
        *,
        weights: npt.ArrayLike | None = None,
    ) -> MatcherView:
        """Return a view of plain boxes on all of a space's topics, built at once.

        A box has closed bounds, infinite for an unconstrained attribute; row order is birth order.
        """
        view = cls([space])
        view.put_shelf(
            space, space.topic_filter, FilterIndex.of_boxes(space, keys, lows, highs, weights)
        )
        return view

    def match(self, event: Event) -> list[int]:
        """Return the keys of all subscriptions that match the event, each once."""
        shelves = self._shelves(event.space.name, event.topic)
        if not shelves:
            return []
        query = Query.of(event)
        if len(shelves) == 1:
            return shelves[0].match(query)
        return [key for shelf in shelves for key in shelf.match(query)]

    def match_point(self, space: str, topic: str, point: tuple[float, ...]) -> list[int]:
        """Return what `match` returns for an event that is one point (`Event.point`), faster."""
        shelves = self._trees[space].match(topic)
        if len(shelves) == 1:
            return shelves[0].match_point(point)
        return [key for shelf in shelves for key in shelf.match_point(point)]

    def top(self, event: Event, k: int, rank: Rank = "narrowest") -> list[Match]:
        """Return the k best matches, best first."""
        checked_k(k)
        rank = checked_rank(rank)
        query = Query.of(event)
        shelves = self._shelves(event.space.name, event.topic)
        if len(shelves) == 1:
            return shelves[0].matches(shelves[0].top(query, k, rank), query)
        found = [(each, shelf) for shelf in shelves for each in shelf.top(query, k, rank)]
        found.sort(key=lambda pair: pair[0][:2])
        return [match for one, shelf in found[:k] for match in shelf.matches([one], query)]

    def match_points(self, space: str, topic: str, points: npt.ArrayLike) -> tuple[Ids, Ids]:
        """Match many events of one topic: event e has the keys `keys[offsets[e]:offsets[e + 1]]`.

        A row has the coordinates in the order of the space's attributes; `nearcast.model.MISSING`
        represents a missing value where the space's `missing` is "none".
        """
        rows = self._checked_points(space, points)
        parts = [shelf.match_points(rows) for shelf in self._shelves(space, topic)]
        return joined(parts, len(rows))

    def count_points(self, space: str, topic: str, points: npt.ArrayLike) -> tuple[Ids, Ids]:
        """Return the keys that match some of many events of one topic, and how many events each.

        The same as counting the keys of `match_points`, but no pair is kept.
        """
        rows = self._checked_points(space, points)
        found = [shelf.count_points(rows) for shelf in self._shelves(space, topic)]
        keys = np.concatenate([_NONE, *(keys for keys, _ in found)])
        return keys, np.concatenate([_NONE, *(counts for _, counts in found)])

    def top_points(
        self, space: str, topic: str, points: npt.ArrayLike, k: int, rank: Rank = "narrowest"
    ) -> Ids:
        """Rank for many events of one topic: an (events, k) array of keys, -1 where fewer match."""
        checked_k(k)
        rank = checked_rank(rank)
        rows = self._checked_points(space, points)
        shelves = self._shelves(space, topic)
        if len(shelves) == 1 and (answer := shelves[0].top_points(rows, k, rank)) is not None:
            return answer
        keys = np.full((len(rows), k), -1, np.int64)
        for i, row in enumerate(rows.tolist()):
            event = self._event(space, topic, row)
            best = [match.key for match in self.top(event, k, rank)]
            keys[i, : len(best)] = best
        return keys

    def _event(self, space: str, topic: str, row: list[float]) -> Event:
        values = tuple(None if value == MISSING else value for value in row)
        return Event(topic, self.spaces[space], values)

    def shelves(self) -> Iterable[tuple[Space, str, FilterIndex]]:
        """Yield every filter index with its space and topic filter."""
        for name, tree in self._trees.items():
            for topic_filter, shelf in tree.items():
                yield self.spaces[name], topic_filter, shelf

    def put_shelf(self, space: Space, topic_filter: str, shelf: FilterIndex) -> None:
        """Add a filter index under its topic filter."""
        self._trees[space.name].put(topic_filter, topic_filter, shelf)

    def _shelves(self, space: str, topic: str) -> tuple[FilterIndex, ...]:
        tree = self._trees.get(space)
        if tree is None:
            known = ", ".join(self.spaces)
            raise MisuseError(f"the space {space!r}", expected=f"one of {known}")
        return tree.match(topic)

    def _checked_points(self, space: str, points: npt.ArrayLike) -> npt.NDArray[np.float64]:
        if space not in self.spaces:
            self._shelves(space, "")
        dimensions = self.spaces[space].dimensions
        rows = np.ascontiguousarray(points, np.float64)
        if rows.ndim != 2 or rows.shape[1] != dimensions:
            expected = f"an array of (events, {dimensions})"
            raise MisuseError(f"an array of shape {rows.shape}", where="points", expected=expected)
        if not np.isfinite(rows).all():
            raise OutOfRangeError("NaN or infinity", where="points", expected="numbers")
        if self.spaces[space].missing == "all" and (rows == MISSING).any():
            expected = "numbers: a value missing from this space stands for all, which is no point"
            raise OutOfRangeError("MISSING", where="points", expected=expected)
        return rows
