"""What the product does, tried in a few seconds: who is near gets a message, and who is nearest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

from nearcast.demo.city import Place
from nearcast.demo.inhabitants import Inhabitant, position
from nearcast.model import distance_m
from nearcast.mqtt import Properties, Publish

ANA: Place = (-122.4080, 37.7870)
BEN: Place = (-122.4030, 37.7920)
BAKERY: Place = (-122.4075, 37.7874)
KITCHEN: Place = (-122.4085, 37.7860)
WITHIN_M = 300
TOP = 3
COURIERS: dict[str, Place] = {
    f"courier{number}": (-122.4140 + 0.0011 * number, 37.7830 + 0.0009 * (number * 5 % 11))
    for number in range(1, 12)
}


@dataclass(frozen=True, slots=True)
class Reached:
    """Whom a message reached, whom it had to reach, and how far everybody was away in metres."""

    reached: list[str]
    expected: list[str]
    away_m: dict[str, int]

    @property
    def is_right(self) -> bool:
        """Whether the message reached those whom it had to reach, and nobody else."""
        return sorted(self.reached) == sorted(self.expected)


class _Crowd:
    """Clients that listen; a later message that reaches everybody ends each trial."""

    def __init__(self) -> None:
        self._heard: list[tuple[str, str]] = []
        self._clients: dict[str, Inhabitant] = {}
        self._more = asyncio.Event()

    async def come(self, name: str, place: Place, port: int, wish: str) -> None:
        def take(message: Publish) -> None:
            self._heard.append((name, message.topic))
            self._more.set()

        client = self._clients[name] = Inhabitant(name, take)
        await client.come(port)
        client.say(position(place))
        await client.wants(wish)
        await client.wants("mark")

    async def reached(self, publisher: Inhabitant, message: Publish) -> list[str]:
        """Publish, and return who had it when a mark behind it has reached everybody."""
        self._heard.clear()
        publisher.say(message)
        await _answered(publisher)
        publisher.say(Publish("mark", b"", 1))
        async with asyncio.timeout(30):
            while sum(topic == "mark" for _, topic in self._heard) < len(self._clients):
                self._more.clear()
                await self._more.wait()
        return sorted(name for name, topic in self._heard if topic != "mark")

    async def go(self) -> None:
        await asyncio.gather(*(one.go() for one in self._clients.values()))


async def _answered(publisher: Inhabitant) -> None:
    async with asyncio.timeout(30):
        while publisher.unsettled:  # noqa: ASYNC110 - the answer comes within milliseconds
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)  # a contest over nodes is decided after the answer


def _event(topic: str, place: Place, properties: Properties | None = None) -> Publish:
    values = {"lon": place[0], "lat": place[1], "price": 3}
    given = Properties() if properties is None else properties
    return Publish(topic, json.dumps(values).encode(), 1, properties=given)


async def try_near(ports: Sequence[int]) -> Reached:
    """Publish beside Ana; Ben wants the same and is too far away. All are at different nodes."""
    places = {"ana": ANA, "ben": BEN}
    crowd, bakery = _Crowd(), Inhabitant("bakery", lambda _: None)
    for number, (name, place) in enumerate(places.items()):
        await crowd.come(name, place, ports[number % len(ports)], f"$near/{WITHIN_M}m/city/#")
    await bakery.come(ports[2 % len(ports)])
    reached = await crowd.reached(bakery, _event("city/bread", BAKERY))
    await asyncio.gather(crowd.go(), bakery.go())
    away_m = {name: round(distance_m(*place, *BAKERY)) for name, place in places.items()}
    return Reached(reached, [name for name in places if away_m[name] <= WITHIN_M], away_m)


async def try_nearest(ports: Sequence[int]) -> Reached:
    """Publish an order for the three nearest of all couriers, who are spread over the nodes."""
    crowd, kitchen = _Crowd(), Inhabitant("kitchen", lambda _: None)
    for number, (name, place) in enumerate(COURIERS.items()):
        await crowd.come(name, place, ports[number % len(ports)], "$near/2km/city/orders")
    await kitchen.come(ports[0])
    best = Properties(user_properties=(("$top", str(TOP)), ("$rank", "nearest")))
    reached = await crowd.reached(kitchen, _event("city/orders", KITCHEN, best))
    await asyncio.gather(crowd.go(), kitchen.go())
    away_m = {name: round(distance_m(*place, *KITCHEN)) for name, place in COURIERS.items()}
    return Reached(reached, sorted(away_m, key=away_m.__getitem__)[:TOP], away_m)
