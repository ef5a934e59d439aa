"""Evaluates the conditions of a subscription for an event, with the code that the broker uses.

The conditions are in the subscription's text, the event's values in its payload; the position of a
client is the last one logged before the event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nearcast.index.topic_filters import topic_matches
from nearcast.model import Event, MisuseError, Subscription
from nearcast.model.event_decoder import EventDecoder
from nearcast.model.requests import parse_identity
from nearcast.model.sphere import distance_m
from nearcast.model.where.expression import Expression

if TYPE_CHECKING:
    from nearcast.config.schema import SpaceSection

YES, PERHAPS, NO = 1, 0, -1
SURELY_M = 1.0  # from the radius; what is closer to it is asked about exactly
Place = tuple[float, float, bool]


class ConditionJudge:
    """Evaluates conditions; parses each subscription once and the last event once."""

    def __init__(self, spaces: Sequence[SpaceSection]) -> None:
        self._spaces = spaces
        self._readers: dict[str, EventDecoder] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._last: tuple[str, bytes] | None = None
        self._event: Event | None = None
        self._held: dict[Expression, bool] = {}  # conditions that this event was compared with

    def reads(self, topic: str) -> bool:
        """Return whether a topic's events have their values in the payload."""
        section = self._section(topic)
        return section is not None and section.values == "json"

    def reach_m(self, text: str) -> float | None:
        """Return the radius of a `$near` subscription in metres; None for others."""
        return self._subscription(text).near_m

    def position(self, topic: str, payload: bytes) -> tuple[float, float] | None:
        """Return the position of an event; None if it is no valid event or not at a point."""
        section = self._section(topic)
        event = None if section is None else self._read(section, topic, payload)
        return None if event is None or event.area is not None else event.position

    def _section(self, topic: str) -> SpaceSection | None:
        return next((space for space in self._spaces if topic_matches(space.topics, topic)), None)

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
        subscription = self._subscription(text)
        if subscription.near_m is not None and place is not None:
            if place[2]:
                return PERHAPS
            reach = _reach(event, place, subscription.near_m)
            if reach == NO:
                return NO
            if reach == YES and subscription.area is None:
                return YES if self._conditions_hold(subscription, event) else NO
        return YES if subscription.covers(event, None if place is None else place[:2]) else NO

    def _conditions_hold(self, subscription: Subscription, event: Event) -> bool:
        """Return whether an event fits `$where`, wherever the client is; worked out once."""
        if subscription.where is None:
            return True
        if subscription.where not in self._held:
            self._held[subscription.where] = replace(subscription, near_m=None).covers(event)
        return self._held[subscription.where]

    def _subscription(self, text: str) -> Subscription:
        subscription = self._subscriptions.get(text)
        if subscription is None:
            subscription = self._subscriptions[text] = parse_identity(text)
        return subscription

    def _read(self, section: SpaceSection, topic: str, payload: bytes) -> Event | None:
        if self._last != (topic, payload):
            self._last = (topic, payload)
            self._held.clear()
            self._event = self._read_anew(section, topic, payload)
        return self._event

    def _read_anew(self, section: SpaceSection, topic: str, payload: bytes) -> Event | None:
        if section.name not in self._readers:
            self._readers[section.name] = EventDecoder(section.to_space(), "json", section.paths())
        try:
            return self._readers[section.name].read(topic, payload, ())
        except MisuseError:
            return None


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
