"""Made records of people who move, for tests of layouts: (users, times in seconds, xs, ys).

All in the unit square, sorted by user and time, two days of the same behaviour or more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nearcast.locality import Rect
from nearcast.locality.layout.movement import Movement

SPACE = Rect(0.0, 0.0, 1.0, 1.0)
DAY_S = 86_400.0
_STEP_S = 300.0


class Record(NamedTuple):
    """Positions, sorted by user and time."""

    users: NDArray[np.int64]
    times_s: NDArray[np.float64]
    xs: NDArray[np.float64]
    ys: NDArray[np.float64]

    def movement(self, depth: int = 6) -> Movement:
        return Movement.from_tracks(SPACE, *self, depth=depth)

    def day(self, number: int) -> Record:
        chosen = (self.times_s // DAY_S).astype(int) == number
        return Record(*(column[chosen] for column in self))

    def reversed(self) -> Record:
        """The same with time running backwards."""
        order = np.lexsort((-self.times_s, self.users))
        times = self.times_s.max() - self.times_s
        return Record(self.users[order], times[order], self.xs[order], self.ys[order])


def record_of(paths: NDArray[np.float64]) -> Record:
    """Return a record of paths[user, step, axis]."""
    users, steps, _ = paths.shape
    inside = np.clip(paths, 0.0, 1.0)
    return Record(
        np.repeat(np.arange(users), steps),
        np.tile(np.arange(steps) * _STEP_S, users),
        inside[:, :, 0].ravel(),
        inside[:, :, 1].ravel(),
    )


_STEPS = int(2 * DAY_S / _STEP_S)


def random_walks(seed: int, people: int = 60) -> Record:
    rng = np.random.default_rng(seed)
    steps = rng.normal(0, 0.01, (people, _STEPS, 2))
    return record_of(np.abs((rng.random((people, 1, 2)) + steps.cumsum(1)) % 2 - 1))


def commuters(seed: int, people: int = 60, days: int = 2) -> Record:
    """People who sleep at home, and walk to one of a few places of work and back, each day."""
    rng = np.random.default_rng(seed)
    steps = days * _STEPS // 2
    homes, works = rng.random((people, 2)), rng.random((5, 2))[rng.integers(0, 5, people)]
    hours = np.arange(steps) * _STEP_S / 3600 % 24
    leave = 8 + rng.normal(0, 0.5, people)
    there = np.clip(hours[None, :] - leave[:, None], 0, 1)
    back = np.clip(hours[None, :] - leave[:, None] - 9, 0, 1)
    share = (there - back)[:, :, None]
    noise = rng.normal(0, 0.002, (people, steps, 2))
    return record_of(homes[:, None] * (1 - share) + works[:, None] * share + noise)


def cabs(seed: int, people: int = 60, days: int = 2) -> Record:
    """Cars that drive from anywhere to anywhere, most of them downtown."""
    rng = np.random.default_rng(seed)
    steps = days * _STEPS // 2
    legs = 1 + steps // 12
    goals = np.where(
        rng.random((people, legs + 1, 1)) < 0.6,
        rng.normal(0.3, 0.05, (people, legs + 1, 2)),
        rng.random((people, legs + 1, 2)),
    )
    step = np.arange(steps)
    share = (step % 12 / 12)[None, :, None]
    return record_of(goals[:, step // 12] * (1 - share) + goals[:, step // 12 + 1] * share)


def concert(seed: int, people: int = 60, *, moves: bool = False) -> Record:
    """A third of all people go to one block in the evening; on the second day to another one."""
    base = commuters(seed, people)
    rng = np.random.default_rng(seed + 1)
    goers = base.users < people // 3
    hours = base.times_s / 3600 % 24
    day = (base.times_s // DAY_S).astype(int)
    stages = np.array([[0.7, 0.7], [0.2, 0.4] if moves else [0.7, 0.7]])
    there = goers & (hours > 19) & (hours < 23)
    noise = rng.normal(0, 0.004, (len(hours), 2))
    xs = np.where(there, stages[day, 0] + noise[:, 0], base.xs)
    ys = np.where(there, stages[day, 1] + noise[:, 1], base.ys)
    return Record(base.users, base.times_s, np.clip(xs, 0, 1), np.clip(ys, 0, 1))


def one_person(seed: int) -> Record:
    return random_walks(seed, people=1)


def nobody(seed: int) -> Record:
    return record_of(np.zeros((0, _STEPS, 2)))


def one_point(seed: int, people: int = 40) -> Record:
    return record_of(np.full((people, _STEPS, 2), 0.4))
