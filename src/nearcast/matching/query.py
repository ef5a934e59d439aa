"""An event as a query to filter indexes: its point or boxes, its place or area."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nearcast.model import MISSING, Box, Event
from nearcast.model.shape_text import Shape


@dataclass(frozen=True, slots=True)
class Query:
    """Computed once for an event, however many filter indexes are queried.

    `point` is None where the event is more than a point; then `boxes` are the boxes it covers.
    """

    point: tuple[float, ...] | None
    boxes: tuple[Box, ...]
    place: tuple[float, float] | None
    area: Shape | None

    @classmethod
    def of(cls, event: Event) -> Query:
        """Return the event as a query; O(attributes)."""
        point = _point(event)
        place = event.position
        if point is not None:
            return cls(point, (), place, None)
        boxes = event.boxes()
        if event.area is not None:
            place = _middle_of(event, boxes)
        return cls(None, boxes, place, event.area)

    @property
    def middle(self) -> tuple[float, ...]:
        """Return the point that `centre` compares with: for an extent, its middle.

        A missing value has none; infinity makes an attribute count nothing.
        """
        if self.point is not None:
            return self.point
        return tuple(_middle(side.closed_low, side.closed_high) for side in self.boxes[0].sides)


def _point(event: Event) -> tuple[float, ...] | None:
    if event.area is not None:
        return None
    fills_missing = event.space.missing == "none"
    point: list[float] = []
    for value in event.values:
        if isinstance(value, float):
            point.append(value)
        elif value is None and fills_missing:
            point.append(MISSING)
        else:
            return None
    return tuple(point)


def _middle(low: float, high: float) -> float:
    return low * 0.5 + high * 0.5 if math.isfinite(low) and math.isfinite(high) else math.inf


def _middle_of(event: Event, boxes: tuple[Box, ...]) -> tuple[float, float] | None:
    """Return the middle of the area's first box, from which `nearest` measures."""
    assert event.space.coordinates is not None
    lon, lat = (boxes[0].sides[place] for place in event.space.coordinates)
    return _middle(lon.closed_low, lon.closed_high), _middle(lat.closed_low, lat.closed_high)
