"""One attribute of a space: a number with a range, or one of a list of categories."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from nearcast.model.box import MISSING
from nearcast.model.errors import MisuseError, OutOfRangeError, UnknownNameError
from nearcast.model.quantities import as_number, number_text
from nearcast.model.where.names import checked_name, is_text
from nearcast.model.wording import did_you_mean, listed, shown


@dataclass(frozen=True, slots=True)
class Attribute:
    """A name, and the values it may have, as float64.

    A number lies in the closed range from `low` to `high`. The categories are coded 0 … n - 1
    in the order given, and category c covers the range from c - ½ to c + ½, so that a condition
    on m neighbouring categories is m wide in a range that is n wide.

    >>> Attribute.number("price", 0, 1000).high
    1000.0
    >>> kind = Attribute.category("kind", ["food", "tools"])
    >>> kind.low, kind.high, kind.encode("tools")
    (-0.5, 1.5, 1.0)
    """

    name: str
    low: float
    high: float
    categories: tuple[str, ...] = ()
    _codes: dict[str, float] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        checked_name(self.name, "the name of an attribute")
        self._set("low", as_number(self.low, f"{self.name}: low"))
        self._set("high", as_number(self.high, f"{self.name}: high"))
        if self.categories and (self.low, self.high) != (-0.5, len(self.categories) - 0.5):
            raise MisuseError("a range beside categories", where=self.name, expected="one of them")
        if not self.low < self.high:
            raise OutOfRangeError(
                self.range_text, where=self.name, expected="a low end below the high end"
            )
        as_number(self.high - self.low, f"{self.name}: high - low")
        if self.high >= MISSING:
            raise OutOfRangeError(self.range_text, where=self.name, expected="a lower high end")
        self._set("_codes", {name: float(code) for code, name in enumerate(self.categories)})

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @classmethod
    def number(cls, name: str, low: float, high: float) -> Attribute:
        """Return a number attribute with values from `low` to `high`, both included."""
        return cls(name, low, high)

    @classmethod
    def category(cls, name: str, categories: Iterable[str]) -> Attribute:
        """Return a category attribute; the order of the names is their order in the space."""
        if isinstance(categories, str):
            raise MisuseError(shown(categories), where=name, expected="a list of category names")
        names = tuple(categories)
        if not names:
            raise MisuseError("no category", where=name, expected="one name or more")
        for each in names:
            if not isinstance(each, str) or not each or not is_text(each):
                raise MisuseError(shown(each), where=name, expected="a category name as text")
        if len(set(names)) < len(names):
            twice = next(each for each in names if names.count(each) > 1)
            raise MisuseError(f"{shown(twice)} twice", where=name, expected="each category once")
        return cls(name, -0.5, len(names) - 0.5, names)

    @property
    def is_category(self) -> bool:
        """Return whether the values are categories rather than numbers."""
        return bool(self.categories)

    @property
    def range_text(self) -> str:
        """Return its possible values as text."""
        if self.categories:
            return listed(self.categories)
        return f"{number_text(self.low)} to {number_text(self.high)}"

    def encode(self, value: object, where: str = "") -> float:
        """Return an event's or a condition's value as a coordinate of the space; O(1).

        Text that is a number is accepted for a number (user properties are text).
        """
        return (
            self._encode_category(value, where) if self.categories else self._in_range(value, where)
        )

    def decode(self, coordinate: float) -> float | str:
        """Return the value of a coordinate, the inverse of `encode`."""
        return self.categories[int(coordinate)] if self.categories else coordinate

    def _encode_category(self, value: object, where: str) -> float:
        code = self._codes.get(value) if isinstance(value, str) else None
        if code is not None:
            return code
        place = f"{where}: {self.name}" if where else self.name
        expected = f"one of {self.range_text}"
        if not isinstance(value, str):
            raise MisuseError(shown(value), where=place, expected=expected)
        hint = did_you_mean(value, self.categories)
        raise UnknownNameError(shown(value), where=place, expected=expected, todo=hint)

    def _in_range(self, value: object, where: str) -> float:
        place = f"{where}: {self.name}" if where else self.name
        number = as_number(value, place)
        if self.low <= number <= self.high:
            return number
        raise OutOfRangeError(
            number_text(number), where=place, expected=f"a number from {self.range_text}"
        )
