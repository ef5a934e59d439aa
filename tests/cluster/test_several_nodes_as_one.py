"""Conditions, positions and top-k over several nodes: each client gets what it gets on one."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.content_spaces import (
    JOB,
    SHOP,
    TALK,
    WALK,
    city,
    drop_client,
    payloads,
    selection_of,
)

from nearcast.index.topic_filters import topic_matches
from nearcast.model import Event, MisuseError, split_prefixes
from nearcast.model.requests import SELECTING
from nearcast.model.where.levels import encode_level
from nearcast.mqtt import Properties, Publish, split_shared
from nearcast.simulator.mqtt_node import SimulatedClient

assert settings.default is not None
RUNS = max(3, settings.default.max_examples // 2)


WHERES = {
    "shop/#": ["", "price < 3", "price <= 5", "price = 7", "kind = y", "kind in (x, z)"],
    "shop/a": ["", "price < 2 or price > 8", "price = 2..4 and kind = y", "not price < 4"],
    "job/+": ["", "age > 5", "price < 3 and age < 3", "price = 9..10"],
    "+/a": ["price < 3", "price >= 9", "kind = x", "age = 0"],  # several spaces
    "#": ["", "price = 3..4", "price > 9.5"],
    "talk/#": ["", "price < 5", "price = 9"],
}
WISHES = [
    (f"$where/{encode_level(where)}/" if where else "") + topic_filter
    for topic_filter, wheres in WHERES.items()
    for where in wheres
]
TOPICS = ["shop/a", "shop/b", "job/a", "talk/a", "talk/b", "other/a"]
WALKS = ["walk/#", "$near/150000m/walk/#", "$area/-2,-2,2,2/walk/#", "$where/price<5/walk/#"]
WALKS += ["$where/price>3/$near/300000m/walk/+"]


PLAIN, MEMBERS = ["c0", "c1", "c2", "c3"], ["g0", "g1", "g2"]
values = st.fixed_dictionaries(
    {},
    optional={
        "price": st.sampled_from([0, 1, 2.5, 3, 4, 5, 7, 8, 9, 10, 99]),
        "age": st.integers(0, 9),
        "kind": st.sampled_from(["x", "y", "z"]),
    },
)
degrees = st.sampled_from([-5, 0, 1, 5])
places = st.fixed_dictionaries(
    {"lon": degrees, "lat": degrees}, optional={"price": st.integers(0, 10)}
)
steps = st.one_of(
    st.tuples(st.just("subscribe"), st.sampled_from(PLAIN), st.sampled_from(WISHES)),
    st.tuples(st.just("subscribe"), st.sampled_from(MEMBERS), st.sampled_from(WISHES)),
    st.tuples(st.just("unsubscribe"), st.sampled_from(PLAIN + MEMBERS), st.integers(0, 5)),
    st.tuples(
        st.just("publish"),
        st.sampled_from(PLAIN),
        st.tuples(st.sampled_from(TOPICS), values, st.integers(0, 2), st.sampled_from("  rt")),
    ),
    st.tuples(st.just("away"), st.sampled_from(PLAIN[1:]), st.none()),
    st.tuples(st.just("subscribe"), st.sampled_from(PLAIN), st.sampled_from(WALKS)),
    st.tuples(st.just("move"), st.sampled_from(PLAIN), st.tuples(degrees, degrees)),
    st.tuples(
        st.just("publish"),
        st.sampled_from(PLAIN),
        st.tuples(st.just("walk/a"), places, st.integers(0, 2), st.sampled_from("  r")),
    ),
)


class Beside:
    """The same clients on several nodes and on one, told the same."""

    def __init__(self, nodes: int) -> None:
        self.several, self.alone = city(nodes), city(1)
        self.wishes: dict[str, list[str]] = {name: [] for name in PLAIN + MEMBERS}
        self.clients: dict[str, tuple[SimulatedClient, SimulatedClient]] = {}
        self.numbered = 0
        for place, name in enumerate(self.wishes):
            home = self.several.names[place % nodes]
            self.clients[name] = self.several.client(name, home), self.alone.client(name, "n0")
        self.run()

    def run(self) -> None:
        for world in (self.several, self.alone):
            world.run(60)

    def both(self, name: str, action: Any) -> None:
        for world, client in zip((self.several, self.alone), self.clients[name], strict=True):
            action(client)
            world.turn(client)
        self.run()

    def do(self, kind: str, name: str, what: Any) -> None:
        before = {one: tuple(map(len, map(payloads, self.clients[one]))) for one in self.clients}
        getattr(self, kind)(name, what)
        if kind == "publish" and what[3] == "t":
            self.compare_best(before)
        else:
            self.compare(before)

    def subscribe(self, name: str, wish: str) -> None:
        text = f"$share/team/{wish}" if name in MEMBERS else wish
        if text not in self.wishes[name]:
            self.wishes[name].append(text)
        self.both(name, lambda client: client.subscribe(text))

    def unsubscribe(self, name: str, which: int) -> None:
        held = self.wishes[name]
        if held:
            text = held[which % len(held)]
            gone = [text]
            if "$where" not in text:  # a bare filter takes its own along
                gone = [one for one in held if one == text or one.endswith(f"/{bare(text)}")]
                gone = [one for one in gone if bare(one) == bare(text)]
            self.wishes[name] = [one for one in held if one not in gone]
            self.both(name, lambda client: client.unsubscribe(text))

    def move(self, name: str, place: tuple[int, int]) -> None:
        payload = json.dumps({"lon": place[0], "lat": place[1]}).encode()
        self.both(name, lambda client: client.publish(Publish("$position", payload, 1)))

    def publish(self, name: str, what: Any) -> None:
        topic, fields, qos, mode = what
        self.numbered += 1
        self.event = topic, fields
        payload = json.dumps({**fields, "n": self.numbered}).encode()
        wish = Properties(user_properties=(("$top", "2"),)) if mode == "t" else Properties()
        message = Publish(topic, payload, qos, mode == "r", properties=wish)
        self.both(name, lambda client: client.publish(message))

    def away(self, name: str, _: None) -> None:
        """Lose the connection, and come back when something was published meanwhile."""
        for world, client in zip((self.several, self.alone), self.clients[name], strict=True):
            home = world.homes[name]
            world.at(home, partial(drop_client, client))
        self.publish("c0", ("shop/a", {"price": 2.5, "kind": "y"}, 1, " "))
        for world, client in zip((self.several, self.alone), self.clients[name], strict=True):
            world.admit(client)
        self.run()

    def news(self, name: str, before: Any) -> list[list[Publish]]:
        pair = zip(self.clients[name], before[name], strict=True)
        return [client.received[start:] for client, start in pair]

    def compare(self, before: Any) -> None:
        for name in PLAIN:
            here, there = (
                Counter((p.payload, p.qos, p.retain) for p in some)
                for some in self.news(name, before)
            )
            assert here == there, name
        teams: list[Counter[bytes]] = [Counter(), Counter()]
        for name in MEMBERS:
            for place, some in enumerate(self.news(name, before)):
                teams[place].update(one.payload for one in some)
                assert all(self.wants(name, one) for one in some), name
        assert teams[0] == teams[1]

    def compare_best(self, before: Any) -> None:
        """Among equals nodes may choose others: how good they are is the same."""
        got: list[list[float]] = [[], []]
        for name in self.clients:
            for place, some in enumerate(self.news(name, before)):
                got[place] += [self.goodness(name, one) for one in some]
        assert len(got[0]) == len(got[1])
        if not any(some for name in MEMBERS for some in self.news(name, before)):
            assert sorted(got[0]) == sorted(got[1])

    def wants(self, name: str, message: Publish) -> bool:
        return any(fits(wish, message) for wish in self.wishes[name])

    def goodness(self, name: str, message: Publish) -> float:
        if name in MEMBERS:
            return 0.0  # a team is as good as its best, whoever it is
        wishes = [one for one in self.wishes[name] if fits(one, message)]
        event = event_of(message)
        if event is None:
            return 0.0
        boxes = [box for one in wishes for box in selection_of(one).boxes(event.space)]
        found = event.space.accuracy(boxes, event.boxes())
        assert found is not None
        return round(found, 9)


def bare(text: str) -> str:
    return split_prefixes(split_shared(text).topic_filter, SELECTING)[1]


def event_of(message: Publish) -> Event | None:
    space = next(
        (s for s in (SHOP, JOB, TALK, WALK) if topic_matches(s.topic_filter, message.topic)), None
    )
    if space is None:
        return None
    fields = json.loads(message.payload)
    known = {one.name: fields[one.name] for one in space.attributes if one.name in fields}
    try:
        return Event.of(space, message.topic, known)
    except MisuseError:
        return None


def fits(wish: str, message: Publish) -> bool:
    """Say whether a subscription wants a message: the definition."""
    if not topic_matches(bare(wish), message.topic):
        return False
    event, where = event_of(message), selection_of(wish).where
    if where is None:
        return True
    if event is None:
        return False
    try:
        return selection_of(wish).covers(event)
    except MisuseError:  # the space has no such attribute
        return False


@settings(max_examples=RUNS)
@given(st.integers(2, 4), st.lists(steps, min_size=1, max_size=25))
def test_clients_of_several_nodes_get_what_they_would_get_on_one(nodes: int, history: Any):
    beside = Beside(nodes)
    for step in history:
        beside.do(*step)
    assert not any(one.unsettled for pair in beside.clients.values() for one in pair)
