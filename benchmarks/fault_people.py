"""Clients for `network_faults.py` that do everything at once, and what each of them is owed.

What is owed is worked out from the definitions alone: what was sent, when it was acknowledged, who
was where meanwhile. Nothing is asked of the nodes.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, count
from random import Random
from typing import Any

import paho.mqtt.client as paho
from benchmarks.mended_paho import Paho
from paho.mqtt.enums import CallbackAPIVersion

from nearcast.mqtt import PacketType

BEST = 2
SPOTS = [(-0.4 + 0.1 * number, 0.0) for number in range(9)]
STAYS_S = (6.0, 14.0)
MARGIN_S = 0.5
"""So much before and after, a client's place counts as unsure."""

CONFIG = """
[limits]
queue = "64MiB"
[log]
events = "full"
segment = "60s"
[[space]]
name = "shops"
topics = "shops/#"
longitude = "lon"
latitude = "lat"
[space.attributes]
lon = { low = -180, high = 180 }
lat = { low = -90, high = 90 }
[[space]]
name = "offers"
topics = "offers/#"
[space.attributes]
price = { low = 0, high = 100 }
[[space]]
name = "talk"
topics = "talk/#"
order = "causal"
lifetime = "1s"
[space.attributes]
number = { low = 0, high = 1000000 }
"""


@dataclass(slots=True)
class Sent:
    """A message: its kind, who sent it when and with what, and when it was acknowledged."""

    name: str
    kind: str
    qos: int
    sent_s: float
    values: dict[str, Any]
    acked_s: float = 0.0
    taken_s: float = 0.0
    """The earliest instant that its node may give it."""


@dataclass(slots=True)
class Stay:
    """A client at a spot, from when it said so; `sure_s` is when that was acknowledged."""

    spot: int
    said_s: float
    sure_s: float = 0.0


