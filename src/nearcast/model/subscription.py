"""A subscription: a topic filter and its conditions."""

from __future__ import annotations

from dataclasses import dataclass

from nearcast.model.box import Box
from nearcast.model.errors import LimitError, MisuseError, UnknownNameError
from nearcast.model.event import Event, area_boxes
from nearcast.model.quantities import number_text
from nearcast.model.shape_text import Shape
from nearcast.model.shapes import Circle
from nearcast.model.space import Space
from nearcast.model.where.expression import Expression
from nearcast.model.where.printing import where_level
from nearcast.model.where.union import BOX_LIMIT
from nearcast.model.wording import shown

RETAINED_CHOICES = ("now",)
Position = tuple[float, float]  # longitude, latitude


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Conditions (`where`), a fixed area, a radius around the subscriber; each is optional.

    `retained` overrides the learned policy for retained messages; it selects nothing.

    >>> from nearcast.model import parse_where
    >>> Subscription(topic_filter="shops/#", where=parse_where("price < 100"), near_m=500).identity
    '$where/price<100/$near/500m/shops/#'
    """

    topic_filter: str
    where: Expression | None = None
    area: Shape | None = None
    near_m: float | None = None
    retained: str | None = None

    def __post_init__(self) -> None:
        if self.near_m is not None:
            circle = Circle(0.0, 0.0, self.near_m)  # checks the radius
            object.__setattr__(self, "near_m", circle.radius_m)
        if self.retained not in (None, *RETAINED_CHOICES):
            expected = ", ".join(RETAINED_CHOICES)
            raise UnknownNameError(shown(self.retained), where="retained", expected=expected)

    @property
    def identity(self) -> str:
        """Return the filter with its conditions as prefixes, in canonical form."""
        levels: list[str] = []
        if self.where is not None:
            levels += ["$where", where_level(self.where)]
        if self.area is not None:
            levels += ["$area", self.area.level()]
        if self.near_m is not None:
            levels += ["$near", f"{number_text(self.near_m)}m"]
        if self.retained is not None:
            levels += ["$retained", self.retained]
        return "/".join([*levels, self.topic_filter])

    def shapes(self, position: Position | None = None) -> tuple[Shape, ...] | None:
        """Return the shapes an event must meet; None for a radius around an unknown position."""
        shapes: list[Shape] = [] if self.area is None else [self.area]
        if self.near_m is not None:
            if position is None:
                return None
            shapes.append(Circle(*position, self.near_m))
        return tuple(shapes)

    def boxes(
        self, space: Space, position: Position | None = None, limit: int = BOX_LIMIT
    ) -> tuple[Box, ...]:
        """Return boxes that cover the matching part of the space; exact except for round shapes.

        No box: nothing can match, for example because the position is unknown.
        """
        shapes = self.shapes(position)
        if shapes is None:
            return ()
        if shapes and space.coordinates is None:
            raise MisuseError(
                "an area", where=f"space {space.name}", expected="a space with coordinates"
            )
        boxes = space.boxes(self.where, limit)
        for shape in shapes:
            boxes = tuple(cut for box in boxes for cut in area_boxes(space, shape, box))
        if len(boxes) > limit:
            raise LimitError(
                f"conditions and areas of {len(boxes)} boxes", expected=f"at most {limit}"
            )
        return boxes

    def covers(self, event: Event, position: Position | None = None) -> bool:
        """Return whether the event matches: the definition; the matcher computes it faster.

        Topics aside: true if the conditions are true for some point of the event, and each of the
        shapes touches its place. (An event that is one point has to be in all of them at once; one
        with an extent is compared with the conditions and with each shape separately.)
        """
        shapes = self.shapes(position)
        if shapes is None:
            return False
        boxes = self.boxes(event.space, position)
        extent = event.boxes()
        if not any(box.intersects(other) for box in boxes for other in extent):
            return False
        return all(_meets(shape, event) for shape in shapes)


def _meets(shape: Shape, event: Event) -> bool:
    if event.area is not None:
        return shape.touches(event.area)
    # Without a place the boxes have decided: a missing value meets any area, or none.
    return event.position is None or shape.contains(*event.position)
