"""Courier dispatch: each order to the three nearest free couriers who can carry it.

    nearcast serve --config examples/courier_dispatch.toml
    python examples/courier_dispatch.py

A courier subscribes once, with what it can carry and how far it would go; its subscription follows
it. The restaurant does not know where anybody is. The nearest of those asked takes the order,
unsubscribes while it is busy, and turns up at the customer's door.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from nearcast.client import Offer, Selection
from nearcast.model import distance_m
from people import Person, arguments, check_space

WEST, SOUTH, EAST, NORTH = -122.44, 37.75, -122.40, 37.79
REACH_M = 3000
OFFER = Offer(top=3, rank="nearest", lifetime="30s")
WIDTH, HEIGHT = 48, 12


@dataclass
class Courier:
    person: Person
    most_kilos: int
    busy_until: int = 0  # the number of an order

    @property
    def wish(self) -> Selection:
        return Selection(near=f"{REACH_M}m", where=f"kilos <= {self.most_kilos}", explain=True)

    def may_get(self, kilos: float, place: tuple[float, float]) -> bool:
        assert self.person.place is not None
        near = distance_m(*self.person.place, *place) <= REACH_M
        return near and kilos <= self.most_kilos and not self.busy_until


@dataclass(frozen=True)
class Dispatch:
    """What came of an order: who was asked, nearest first, and who should have been."""

    asked: list[str]
    expected: list[str]


def run(host: str, port: int, orders: int = 8, seed: int = 4) -> list[Dispatch]:
    check_space(host, port, "orders/#")
    rng = random.Random(seed)
    kitchen = Person("kitchen", host, port)
    couriers = [
        Courier(Person(name, host, port, somewhere(rng)), rng.choice([5, 20, 60]))
        for name in ("Abe", "Bo", "Cy", "Di", "Ed", "Flo", "Gus", "Hal", "Ivy", "Jo")
    ]
    for courier in couriers:
        courier.person.subscribe("orders/new", courier.wish)
    dispatches = [one_order(n, rng, kitchen, couriers) for n in range(1, orders + 1)]
    for person in (kitchen, *(one.person for one in couriers)):
        person.leave()
    return dispatches


def one_order(
    number: int, rng: random.Random, kitchen: Person, couriers: list[Courier]
) -> Dispatch:
    place, kilos = somewhere(rng), rng.choice([1.5, 4.0, 12.0])
    free = [one for one in couriers if one.may_get(kilos, place)]
    free.sort(key=lambda one: distance_m(*(one.person.place or place), *place))
    body = {"order": number, "kilos": kilos, "lon": place[0], "lat": place[1]}
    kitchen.publish("orders/new", body, OFFER)

    offers = [(one, letter) for one in couriers for letter in one.person.letters()]
    offers.sort(key=lambda offer: offer[1].about.rank or 0)
    print(f"\nOrder {number}, {kilos:g} kg:")
    for one, letter in offers:
        away = f"{letter.about.distance_m:.0f} m away"
        print(f"  {letter.about.rank}. {one.person.name} (up to {one.most_kilos} kg), {away}")
    print(drawing(couriers, place))

    for one in couriers:
        if one.busy_until == number:  # delivered: free again, at another place
            one.busy_until = 0
            one.person.goes_to(*somewhere(rng))
            one.person.subscribe("orders/new", one.wish)
    if offers:
        taker = offers[0][0]
        print(f"  {taker.person.name} takes it.")
        taker.person.unsubscribe("orders/new", taker.wish)
        taker.busy_until = number + 2
        taker.person.goes_to(*place)
    return Dispatch(
        [one.person.name for one, _ in offers], [one.person.name for one in free[: OFFER.top]]
    )


def somewhere(rng: random.Random) -> tuple[float, float]:
    return round(rng.uniform(WEST, EAST), 6), round(rng.uniform(SOUTH, NORTH), 6)


def drawing(couriers: list[Courier], order: tuple[float, float]) -> str:
    """A map: the order is *, free couriers are capitals, busy ones small letters."""
    rows = [["·" if (x + y) % 4 == 0 else " " for x in range(WIDTH)] for y in range(HEIGHT)]
    marks = [(one.person.place, one.person.name[0], one.busy_until) for one in couriers]
    for place, letter, busy in [*marks, (order, "*", 0)]:
        assert place is not None
        x = min(int((place[0] - WEST) / (EAST - WEST) * WIDTH), WIDTH - 1)
        y = min(int((NORTH - place[1]) / (NORTH - SOUTH) * HEIGHT), HEIGHT - 1)
        rows[y][x] = letter.lower() if busy else letter
    return "\n".join("    " + "".join(row) for row in rows)


if __name__ == "__main__":
    given = arguments(__doc__)
    run(given.host, given.port)
