"""The blocks of a week: six hours each, on weekdays and at weekends, by the clock of a time zone.

    block      0      1       2       3      4      5       6       7
    hours     0-6    6-12   12-18   18-24   0-6    6-12   12-18   18-24
    days      Monday to Friday              Saturday and Sunday

A time class is a set of blocks with one plan; a division gives each block its class.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from nearcast.model.errors import UnknownNameError

BLOCKS = 8
HOURS = 6  # of a block
_WEEKEND = 5  # Saturday is day 5 of the week
_QUARTER_US = 900 * 1_000_000  # offsets of time zones are whole quarters of an hour
_HOURS_NAMES = ("night", "morning", "afternoon", "evening")

Division = tuple[int, ...]
"""The class of each block."""
DIVISIONS: dict[str, Division] = {
    "always": (0,) * BLOCKS,
    "days": (0, 0, 0, 0, 1, 1, 1, 1),
    "hours": (0, 1, 2, 3, 0, 1, 2, 3),
    "days and hours": tuple(range(BLOCKS)),
}
"""What is tried: one plan, weekdays and weekends, parts of the day, both."""


def time_zone(name: str) -> ZoneInfo:
    """Return a time zone by its name, such as `Europe/Berlin`; UnknownNameError if it is none."""
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise UnknownNameError(
            repr(name),
            where="time zone",
            expected="a name of the tz database, such as Europe/Berlin or UTC",
        ) from None


def block_at(t_us: int, zone: ZoneInfo) -> int:
    """Return the block of an instant."""
    local = datetime.fromtimestamp(t_us / 1e6, zone)
    return 4 * (local.weekday() >= _WEEKEND) + local.hour // HOURS


def blocks_of(t_us: NDArray[np.int64], zone: ZoneInfo) -> NDArray[np.int64]:
    """Return the block of each instant. O(instants + quarters of an hour between them)."""
    quarters, place = np.unique(t_us // _QUARTER_US, return_inverse=True)
    found = np.array([block_at(int(one) * _QUARTER_US, zone) for one in quarters], np.int64)
    return found[place]


def block_spans_ms(first_us: int, last_us: int, zone: ZoneInfo) -> list[int]:
    """Return how much of the time between two instants lies in each block."""
    spans = [0] * BLOCKS
    at = first_us
    while at < last_us:
        end = min(last_us, (at // _QUARTER_US + 1) * _QUARTER_US)
        spans[block_at(at, zone)] += end - at
        at = end
    return [span // 1000 for span in spans]


def block_changes(first_us: int, last_us: int, zone: ZoneInfo) -> Counter[tuple[int, int]]:
    """Return how often each block follows another one between two instants."""
    quarters = range(first_us // _QUARTER_US, last_us // _QUARTER_US + 1)
    blocks = [block_at(one * _QUARTER_US, zone) for one in quarters]
    return Counter(pair for pair in pairwise(blocks) if pair[0] != pair[1])


def class_name(division: Division, wanted: int) -> str:
    """Return the name of a class of one of the DIVISIONS, which is part of a file's name.

    >>> class_name(DIVISIONS["hours"], 1), class_name(DIVISIONS["days and hours"], 4)
    ('morning', 'weekend-night')
    """
    blocks = [block for block, one in enumerate(division) if one == wanted]
    days = {block // 4 for block in blocks}
    hours = {block % 4 for block in blocks}
    names = [] if len(days) == 2 else [("weekdays", "weekend")[days.pop()]]
    names += [] if len(hours) == 4 else [_HOURS_NAMES[hours.pop()]]
    return "-".join(names) or "always"


def changes_of(division: Division) -> list[tuple[frozenset[int], int, int]]:
    """Return when classes begin: days of the week (Monday is 0), hour, class."""
    week = [
        (day, part, division[4 * (day >= _WEEKEND) + part]) for day in range(7) for part in range(4)
    ]
    begins: dict[tuple[int, int], set[int]] = {}
    for before, (day, part, number) in zip([week[-1], *week[:-1]], week, strict=True):
        if before[2] != number:
            begins.setdefault((part * HOURS, number), set()).add(day)
    return [(frozenset(days), hour, number) for (hour, number), days in begins.items()]
