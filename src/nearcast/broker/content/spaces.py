"""The spaces of a broker as configured: where an event's values are, and the defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from nearcast.broker.settings import BrokerSettings
from nearcast.index.topic_filters import filters_overlap, topic_matches
from nearcast.model import MisuseError, Space
from nearcast.model.grid import Place, coarse_place
from nearcast.model.wording import listed


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSettings:
    """A space, where its events' values are, and its defaults.

    `paths` leads from the payload to an attribute, where that is not the field of its name.
    `offline` says whether a subscriber that is not connected counts among the best of `$top`.
    `hysteresis` is the fraction of the radius that a client must go beyond it before range entry
    delivers a retained message again.

    `positions` says who may learn where a client is: nobody; publishers to the space, from the
    answers to what they publish; or all who may subscribe to `$position/<client>`.
    """

    space: Space
    values: Literal["json", "properties"] = "json"
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    top: int | None = None
    rank: str = "narrowest"
    lifetime_ms: int | None = None
    order: str | None = None
    retained: str | None = None
    offline: Literal["counts", "skipped"] = "counts"
    hysteresis: float = 0.1
    positions: Literal["private", "publishers", "public"] = "private"
    # Whether no answer may depend on where a client is; asked for every message.
    hides_positions: bool = field(init=False, metadata={"internal": True})

    def __post_init__(self) -> None:
        hides = self.positions == "private" and self.space.coordinates is not None
        object.__setattr__(self, "hides_positions", hides)


class SpaceTable:
    """The space of each topic, at most one. O(spaces) per call; routes cache the answer."""

    def __init__(self, spaces: Iterable[SpaceSettings]) -> None:
        self.all = tuple(spaces)
        for place, one in enumerate(self.all):
            for other in self.all[:place]:
                _check_apart(one.space, other.space)

    def of_topic(self, topic: str) -> SpaceSettings | None:
        """Return the space that a topic belongs to."""
        for one in self.all:
            if topic_matches(one.space.topic_filter, topic):
                return one
        return None

    def meets(self, topic_filter: str) -> bool:
        """Return whether some topic of a space matches the filter."""
        return any(filters_overlap(topic_filter, one.space.topic_filter) for one in self.all)

    @property
    def declared(self) -> str:
        """The names and topics of all spaces, as text for people."""
        names = [f"{one.space.name} ({one.space.topic_filter})" for one in self.all]
        return f"declared: {listed(names) or 'none'}"

    @property
    def shows_positions(self) -> bool:
        """Whether some space makes positions public."""
        return any(one.positions == "public" for one in self.all)

    @property
    def hides_positions(self) -> bool:
        """Whether some space keeps positions private."""
        return any(one.hides_positions for one in self.all)


def _check_apart(one: Space, other: Space) -> None:
    if filters_overlap(one.topic_filter, other.topic_filter):
        raise MisuseError(
            f"the topics {one.topic_filter!r} and {other.topic_filter!r}",
            where=f"spaces {other.name} and {one.name}",
            expected="spaces that share no topic",
            todo="A topic belongs to one space; give one of them other topics.",
        )


def order_complaint(settings: SpaceSettings, order: str | None) -> str:
    """Return a warning for a `$order` of causal in a space without a causal group, or ""."""
    if order != "causal" or settings.order == "causal":
        return ""
    return (
        f"$order: space {settings.space.name} has no causal group, so other nodes deliver this in "
        'the order of arrival; set order = "causal" in its [[space]]'
    )


def at_grid(settings: BrokerSettings, position: Place) -> Place:
    """Return a client's position as the broker keeps it: rounded to the grid, if there is one."""
    step_m = settings.position_grid_m
    return coarse_place(position, step_m) if step_m else position
