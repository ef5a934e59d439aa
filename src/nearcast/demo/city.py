"""A city of a few hundred: half stay around three places, half drive, three times as fast."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

Place = tuple[float, float]  # longitude, latitude

WEST, SOUTH, EAST, NORTH = -122.4150, 37.7820, -122.4010, 37.7930
BOUNDS = (-122.42, 37.78, -122.40, 37.80)  # west, south, east, north of all plans
HOT_PLACES: tuple[Place, ...] = ((-122.4125, 37.7840), (-122.4040, 37.7855), (-122.4085, 37.7908))
STOPS = 12
WALK_M_S = 1.4
DRIVE_M_S = 3 * WALK_M_S
NEAR_M = 150
_HOT_RADIUS_M = 75.0
_M_PER_LAT = 111_195.0
_M_PER_LON = _M_PER_LAT * math.cos(math.radians((SOUTH + NORTH) / 2))


@dataclass(slots=True)
class Mover:
    """Somebody on the way to somewhere; `around` is the place a walker keeps to."""

    name: str
    place: Place
    goal: Place
    around: Place | None = None

    @property
    def drives(self) -> bool:
        """Whether it is a vehicle."""
        return self.around is None


@dataclass(frozen=True, slots=True)
class News:
    """Something that happens somewhere; `top`: only the nearest few shall hear of it."""

    topic: str
    place: Place
    price: float
    top: int = 0
    qos: int = 1


class DemoCity:
    """Moves everybody and makes things happen; the same seed gives the same city."""

    def __init__(self, people: int, seed: int = 1) -> None:
        self._random = Random(seed)
        self.movers = [self._mover(number) for number in range(people)]

    def _mover(self, number: int) -> Mover:
        around = None if number % 2 else HOT_PLACES[number // 2 % len(HOT_PLACES)]
        place = self._somewhere(around)
        return Mover(f"{'car' if number % 2 else 'walker'}{number}", place, place, around)

    def _somewhere(self, around: Place | None) -> Place:
        random = self._random
        if around is None:
            return (random.uniform(WEST, EAST), random.uniform(SOUTH, NORTH))
        angle, radius_m = random.uniform(0, math.tau), _HOT_RADIUS_M * math.sqrt(random.random())
        return (
            around[0] + radius_m * math.cos(angle) / _M_PER_LON,
            around[1] + radius_m * math.sin(angle) / _M_PER_LAT,
        )

    def step(self, seconds: float) -> None:
        """Move everybody for a while."""
        for one in self.movers:
            if one.place == one.goal:
                one.goal = self._somewhere(one.around)
            way_m = seconds * (DRIVE_M_S if one.drives else WALK_M_S)
            one.place = _towards(one.place, one.goal, way_m)

    def news(self, count: int) -> Iterator[News]:
        """Return what happens now: near people, as things do; every eighth is for the nearest."""
        for number in range(count):
            lon, lat = self._random.choice(self.movers).place
            place = (lon + self._random.gauss(0, 4e-4), lat + self._random.gauss(0, 4e-4))
            price = round(self._random.uniform(1, 20), 2)
            if number % 8 == 7:
                yield News("city/orders", place, price, top=3)
            else:
                yield News(f"city/news/{self._random.randrange(9)}", place, price)

    def stop_near(self, place: Place) -> int:
        """Return the number of a stop: the city has them in rows."""
        column = int(4 * (place[0] - WEST) / (EAST - WEST))
        row = int(3 * (place[1] - SOUTH) / (NORTH - SOUTH))
        return min(max(column, 0), 3) + 4 * min(max(row, 0), 2)


def quarter(place: Place) -> int:
    """Return which quarter of the city a place is in: north 0, east 1, south 2, west 3."""
    x = (place[0] - (WEST + EAST) / 2) / (EAST - WEST)
    y = (place[1] - (SOUTH + NORTH) / 2) / (NORTH - SOUTH)
    if abs(y) >= abs(x):
        return 0 if y >= 0 else 2
    return 1 if x > 0 else 3


def draw_map(city: DemoCity, news: Sequence[News], width: int = 64, height: int = 16) -> str:
    """Return the city as text: walkers are dots, cars are o, and what just happened is *."""
    rows = [[" "] * width for _ in range(height)]
    marks = [(one.place, "o" if one.drives else "·") for one in city.movers]
    for place, mark in [*marks, *((one.place, "*") for one in news)]:
        x = int((place[0] - WEST) / (EAST - WEST) * width)
        y = int((NORTH - place[1]) / (NORTH - SOUTH) * height)
        rows[min(max(y, 0), height - 1)][min(max(x, 0), width - 1)] = mark
    return "\n".join("  " + "".join(row).rstrip() for row in rows)


def _towards(place: Place, goal: Place, way_m: float) -> Place:
    x_m, y_m = (goal[0] - place[0]) * _M_PER_LON, (goal[1] - place[1]) * _M_PER_LAT
    left_m = math.hypot(x_m, y_m)
    if left_m <= way_m:
        return goal
    share = way_m / left_m
    return (place[0] + share * (goal[0] - place[0]), place[1] + share * (goal[1] - place[1]))
