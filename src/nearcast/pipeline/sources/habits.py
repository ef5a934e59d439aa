"""What a sample of rows says about a whole input: its times, and where its positions lie.

Pure functions over Arrow: no Spark. A mistake in the units of time is an error at once; rows whose
longitude and latitude are swapped are found later by comparing each with the rest (`Area`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nearcast.model.errors import MisuseError

SAMPLE_ROWS = 100_000
_HAS_ZONE = re.compile(r":.*([zZ]|utc|gmt|[+-]\d{2}:?\d{2}|[+-]\d{2})$", re.IGNORECASE)
_NUMBER = re.compile(r"^-?\d+(\.\d+)?$")
# Units that we do not read: the numbers of the years 2000 to 2050, all of a sample within them.
_OTHER_UNITS = (
    ("days since 1970", 10_957.0, 29_220.0),
    ("days since 1900, as spreadsheets have them", 36_526.0, 54_789.0),
    ("hours since 1970", 262_968.0, 701_281.0),
    ("minutes since 1970", 15_778_080.0, 42_076_860.0),
    ("tenths of microseconds since 1601, as Windows has them", 1.259e17, 1.418e17),
)
_LEAST_ROWS = 3
_LEAST_SPAN = 0.2  # degrees that an area is taken to have at least, in each direction


@dataclass(frozen=True, slots=True)
class Area:
    """Where nearly all positions of a sample lie, widened by twice its size to each side."""

    west: float
    south: float
    east: float
    north: float

    def has(self, lon: float, lat: float) -> bool:
        """Return whether a position lies in it."""
        return self.west <= lon <= self.east and self.south <= lat <= self.north


@dataclass(frozen=True, slots=True)
class Habits:
    """What a sample of an input shows."""

    rows: int = 0
    times: Mapping[str, int] = field(default_factory=dict)
    area: Area | None = None


def habits_of(sample: pa.Table) -> Habits:
    """Return the habits of a sample with the columns t, lon and lat.

    Raises MisuseError where all times are numbers of a unit that cannot be meant.
    """
    times = _times(sample["t"])
    lon, lat = _numbers(sample["lon"]), _numbers(sample["lat"])
    return Habits(sample.num_rows, times, area_of(lon, lat))


def unit_of(value: float) -> str:
    """Return the unit in which a number since 1970 is read, by its size.

    >>> [unit_of(size) for size in (1.7e9, 1.7e12, 1.7e15, 1.7e18)]
    ['seconds', 'milliseconds', 'microseconds', 'nanoseconds']
    """
    limits = ((1e17, "nanoseconds"), (1e14, "microseconds"), (1e11, "milliseconds"))
    return next((name for limit, name in limits if abs(value) > limit), "seconds")


def _times(column: pa.ChunkedArray) -> dict[str, int]:
    if pa.types.is_timestamp(column.type):
        zone = "with a zone" if column.type.tz else "without a zone"
        return {zone: len(column) - column.null_count}
    texts = pc.drop_null(pc.cast(column, pa.string())).to_pylist()
    found: Counter[str] = Counter()
    numbers: list[float] = []
    for text in (one.strip() for one in texts):
        if _NUMBER.match(text) or not isinstance(text, str):
            numbers.append(float(text))
        else:
            found["with a zone" if _HAS_ZONE.search(text) else "without a zone"] += 1
    _check_unit(numbers)
    found.update(f"{unit_of(value)} since 1970" for value in numbers)
    return dict(found)


def _check_unit(numbers: list[float]) -> None:
    if len(numbers) < _LEAST_ROWS:
        return
    for name, low, high in _OTHER_UNITS:
        if low <= min(numbers) and max(numbers) <= high:
            raise MisuseError(
                f"times from {min(numbers):g} to {max(numbers):g}, which look like {name}",
                where="column t",
                expected="seconds, milli-, micro- or nanoseconds since 1970, or texts",
                todo="Convert the column first. Nothing was written",
            )


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        fits = pc.match_substring_regex(column, r"^\s*-?\d+(\.\d+)?([eE][+-]?\d+)?\s*$")
        column = pc.if_else(pc.fill_null(fits, False), column, None)
        column = pc.utf8_trim_whitespace(column)
    values: np.ndarray = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)
    return values


def area_of(lon: np.ndarray, lat: np.ndarray) -> Area | None:
    """Return the area of nine tenths of the positions, widened; None where it says nothing.

    It says nothing if exchanged coordinates of a place in it would lie in it as well.
    """
    good = np.isfinite(lon) & np.isfinite(lat) & (np.abs(lon) <= 180.0) & (np.abs(lat) <= 90.0)
    if good.sum() < _LEAST_ROWS:
        return None
    west, east = _widened(*np.quantile(lon[good], (0.05, 0.95)))
    south, north = _widened(*np.quantile(lat[good], (0.05, 0.95)))
    overlap = max(west, south) <= min(east, north)
    return None if overlap else Area(west, south, east, north)


def _widened(low: float, high: float) -> tuple[float, float]:
    more = 2.0 * max(high - low, _LEAST_SPAN)
    return float(low - more), float(high + more)
