"""The city's people as MQTT clients: each has a connection and speaks plain MQTT 5."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from nearcast.demo.city import NEAR_M, STOPS, DemoCity, Mover, News, Place, quarter
from nearcast.mqtt import Connect, Conversation, FilterRequest, Properties, Publish, Suback

Work = TypeVar("Work")
NodeOf = Callable[[Place], int]
"""Returns the number of the node that serves a place."""
STEP_S = 0.5
TIMES_FASTER = 20
"""So much faster than the demonstration's clock goes that of the city."""
NEWS_A_STEP = 12
STEPS_A_TIME = 4  # of the city, from one message of a bus stop to the next


@dataclass
class ReceivedCounts:
    """What clients received: live messages by kind, retained messages, and waiting times."""

    got: Counter[str] = field(default_factory=Counter)
    copies: int = 0
    waits_s: list[float] = field(default_factory=list)

    def take(self, message: Publish) -> None:
        """Count a message."""
        if message.retain:
            self.copies += 1
        else:
            self.got[message.topic.split("/")[0]] += 1


class Inhabitant:
    """One client on one connection."""

    def __init__(self, name: str, take: Callable[[Publish], None]) -> None:
        """Hand every message that arrives to `take`."""
        self.name = name
        self._take = take
        self._subscribed = 0
        self._talk = Conversation(Connect(name))
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._answered = asyncio.Event()

    async def come(self, port: int) -> None:
        """Connect, and listen from now on."""
        reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        self._task = asyncio.create_task(self._listen(reader))
        self._flush()
        async with asyncio.timeout(30):
            while self._talk.connack is None:
                await self._wait()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(1 << 16):
            for packet in self._talk.receive(data):
                if isinstance(packet, Publish):
                    self._take(packet)
                self._subscribed += isinstance(packet, Suback)
            self._flush()
            self._answered.set()

    async def _wait(self) -> None:
        self._answered.clear()
        await self._answered.wait()

    def say(self, *messages: Publish) -> None:
        """Publish."""
        for message in messages:
            self._talk.publish(message)
        self._flush()

    def want(self, topic_filter: str, qos: int = 1) -> None:
        """Subscribe."""
        self._talk.subscribe(FilterRequest(topic_filter, qos))
        self._flush()

    async def wants(self, *topic_filters: str) -> None:
        """Subscribe to all of these, and wait until all nodes know."""
        answers = self._subscribed + len(topic_filters)
        for topic_filter in topic_filters:
            self.want(topic_filter)
        async with asyncio.timeout(30):
            while self._subscribed < answers:
                await self._wait()

    def want_no_more(self, topic_filter: str) -> None:
        """Unsubscribe."""
        self._talk.unsubscribe(topic_filter)
        self._flush()

    def _flush(self) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(self._talk.take())

    @property
    def unsettled(self) -> int:
        """How many of its publications the broker has not answered yet."""
        return len(self._talk.unsettled)

    async def go(self) -> None:
        """Disconnect."""
        self._talk.disconnect()
        self._flush()
        if self._task is not None and self._writer is not None:
            with contextlib.suppress(asyncio.TimeoutError, ConnectionError):
                await asyncio.wait_for(self._task, 5)
            self._writer.close()


