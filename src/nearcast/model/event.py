"""An event: a point of a space, or a box where values are missing or an extent is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from nearcast.model.box import EVERYTHING, MISSING, Box, Interval
from nearcast.model.errors import MisuseError, OutOfRangeError
from nearcast.model.shape_text import Shape
from nearcast.model.space import Space
from nearcast.model.wording import shown


@dataclass(frozen=True, slots=True)
class Event:
    """A publication as the matcher sees it. Make one with `Event.of`.

    `values` has one entry for each attribute of the space: a coordinate, an interval (an extent),
    or None where the value is missing. `area` is an extent on the earth.
    """

    topic: str
    space: Space
    values: tuple[float | Interval | None, ...]
    area: Shape | None = None

    @classmethod
    def of(
        cls, space: Space, topic: str, values: Mapping[str, object], area: Shape | None = None
    ) -> Event:
        """Return the event with these values by name; O(attributes).

        A number may be given as text, as an Interval (an extent), or left out or None (missing).
        Raises UnknownNameError, OutOfRangeError, or MisuseError where a required value is missing.

        >>> from nearcast.model import Attribute
        >>> shop = Space(name="shop", topic_filter="#", attributes=(
        ...     Attribute.number("price", 0, 99), Attribute.category("kind", ["food", "tools"])))
        >>> Event.of(shop, "shops/5", {"price": "9.5", "kind": "tools"}).point
        (9.5, 1.0)
        """
        for name in values:
            space.place_of(name)
        encoded = tuple(_value(space, place, values) for place in range(space.dimensions))
        event = cls(topic, space, encoded, area)
        event._check_required()
        if area is not None:
            event.boxes()  # refuses an area outside the space
        return event

    def _check_required(self) -> None:
        if self.area is not None and self.space.coordinates is None:
            raise MisuseError(
                "an area", where=f"space {self.space.name}", expected="a space with coordinates"
            )
        given = self._coordinates() if self.area is not None else ()
        for place, attribute in enumerate(self.space.attributes):
            required = attribute.name in (self.space.required or ())
            if required and self.values[place] is None and place not in given:
                raise MisuseError(
                    f"no {attribute.name}",
                    where=f"space {self.space.name}",
                    expected=f"a value ({attribute.range_text}), as it is required",
                )

    def _coordinates(self) -> tuple[int, ...]:
        return self.space.coordinates or ()

    @property
    def position(self) -> tuple[float, float] | None:
        """Return longitude and latitude if the event has both."""
        place = [self.values[each] for each in self._coordinates()]
        numbers = [each for each in place if isinstance(each, float)]
        return (numbers[0], numbers[1]) if len(numbers) == 2 else None

    @property
    def point(self) -> tuple[float, ...] | None:
        """Return the coordinates if the event is one point, or None.

        A missing value is at MISSING where the space has `missing = "none"`: only the side of an
        unconstrained attribute contains it.
        """
        if self.area is not None:
            return None
        missing = MISSING if self.space.missing == "none" else None
        values = (missing if value is None else value for value in self.values)
        point = tuple(value for value in values if isinstance(value, float))
        return point if len(point) == len(self.values) else None

    def boxes(self) -> tuple[Box, ...]:
        """Return the boxes that contain everything the event covers; O(attributes).

        One, unless an area needs several. Raises OutOfRangeError for an area outside the space.
        """
        sides = [self._side(value) for value in self.values]
        if self.area is None or self.space.coordinates is None:
            return (Box(tuple(sides)),)
        for place in self.space.coordinates:
            sides[place] = EVERYTHING  # the area gives the coordinates
        boxes = area_boxes(self.space, self.area, Box(tuple(sides)))
        if boxes:
            return boxes
        raise OutOfRangeError(
            f"the area {shown(str(self.area))}",
            where=f"space {self.space.name}",
            expected="an area that meets the space's longitudes and latitudes",
        )

    def _side(self, value: float | Interval | None) -> Interval:
        if isinstance(value, Interval):
            return value
        if value is not None:
            return Interval(value, value)
        return EVERYTHING if self.space.missing == "all" else Interval(MISSING, MISSING)


def _value(space: Space, place: int, values: Mapping[str, object]) -> float | Interval | None:
    attribute = space.attributes[place]
    value = values.get(attribute.name)
    if value is None:
        return None
    if not isinstance(value, Interval):
        return attribute.encode(value)
    if attribute.is_category or place in (space.coordinates or ()):
        raise MisuseError(
            f"the interval {value}",
            where=attribute.name,
            expected="one category, one coordinate, or an area as a shape",
        )
    for end in (value.low, value.high):
        attribute.encode(end)
    return value


def area_boxes(space: Space, area: Shape, box: Box) -> tuple[Box, ...]:
    """Return `box` cut to the area's covering boxes and the space's own longitudes and latitudes.

    No box: they do not meet.
    """
    assert space.coordinates is not None
    covers = (_on_coordinates(space, cover.sides) for cover in area.boxes())
    frame = _framed(space, box)
    cut = (frame.intersection(cover) for cover in covers) if frame is not None else ()
    return tuple(each for each in cut if each is not None)


@lru_cache(maxsize=64)  # many areas of one space are cut to the same box
def _framed(space: Space, box: Box) -> Box | None:
    return box.intersection(_on_coordinates(space, _coordinate_sides(space)))


def _coordinate_sides(space: Space) -> tuple[Interval, ...]:
    return tuple(space.extent.sides[place] for place in space.coordinates or ())


def _on_coordinates(space: Space, sides: tuple[Interval, ...]) -> Box:
    """Return the box with these two sides and no other constraint."""
    whole = [EVERYTHING] * space.dimensions
    for place, side in zip(space.coordinates or (), sides, strict=True):
        whole[place] = side
    return Box(tuple(whole))
