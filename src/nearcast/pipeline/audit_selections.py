"""Whether the conditions of a subscription held for an event: asked as the broker asks.

The conditions are in the subscription's identity, the event's values in its payload, and where a
client was is the last position before the event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nearcast.index.topic_filters import topic_matches
from nearcast.model import Event, MisuseError, Subscription, read_subscription, split_prefixes
from nearcast.model.requests import SELECTING, decoded
from nearcast.model.sphere import distance_m

if TYPE_CHECKING:
    from nearcast.config.schema import SpaceSection

YES, PERHAPS, NO = 1, 0, -1
SURELY_M = 1.0  # beyond the radius; nearer ones are asked about exactly
Place = tuple[float, float, bool]


@dataclass(frozen=True, slots=True)
class Selecting:
    """The spaces that subscriptions put conditions on."""

    spaces: tuple[SpaceSection, ...]


class ConditionJudge:
    """Knows the spaces; reads events and subscriptions, each once."""

    def __init__(self, spaces: Sequence[SpaceSection]) -> None:
        self._spaces = spaces
        self._readers: dict[str, Any] = {}
        self._wishes: dict[str, Subscription] = {}
        self._last: tuple[str, bytes] | None = None
        self._event: Event | None = None

    def reads(self, topic: str) -> bool:
        """Tell whether an event's values are in its payload."""
        section = self._section(topic)
        return section is not None and section.values == "json"

    def reach_m(self, text: str) -> float | None:
        """Return how near an event has to be for a subscription; None if that is not asked."""
        return self._wish(text).near_m

    def position(self, topic: str, payload: bytes) -> tuple[float, float] | None:
        """Return where an event is; None if it is none, or at no point."""
        section = self._section(topic)
        event = None if section is None else self._read(section, topic, payload)
        return None if event is None or event.area is not None else event.position

    def _section(self, topic: str) -> SpaceSection | None:
        return next((one for one in self._spaces if topic_matches(one.topics, topic)), None)

    def covers(self, topic: str, payload: bytes, text: str, place: Place | None) -> int:
        """Tell whether a subscription wants an event.

        `place` is where its client was, and whether the broker may have forgotten that.
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
            if _is_far(event, place, wish.near_m):
                return NO
        return YES if wish.covers(event, None if place is None else place[:2]) else NO

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
            self._event = self._read_anew(section, topic, payload)
        return self._event

    def _read_anew(self, section: SpaceSection, topic: str, payload: bytes) -> Event | None:
        from nearcast.node.spaces import SpaceSettings
        from nearcast.node.values import EventReader

        if section.name not in self._readers:
            settings = SpaceSettings(space=section.to_space(), values="json", paths=section.paths())
            self._readers[section.name] = EventReader(settings)
        try:
            event: Event = self._readers[section.name].read(topic, payload, ())
        except MisuseError:
            return None
        return event


def _is_far(event: Event, place: Place, near_m: float) -> bool:
    """Tell whether an event is certainly not near: most are not, and that is quickly seen."""
    position = event.position
    if position is None or event.area is not None:
        return False
    return distance_m(*position, place[0], place[1]) > near_m + SURELY_M
