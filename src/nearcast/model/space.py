"""A space: the attributes that the events of some topics carry."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from nearcast.model.attribute import Attribute
from nearcast.model.box import Box, Interval
from nearcast.model.errors import MisuseError, OutOfRangeError, UnknownNameError
from nearcast.model.where.expression import Expression
from nearcast.model.where.grammar import parse_where
from nearcast.model.where.names import checked_name
from nearcast.model.where.union import BOX_LIMIT, boxes_of
from nearcast.model.wording import did_you_mean, listed, shown

Missing = Literal["all", "none"]

_WORLD = {"longitude": 180.0, "latitude": 90.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The attributes of events on topics under `topic_filter`, for conditions of subscriptions.

    `missing` defines the meaning of a missing value in an event: "all" values (it matches if some
    value would), or "none" (no condition on it is true, nor is its negation). `required` names
    the attributes that an event must have; unless given, these are the coordinates.

    >>> shops = Space(
    ...     name="shops",
    ...     topic_filter="shops/#",
    ...     attributes=[Attribute.number("price", 0, 1000), Attribute.number("age", 0, 120)],
    ... )
    >>> [str(box) for box in shops.boxes("price < 100 and 20 <= age <= 25")]
    ['[0, 100) × [20, 25]']
    """

    name: str
    topic_filter: str
    attributes: Sequence[Attribute]  # kept as a tuple
    longitude: str | None = None
    latitude: str | None = None
    missing: Missing = "all"
    required: Collection[str] | None = None  # kept as a frozenset
    extent: Box = field(init=False, repr=False, compare=False, hash=False)
    """The attributes' ranges as a box."""
    _places: dict[str, int] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        checked_name(self.name, "the name of a space")
        attributes = tuple(self.attributes)
        if not attributes or not all(isinstance(each, Attribute) for each in attributes):
            raise MisuseError(shown(attributes), where=self.name, expected="one Attribute or more")
        self._set("attributes", attributes)
        ranges = tuple(Interval(each.low, each.high) for each in attributes)
        self._set("extent", Box(ranges))
        self._set("_places", {each.name: place for place, each in enumerate(attributes)})
        if len(self._places) < len(attributes):
            raise MisuseError("two attributes of one name", where=self.name, expected="other names")
        if self.missing not in ("all", "none"):
            raise UnknownNameError(shown(self.missing), where="missing", expected="all or none")
        self._check_coordinates()
        self._set("required", self._checked_required(self.required))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_coordinates(self) -> None:
        if (self.longitude is None) != (self.latitude is None) or (
            self.longitude is not None and self.longitude == self.latitude
        ):
            raise MisuseError(
                f"longitude {self.longitude} and latitude {self.latitude}",
                where=self.name,
                expected="two attributes, or neither",
            )
        for role, name in (("longitude", self.longitude), ("latitude", self.latitude)):
            if name is not None:
                self._check_coordinate(self.attributes[self.place_of(name)], role)

    def _check_coordinate(self, attribute: Attribute, role: str) -> None:
        end = _WORLD[role]
        if attribute.is_category or attribute.low < -end or attribute.high > end:
            raise OutOfRangeError(
                f"{attribute.name} with {attribute.range_text}",
                where=f"{self.name}: {role}",
                expected=f"a number in degrees within {-end:.0f} to {end:.0f}",
            )

    def _checked_required(self, names: Iterable[str] | None) -> frozenset[str]:
        if names is None:
            return frozenset(name for name in (self.longitude, self.latitude) if name is not None)
        if isinstance(names, str):
            raise MisuseError(shown(names), where="required", expected="a list of names")
        required = frozenset(names)
        for name in required:
            self.place_of(name)
        return required

    @property
    def dimensions(self) -> int:
        """Return the number of attributes."""
        return len(self.attributes)

    @property
    def coordinates(self) -> tuple[int, int] | None:
        """Return the positions of longitude and latitude among the attributes."""
        if self.longitude is None or self.latitude is None:
            return None
        return self._places[self.longitude], self._places[self.latitude]

    def place_of(self, name: str) -> int:
        """Return an attribute's position, or raise UnknownNameError with a suggestion; O(1)."""
        place = self._places.get(name)
        if place is None:
            raise UnknownNameError(
                f"the attribute {shown(name)}",
                where=f"space {self.name}",
                expected=f"one of {listed(self._places)}",
                todo=did_you_mean(str(name), self._places),
            )
        return place

    def boxes(
        self, where: Expression | str | bytes | None, limit: int = BOX_LIMIT
    ) -> tuple[Box, ...]:
        """Return boxes whose union is where the expression is true; see `union.boxes_of`.

        None means no condition: the one box that constrains no attribute.
        """
        if where is None:
            return (Box.everything(self.dimensions),)
        parsed = parse_where(where) if isinstance(where, (str, bytes)) else where
        return boxes_of(parsed, self.attributes, limit)

    def accuracy(self, boxes: Sequence[Box], event: Sequence[Box] | None = None) -> float | None:
        """Return the accuracy of the narrowest box, of those that meet the event if one is given.

        None if none does. Lower is narrower; 0 is a subscription without conditions.
        """
        met = [
            box for box in boxes if event is None or any(box.intersects(other) for other in event)
        ]
        extent = self.extent
        return min((box.accuracy(extent) for box in met), default=None)