class Inhabitants:
    """The clients of the city and its bus stops, each at the node that serves its place.

    The city can begin again: then the same people make the same moves, and the same happens.
    """

    def __init__(self, people: int, ports: Sequence[int], seed: int = 1) -> None:
        self._people, self._seed = people, seed
        self._ports = ports
        self.city = DemoCity(people, seed)
        self.tally = ReceivedCounts()
        self._clients: dict[str, Inhabitant] = {}
        self._at_stop: dict[str, int] = {}
        self._since_s: dict[tuple[str, str], float] = {}
        self._stops: list[Inhabitant] = []
        self._steps = 0

    async def begin(self, node_of: NodeOf = quarter) -> None:
        """Begin the day again: everybody connects anew, to the node that serves the first place."""
        await self.go()
        self.city, self._steps = DemoCity(self._people, self._seed), 0
        self._at_stop.clear()
        self._since_s.clear()
        self._stops = [Inhabitant(f"stop{number}", _ignore) for number in range(STOPS)]
        await asyncio.gather(
            *(self._come(number, one, node_of) for number, one in enumerate(self.city.movers)),
            *(
                stop.come(self._port(node_of, place))
                for stop, place in zip(self._stops, self.city.districts, strict=True)
            ),
        )
        self._tell_times()
        await self._settle()

    async def _come(self, number: int, one: Mover, node_of: NodeOf) -> None:
        """Connect a client and subscribe it to what is near it."""
        client = self._clients[one.name] = Inhabitant(one.name, partial(self._take, one.name))
        await client.come(self._port(node_of, one.place))
        client.say(position(one.place))
        condition = "$where/price < 5/" if number % 5 == 0 else ""
        await client.wants(f"{condition}$near/{NEAR_M}m/city/#")

    def _port(self, node_of: NodeOf, place: Place) -> int:
        return self._ports[node_of(place) % len(self._ports)]

    def _take(self, name: str, message: Publish) -> None:
        self.tally.take(message)
        since_s = self._since_s.pop((name, message.topic), None)
        if since_s is not None:
            self.tally.waits_s.append(time.monotonic() - since_s)

    async def live(self, seconds: float, show: Callable[[DemoCity, Sequence[News]], None]) -> int:
        """Move the city for so many seconds; return how many events were published.

        The number of steps is fixed, so that the same happens each time, on a slow machine too.
        """
        self.tally = ReceivedCounts()
        loop = asyncio.get_running_loop()
        happened = self._tell_times()  # a stop that was silent for long counts as quiet
        await asyncio.sleep(STEP_S / 2)
        for _ in range(max(1, round(seconds / STEP_S))):
            begun_s = loop.time()
            self._move()
            news = self._publish()
            show(self.city, news)
            await _sleep_until(begun_s + STEP_S / 2)  # a client that arrives finds the last times
            happened += len(news) + self._tell_times(self._steps % STEPS_A_TIME)
            self._steps += 1
            await _sleep_until(begun_s + STEP_S)
        await self._settle()
        return happened

    def _move(self) -> None:
        self.city.step(STEP_S * TIMES_FASTER)
        for number, one in enumerate(self.city.movers):
            client = self._clients[one.name]
            if one.drives or (number + self._steps) % 4 == 0:
                client.say(position(one.place))
            self._follow_stop(client, one)

    def _follow_stop(self, client: Inhabitant, one: Mover) -> None:
        """Subscribe somebody who drives to the bus stop that is nearest."""
        if not one.drives:
            return
        stop = self.city.stop_near(one.place)
        before = self._at_stop.get(one.name)
        if stop != before:
            if before is not None:
                client.want_no_more(f"stops/{before}")
            self._at_stop[one.name] = stop
            self._since_s[one.name, f"stops/{stop}"] = time.monotonic()
            client.want(f"stops/{stop}")

    async def wait_for(self, work: Awaitable[Work]) -> Work:
        """Wait until work is done; nobody moves, the stops go on publishing their times."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                self._tell_times()
                self._steps += STEPS_A_TIME
                await asyncio.wait({task}, timeout=STEPS_A_TIME * STEP_S)
            return task.result()
        finally:
            task.cancel()

    def _publish(self) -> list[News]:
        """Publish what happens; whoever sees it publishes it."""
        news = list(self.city.news(NEWS_A_STEP))
        for one in news:
            self._clients[one.by].say(_message(one))
        return news

    def _tell_times(self, turn: int | None = None) -> int:
        """Publish when the next bus comes to the stops whose turn it is; return their number.

        Without a turn, to all stops.
        """
        told = range(STOPS) if turn is None else range(turn, STOPS, STEPS_A_TIME)
        for number in told:
            text = json.dumps({"stop": number, "minutes": (number + self._steps) % 10})
            message = Publish(f"stops/{number}", text.encode() * 8, 1, retain=True)
            self._stops[number].say(message)
        return len(told)

    async def _settle(self) -> None:
        """Wait until the broker has answered all publications; some may still be on their way."""
        everyone = [*self._clients.values(), *self._stops]
        async with asyncio.timeout(60):
            while any(one.unsettled for one in everyone):  # noqa: ASYNC110 - many at once
                await asyncio.sleep(0.05)

    async def go(self) -> None:
        """Disconnect all clients."""
        await asyncio.gather(*(one.go() for one in (*self._clients.values(), *self._stops)))
        self._clients, self._stops = {}, []


async def _sleep_until(instant_s: float) -> None:
    """Sleep until an instant of the loop's clock, a moment at least."""
    await asyncio.sleep(max(0.01, instant_s - asyncio.get_running_loop().time()))


def _ignore(_: Publish) -> None:
    """Do nothing with a message."""


def position(place: Place) -> Publish:
    """Return the message by which a client reports its place."""
    payload = json.dumps({"lon": round(place[0], 6), "lat": round(place[1], 6)})
    return Publish("$position", payload.encode())


def _message(news: News) -> Publish:
    lon, lat = news.place
    values = {"lon": round(lon, 6), "lat": round(lat, 6), "price": news.price}
    pairs: tuple[tuple[str, str], ...] = ()
    if news.top:
        pairs = (("$top", str(news.top)), ("$rank", "nearest"))
    properties = Properties(user_properties=pairs)
    return Publish(news.topic, json.dumps(values).encode(), news.qos, properties=properties)
