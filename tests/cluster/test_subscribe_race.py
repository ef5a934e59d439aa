"""Retained messages and new subscriptions at different nodes: nothing falls between the two."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import settings
from tests.support.simulated_city import SimulatedCity
from tests.support.town import SPACE

from nearcast.broker import Broker, Session, SpaceSettings
from nearcast.broker.publish.routes import Router
from nearcast.broker.session.session import SessionSubscription
from nearcast.cluster.messages import RetainedEntry, decode_greeting, encode
from nearcast.cluster.subscribe_race import SubscribeRace
from nearcast.cluster.subscription_gossip import SubscriptionGossip
from nearcast.model import Attribute, Space
from nearcast.mqtt import FilterRequest, ProtocolVersion
from nearcast.simulator.mqtt_node import SimulatedClient
from nearcast.simulator.network import SimulatedLink, uniform

assert settings.default is not None
RUNS = max(4, settings.default.max_examples // 5)
HERE, THERE = '"lon": 0.1, "lat": 0.1', '"lon": -0.8, "lat": -0.8'
WISHES = ("city/news", "city/+", "$near/5000m/city/#", "$where/lon >= 0/city/#")


class Newsroom(SimulatedCity):
    """A writer at n0 who retains all that it says; readers come to n2."""

    def __init__(self, seed: int) -> None:
        link = SimulatedLink(delay=uniform(1, 30))
        super().__init__(3, seed, link, spaces=[SpaceSettings(space=SPACE)])
        self.run(5_000)
        self.qos = seed % 2
        version = (ProtocolVersion.V5, ProtocolVersion.V311)[seed // 2 % 2]
        self.writer = self.client("writer", "n0", version=version)
        self.run(200)
        self.count = 0

    def say(self, place: str = HERE) -> None:
        """Publish a retained message, one more than the last."""
        payload = f'{{{place}, "id": {self.count}}}'.encode()
        self.publish(self.writer, "city/news", payload, self.qos, retain=True)
        self.count += 1

    def reader(self, name: str) -> SimulatedClient:
        """Let somebody come who is where the news are."""
        one = self.client(name, "n2")
        self.run(200)
        self.publish(one, "$position", f"{{{HERE}}}".encode(), 1)
        self.run(200)
        return one

    def ask(self, one: SimulatedClient, wish: str, handling: int = 0) -> None:
        one.ask(FilterRequest(wish, 1, retain_handling=handling))
        self.turn(one)


def ids(client: SimulatedClient) -> list[int]:
    return [int(one.payload.split(b":")[-1][:-1]) for one in client.received]


@pytest.mark.parametrize("wish", WISHES)
def test_what_was_answered_before_a_subscription_comes_with_it(wish: str) -> None:
    room = Newsroom(1)
    reader = room.reader("anna")
    room.say()
    assert room.writer.unsettled == 0
    room.run(1)
    room.ask(reader, wish)
    room.run(2_000)

    assert ids(reader) == [0]
    assert reader.received[0].retain


@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("other", [None, *WISHES])
def test_a_newcomer_gets_the_last_and_all_that_follow_once_and_in_order(
    wish: str, other: str | None
) -> None:
    """Whoever else is there; and those get everything as well."""
    for seed in range(RUNS):
        room = Newsroom(seed)
        random = Random(seed)
        reader, second = room.reader("anna"), room.reader("ben")
        if other is not None:
            room.ask(second, other)
            room.run(random.choice([0, 10, 500]))
        last = -1
        for step in range(12):
            if step == 6:
                last = room.count - 1
                room.ask(reader, wish)
            else:
                room.say()
            room.run(random.choice([0, 0, 1, 5, 20, 60]))
        room.run(3_000)

        heard = ids(reader) if wish[:5] != "$near" else sorted(ids(reader))  # it has other ways
        assert heard == list(range(heard[0], room.count)), (seed, heard)
        assert heard[0] <= last
        if other is not None:
            assert sorted(ids(second)) == list(range(room.count)), (seed, ids(second))


@pytest.mark.parametrize("wish", WISHES)
def test_what_changed_while_the_nodes_were_apart_reaches_who_came_then(wish: str) -> None:
    room = Newsroom(2)
    reader = room.reader("anna")
    room.say()
    room.run(500)
    room.world.network.partition([["n0", "n1"], ["n2"]])
    room.run(20_000)
    room.ask(reader, wish)
    room.run(100)
    room.say()
    room.run(100)
    assert ids(reader) == [0]
    room.world.network.heal()
    room.run(20_000)
    assert ids(reader) == [0, 1]


def test_who_wants_nothing_retained_or_something_else_gets_none_of_it() -> None:
    room = Newsroom(3)
    readers = [room.reader(name) for name in ("anna", "ben", "carl", "dora")]
    room.say()
    room.ask(readers[0], "city/news", handling=2)
    room.ask(readers[1], "$share/g/city/news")
    room.ask(readers[2], "city/other")
    room.ask(readers[3], "$where/lon < 0/city/news")
    room.run(2_000)
    assert [ids(one) for one in readers] == [[], [], [], []]


def test_who_has_left_again_gets_none_of_it() -> None:
    room = Newsroom(4)
    readers = {wish: room.reader(f"r{number}") for number, wish in enumerate(WISHES)}
    room.say()
    for wish, one in readers.items():
        room.ask(one, wish)
        one.unsubscribe(wish)
        room.turn(one)
    room.run(2_000)
    assert [ids(one) for one in readers.values()] == [[]] * len(WISHES)


def test_conditions_that_make_no_sense_for_a_message_are_no_harm() -> None:
    shops = Space(
        name="shops", topic_filter="shops/#", attributes=(Attribute.number("price", 0, 9),)
    )
    spaces = [SpaceSettings(space=one) for one in (SPACE, shops)]
    city = SimulatedCity(2, 1, SimulatedLink(delay=uniform(1, 30)), spaces=spaces)
    writer, reader = city.client("writer", "n0"), city.client("anna", "n1")
    city.run(1_000)
    city.publish(writer, "city/news", b'{"lon": 0.1, "lat": 0.1}', 1, retain=True)
    reader.subscribe("$where/price > 2/#")
    city.turn(reader)
    city.run(1_000)
    city.publish(writer, "shops/a", b'{"price": 3}', 1)
    city.run(1_000)
    assert [one.payload for one in reader.received] == [b'{"price": 3}']
    assert city.nodes["n1"].mesh.peers["n0"].link.restarts == 0


def test_once_every_node_knows_nobody_is_remembered() -> None:
    room = Newsroom(5)
    for number, wish in enumerate(WISHES):
        room.ask(room.reader(f"r{number}"), wish)
    mesh = room.nodes["n2"].mesh
    assert mesh._race._numbers
    room.run(2_000)
    assert mesh._race._numbers == mesh._race._choosy == {}


def test_what_a_third_node_tells_reaches_who_came_while_its_own_node_was_cut_off() -> None:
    room = Newsroom(6)
    reader = room.reader("anna")
    for one, other in (("n0", "n2"), ("n2", "n0")):
        room.world.network.cut(one, other)
    room.run(20_000)
    room.ask(reader, "city/news")
    room.run(1_000)
    room.say()
    room.run(1_000)
    assert ids(reader) == []
    room.nodes["n2"].mesh.neighbours.begin_anew("n1", "for a reason")
    room.turn(reader)
    room.run(5_000)
    assert ids(reader) == [0]
    room.world.network.heal()
    room.run(20_000)
    assert ids(reader) == [0]


def test_who_is_near_and_was_brought_it_does_not_come_near_it_again() -> None:
    room = Newsroom(7)
    reader = room.reader("anna")
    room.say()
    room.run(1)
    room.ask(reader, "$near/5000m/city/#")
    room.run(2_000)
    room.publish(reader, "$position", b'{"lon": 0.101, "lat": 0.1}', 1)
    room.run(2_000)
    assert ids(reader) == [0]


def test_what_waited_for_a_node_that_was_down_comes_once_to_who_came_as_it_was_back() -> None:
    room = Newsroom(9)
    room.ask(room.reader("ben"), "city/+")  # whose session outlives the crash
    room.run(500)
    room.crash("n2")
    room.run(10_000)
    room.say()
    room.run(100)
    room.restart("n2")
    reader = SimulatedClient("anna", 0, is_clean=True)
    room.homes["anna"] = "n2"
    room.admit(reader)
    room.ask(reader, "city/news")
    room.run(20_000)
    assert ids(reader) == [0]


def test_a_node_that_has_forgotten_this_one_knows_of_nobody() -> None:
    room = Newsroom(1)
    room.ask(room.reader("anna"), "city/news")
    room.run(500)
    mesh = room.nodes["n2"].mesh
    peer = mesh.peers["n0"]
    assert peer.confirmed == mesh._gossip.number > 0
    terms = decode_greeting(room.nodes["n0"].mesh.greeting("n2"))
    mesh.came_up(peer, encode(terms))
    assert peer.confirmed > 0
    mesh.came_up(peer, encode(msgspec.structs.replace(terms, generation="another")))
    assert peer.confirmed == 0


def test_what_is_retained_travels_in_one_frame_with_what_is_sent_live() -> None:
    room = Newsroom(1)
    neighbours = room.nodes["n2"].mesh.neighbours
    peer = neighbours.peers["n0"]
    for size in (5 << 20, 10):
        neighbours.send(peer, b"M", bytes(size))
    assert len(list(peer.take_parts())) == 2
    neighbours.send(peer, b"M", bytes(5 << 20))
    neighbours.send(peer, b"T", b"it", with_last=True)
    assert len(list(peer.take_parts())) == 1


def test_it_is_brought_only_where_nothing_has_come_or_will_come_live() -> None:
    interests = SubscriptionGossip()
    router = Broker().state.router
    newcomers = SubscribeRace(router.subscribers, interests)
    known, unknown = (member(router, interests, text) for text in ("city/#", "city/news"))
    kept = RetainedEntry("city/news", 5, "n0", b"", 5)
    newcomers.add(unknown, interests.since(unknown), 7)
    confirmed = interests.since(known)
    assert newcomers.missed(kept, confirmed, None) == []  # it will come, because of the other one
    assert newcomers.missed(kept, confirmed - 1, None) == [unknown]
    newcomers.arrived("city/news")
    assert newcomers.missed(kept, confirmed - 1, None) == []
    newcomers.begin()
    assert newcomers.missed(kept, confirmed - 1, None) == [unknown]
    assert newcomers.missed(kept, interests.number, None) == []


def test_who_comes_later_to_an_older_filter_hides_nobody_who_came_before() -> None:
    """The older one waits for a node that is away."""
    interests = SubscriptionGossip()
    router = Broker().state.router
    newcomers = SubscribeRace(router.subscribers, interests)
    older, newer = (member(router, interests, text) for text in ("city/other", "city/news"))
    newcomers.add(newer, interests.since(newer), 7)
    newcomers.add(older, interests.since(older), 8)
    kept = RetainedEntry("city/news", 5, "n0", b"", 5)
    assert newcomers.missed(kept, interests.since(older), None) == [newer]


def member(router: Router, interests: SubscriptionGossip, text: str) -> SessionSubscription:
    one = SessionSubscription(Session(text, 1), text, "", text, 1)
    router.add(one)
    interests.came(one)
    return one
