"""What the product does, in seconds: a message for clients that are near, and for the nearest."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nearcast.demo.city import Place
from nearcast.demo.inhabitants import Inhabitant, position
from nearcast.demo.slow_line import SlowLine
from nearcast.model import distance_m
from nearcast.mqtt import Properties, Publish

ANA: Place = (-122.4080, 37.7870)
BEN: Place = (-122.4030, 37.7920)
BAKERY: Place = (-122.4075, 37.7874)
KITCHEN: Place = (-122.4085, 37.7860)
WITHIN_M = 300
TOP = 3
_CONTEST_S = 5.0
SLOW_S = 1.2  # so long take messages of the first node to the last
_ANSWERED_S = 20.0
DAN: Place = (-122.4080, 37.7920)
EVE: Place = (-122.4030, 37.7885)
SCREEN: Place = (-122.4130, 37.7865)
COURIERS: dict[str, Place] = {
    f"courier{number}": (-122.4140 + 0.0011 * number, 37.7830 + 0.0009 * (number * 5 % 11))
    for number in range(1, 12)
}


@dataclass(frozen=True, slots=True)
class Reached:
    """The clients that a message reached and had to reach, and the distance of each in metres."""

    reached: list[str]
    expected: list[str]
    away_m: dict[str, int]

    @property
    def is_right(self) -> bool:
        """Whether the message reached all clients that it had to reach, and no other."""
        return sorted(self.reached) == sorted(self.expected)


@dataclass(frozen=True, slots=True)
class OrderOfArrival:
    """What arrived at the screen in a plain and in a causal topic: words, and seconds after."""

    plain: list[tuple[str, float]]
    causal: list[tuple[str, float]]

    @property
    def is_right(self) -> bool:
        """Whether the answer came after its question where it has to."""
        return [word for word, _ in self.causal] == ["question", "answer"]


class _Crowd:
    """Clients that listen. A later message, which all of them get, ends each trial."""

    def __init__(self) -> None:
        self._heard: list[tuple[str, str]] = []
        self._clients: dict[str, Inhabitant] = {}
        self._more = asyncio.Event()

    async def come_all(
        self, places: dict[str, Place], ports: Sequence[int], topic_filter: str
    ) -> None:
        """Connect a client for each name, by turns to each node, and subscribe it."""
        await asyncio.gather(
            *(
                self._come(name, place, ports[number % len(ports)], topic_filter)
                for number, (name, place) in enumerate(places.items())
            )
        )

    async def _come(self, name: str, place: Place, port: int, topic_filter: str) -> None:
        def take(message: Publish) -> None:
            self._heard.append((name, message.topic))
            self._more.set()

        client = self._clients[name] = Inhabitant(name, take)
        await client.come(port)
        client.say(position(place))
        await client.wants(topic_filter, "mark")

    async def reached(self, publisher: Inhabitant, message: Publish, count: int) -> list[str]:
        """Publish, and return the clients that have the message when all have the next one.

        The next one is published when `count` clients have the message, or after five seconds: the
        nodes may still be finding the nearest clients when they have answered the publisher.
        """
        self._heard.clear()
        publisher.say(message)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CONTEST_S):
                await self._until(lambda: len(self._heard) >= count)
        publisher.say(Publish("mark", b"", 1))
        async with asyncio.timeout(30):
            await self._until(lambda: self._marked() == len(self._clients))
        return sorted(name for name, topic in self._heard if topic != "mark")

    def _marked(self) -> int:
        return sum(topic == "mark" for _, topic in self._heard)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._more.clear()
            await self._more.wait()

    async def go(self) -> None:
        await asyncio.gather(*(one.go() for one in self._clients.values()))


def _event(topic: str, place: Place, properties: Properties | None = None) -> Publish:
    values = {"lon": place[0], "lat": place[1], "price": 3}
    given = Properties() if properties is None else properties
    return Publish(topic, json.dumps(values).encode(), 1, properties=given)


async def try_near(ports: Sequence[int], look_s: float = 0) -> Reached:
    """Publish close to Ana; Ben subscribes to the same and is too far away. Each has its node.

    Before and after, everybody stays for `look_s`, so that it can be seen on the page.
    """
    places = {"ana": ANA, "ben": BEN}
    crowd, bakery = _Crowd(), Inhabitant("bakery", lambda _: None)
    await crowd.come_all(places, ports, f"$near/{WITHIN_M}m/city/#")
    await bakery.come(ports[2 % len(ports)])
    away_m = {name: round(distance_m(*place, *BAKERY)) for name, place in places.items()}
    expected = [name for name in places if away_m[name] <= WITHIN_M]
    await asyncio.sleep(look_s)
    reached = await crowd.reached(bakery, _event("city/bread", BAKERY), len(expected))
    await asyncio.sleep(look_s)
    await asyncio.gather(crowd.go(), bakery.go())
    return Reached(reached, expected, away_m)


async def try_nearest(ports: Sequence[int], look_s: float = 0) -> Reached:
    """Publish an order for the three nearest couriers; the couriers are spread over the nodes."""
    crowd, kitchen = _Crowd(), Inhabitant("kitchen", lambda _: None)
    await crowd.come_all(COURIERS, ports, "$near/2km/city/orders")
    await kitchen.come(ports[0])
    best = Properties(user_properties=(("$top", str(TOP)), ("$rank", "nearest")))
    await asyncio.sleep(look_s)
    reached = await crowd.reached(kitchen, _event("city/orders", KITCHEN, best), TOP)
    await asyncio.sleep(look_s)
    await asyncio.gather(crowd.go(), kitchen.go())
    away_m = {name: round(distance_m(*place, *KITCHEN)) for name, place in COURIERS.items()}
    return Reached(reached, sorted(away_m, key=away_m.__getitem__)[:TOP], away_m)


async def try_causal(ports: Sequence[int], line: SlowLine, look_s: float = 0) -> OrderOfArrival:
    """Ask at the first node, answer at the second, and read both at the last, which is far away.

    What the first node sends to the last is slow, so that the answer overtakes its question. The
    same happens in the space `talk`, which has causal order, and in a plain topic.
    """
    loop, begun_s = asyncio.get_running_loop(), 0.0
    heard: dict[str, list[tuple[str, float]]] = {"chat": [], "talk": []}
    is_over = asyncio.Event()

    def read(message: Publish) -> None:
        topic, _, word = message.topic.partition("/")
        heard[topic].append((word, round(loop.time() - begun_s, 2)))
        if sum(map(len, heard.values())) == 4:
            is_over.set()

    def answer(message: Publish) -> None:
        eve.say(_event(message.topic.replace("question", "answer"), EVE))

    dan, eve = Inhabitant("dan", lambda _: None), Inhabitant("eve", answer)
    screen = Inhabitant("screen", read)
    for one, place, port in ((dan, DAN, 0), (eve, EVE, 1), (screen, SCREEN, -1)):
        await one.come(ports[port])
        one.say(position(place))
    await eve.wants("chat/question", "talk/question")
    await screen.wants("chat/#", "talk/#")
    await asyncio.sleep(look_s)
    async with line.slow(SLOW_S):
        begun_s = loop.time()
        dan.say(_event("chat/question", DAN), _event("talk/question", DAN))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(is_over.wait(), _ANSWERED_S)
    await asyncio.sleep(look_s)
    await asyncio.gather(dan.go(), eve.go(), screen.go())
    return OrderOfArrival(heard["chat"], heard["talk"])
