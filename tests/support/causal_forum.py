"""Nodes that share a space in causal order, with a client each, in simulated time."""

from collections.abc import Collection
from random import Random

from nearcast.broker import SpaceSettings
from nearcast.model import Attribute, Space
from nearcast.mqtt import Publish
from nearcast.simulator.mqtt_node import SimulatedClient, SimulatedNode
from nearcast.simulator.network import SimulatedLink, constant
from nearcast.simulator.world import World

LIFETIME_MS = 400
SPACE = Space(name="talk", topic_filter="talk/#", attributes=(Attribute.number("price", 0, 100),))


class Forum:
    """Nodes, most of them with a client; every question is answered by whoever hears it first.

    The client of node n0 is n0. There is none at the nodes in `without`.
    """

    def __init__(
        self,
        nodes: int,
        seed: int,
        order: str | None,
        link: SimulatedLink,
        without: Collection[str] = (),
    ) -> None:
        self.random = Random(seed)
        self.world = World(seed, link=link, keep_digest=False)
        spaces = [SpaceSettings(space=SPACE, order=order, lifetime_ms=LIFETIME_MS)]
        self.names = [f"n{number}" for number in range(nodes)]
        self.nodes = {name: SimulatedNode(name, seed, spaces=spaces) for name in self.names}
        self.clients = {
            name: SimulatedClient(f"c{name}") for name in self.names if name not in without
        }
        self.home = {name: name for name in self.clients}
        for name, node in self.nodes.items():
            self.world.add(name, node)
        for name, node in self.nodes.items():
            self.world.perform(name, node.meet(self.names, self.world.now))
        self.run(5_000)
        for name, client in self.clients.items():
            self.world.perform(name, self.nodes[name].admit(client, self.world.now))
            client.subscribe("talk/#", 1)
            self.turn(name)
        self.run(5_000)

    def guest(self, name: str, at: str, topic_filter: str = "talk/#") -> SimulatedClient:
        """Connect a client with a session that ends with its connection."""
        client = self.clients[name] = SimulatedClient(name, 0, is_clean=True)
        self.home[name] = at
        self.go(name, at)
        self.run(1_000)
        if topic_filter:
            client.subscribe(topic_filter, 1)
            self.turn(at)
            self.run(1_000)
        return client

    def go(self, name: str, to: str) -> None:
        """Break the connection of a client, and let it connect to a node with clean start."""
        client, old = self.clients[name], self.home[name]
        self.world.perform(old, self.nodes[old].drop(client, self.world.now))
        self.home[name] = to
        self.world.perform(to, self.nodes[to].admit(client, self.world.now))

    def slow(self, sender: str, receiver: str, delay_ms: int) -> None:
        link = SimulatedLink(delay=constant(delay_ms))
        self.world.network.set_link(sender, receiver, link)

    def run(self, ms: int) -> None:
        self.world.run(self.world.now + ms)

    def turn(self, name: str) -> None:
        self.world.perform(name, self.nodes[name].turn(self.world.now))

    def say(self, name: str, text: str, qos: int) -> None:
        self.clients[name].publish(
            Publish("talk/x", f'{{"price": 1, "say": "{text}"}}'.encode(), qos)
        )
        self.turn(self.home[name])

    def heard(self, name: str) -> list[str]:
        return [one.payload.decode().split('"')[-2] for one in self.clients[name].received]

    def talk(self, questions: int, qos: int) -> None:
        for number in range(questions):
            asker, answerer = self.random.sample(self.names, 2)
            self.say(asker, f"q{number}", qos)
            for _ in range(200):
                self.run(5)
                if f"q{number}" in self.heard(answerer):
                    self.say(answerer, f"a{number}", qos)
                    break
        self.run(3_000)


def wrong_order(forum: Forum) -> int:
    """Count the answers that somebody heard before, or without, their question."""
    count = 0
    for name in forum.names:
        seen: set[str] = set()
        for one in forum.heard(name):
            if one[0] == "a" and f"q{one[1:]}" not in seen:
                count += 1
            seen.add(one)
    return count
