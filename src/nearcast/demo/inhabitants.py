"""The city's people as MQTT clients: a connection each, nothing but MQTT 5."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from nearcast.demo.city import NEAR_M, STOPS, City, Mover, News, Place, quarter
from nearcast.mqtt import Connect, Conversation, FilterRequest, Properties, Publish, Suback

Work = TypeVar("Work")
STEP_S = 0.5
NEWS_A_STEP = 12


@dataclass
class Tally:
    """What clients got: live messages by kind, retained copies, and how long newcomers waited."""

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

    async def wants(self, topic_filter: str) -> None:
        """Subscribe, and wait until the whole network knows."""
        answers = self._subscribed + 1
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
        """How many of its messages the broker has not answered for yet."""
        return len(self._talk.unsettled)

    async def go(self) -> None:
        """Say goodbye."""
        self._talk.disconnect()
        self._flush()
        if self._task is not None and self._writer is not None:
            with contextlib.suppress(asyncio.TimeoutError, ConnectionError):
                await asyncio.wait_for(self._task, 5)
            self._writer.close()


class Inhabitants:
    """All clients of the city, and those who publish what happens, each at the node of its quarter.

    A city may begin again: the same people move and the same things happen once more.
    """

    def __init__(self, people: int, ports: Sequence[int]) -> None:
        self._people = people
        self._ports = ports
        self.city = City(people)
        self.tracks: dict[str, list[Place]] = {}
        self.tally = Tally()
        self._clients: dict[str, Inhabitant] = {}
        self._stops: dict[str, int] = {}
        self._since_s: dict[tuple[str, str], float] = {}
        self._writers = [Inhabitant(f"writer{number}", _ignore) for number in range(len(ports))]
        self._steps = 0

    async def come(self) -> None:
        """Let everybody connect and say what they want."""
        for writer, port in zip(self._writers, self._ports, strict=True):
            await writer.come(port)
        for number, one in enumerate(self.city.movers):
            client = self._clients[one.name] = Inhabitant(one.name, partial(self._take, one.name))
            await client.come(self._ports[self._node_near(one.place)])
            client.say(position(one.place))
            wish = "$where/price < 5/" if number % 5 == 0 else ""
            client.want(f"{wish}$near/{NEAR_M}m/city/#")
        await self._settle()

    def _node_near(self, place: Place) -> int:
        return quarter(place) % len(self._ports)

    def _take(self, name: str, message: Publish) -> None:
        self.tally.take(message)
        since_s = self._since_s.pop((name, message.topic), None)
        if since_s is not None:
            self.tally.waits_s.append(time.monotonic() - since_s)

    async def begin(self) -> None:
        """Begin the city again: everybody is back where they were at first, and nothing waits."""
        self.city, self._steps = City(self._people), 0
        for one in self.city.movers:
            client, stop = self._clients[one.name], self._stops.pop(one.name, None)
            client.say(position(one.place))
            if stop is not None:
                client.want_no_more(f"stops/{stop}")
        self._since_s.clear()
        self._tell_times()
        await self._settle()
        self.tally = Tally()

    async def live(self, seconds: float, show: Callable[[City, Sequence[News]], None]) -> int:
        """Let the city move for so many seconds; return how much has happened.

        The number of steps is fixed, so that the same happens each time, on a slow machine too.
        """
        happened = 0
        loop = asyncio.get_running_loop()
        for _ in range(max(1, round(seconds / STEP_S))):
            begun = loop.time()
            self._move()
            news = self._publish()
            happened += len(news) + self._tell_times()
            show(self.city, news)
            self._steps += 1
            await asyncio.sleep(max(0.01, STEP_S - (loop.time() - begun)))
        await self._settle()
        return happened

    def _move(self) -> None:
        self.city.step(STEP_S)
        for number, one in enumerate(self.city.movers):
            client = self._clients[one.name]
            self.tracks.setdefault(one.name, []).append(one.place)
            if one.drives or (number + self._steps) % 4 == 0:
                client.say(position(one.place))
            self._follow_stop(client, one)

    def _follow_stop(self, client: Inhabitant, one: Mover) -> None:
        """Let a driver watch the stop that it passes."""
        stop = self.city.stop_near(one.place)
        before = self._stops.get(one.name)
        if one.drives and stop != before:
            if before is not None:
                client.want_no_more(f"stops/{before}")
            self._stops[one.name] = stop
            self._since_s[one.name, f"stops/{stop}"] = time.monotonic()
            client.want(f"stops/{stop}")

    async def wait_for(self, work: Coroutine[Any, Any, Work]) -> Work:
        """Let nobody move while some work is done; the stops go on telling their times."""
        task = asyncio.create_task(work)
        while not task.done():
            self._tell_times()
            self._steps += 1
            await asyncio.wait({task}, timeout=STEP_S)
        await self._settle()
        return task.result()

    def _publish(self) -> list[News]:
        news = list(self.city.news(NEWS_A_STEP))
        for one in news:
            self._writers[self._node_near(one.place)].say(_message(one))
        return news

    def _tell_times(self) -> int:
        """Let the stops tell when the next bus comes; return how many there are."""
        for stop in range(STOPS):
            text = json.dumps({"stop": stop, "minutes": (stop + self._steps) % 10})
            message = Publish(f"stops/{stop}", text.encode() * 8, 1, retain=True)
            self._writers[stop % len(self._writers)].say(message)
        return STOPS

    async def _settle(self) -> None:
        """Wait until everything published is answered for, and has had time to arrive."""
        async with asyncio.timeout(60):
            while any(one.unsettled for one in self._writers):  # noqa: ASYNC110 - many at once
                await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)

    async def go(self) -> None:
        """Let everybody say goodbye."""
        everyone = [*self._clients.values(), *self._writers]
        await asyncio.gather(*(one.go() for one in everyone))


def _ignore(_: Publish) -> None:
    """Do nothing with a message."""


def position(place: Place) -> Publish:
    """Return the message that tells where its client is."""
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