@dataclass(slots=True)
class Citizen:
    """A client with a lasting session, over any number of crashes. `width` is unique to it."""

    name: str
    node: str
    port: int
    width: int
    rng: Random
    listens: bool = True
    got: Counter[str] = field(default_factory=Counter)
    order: list[str] = field(default_factory=list)
    sent: dict[str, Sent] = field(default_factory=dict)
    stays: list[Stay] = field(default_factory=list)
    hangs: list[tuple[float, float]] = field(default_factory=list)
    """When its node was stopped: what came then may count as come just before."""
    is_subscribed: bool = False
    board: bytes = b""
    """What it has last said on its board, where the last word stays; empty if it was wiped."""
    is_calm: bool = False
    """No harm is done any more: `$top` must reach the best of all nodes."""
    _client: Paho = field(init=False, repr=False)
    _waiting: dict[int, Sent | Stay] = field(default_factory=dict)
    _acked_s: dict[int, float] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=count)
    _moves_at: float = 0.0
    _board_mid: int = 0

    def __post_init__(self) -> None:
        self._client = Paho(CallbackAPIVersion.VERSION2, self.name, clean_session=False)
        self._client.on_connect = self._ask
        self._client.on_message = self._listen
        self._client.on_publish = self._note_published
        self._client.on_subscribe = lambda *_: setattr(self, "is_subscribed", True)
        self._client.max_queued_messages_set(0)
        self._client.max_inflight_messages_set(200)
        self._client.reconnect_delay_set(1, 1)

    def start(self) -> Citizen:
        """Connect; once the node answers, subscribe to everything."""
        self.is_subscribed = not self.listens
        self._client.connect("127.0.0.1", self.port, keepalive=5)
        self._client.loop_start()
        return self

    def _ask(self, *_: object) -> None:
        """Subscribe, unless that is acknowledged.

        paho does not repeat a SUBSCRIBE of a connection that was lost before the answer.
        """
        if not self.is_subscribed:
            band = f"price={50 - self.width}..{50 + self.width}"
            self._client.subscribe(
                [
                    ("all/#", 2),
                    ("$share/g/jobs/#", 2),
                    ("$near/500m/shops/#", 2),
                    (f"$where/{band}/offers/#", 2),
                    ("talk/#", 2),
                ]
            )

    def act(self) -> None:
        """Send something; now and then, go somewhere else."""
        if self.listens and time.time() >= self._moves_at and self._has_arrived():
            self._moves_at = time.time() + self.rng.uniform(*STAYS_S)
            self._go(self.rng.randrange(len(SPOTS)))
        kind = self.rng.choice(["all", "all", "jobs", "shops", "offers", "talk", "board"])
        getattr(self, f"_say_{kind}")()

    def greet(self) -> None:
        """Say hello to everybody."""
        self._say("hello", f"all/{self.name}", 1)

    def has_heard(self, other: Citizen) -> bool:
        """Return whether a hello of another client has come."""
        return any(text.startswith(f"hello/{other.name}/") for text in list(self.got))

    def _has_arrived(self) -> bool:
        """Tell whether the last step is acknowledged.

        paho sends what is published while it reconnects before what it repeats: of two steps
        under way nobody could tell which is the last.
        """
        waiting = self._waiting.copy()  # another thread adds to it
        steps = [mid for mid, one in waiting.items() if isinstance(one, Stay)]
        return all(mid in self._acked_s for mid in steps)

    def _go(self, spot: int) -> None:
        lon, lat = SPOTS[spot]
        stay = Stay(spot, time.time())
        self.stays.append(stay)
        self._publish("$position", {"lon": lon, "lat": lat}, 1, stay)

    def _say_all(self) -> None:
        self._say("all", f"all/{self.name}", self.rng.choice([0, 1, 2]))

    def _say_jobs(self) -> None:
        self._say("jobs", "jobs/x", self.rng.choice([1, 2]))

    def _say_shops(self) -> None:
        spot = self.rng.randrange(len(SPOTS))
        lon, lat = SPOTS[spot]
        place = {"lon": lon + 0.001, "lat": lat, "spot": spot}
        self._say("shops", "shops/x", self.rng.choice([1, 2]), **place)

    def _say_offers(self) -> None:
        price = self.rng.randint(10, 90)
        self._say(
            "offers", f"$top/{BEST}/$rank/narrowest/offers/x", 2, price=price, calm=self.is_calm
        )

    def _say_talk(self) -> None:
        self._say("talk", "talk/x", 2, number=1)  # at QoS 1 a client may ask twice

    def _say_board(self) -> None:
        """Say something that stays, or wipe it; one after the other, as with steps."""
        if self._board_mid and self._board_mid not in self._acked_s:
            return
        text, qos = f"board/{self.name}/{next(self._numbers)}", self.rng.choice([1, 2])
        self.board = b"" if self.rng.random() < 0.2 else text.encode()
        info = self._client.publish(f"board/{self.name}", self.board, qos, retain=True)
        self.sent[text] = self._waiting[info.mid] = Sent(text, "board", qos, time.time(), {})
        self._board_mid = info.mid

    def _answer(self, query: str) -> None:
        self._say("talk", "talk/x", 2, number=2, answers=query)

    def _say(self, kind: str, topic: str, qos: int, **values: Any) -> None:
        text = f"{kind}/{self.name}/{next(self._numbers)}"
        self.sent[text] = one = Sent(text, kind, qos, time.time(), values)
        self._publish(topic, {"id": text, **values}, qos, one)

    def _publish(self, topic: str, values: dict[str, Any], qos: int, about: Sent | Stay) -> None:
        info = self._client.publish(topic, json.dumps(values), qos)
        if qos:
            self._waiting[info.mid] = about

    def _note_published(self, _c: object, _u: object, mid: int, *_: object) -> None:
        """Note when; to what it belongs may not be known yet, and paho holds a lock meanwhile."""
        self._acked_s[mid] = time.time()

    def _listen(self, _c: object, _u: object, message: paho.MQTTMessage) -> None:
        values = json.loads(message.payload)
        text = values["id"]
        self.got[text] += 1
        if text.startswith("talk/") and self.got[text] == 1:
            self.order.append(text)
            if "answers" not in values and f"/{self.name}/" not in text and self.rng.random() < 0.3:
                self._answer(text)

    @property
    def unsettled(self) -> int:
        """How many messages have not been acknowledged. Nobody publishes any more."""
        for mid, one in self._waiting.copy().items():
            if mid in self._acked_s:
                del self._waiting[mid]
                if isinstance(one, Sent):
                    one.acked_s = self._acked_s[mid]
                else:
                    one.sure_s = self._acked_s[mid]
        return len(self._waiting)

    @property
    def packets(self) -> Iterator[str]:
        """The last packets of its connections, a line each: when, which way, what."""
        for at_s, is_incoming, first, content in self._client.packets:
            way = "<" if is_incoming else ">"
            kind = PacketType(first >> 4).name
            yield f"{at_s:.3f} {self.name} {way} {kind} {first & 15:04b} {content!r}"

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def earliest(self, sent_s: float) -> float:
        """Return the earliest instant that its node may have taken for that of a message.

        It is that of the turn of the loop, and a node may be stopped in the middle of one.
        """
        stopped = [began for began, ended in self.hangs if began <= sent_s <= ended + MARGIN_S]
        return min([sent_s, *stopped])

    def surely_at(self, spot: int, since_s: float, until_s: float) -> bool:
        """Tell whether the client was at a spot all the time, as far as anybody can tell."""
        ends = [self.earliest(one.said_s) for one in self.stays[1:]] + [float("inf")]
        return any(
            one.spot == spot and one.sure_s and one.sure_s <= since_s and until_s <= end_s
            for one, end_s in zip(self.stays, ends, strict=False)
        )

    def maybe_at(self, spot: int, since_s: float, until_s: float) -> bool:
        """Tell whether the client may have been at a spot at some time."""
        ends = [one.sure_s or float("inf") for one in self.stays[1:]] + [float("inf")]
        return any(
            one.spot == spot and self.earliest(one.said_s) <= until_s and since_s <= end_s
            for one, end_s in zip(self.stays, ends, strict=False)
        )


