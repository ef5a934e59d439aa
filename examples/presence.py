"""Presence: players in a park see whom they come near, and find what lies there.

    nearcast serve --config examples/presence.toml
    python examples/presence.py

Every player says "wherever I am, 80 m around me" once. From then on it only says where it is. A
treasure is a retained message: whoever comes near it gets it then. Nobody can see where somebody
is who is far away, and the server that hands out the messages is the broker itself.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from nearcast.client import Selection
from nearcast.model import distance_m
from people import Person, arguments, check_space

PARK = (-122.4862, 37.7694)
SIGHT_M = 80.0
SIZE_M = 300.0
WISH = Selection(near=f"{SIGHT_M:g}m")
STEPS = 12
METRES_PER_DEGREE = 111_195.0


@dataclass
class Player:
    person: Person
    x: float
    y: float
    heading: float
    found: list[str] = field(default_factory=list)

    def walk(self, rng: random.Random) -> None:
        """Walk some 25 m; turn at the fence."""
        self.heading += rng.uniform(-0.7, 0.7)
        x, y = self.x + 25 * math.cos(self.heading), self.y + 25 * math.sin(self.heading)
        if not (0 <= x <= SIZE_M and 0 <= y <= SIZE_M):
            self.heading += math.pi
            return
        self.x, self.y = x, y

    @property
    def place(self) -> tuple[float, float]:
        return degrees(self.x, self.y)


def degrees(x: float, y: float) -> tuple[float, float]:
    lon = PARK[0] + x / METRES_PER_DEGREE / math.cos(math.radians(PARK[1]))
    return round(lon, 6), round(PARK[1] + y / METRES_PER_DEGREE, 6)


@dataclass(frozen=True)
class Round:
    """Who saw whom in a step, and who should have."""

    seen: set[tuple[str, str]]
    expected: set[tuple[str, str]]


@dataclass(frozen=True)
class Game:
    rounds: list[Round]
    found: dict[str, list[str]]
    in_reach: dict[str, list[str]]  # treasures that a player came within sight of


def run(host: str, port: int, seed: int = 2) -> Game:
    check_space(host, port, "park/#")
    rng = random.Random(seed)
    keeper = Person("keeper", host, port)
    treasures = {}
    for name in ("chest", "lamp", "crown"):
        place = degrees(rng.uniform(0, SIZE_M), rng.uniform(0, SIZE_M))
        body = {"treasure": name, "lon": place[0], "lat": place[1]}
        keeper.publish(f"park/treasures/{name}", body, retain=True)
        treasures[name] = place
    players = [start(name, host, port, rng) for name in ("Ada", "Bob", "Cat", "Dan", "Eli", "Fay")]
    in_reach: dict[str, list[str]] = {one.person.name: [] for one in players}
    rounds = []
    for step in range(1, STEPS + 1):
        rounds.append(one_step(step, players, treasures, in_reach))
        for one in players:
            one.walk(rng)
    print()
    for one in players:
        print(f"{one.person.name} found {', '.join(one.found) or 'nothing'}")
    for name in treasures:
        keeper.publish(f"park/treasures/{name}", None, retain=True)
    for person in (keeper, *(one.person for one in players)):
        person.leave()
    return Game(rounds, {one.person.name: one.found for one in players}, in_reach)


def start(name: str, host: str, port: int, rng: random.Random) -> Player:
    x, y = rng.uniform(0, SIZE_M), rng.uniform(0, SIZE_M)
    player = Player(Person(name, host, port, degrees(x, y)), x, y, rng.uniform(0, 6.28))
    player.person.subscribe("park/#", WISH, not_my_own=True)
    return player


def one_step(
    step: int,
    players: list[Player],
    treasures: dict[str, tuple[float, float]],
    in_reach: dict[str, list[str]],
) -> Round:
    for one in players:
        one.person.goes_to(*one.place)
    for one in players:
        lon, lat = one.place
        body = {"player": one.person.name, "lon": lon, "lat": lat}
        one.person.publish(f"park/players/{one.person.name}", body)
    seen = set()
    for one in players:
        for letter in one.person.letters():
            treasure = letter.body.get("treasure")
            if treasure is None:
                seen.add((one.person.name, letter.body["player"]))
            elif treasure not in one.found:  # who goes away and comes back gets it again
                one.found.append(treasure)
                print(f"step {step:2}: {one.person.name} comes upon a {treasure}!")
    expected = {
        (one.person.name, other.person.name)
        for one in players
        for other in players
        if one is not other and distance_m(*one.place, *other.place) <= SIGHT_M
    }
    for one in players:
        for name, place in treasures.items():
            reached = in_reach[one.person.name]
            if name not in reached and distance_m(*one.place, *place) <= SIGHT_M:
                reached.append(name)
    pairs = sorted({tuple(sorted(pair)) for pair in seen})
    if pairs:
        print(f"step {step:2}: " + ", ".join(f"{a} and {b}" for a, b in pairs) + " see each other")
    return Round(seen, expected)


if __name__ == "__main__":
    given = arguments(__doc__)
    run(given.host, given.port)
