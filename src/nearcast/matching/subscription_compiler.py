"""Compile a subscription: which spaces, which boxes, which exact shapes."""

from __future__ import annotations

from collections.abc import Iterable

from nearcast.index.topic_filters import filters_overlap
from nearcast.matching.filter_index import FilterIndexEntry
from nearcast.model import (
    BoundingBox,
    Circle,
    MisuseError,
    Polygon,
    Space,
    Subscription,
    UnknownNameError,
    names_in,
)
from nearcast.model.shape_text import Shape

Position = tuple[float, float]


def spaces_for(subscription: Subscription, spaces: Iterable[Space]) -> list[Space]:
    """Return the spaces in which the subscription can match something.

    A filter may span several spaces. A space without an attribute of the conditions, or without
    coordinates for an area, is left out; an attribute that none of them has is an error.
    """
    topical = [s for s in spaces if filters_overlap(subscription.topic_filter, s.topic_filter)]
    if not topical:
        raise MisuseError(
            f"the filter {subscription.topic_filter!r}",
            expected="one that meets the topics of a declared space",
            todo="Declare a [[space]] for these topics, or subscribe without conditions",
        )
    names = frozenset() if subscription.where is None else names_in(subscription.where)
    for name in names:
        if not any(_has(space, name) for space in topical):
            if len(topical) == 1:
                topical[0].boxes(subscription.where)  # raises, and names the position
            topical[0].place_of(name)  # raises, and lists the known names
    needs_place = subscription.area is not None or subscription.near_m is not None
    if needs_place and not any(space.coordinates for space in topical):
        raise MisuseError(
            "an area",
            where=f"space {topical[0].name}",
            expected="a space with longitude and latitude",
        )
    return [
        space
        for space in topical
        if all(_has(space, name) for name in names) and (space.coordinates or not needs_place)
    ]


def _has(space: Space, name: str) -> bool:
    try:
        space.place_of(name)
    except UnknownNameError:
        return False
    return True


def placed_in(
    space: Space,
    subscription: Subscription,
    key: int,
    birth_number: int,
    weight: float,
    at: Position | None,
) -> FilterIndexEntry:
    """Return the entry of the subscription for a filter index of the space, its owner at `at`."""
    shapes = subscription.shapes(at) or ()
    boxes = subscription.boxes(space, at)
    circle = next((shape for shape in reversed(shapes) if isinstance(shape, Circle)), None)
    others = [shape for shape in shapes if shape is not circle]
    return FilterIndexEntry(
        key=key,
        birth_number=birth_number,
        weight=weight,
        boxes=boxes,
        place=_place_of(shapes),
        radius_m=circle.radius_m if circle else None,
        rough=tuple(shape for shape in others if not isinstance(shape, BoundingBox)),
        flat=tuple(shape for shape in others if isinstance(shape, BoundingBox)),
    )


def _place_of(shapes: tuple[Shape, ...]) -> Position | None:
    """Return the subscriber's place if known (`$near` comes last), else the area's middle."""
    return middle_of(shapes[-1]) if shapes else None


def middle_of(shape: Shape) -> Position:
    """Return the place that represents a shape.

    >>> middle_of(BoundingBox(170, 0, -170, 10))
    (180.0, 5.0)
    """
    if isinstance(shape, Circle):
        return shape.lon, shape.lat
    if isinstance(shape, Polygon):
        middle = shape.geometry.centroid
        return float(middle.x), float(middle.y)
    width = (shape.east - shape.west) % 360 if shape.west > shape.east else shape.east - shape.west
    lon = shape.west + width / 2
    return lon - 360 if lon > 180 else lon, (shape.south + shape.north) / 2
