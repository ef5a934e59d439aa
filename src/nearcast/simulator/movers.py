"""Moving users: random way-points, and a mixed crowd.

A step moves all users at once, in arrays. All randomness comes from the NumPy generator that is
passed in, so the same seed gives the same paths.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nearcast.locality.layout.rect import Rect
from nearcast.model.errors import OutOfRangeError

Floats = NDArray[np.float64]


class RandomWaypoints:
    """Each user walks straight to a random place, then to another.

    `areas[i]` bounds the places of user i; `speeds[i]` is in units of the space per second.
    """

    def __init__(
        self, areas: Sequence[Rect], speeds: Sequence[float] | Floats, random: np.random.Generator
    ) -> None:
        self._low = np.array([(a.west, a.south) for a in areas]).reshape(-1, 2)
        self._size = np.array([(a.east - a.west, a.north - a.south) for a in areas]).reshape(-1, 2)
        self._speeds = np.asarray(speeds, np.float64)
        if len(self._speeds) != len(self._low) or not (self._speeds >= 0).all():
            raise OutOfRangeError("speeds", where="movers", expected="one from 0 for each user")
        self._random = random
        self._places = self._draw(np.arange(len(areas)))
        self._goals = self._draw(np.arange(len(areas)))
        self.xs, self.ys = self._places[:, 0], self._places[:, 1]

    def step(self, seconds: float) -> None:
        """Move all users; a user that arrives stops there and leaves at the next step."""
        way = self._goals - self._places
        far = np.hypot(way[:, 0], way[:, 1])
        reach = self._speeds * seconds
        arrived = far <= reach
        share = np.divide(reach, far, out=np.ones_like(far), where=far > 0)
        self._places += way * np.minimum(share, 1.0)[:, None]
        users = np.flatnonzero(arrived)
        self._goals[users] = self._draw(users)
        self.xs, self.ys = self._places[:, 0], self._places[:, 1]

    def _draw(self, users: NDArray[np.intp]) -> Floats:
        drawn: Floats = self._low[users] + self._random.random((len(users), 2)) * self._size[users]
        return drawn


def mixed_crowd(
    space: Rect,
    regions: Sequence[Rect],
    users: int,
    random: np.random.Generator,
    *,
    slow_speed: float,
    fast_factor: float = 3.0,
    slow_share: float = 0.5,
) -> RandomWaypoints:
    """Return the subscribers of paper 0: half slow, half three times as fast.

    The slow ones stay in slow regions, the fast ones cross the whole space; without regions all do.
    """
    slow = round(users * slow_share)
    numbers = random.integers(0, max(1, len(regions)), slow)
    areas = [regions[number] if regions else space for number in numbers]
    areas += [space] * (users - slow)
    speeds = np.full(users, slow_speed)
    speeds[slow:] *= fast_factor
    return RandomWaypoints(areas, speeds, random)
