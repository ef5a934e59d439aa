"""The ranking of an event's subscribers: all that match, or the k best of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import merge
from typing import TYPE_CHECKING, Protocol

from nearcast.broker.publish.routes import Route
from nearcast.broker.publish.share_groups import GroupKey
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.model import Event
from nearcast.model.ranks import plain_score
from nearcast.mqtt.wire import encode_string

if TYPE_CHECKING:
    from nearcast.matching import Matcher


@dataclass(slots=True)
class Candidate:
    """A subscription that matches, and how well: a lower score is better, then the older one."""

    score: float
    birth_number: int  # the number of the subscription: a greater one is younger
    subscription: SessionSubscription
    accuracy: float = 0.0
    distance_m: float | None = None

    def __lt__(self, other: Candidate) -> bool:
        return (self.score, self.birth_number) < (other.score, other.birth_number)


@dataclass(slots=True)
class Chosen:
    """One of the best, with its place among them (from 1).

    `standing` is the candidate that earned the place, if it is another: a member of the same share
    group that is not connected and is replaced by its best connected member.
    """

    place: int
    candidate: Candidate
    standing: Candidate | None = None


Fits = Callable[[SessionSubscription], bool]


class RankedSubscriptions(Protocol):
    """A matcher, and the subscriptions behind its keys."""

    matcher: Matcher
    by_number: dict[int, SessionSubscription]


class TopK:
    """Ranks subscriptions for an event.

    A plain subscription ranks as one without conditions: it is as wide as the space, has no place,
    and its centre is everywhere. k counts clients, and a share group counts as one; each ranks by
    its best subscription, and ties go to the older one.
    """

    def __init__(self, selections: RankedSubscriptions) -> None:
        self._selections = selections

    def best(
        self, route: Route, event: Event | None, k: int | None, rank: str, fits: Fits
    ) -> list[Chosen]:
        """Return the best k clients and groups, each by its best subscription; None: all.

        Complexity: as `Matcher.top` for a few more than k; more where one client has many of the
        best.
        """
        units: dict[Session | GroupKey, Candidate] = {}
        for candidate in self.ranked(route, event, k, rank):
            if not fits(candidate.subscription):
                continue
            unit = _unit(candidate.subscription)
            if unit not in units:
                units[unit] = candidate
                if len(units) == k:
                    break
        return [Chosen(place, one) for place, one in enumerate(units.values(), start=1)]

    def with_present_members(
        self, route: Route, event: Event | None, rank: str, chosen: list[Chosen], fits: Fits
    ) -> list[Chosen]:
        """Replace members of share groups that are not connected by connected ones; O(matches)."""
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

        A group may be among the best of all nodes by a member elsewhere that is not connected.
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
        """Yield all matching subscriptions, best first; asks the matcher for about k at once."""
        is_plain = route.by_session or route.shared
        plain = sorted(_plain_candidates(route, rank)) if is_plain else []
        if event is None:
            yield from plain
            return
        told = 0
        for batch, is_all in self._batches(event, k, rank):
            whole = list(merge(plain, batch)) if plain else batch
            end = len(whole)
            if (
                plain and not is_all
            ):  # the next batch may precede the entries behind this batch's last
                end = next(i for i, one in enumerate(whole) if one is batch[-1]) + 1
            yield from whole[told:end]
            told = end

    def _batches(
        self, event: Event, k: int | None, rank: str
    ) -> Iterator[tuple[list[Candidate], bool]]:
        matcher, by_number = self._selections.matcher, self._selections.by_number
        want = len(by_number) if k is None else k
        while True:
            want = max(1, min(want, len(by_number)))
            batch = [
                Candidate(one.score, key := one.key, by_number[key], one.accuracy, one.distance_m)
                for one in matcher.top(event, want, rank)
            ]
            is_all = len(batch) < want or want == len(by_number)
            yield batch, is_all
            if is_all:
                return
            want *= 4


def _unit(one: SessionSubscription) -> Session | GroupKey:
    """Return what counts as one in a top-k: the share group, or the client's session."""
    return (one.group, one.topic_filter) if one.group else one.session


def _plain_candidates(route: Route, rank: str) -> Iterator[Candidate]:
    for subscriptions in route.by_session.values():
        for one in subscriptions:
            yield Candidate(plain_score(rank, one.weight), one.number, one)
    for group in route.shared:
        for one in group.members.values():
            yield Candidate(plain_score(rank, one.weight), one.number, one)


def without_hidden(chosen: list[Chosen]) -> list[Chosen]:
    """Return places that tell nothing of where others are: `$near` ones of others do not count."""
    place, told = 1, []
    for one in chosen:
        told.append(Chosen(place, one.candidate, one.standing))
        place += not one.candidate.subscription.is_near
    return told


def is_absent_member(chosen: Chosen) -> bool:
    """Return whether a share group is represented by a member that is not connected."""
    one = chosen.candidate.subscription
    return bool(one.group) and one.session.link is None


def told_properties(chosen: Chosen) -> bytes:
    """Return `$rank` (if the place may be told) and `$distance` as encoded user properties."""
    pairs = [("$rank", str(chosen.place))] if chosen.place else []
    if chosen.candidate.distance_m is not None:
        pairs.append(("$distance", f"{chosen.candidate.distance_m:.1f}"))
    return b"".join(b"\x26" + encode_string(name) + encode_string(text) for name, text in pairs)
