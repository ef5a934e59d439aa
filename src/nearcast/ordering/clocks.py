"""Seconds outside, microseconds inside.

Read next: process.py.
"""

from __future__ import annotations

from typing import Final

from nearcast.model.errors import OutOfRangeError

MICROSECONDS: Final = 1_000_000
LAST_INSTANT_S: Final = 9_000_000_000.0  # whole microseconds are exact in a float up to here


def time_width(window_us: int) -> int:
    """Return how many bytes tell apart all times within `window_us`.

    >>> time_width(250_000), time_width(60_000_000)
    (3, 4)
    """
    return max(2, (window_us.bit_length() + 7) // 8)


def duration_us(seconds: float, what: str, *, least_us: int) -> int:
    """Return a duration in whole microseconds; `OutOfRangeError` if it cannot be."""
    if not 0 <= seconds <= LAST_INSTANT_S or round(seconds * MICROSECONDS) < least_us:
        raise OutOfRangeError(
            f"{seconds}", where=what, expected=f"seconds, at least {least_us / MICROSECONDS}"
        )
    return round(seconds * MICROSECONDS)
