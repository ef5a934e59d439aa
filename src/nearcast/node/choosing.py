"""Who gets a message of a space: everyone it matches, or the k best of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import merge

from nearcast.model import Event
from nearcast.mqtt.wire import encode_string
from nearcast.node.routes import Route
from nearcast.node.selections import GroupKey, Selections
from nearcast.node.session import Session, Subscription


@dataclass(frozen=True, slots=True)
class Candidate:
    """A subscription that matches, and how well; less is better, then the older one."""

    score: float
    age: int
    subscription: Subscription
    accuracy: float = 0.0
    distance_m: float | None = None

    def __lt__(self, other: Candidate) -> bool:
        return (self.score, self.age) < (other.score, other.age)


@dataclass(frozen=True, slots=True)
class Chosen:
    """One of the best, with its place among them (from 1).

    `standing` is by whom it has that place, if not by itself: a member of its share group who is
    away, and gives way to the best one who is connected.
    """

    place: int
    candidate: Candidate
    standing: Candidate | None = None


Fits = Callable[[Subscription], bool]


class Choosing:
    """Ranks subscriptions for an event.

    A plain subscription ranks as one without conditions: it is as wide as the space, has no place,
    and its centre is everywhere. k counts clients, and a share group counts as one; each is
    as good as its best subscription, and ties go to the older one.
    """

    def __init__(self, selections: Selections) -> None:
        self._selections = selections

    def best(
        self, route: Route, event: Event | None, k: int | None, rank: str, fits: Fits
    ) -> list[Chosen]:
        """Return the best k clients and groups, each by its best subscription; None: all.

        Complexity: as `Matcher.top` for a few more than k; more where one client holds many of
        the best.
        """
        units: dict[Session | GroupKey, Candidate] = {}
        for candidate in self.ranked(route, event, k, rank):
            if not fits(candidate.subscription):
                continue
            unit = _unit(candidate.subscription)
            if unit not in units:
                if k is not None and len(units) == k:
                    break
                units[unit] = candidate
        return [Chosen(place, one) for place, one in enumerate(units.values(), start=1)]

    def with_present_members(
        self, route: Route, event: Event | None, rank: str, chosen: list[Chosen], fits: Fits
    ) -> list[Chosen]:
        """Put connected members of share groups in the place of those that are away; O(matches)."""
        present = self._present_members(route, event, rank, fits)
        return [
            Chosen(
                one.place,
                present.get(_unit(one.candidate.subscription), one.candidate),
                one.candidate,
            )
            for one in chosen
        ]

    def spares(
        self, route: Route, event: Event | None, rank: str, chosen: list[Chosen], fits: Fits
    ) -> list[Chosen]:
        """Return the best connected members of all other share groups; O(matches).

        A group may be among the best of all nodes by a member elsewhere who is away.
        """
        present = self._present_members(route, event, rank, fits)
        for one in chosen:
            present.pop(_unit(one.candidate.subscription), None)
        places = range(len(chosen) + 1, len(chosen) + 1 + len(present))
        return [Chosen(place, one) for place, one in zip(places, present.values(), strict=True)]

    def _present_members(
        self, route: Route, event: Event | None, rank: str, fits: Fits
    ) -> dict[Session | GroupKey, Candidate]:
        """Return the best connected member of each share group."""
        present: dict[Session | GroupKey, Candidate] = {}
        for candidate in self.ranked(route, event, None, rank):
            one = candidate.subscription
            if one.group and one.session.link is not None and fits(one):
                present.setdefault(_unit(one), candidate)
        return present

    def ranked(
        self, route: Route, event: Event | None, k: int | None, rank: str
    ) -> Iterator[Candidate]:
        """Yield all subscriptions that match, best first; about k of them are asked for at once."""
        plain = sorted(_plain_candidates(route, rank))
        if event is None:
            yield from plain
            return
        told = 0
        for batch, is_all in self._batches(event, k, rank):
            whole = list(merge(plain, batch))
            end = len(whole)
            if not is_all:  # what is behind the last of the batch may have others before it
                end = next(i for i, one in enumerate(whole) if one is batch[-1]) + 1
            yield from whole[told:end]
            told = end

    def _batches(
        self, event: Event, k: int | None, rank: str
    ) -> Iterator[tuple[list[Candidate], bool]]:
        matcher, by_number = self._selections.matcher, self._selections.by_number
        want = len(by_number) if k is None else 2 * k + 8
        while True:
            want = max(1, min(want, len(by_number)))
            batch = [
                Candidate(one.score, one.key, by_number[one.key], one.accuracy, one.distance_m)
                for one in matcher.top(event, want, rank)
            ]
            is_all = len(batch) < want or want == len(by_number)
            yield batch, is_all
            if is_all:
                return
            want *= 4


def _unit(one: Subscription) -> Session | GroupKey:
    return (one.group, one.topic_filter) if one.group else one.session


def _plain_candidates(route: Route, rank: str) -> Iterator[Candidate]:
    for subscriptions in route.holders.values():
        for one in subscriptions:
            yield Candidate(_plain_score(one, rank), one.number, one)
    for group in route.shared:
        for one in group.members.values():
            yield Candidate(_plain_score(one, rank), one.number, one)


def _plain_score(one: Subscription, rank: str) -> float:
    if rank == "weight":
        return -one.weight
    return math.inf if rank == "nearest" else 0.0


def is_absent_member(chosen: Chosen) -> bool:
    """Say whether a share group is represented by a member that is not connected."""
    one = chosen.candidate.subscription
    return bool(one.group) and one.session.link is None


def told_properties(chosen: Chosen) -> bytes:
    """Return `$rank` and `$distance` as user properties."""
    pairs = [("$rank", str(chosen.place))]
    if chosen.candidate.distance_m is not None:
        pairs.append(("$distance", f"{chosen.candidate.distance_m:.1f}"))
    return b"".join(b"\x26" + encode_string(name) + encode_string(text) for name, text in pairs)
