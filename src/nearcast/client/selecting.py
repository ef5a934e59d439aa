"""Subscribing: which events of a topic filter to select."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearcast.client.pairs import Pairs, one_of, paho_properties
from nearcast.model import Shape, Subscription, parse_length, parse_shape, parse_where
from nearcast.model.errors import MisuseError
from nearcast.model.quantities import as_number, number_text
from nearcast.model.subscription import RETAINED_CHOICES

if TYPE_CHECKING:
    from paho.mqtt.properties import Properties


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selects events of a topic filter; options left out do not restrict.

    >>> selection = Selection(where="price < 10 and kind = food", near="500m", label="Lunch")
    >>> selection.pairs
    (('$where', 'price < 10 and kind = food'), ('$near', '500m'), ('$label', 'Lunch'))
    >>> Selection(where="price < 10 and kind = food", near="500m").filter("shops/#")
    '$where/price<10;kind=food/$near/500m/shops/#'
    >>> Selection(near="-3m")
    Traceback (most recent call last):
        ...
    nearcast.model.errors.OutOfRangeError: $near: found '-3m'; expected a length above 0
    """

    where: str | None = None
    """Conditions on attributes, such as `price < 100 and kind in (food, tools)`."""
    area: str | Shape | None = None
    """A fixed area: `bbox(w,s,e,n)`, `circle(lon,lat,500m)`, `geojson({…})`, or a shape."""
    near: str | None = None
    """A distance from the client's current position, such as `500m`."""
    retained: str | None = None
    """`now`: deliver the retained message at once, whatever the learned policy says."""
    explain: bool = False
    """Deliveries carry their rank and distance. MQTT 5 only."""
    label: str | None = None
    """A public name for this subscription, for ranked replies. MQTT 5 only."""
    weight: float | None = None
    """Its score where a publisher ranks by `weight`. MQTT 5 only."""
    distance: str | None = None
    """Lets publishers learn how far away the client is, in such steps as `100m`. MQTT 5 only."""

    def __post_init__(self) -> None:
        if self.retained is not None:
            one_of(self.retained, "$retained", RETAINED_CHOICES)
        if self.weight is not None:
            object.__setattr__(self, "weight", as_number(self.weight, "$weight"))
        self._subscription("#")

    def _subscription(self, topic_filter: str) -> Subscription:
        """Return the model's subscription, which raises if an option is invalid."""
        where = area = near_m = None
        if self.distance is not None:
            _length("$distance", self.distance)
        if self.where is not None:
            where = parse_where(self.where)
        if self.area is not None:
            area = parse_shape(self.area) if isinstance(self.area, str) else self.area
        if self.near is not None:
            near_m = _length("$near", self.near)
        return Subscription(
            topic_filter=topic_filter,
            where=where,
            area=area,
            near_m=near_m,
            retained=self.retained,
        )

    @property
    def pairs(self) -> Pairs:
        """Return the user properties of SUBSCRIBE, for any MQTT 5 client."""
        return self._identity_pairs() + self._other_pairs()

    def _other_pairs(self) -> Pairs:
        named = (
            ("$explain", "true" if self.explain else None),
            ("$label", self.label),
            ("$weight", None if self.weight is None else number_text(self.weight)),
            ("$distance", self.distance),
        )
        return tuple((name, value) for name, value in named if value is not None)

    def _identity_pairs(self) -> Pairs:
        area = None if self.area is None else str(self.area)
        named = (
            ("$where", self.where),
            ("$area", area),
            ("$near", self.near),
            ("$retained", self.retained),
        )
        return tuple((name, value) for name, value in named if value is not None)

    def properties(self, base: Properties | None = None) -> Properties:
        """Return paho's properties for `subscribe`; they apply to all filters of the call.

        >>> Selection(near="500m").properties().UserProperty
        [('$near', '500m')]
        """
        return paho_properties("SUBSCRIBE", self.pairs, base)

    def for_unsubscribe(self, base: Properties | None = None) -> Properties:
        """Return paho's properties for `unsubscribe`: they identify this selection.

        >>> Selection(near="500m", label="me").for_unsubscribe().UserProperty
        [('$near', '500m')]
        """
        return paho_properties("UNSUBSCRIBE", self._identity_pairs(), base)

    def filter(self, topic_filter: str, group: str | None = None) -> str:
        """Return the topic filter with this selection in front of it, for MQTT 3.1.1.

        `group` makes it a shared subscription. The same selection as user properties of the filter
        is the same subscription: one replaces the other.

        >>> Selection(area="circle(2.35, 48.85, 500m)").filter("alerts/+", group="staff")
        '$share/staff/$area/2.35,48.85,500m/alerts/+'
        """
        unsaid = [name for name, _ in self._other_pairs()]
        if unsaid:
            raise MisuseError(
                ", ".join(unsaid),
                where="a prefixed filter",
                expected="where, area, near, retained",
                todo="Use properties() with MQTT 5.",
            )
        levels = [] if group is None else ["$share", group]
        return "/".join([*levels, self._subscription(topic_filter).identity])


def _length(name: str, text: str) -> float:
    """Return a length in metres; raises MisuseError with the name of the property."""
    try:
        return parse_length(text)
    except MisuseError as problem:
        raise type(problem)(
            problem.found, where=name, expected=problem.expected, todo=problem.todo
        ) from None