@dataclass(frozen=True, slots=True)
class Wrong:
    """Something that must not be."""

    what: str
    message: str
    who: str

    def __str__(self) -> str:
        return f"{self.what}: {self.message} at {self.who}"


def find_wrong(people: list[Citizen]) -> Iterator[Wrong]:
    """Yield all that is wrong. Everything sent has been acknowledged by now."""
    listeners = [one for one in people if one.listens]
    sent = {text: one for person in people for text, one in person.sent.items()}
    by_kind: dict[str, list[Sent]] = defaultdict(list)
    for one in sent.values():
        by_kind[one.kind].append(one)
    for person in people:
        for one in person.sent.values():
            one.taken_s = person.earliest(one.sent_s)
    yield from _wrong_counts(listeners, sent)
    for one in by_kind["all"]:
        if one.qos:
            yield from _missing(one, listeners)
    for one in by_kind["jobs"]:
        times = sum(person.got[one.name] for person in listeners)
        if times < 1:
            yield Wrong("lost, shared", one.name, "everybody")
        if times > 1 and one.qos == 2:
            yield Wrong("twice, shared", one.name, "everybody")
    for one in by_kind["shops"]:
        yield from _wrong_places(one, listeners)
    for one in by_kind["offers"]:
        yield from _wrong_best(one, listeners)
    for person in listeners:
        yield from _wrong_order(person, sent)


