"""Retained copies held back at one node, ended by what is published at another."""

from collections.abc import Sequence

import pytest
from tests.support.town import SPACE

from nearcast.broker import SpaceSettings
from nearcast.broker.settings import RetainedSettings
from nearcast.mqtt import Properties, Publish
from nearcast.simulator.mqtt_node import SimulatedClient, SimulatedNode
from nearcast.simulator.network import SimulatedLink, uniform
from nearcast.simulator.world import World

HOLD_S = 8.0


class Pair:
    """Two nodes; on both, topics of `city/` and `plain/` are held back wherever that is allowed."""

    def __init__(self, spaces: Sequence[SpaceSettings] = ()) -> None:
        self.world = World(1, link=SimulatedLink(delay=uniform(1, 3)))
        held = [
            RetainedSettings(topics=topics, mode="wait", hold_max_s=HOLD_S)
            for topics in ("city/#", "plain/#")
        ]
        self.nodes = {
            name: self.world.add(name, SimulatedNode(name, 1, spaces=spaces, retained=held))
            for name in ("here", "there")
        }
        self.homes: dict[str, str] = {}
        for name, node in self.nodes.items():
            self.world.perform(name, node.meet(list(self.nodes), self.world.now))
        self.run(1_000)

    def run(self, ms: int) -> None:
        self.world.run(self.world.now + ms)

    def client(self, name: str, home: str, *filters: str) -> SimulatedClient:
        client = SimulatedClient(name)
        self.homes[name] = home
        self.world.perform(home, self.nodes[home].admit(client, self.world.now))
        for one in filters:
            client.subscribe(one)
        self.turn(client)
        return client

    def turn(self, client: SimulatedClient) -> None:
        home = self.homes[client.name]
        self.world.perform(home, self.nodes[home].turn(self.world.now))

    def publish(self, client: SimulatedClient, message: Publish) -> None:
        client.publish(message)
        self.turn(client)
        self.run(20)

    def quick_topic(self, writer: SimulatedClient, topic: str, payload: bytes) -> None:
        """Publish once a second, so that a policy has reason to wait."""
        for _ in range(20):
            self.publish(writer, Publish(topic, payload, 1, retain=True))
            self.run(980)

    def waiting(self, home: str) -> int:
        holding = self.nodes[home].node.deferred_retained
        assert holding is not None
        return holding.waiting


def got(client: SimulatedClient) -> list[tuple[bytes, bool]]:
    return [(one.payload, one.retain) for one in client.received]


def test_the_message_of_another_node_serves_a_newcomer_as_one_of_its_own_does():
    pair = Pair()
    writer = pair.client("w", "here")
    pair.quick_topic(writer, "plain/a", b"old")
    newcomer = pair.client("n", "there", "plain/a")
    pair.run(50)
    assert (got(newcomer), pair.waiting("there")) == ([], 1)
    pair.publish(writer, Publish("plain/a", b"new", 1, retain=True))
    pair.run(50)
    assert got(newcomer) == [(b"new", False)]
    assert pair.waiting("there") == 0
    late = pair.client("m", "there", "$retained/now/plain/a")
    pair.run(50)
    assert got(late) == [(b"new", True)]


def test_a_message_of_another_node_that_is_not_retained_replaces_no_copy():
    pair = Pair()
    writer = pair.client("w", "here")
    pair.quick_topic(writer, "plain/a", b"old")
    newcomer = pair.client("n", "there", "plain/a")
    pair.run(50)
    pair.publish(writer, Publish("plain/a", b"live", 1))
    pair.run(50)
    assert got(newcomer) == [(b"old", True), (b"live", False)]


@pytest.mark.parametrize("top", [False, True])
def test_in_a_space_too_nothing_older_comes_after_what_another_node_sent(top: bool):
    pair = Pair([SpaceSettings(space=SPACE)])
    writer = pair.client("w", "here")
    place = b'{"lon": 0.1, "lat": 0.1}'
    pair.quick_topic(writer, "city/a", place)
    newcomer = pair.client("n", "there", "city/a")
    pair.run(50)
    assert pair.waiting("there") == 1
    later = b'{"lon": 0.2, "lat": 0.2}'
    wish = Properties(user_properties=(("$top", "1"),)) if top else Properties()
    pair.publish(writer, Publish("city/a", later, 1, properties=wish))
    pair.run(100)
    assert got(newcomer) == [(place, True), (later, False)]
    pair.run(int(HOLD_S * 1000))
    assert len(newcomer.received) == 2
    assert pair.waiting("there") == 0
