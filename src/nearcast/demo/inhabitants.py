"""The city's people as MQTT clients: a connection each, nothing but MQTT 5."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nearcast.demo.city import NEAR_M, STOPS, City, Mover, News
from nearcast.mqtt import Connect, Conversation, FilterRequest, Properties, Publish

Work = TypeVar("Work")
STEP_S = 0.5
NEWS_A_STEP = 12


@dataclass
class Tally:
    """What clients got: by kind, and copies of retained messages."""

    got: Counter[str] = field(default_factory=Counter)
    copies: int = 0

    @property
    def deliveries(self) -> int:
        """All live messages."""
        return sum(self.got.values())


class Inhabitant:
    """One client on one connection."""

    def __init__(self, name: str, tally: Tally) -> None:
        self.name = name
        self.tally = tally
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
                    self._count(packet)
            self._flush()
            self._answered.set()

    async def _wait(self) -> None:
        self._answered.clear()
        await self._answered.wait()

    def _count(self, message: Publish) -> None:
        if message.retain:
            self.tally.copies += 1
        else:
            self.tally.got[message.topic.split("/")[0]] += 1

    def say(self, *messages: Publish) -> None:
        """Publish."""
        for message in messages:
            self._talk.publish(message)
        self._flush()

    def want(self, topic_filter: str, qos: int = 1) -> None:
        """Subscribe."""
        self._talk.subscribe(FilterRequest(topic_filter, qos))
        self._flush()

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
    """All clients of the city, and those who publish what happens."""

    def __init__(self, city: City, ports: Sequence[int]) -> None:
        self._city = city
        self._ports = ports
        self.tally = Tally()
        self._clients: dict[str, Inhabitant] = {}
        self._stops: dict[str, int] = {}
        self._writers = [Inhabitant(f"writer{number}", Tally()) for number in range(len(ports))]
        self._steps = 0

    async def come(self) -> None:
        """Let everybody connect and say what they want."""
        for writer, port in zip(self._writers, self._ports, strict=True):
            await writer.come(port)
        for number, one in enumerate(self._city.movers):
            client = self._clients[one.name] = Inhabitant(one.name, self.tally)
            await client.come(self._ports[number % len(self._ports)])
            client.say(_position(one))
            wish = "$where/price < 5/" if number % 5 == 0 else ""
            client.want(f"{wish}$near/{NEAR_M}m/city/#")

    async def live(self, seconds: float) -> int:
        """Let the city move for a while; return how much has happened."""
        happened = 0
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            begun = loop.time()
            self._move()
            happened += self._publish()
            self._steps += 1
            await asyncio.sleep(max(0.01, STEP_S - (loop.time() - begun)))
        await self._settle()
        return happened

    def _move(self) -> None:
        self._city.step(STEP_S)
        for number, one in enumerate(self._city.movers):
            client = self._clients[one.name]
            if one.drives or (number + self._steps) % 4 == 0:
                client.say(_position(one))
            self._follow_stop(client, one)

    def _follow_stop(self, client: Inhabitant, one: Mover) -> None:
        """Let a driver watch the stop that it passes."""
        stop = self._city.stop_near(one.place)
        before = self._stops.get(one.name)
        if one.drives and stop != before:
            if before is not None:
                client.want_no_more(f"stops/{before}")
            self._stops[one.name] = stop
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

    def _publish(self) -> int:
        news = list(self._city.news(NEWS_A_STEP))
        for number, one in enumerate(news):
            self._writers[number % len(self._writers)].say(_message(one))
        self._tell_times()
        return len(news) + STOPS

    def _tell_times(self) -> None:
        for stop in range(STOPS):
            text = json.dumps({"stop": stop, "minutes": (stop + self._steps) % 10})
            message = Publish(f"stops/{stop}", text.encode() * 8, 1, retain=True)
            self._writers[stop % len(self._writers)].say(message)

    async def _settle(self) -> None:
        """Wait until everything published is answered for, and has had time to arrive."""
        async with asyncio.timeout(30):
            while any(one.unsettled for one in self._writers):  # noqa: ASYNC110 - many at once
                await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)

    async def go(self) -> None:
        """Let everybody say goodbye."""
        everyone = [*self._clients.values(), *self._writers]
        await asyncio.gather(*(one.go() for one in everyone))


def _position(one: Mover) -> Publish:
    payload = json.dumps({"lon": round(one.place[0], 6), "lat": round(one.place[1], 6)})
    return Publish("$position", payload.encode())


def _message(news: News) -> Publish:
    lon, lat = news.place
    values = {"lon": round(lon, 6), "lat": round(lat, 6), "price": news.price}
    pairs: tuple[tuple[str, str], ...] = ()
    if news.top:
        pairs = (("$top", str(news.top)), ("$rank", "nearest"))
    properties = Properties(user_properties=pairs)
    return Publish(news.topic, json.dumps(values).encode(), news.qos, properties=properties)
