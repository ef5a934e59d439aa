"""Numbers with a unit: `500m`, `2km`, `250ms`; and the plain numbers of events and shapes."""

from __future__ import annotations

import math
import numbers
import re

from nearcast.model.errors import MisuseError, OutOfRangeError, UnknownNameError
from nearcast.model.wording import shown

METRES = {"m": 1.0, "km": 1000.0, "mi": 1609.344, "ft": 0.3048, "yd": 0.9144, "nmi": 1852.0}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

NUMBER_PATTERN = r"[+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_NUMBER = re.compile(NUMBER_PATTERN)
_QUANTITY = re.compile(rf"\s*({NUMBER_PATTERN})\s*([^\W\d]*)\s*")
_LONGEST = 400


def parse_length(text: str) -> float:
    """Return a length in metres; it is finite and above 0.

    >>> parse_length("500m"), parse_length("2 km")
    (500.0, 2000.0)
    """
    length_m = _quantity(text, METRES, "a length such as 500m or 2km")
    if length_m <= 0:
        raise OutOfRangeError(shown(text), expected="a length above 0")
    return length_m


def parse_duration(text: str) -> float:
    """Return a duration in seconds; it is finite and not negative.

    >>> parse_duration("250ms"), parse_duration("2min")
    (0.25, 120.0)
    """
    duration_s = _quantity(text, SECONDS, "a duration such as 250ms or 2min")
    if duration_s < 0:
        raise OutOfRangeError(shown(text), expected="a duration that is not negative")
    return duration_s


def _quantity(text: object, units: dict[str, float], expected: str) -> float:
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise MisuseError(shown(text), expected=expected)
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise MisuseError(shown(text), expected=expected)
    number, unit = match.groups()
    if unit.lower() not in units:
        found = f"the unit {shown(unit)}" if unit else "no unit"
        raise UnknownNameError(
            f"{found} in {shown(text)}", expected=f"{expected}; units are {', '.join(units)}"
        )
    return finite(float(number) * units[unit.lower()], shown(text))


def finite(value: float, found: str, where: str = "") -> float:
    """Return `value` (never as -0.0) or raise OutOfRangeError for NaN and infinity."""
    if not math.isfinite(value):
        raise OutOfRangeError(found, where=where, expected="a finite number")
    return value + 0.0


def as_number(value: object, where: str = "") -> float:
    """Return a finite float64 for a number or for text that is one.

    Whole numbers beyond 2**53 are rounded as float64 is. Raises OutOfRangeError for NaN,
    infinity and values that are too big, MisuseError for anything that is not a number.

    >>> as_number("2.5"), as_number(3)
    (2.5, 3.0)
    """
    if value.__class__ is float and math.isfinite(value):
        return value + 0.0
    if isinstance(value, str) and len(value) <= _LONGEST and _NUMBER.fullmatch(value.strip()):
        return finite(float(value), shown(value), where)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise MisuseError(shown(value), where=where, expected="a number")
    try:
        return finite(float(value), shown(value), where)
    except OverflowError:
        raise OutOfRangeError(shown(value), where=where, expected="a finite number") from None


def number_text(value: float) -> str:
    """Return the shortest text that reads back as `value`, without a plus sign.

    >>> number_text(25.0), number_text(0.1), number_text(1e22)
    ('25', '0.1', '1e22')
    """
    if value.is_integer() and abs(value) < 1e16:
        return str(int(value))
    return repr(value).replace("e+", "e")
