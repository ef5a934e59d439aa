"""Evaluates the conditions of a subscription for an event, with the code that the broker uses.

The conditions are in the subscription's text, the event's values in its payload; the position of a
client is the last one logged before the event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nearcast.index.topic_filters import topic_matches
from nearcast.model import Event, MisuseError, Subscription, read_subscription, split_prefixes
from nearcast.model.requests import SELECTING, decoded
from nearcast.model.sphere import distance_m
from nearcast.model.where.expression import Expression

if TYPE_CHECKING:
    from nearcast.config.schema import SpaceSection

YES, PERHAPS, NO = 1, 0, -1
SURELY_M = 1.0  # from the radius; what is closer to it is asked about exactly
Place = tuple[float, float, bool]


@dataclass(frozen=True, slots=True)
class Selecting:
    """The spaces to which conditions of subscriptions refer."""

    spaces: tuple[SpaceSection, ...]


class ConditionJudge:
    """Evaluates conditions; parses each subscription once and the last event once."""

    def __init__(self, spaces: Sequence[SpaceSection]) -> None:
        self._spaces = spaces
        self._readers: dict[str, Any] = {}
        self._wishes: dict[str, Subscription] = {}
        self._last: tuple[str, bytes] | None = None
        self._event: Event | None = None
        self._held: dict[Expression, bool] = {}  # conditions that this event was compared with

    def reads(self, topic: str) -> bool:
        """Return whether a topic's events have their values in the payload."""
        section = self._section(topic)
        return section is not None and section.values == "json"

    def reach_m(self, text: str) -> float | None:
        """Return the radius of a `$near` subscription in metres; None for others."""
        return self._wish(text).near_m

    def position(self, topic: str, payload: bytes) -> tuple[float, float] | None:
        """Return the position of an event; None if it is no valid event or not at a point."""
        section = self._section(topic)
        event = None if section is None else self._read(section, topic, payload)
        return None if event is None or event.area is not None else event.position

    def _section(self, topic: str) -> SpaceSection | None:
        return next((one for one in self._spaces if topic_matches(one.topics, topic)), None)

    def covers(self, topic: str, payload: bytes, text: str, place: Place | None) -> int:
        """Return YES, NO or PERHAPS: whether a subscription covers an event.

        `place` is the position of its client, and whether the broker may have forgotten it.
        """
        section = self._section(topic)
        if section is None or section.values != "json":
            return PERHAPS
        event = self._read(section, topic, payload)
        if event is None:
            return NO
        wish = self._wish(text)
        if wish.near_m is not None and place is not None:
            if place[2]:
                return PERHAPS
            reach = _reach(event, place, wish.near_m)
            if reach == NO:
                return NO
            if reach == YES and wish.area is None:
                return YES if self._conditions_hold(wish, event) else NO
        return YES if wish.covers(event, None if place is None else place[:2]) else NO

    def _conditions_hold(self, wish: Subscription, event: Event) -> bool:
        """Return whether an event fits `$where`, wherever the client is; worked out once."""
        if wish.where is None:
            return True
        if wish.where not in self._held:
            self._held[wish.where] = replace(wish, near_m=None).covers(event)
        return self._held[wish.where]

    def _wish(self, text: str) -> Subscription:
        wish = self._wishes.get(text)
        if wish is None:
            bare = text.split("/", 2)[2] if text.startswith("$share/") else text
            pairs, topic_filter = split_prefixes(bare, SELECTING)
            wish = read_subscription(topic_filter, decoded(pairs)).subscription
            self._wishes[text] = wish
        return wish

    def _read(self, section: SpaceSection, topic: str, payload: bytes) -> Event | None:
        if self._last != (topic, payload):
            self._last = (topic, payload)
            self._held.clear()
            self._event = self._read_anew(section, topic, payload)
        return self._event

    def _read_anew(self, section: SpaceSection, topic: str, payload: bytes) -> Event | None:
        from nearcast.broker.content.event_decoder import EventDecoder
        from nearcast.broker.content.spaces import SpaceSettings

        if section.name not in self._readers:
            settings = SpaceSettings(space=section.to_space(), values="json", paths=section.paths())
            self._readers[section.name] = EventDecoder(settings)
        try:
            event: Event = self._readers[section.name].read(topic, payload, ())
        except MisuseError:
            return None
        return event


def _reach(event: Event, place: Place, near_m: float) -> int:
    """Return YES or NO where it is certain that an event is near; else PERHAPS, for a closer look.

    Most events are far away, most others well within reach, and both are quickly seen.
    """
    position = event.position
    if position is None or event.area is not None:
        return PERHAPS
    away_m = distance_m(*position, place[0], place[1])
    if away_m > near_m + SURELY_M:
        return NO
    return YES if away_m < near_m - SURELY_M else PERHAPS
