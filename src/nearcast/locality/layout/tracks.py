"""Clean GPS tracks: duplicates, impossible speeds, gaps.

A compiled pass over fixes sorted by user and instant. It carries its state from one batch to the
next, so that a track may be cut anywhere between two fixes and the verdicts stay the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from nearcast.index.distance import compiled_distance_m
from nearcast.kernels import kernel

_STREAK = 5  # this many impossible fixes in a row that agree with each other start a new trip


class FixVerdict(IntEnum):
    """Whether a fix is kept, and if not, why."""

    KEPT = 0
    DUPLICATE = 1
    TOO_FAST = 2


class MobilityKind(IntEnum):
    """How a person moves, by the speed of a step of the own track."""

    STAND = 0
    WALK = 1
    RIDE = 2


WALK_MPS, RIDE_MPS = 0.5, 2.5
"""Below the first a step is standing, from the second on it is riding."""


def mobility_kinds(step_s: NDArray[np.float64], step_m: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the kind of each step; a trip's first position, which has no step, is standing.

    >>> mobility_kinds(np.array([0.0, 60, 60, 60]), np.array([0.0, 20, 84, 600])).tolist()
    [0, 0, 1, 2]
    """
    has_step = step_s > 0
    walks = has_step & (step_m >= WALK_MPS * step_s)
    rides = has_step & (step_m >= RIDE_MPS * step_s)
    return walks.astype(np.int64) + rides


@dataclass(slots=True)
class TrackCleaner:
    """Classifies fixes batch by batch.

    Contract: fixes come sorted by user, then instant, over all batches; `is_new_user` marks the
    first fix of each user. A fix is dropped when its instant is that of the last kept fix, or when
    reaching it from there would take more than `max_speed_mps`. After a silence of more than
    `gap_s` a new trip begins, and fixes are not compared with the old one. Five impossible fixes in
    a row begin a new trip as well: the earlier place was wrong, or the device was carried.

    Complexity: O(1) per fix, no memory beyond the last kept fix.
    """

    max_speed_mps: float
    gap_s: float
    _state: NDArray[np.float64] = field(default_factory=lambda: np.zeros(6))

    def clean(
        self,
        is_new_user: NDArray[np.bool_],
        t_us: NDArray[np.int64],
        lon: NDArray[np.float64],
        lat: NDArray[np.float64],
    ) -> tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
        """Return each fix's verdict, trip, and the seconds and metres of its step."""
        n = len(t_us)
        verdict = np.empty(n, np.uint8)
        trip = np.zeros(n, np.int32)
        step_s = np.zeros(n)
        step_m = np.zeros(n)
        _clean(
            is_new_user, t_us, lon, lat, self.max_speed_mps, self.gap_s,
            self._state, verdict, trip, step_s, step_m,
        )  # fmt: skip
        return verdict, trip, step_s, step_m


@kernel
def _clean(is_new_user, t_us, lon, lat, max_speed_mps, gap_s, state, verdict, trip, step_s, step_m):  # type: ignore[no-untyped-def]
    # state: instant (whole microseconds stay exact in a float64 below 2^53), place, trip, streak
    last_us = np.int64(state[0])
    last_lon, last_lat, current, streak, begun = state[1], state[2], state[3], state[4], state[5]
    for i in range(len(t_us)):
        if is_new_user[i] or begun == 0.0:
            begun, current, streak = 1.0, 0.0, 0.0
        else:
            passed_s = (t_us[i] - last_us) / 1e6
            if passed_s <= 0.0:
                verdict[i] = 1
                continue
            if passed_s > gap_s:
                current += 1.0
            else:
                far_m = compiled_distance_m(last_lon, last_lat, lon[i], lat[i])
                if far_m > max_speed_mps * passed_s:
                    streak += 1.0
                    if streak < _STREAK:
                        verdict[i] = 2
                        continue
                    current += 1.0
                else:
                    step_s[i] = passed_s
                    step_m[i] = far_m
        streak = 0.0
        verdict[i] = 0
        trip[i] = np.int32(current)
        last_us, last_lon, last_lat = t_us[i], lon[i], lat[i]
    state[0], state[1], state[2] = last_us, last_lon, last_lat
    state[3], state[4], state[5] = current, streak, begun
