"""Moving users: random way-points, a mixed crowd, commuters on a road grid, recorded trajectories.

A step moves all users at once, in arrays. All randomness comes from the NumPy generator that is
passed in, so the same seed gives the same paths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nearcast.locality.layout.rect import Rect
from nearcast.locality.layout.slow_regions import METRES_PER_DEGREE
from nearcast.model.errors import EnvironmentProblem, FileFormatError, OutOfRangeError

Floats = NDArray[np.float64]


class Movers(Protocol):
    """Users with positions that change at each step. NaN: the user is absent at the moment."""

    xs: Floats
    ys: Floats

    def step(self, seconds: float) -> None:
        """Advance the time by `seconds` and update all positions."""
        ...


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
        who = np.flatnonzero(arrived)
        self._goals[who] = self._draw(who)
        self.xs, self.ys = self._places[:, 0], self._places[:, 1]

    def _draw(self, who: NDArray[np.intp]) -> Floats:
        drawn: Floats = self._low[who] + self._random.random((len(who), 2)) * self._size[who]
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
    homes = random.integers(0, max(1, len(regions)), slow)
    areas = [regions[home] if regions else space for home in homes] + [space] * (users - slow)
    speeds = np.full(users, slow_speed)
    speeds[slow:] *= fast_factor
    return RandomWaypoints(areas, speeds, random)


class Commuters:
    """Users who drive between home and work along a road grid, and stay at either end."""

    def __init__(
        self,
        space: Rect,
        users: int,
        random: np.random.Generator,
        *,
        road_gap: float,
        speed: float,
        stay_s: float,
    ) -> None:
        if not (road_gap > 0 and speed > 0 and stay_s >= 0):
            raise OutOfRangeError("road_gap, speed, stay_s", where="commuters", expected="above 0")
        self._speed, self._stay_s = speed, stay_s
        columns = max(1, int((space.east - space.west) / road_gap))
        rows = max(1, int((space.north - space.south) / road_gap))
        ends = random.integers(0, (columns + 1, rows + 1), (2, users, 2))
        self._ends = np.array([space.west, space.south], np.float64) + ends * road_gap
        self._places = self._ends[0].copy()
        self._goal = np.ones(users, np.int64)
        self._rest_s = random.random(users) * stay_s
        self.xs, self.ys = self._places[:, 0], self._places[:, 1]

    def step(self, seconds: float) -> None:
        """Drive along the street (x) first, then along the avenue (y); rest at the end."""
        resting = self._rest_s > 0
        self._rest_s = np.maximum(self._rest_s - seconds, 0.0)
        reach = np.where(resting, 0.0, self._speed * seconds)
        goals = self._ends[self._goal, np.arange(len(self._goal))]
        for axis in (0, 1):
            way = goals[:, axis] - self._places[:, axis]
            go = np.clip(way, -reach, reach)
            self._places[:, axis] += go
            reach -= np.abs(go)
        arrived = ~resting & (self._places == goals).all(axis=1)
        self._goal[arrived] = 1 - self._goal[arrived]
        self._rest_s[arrived] = self._stay_s
        self.xs, self.ys = self._places[:, 0], self._places[:, 1]


@dataclass(frozen=True, slots=True, eq=False)
class Fixes:
    """Recorded positions, sorted by user and time.

    User numbers, seconds from the first position.
    """

    users: NDArray[np.int64]
    seconds: Floats
    xs: Floats
    ys: Floats

    @classmethod
    def from_parquet(cls, path: Path, *, most_rows: int | None = None) -> Fixes:
        """Read the columns `user_id`, `t`, `lon`, `lat`.

        Raise FileFormatError if they are missing.
        """
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(path, columns=["user_id", "t", "lon", "lat"])
        except FileNotFoundError:
            raise EnvironmentProblem(
                f"there is no file {path.name}", where="trajectories"
            ) from None
        except (pa.ArrowInvalid, KeyError) as error:
            raise FileFormatError(str(error).splitlines()[0], where=path.name) from None
        if table.num_columns != 4:
            raise FileFormatError(
                f"columns {table.column_names}", where=path.name, expected="user_id, t, lon, lat"
            )
        table = table.slice(0, most_rows) if most_rows is not None else table
        users = pc.dictionary_encode(table["user_id"]).combine_chunks().indices.to_numpy()
        t = table["t"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy() / 1e6
        return cls(
            users.astype(np.int64),
            t - t.min() if len(t) else t,
            table["lon"].to_numpy().astype(np.float64),
            table["lat"].to_numpy().astype(np.float64),
        )

    @property
    def space(self) -> Rect:
        """The rectangle around all positions."""
        west, east = float(self.xs.min()), float(self.xs.max())
        return Rect(west, float(self.ys.min()), east, float(self.ys.max()))

    def in_metres(self) -> Fixes:
        """Return positions in degrees as metres east and north of the south-west corner.

        Straight meridians and parallels at the middle latitude: accurate to a percent over a city.
        """
        south, north = float(self.ys.min()), float(self.ys.max())
        east_m = METRES_PER_DEGREE * math.cos(math.radians((south + north) / 2))
        xs, ys = (self.xs - self.xs.min()) * east_m, (self.ys - south) * METRES_PER_DEGREE
        return Fixes(self.users, self.seconds, xs, ys)

    def central(self, share: float = 0.98) -> Rect:
        """Return the rectangle that contains this share of the positions along each axis."""
        rest = (1 - share) / 2
        west, east = np.quantile(self.xs, [rest, 1 - rest])
        south, north = np.quantile(self.ys, [rest, 1 - rest])
        return Rect(float(west), float(south), float(east), float(north))


class Trajectories:
    """Recorded users: each is on the straight line between its last and its next position.

    Before its first and after its last position a user is absent (NaN).
    """

    def __init__(self, fixes: Fixes, *, start_s: float = 0.0) -> None:
        self._fixes = fixes
        starts = np.flatnonzero(np.diff(fixes.users, prepend=-1))
        self._bounds = list(zip(starts, [*starts[1:], len(fixes.users)], strict=True))
        self._now_s = start_s
        self.xs = np.full(len(self._bounds), np.nan)
        self.ys = self.xs.copy()
        self.step(0.0)

    def step(self, seconds: float) -> None:
        """Advance the time and interpolate; O(users · log positions)."""
        self._now_s += seconds
        for user, (start, end) in enumerate(self._bounds):
            t = self._fixes.seconds[start:end]
            for column, out in ((self._fixes.xs, self.xs), (self._fixes.ys, self.ys)):
                out[user] = np.interp(self._now_s, t, column[start:end], left=np.nan, right=np.nan)
