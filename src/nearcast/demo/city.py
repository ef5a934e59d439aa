"""A town: people on foot in its districts, cars on errands between them, buses on their lines.

    districts   seven, the first has the market square; where they lie depends on the seed
    walkers     five in eight: they walk about in their district, and stay here and there
    cars        two in eight: to a place in another district, a stay, and on to the next one
    buses       one in eight: to and fro between two districts by way of the market square

Cars and buses take the main streets, which lead from district to district.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

Place = tuple[float, float]  # longitude, latitude
Kind = Literal["walker", "car", "bus"]

WEST, SOUTH, EAST, NORTH = -122.4580, 37.7480, -122.4020, 37.7920
BOUNDS = (-122.47, 37.74, -122.39, 37.80)  # west, south, east, north of all plans
DISTRICTS = 7
STOPS = DISTRICTS
NEAR_M = 200
SPEED_M_S: dict[Kind, float] = {"walker": 1.4, "car": 8.4, "bus": 8.4}
_KINDS: tuple[Kind, ...] = ("walker", "car", "walker", "bus", "walker", "car", "walker", "walker")
_PEOPLE = (3.0, 2.0, 2.0, 1.5, 1.5, 1.0, 1.0)  # of each district, in relation
_STAY_S: dict[Kind, tuple[float, float]] = {
    "walker": (10.0, 180.0),
    "car": (60.0, 480.0),
    "bus": (20.0, 40.0),
}
_RADIUS_M, _APART_M, _EDGE_M = 220.0, 1_000.0, 450.0
_BEGUN_S = 1_800.0  # for up to that long have people been on the way when a day begins
_EVENT_M = 40.0
_M_PER_LAT = 111_195.0
_M_PER_LON = _M_PER_LAT * math.cos(math.radians((SOUTH + NORTH) / 2))


@dataclass(slots=True)
class Mover:
    """Somebody who stays for a while, or is on the way through the corners in `way`.

    `district` is a walker's own, or that in which a car or bus is or to which it goes.
    """

    name: str
    kind: Kind
    place: Place
    district: int
    way: list[Place] = field(default_factory=list)
    stay_s: float = 0.0
    line: tuple[int, ...] = ()  # of a bus: the districts of its round, from where it is

    @property
    def drives(self) -> bool:
        """Whether it is a vehicle."""
        return self.kind != "walker"

    def go(self, seconds: float) -> float:
        """Move until the way or the time is over; return the time that is left."""
        speed_m_s = SPEED_M_S[self.kind]
        while self.way and seconds > 0:
            before = self.place
            self.place = _towards(before, self.way[0], seconds * speed_m_s)
            seconds -= _metres(before, self.place) / speed_m_s
            if self.place == self.way[0]:
                del self.way[0]
            else:
                return 0.0
        return max(0.0, seconds)


@dataclass(frozen=True, slots=True)
class News:
    """Something that somebody sees; `top`: only the nearest few shall hear of it."""

    by: str
    topic: str
    place: Place
    price: float
    top: int = 0
    qos: int = 1


class DemoCity:
    """Moves everybody and makes things happen.

    The same seed gives the same town with the same people, and the same day the same moves.
    """

    def __init__(self, people: int, seed: int = 1, day: int = 1) -> None:
        town = Random(seed)
        self.districts = _districts(town)
        self._lines = _lines(town)
        self._random, self._events = Random(f"{seed}/{day}/moves"), Random(f"{seed}/{day}/events")
        self.movers = [self._mover(number, town) for number in range(people)]
        for one in self.movers:
            self._go_on(one, self._random.uniform(0, _BEGUN_S))

    def _mover(self, number: int, town: Random) -> Mover:
        kind = _KINDS[number % len(_KINDS)]
        district = town.choices(range(DISTRICTS), _PEOPLE)[0]
        line = self._lines[number // len(_KINDS) % len(self._lines)] if kind == "bus" else ()
        district = line[0] if line else district
        place = self.districts[district] if line else self._somewhere(district)
        return Mover(f"{kind}{number}", kind, place, district, line=line)

    def _somewhere(self, district: int) -> Place:
        random, (lon, lat) = self._random, self.districts[district]
        angle, radius_m = random.uniform(0, math.tau), _RADIUS_M * math.sqrt(random.random())
        return (
            lon + radius_m * math.cos(angle) / _M_PER_LON,
            lat + radius_m * math.sin(angle) / _M_PER_LAT,
        )

    def step(self, seconds: float) -> None:
        """Move everybody for a while."""
        for one in self.movers:
            self._go_on(one, seconds)

    def _go_on(self, one: Mover, seconds: float) -> None:
        while seconds > 0:
            stay_s = min(one.stay_s, seconds)
            one.stay_s -= stay_s
            seconds -= stay_s
            if one.stay_s > 0:
                return
            if not one.way:
                self._set_out(one)
            seconds = one.go(seconds)
            if not one.way:
                one.stay_s = self._random.uniform(*_STAY_S[one.kind])

    def _set_out(self, one: Mover) -> None:
        """Choose where to go next, and by which streets."""
        if one.kind == "walker":
            one.way = [self._somewhere(one.district)]
            return
        before = one.district
        if one.kind == "bus":
            one.line = (*one.line[1:], one.line[0])
            one.district = one.line[0]
            one.way = [self.districts[one.district]]
            return
        others = [number for number in range(DISTRICTS) if number != before]
        weights = [_PEOPLE[number] for number in others]
        one.district = self._random.choices(others, weights)[0]
        centres = [self.districts[before], self.districts[one.district]]
        one.way = [*centres, self._somewhere(one.district)]

    def news(self, count: int) -> Iterator[News]:
        """Return what happens now near people; every sixteenth is for the nearest."""
        random = self._events
        for number in range(count):
            one = random.choice(self.movers)
            lon, lat = one.place
            place = (
                lon + random.gauss(0, _EVENT_M) / _M_PER_LON,
                lat + random.gauss(0, _EVENT_M) / _M_PER_LAT,
            )
            price = round(random.uniform(1, 20), 2)
            if number % 16 == 15:
                yield News(one.name, "city/orders", place, price, top=3)
            else:
                yield News(one.name, f"city/news/{random.randrange(9)}", place, price)

    def stop_near(self, place: Place) -> int:
        """Return the number of the nearest bus stop: each district has one in its middle."""
        return min(range(STOPS), key=lambda stop: _metres(place, self.districts[stop]))


def _districts(random: Random) -> list[Place]:
    """Return the middles of the districts, which lie apart."""
    found: list[Place] = []
    while len(found) < DISTRICTS:
        place = (
            random.uniform(WEST + _EDGE_M / _M_PER_LON, EAST - _EDGE_M / _M_PER_LON),
            random.uniform(SOUTH + _EDGE_M / _M_PER_LAT, NORTH - _EDGE_M / _M_PER_LAT),
        )
        if all(_metres(place, other) >= _APART_M for other in found):
            found.append(place)
    return found


def _lines(random: Random) -> list[tuple[int, ...]]:
    """Return the rounds of the bus lines: a district, the market square, another, and back."""
    ends = random.sample(range(1, DISTRICTS), DISTRICTS - 1)
    return [(one, 0, other, 0) for one, other in zip(ends[::2], ends[1::2], strict=True)]


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


def _metres(one: Place, other: Place) -> float:
    return math.hypot((other[0] - one[0]) * _M_PER_LON, (other[1] - one[1]) * _M_PER_LAT)


def _towards(place: Place, goal: Place, way_m: float) -> Place:
    left_m = _metres(place, goal)
    if left_m <= way_m:
        return goal
    share = way_m / left_m
    return (place[0] + share * (goal[0] - place[0]), place[1] + share * (goal[1] - place[1]))