def boards_at(port: int) -> dict[str, bytes]:
    """Return what a node shows on all boards to somebody who has just come."""
    seen: dict[str, bytes] = {}
    client = Paho(CallbackAPIVersion.VERSION2)
    client.on_message = lambda _c, _u, message: seen.update({message.topic: bytes(message.payload)})
    client.connect("127.0.0.1", port)
    client.loop_start()
    client.subscribe("board/#", 1)
    before = -1
    while before != len(seen):
        before = len(seen)
        time.sleep(2)
    client.disconnect()
    client.loop_stop()
    return seen


def find_wrong_boards(
    people: Iterable[Citizen], shown: dict[str, dict[str, bytes]]
) -> Iterator[Wrong]:
    """Yield what a node does not show as it was last said; `shown` has the boards of each."""
    for node, boards in shown.items():
        for one in people:
            seen = boards.get(f"board/{one.name}", b"")
            if seen != one.board:
                told = f"{node} shows {seen.decode() or 'nothing'}"
                yield Wrong("board", one.board.decode() or f"{one.name}'s wiped one", told)


def _wrong_counts(listeners: list[Citizen], sent: dict[str, Sent]) -> Iterator[Wrong]:
    for person in listeners:
        for text, times in person.got.items():
            if times > 1 and sent[text].qos != 1:
                yield Wrong(f"twice, QoS {sent[text].qos}", text, person.name)


def _missing(one: Sent, due: Iterable[Citizen]) -> Iterator[Wrong]:
    for person in due:
        if not person.got[one.name]:
            yield Wrong(f"lost, QoS {one.qos}", one.name, person.name)


def _wrong_places(one: Sent, listeners: list[Citizen]) -> Iterator[Wrong]:
    spot, since_s, until_s = one.values["spot"], one.taken_s - MARGIN_S, one.acked_s + MARGIN_S
    for person in listeners:
        if person.got[one.name] and not person.maybe_at(spot, since_s, until_s):
            yield Wrong("from afar", one.name, f"{person.name}, {_whereabouts(one, person)}")
        if not person.got[one.name] and person.surely_at(spot, since_s, until_s):
            where = f"{person.name}, {_whereabouts(one, person)}"
            yield Wrong(f"lost, near, QoS {one.qos}", one.name, where)


def _whereabouts(one: Sent, person: Citizen) -> str:
    """Say where somebody was, in seconds before and after a message was sent."""
    stays = ", ".join(
        f"{stay.spot} from {stay.said_s - one.sent_s:.1f}/{stay.sure_s - one.sent_s:.1f}"
        for stay in person.stays
        if abs(stay.said_s - one.sent_s) < 30
    )
    took_s = one.acked_s - one.sent_s
    return f"sent {one.sent_s:.1f} took {took_s:.1f} s, spot {one.values['spot']}; was at {stays}"


def best_of(price: int, listeners: Iterable[Citizen]) -> set[str]:
    """Return the clients that fit a price most narrowly."""
    fitting = [one for one in listeners if abs(price - 50) <= one.width]
    return {one.name for one in sorted(fitting, key=lambda one: one.width)[:BEST]}


def _wrong_best(one: Sent, listeners: list[Citizen]) -> Iterator[Wrong]:
    """Those who got it are the best of all nodes, or of those nodes that were there."""
    got = {person.name for person in listeners if person.got[one.name]}
    price, nodes = one.values["price"], sorted({person.node for person in listeners})
    everybody = best_of(price, listeners)
    if got == everybody:
        return
    if one.values.get("calm"):
        yield Wrong("not the best", one.name, f"{sorted(got)} instead of {sorted(everybody)}")
        return
    for most in range(len(nodes)):
        for there in combinations(nodes, most):
            if got == best_of(price, [p for p in listeners if p.node in there]):
                return
    yield Wrong("not the best of any nodes", one.name, f"{sorted(got)}")


def _wrong_order(person: Citizen, sent: dict[str, Sent]) -> Iterator[Wrong]:
    place = {text: number for number, text in enumerate(person.order)}
    for text in person.order:
        query = sent[text].values.get("answers")
        if query in place and place[query] > place[text]:
            yield Wrong("before its question", text, person.name)
