"""Seconds outside, microseconds inside; and how far another's clock is ahead of ours.

Read next: process.py, `observe_offset`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
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


@dataclass(frozen=True, slots=True)
class Offset:
    """`ahead_s`: the other clock minus ours; true to within `error_s`, whatever the network did."""

    ahead_s: float
    error_s: float

    def exceeds(self, skew_s: float) -> bool:
        """Say whether the clocks certainly differ by more than `skew_s`."""
        return abs(self.ahead_s) - self.error_s > skew_s


def offset_of(asked: float, heard: float, answered: float, returned: float) -> Offset:
    """Return the offset by the rule of NTP (RFC 5905, section 8).

    `asked` and `returned` are read from our clock, `heard` and `answered` from the other's.
    The error is half the time on the network.

    >>> offset_of(asked=10.0, heard=10.75, answered=10.75, returned=10.5)
    Offset(ahead_s=0.5, error_s=0.25)
    """
    network_s = (returned - asked) - (answered - heard)
    if not (isfinite(network_s) and asked <= returned and heard <= answered and network_s >= 0):
        raise OutOfRangeError(
            f"{asked}, {heard}, {answered}, {returned}",
            where="instants of a question and its answer",
            expected="each clock ascending, the answer taking no longer than the whole",
        )
    return Offset(((heard - asked) + (answered - returned)) / 2, network_s / 2)
