"""Some real nodes that know each other, with their clients, in a simulated network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nearcast.mqtt import ProtocolVersion, Publish
from nearcast.simulator.mqtt_node import SimulatedClient, SimulatedNode
from nearcast.simulator.network import SimulatedLink, uniform
from nearcast.simulator.world import Send, World


class SimulatedCity:
    """Some nodes that know each other, and their clients."""

    def __init__(
        self,
        nodes: int = 3,
        seed: int = 1,
        link: SimulatedLink | None = None,
        *,
        meeting_ms: int = 1_000,
        keep_digest: bool = True,
        **settings: Any,
    ) -> None:
        link = link or SimulatedLink(delay=uniform(1, 3))
        self.world = World(seed, link=link, keep_digest=keep_digest)
        self.names = [f"n{number}" for number in range(nodes)]
        self.nodes = {
            name: self.world.add(name, SimulatedNode(name, seed, **settings)) for name in self.names
        }
        self.homes: dict[str, str] = {}
        self.prepare()
        for name in self.names:
            self.at(name, lambda node, now: node.meet(self.names, now))
        self.run(meeting_ms)

    def prepare(self) -> None:
        """Change the nodes before they meet."""

    def at(self, name: str, action: Callable[[SimulatedNode, int], list[Send]]) -> None:
        """Do something at a node."""
        self.world.perform(name, action(self.nodes[name], self.world.now))

    def run(self, ms: int) -> None:
        """Run the world for so long."""
        self.world.run(self.world.now + ms)

    def client(
        self, name: str, home: str, *filters: str, version: ProtocolVersion = ProtocolVersion.V5
    ) -> SimulatedClient:
        """Connect a client to a node and subscribe it."""
        client = SimulatedClient(name, version=version)
        self.homes[name] = home
        self.admit(client)
        for topic_filter in filters:
            client.subscribe(topic_filter)
        self.turn(client)
        return client

    def admit(self, client: SimulatedClient, name: str | None = None) -> None:
        """Connect a client again, to the node it was at or to another one."""
        self.homes[client.name] = name or self.homes[client.name]
        self.at(self.homes[client.name], lambda node, now: node.admit(client, now))

    def turn(self, client: SimulatedClient) -> None:
        """Pass what a client has sent to its node."""
        self.at(self.homes[client.name], lambda node, now: node.turn(now))

    def publish(
        self,
        client: SimulatedClient,
        topic: str,
        payload: bytes,
        qos: int = 0,
        *,
        retain: bool = False,
    ) -> None:
        """Publish a message of a client."""
        client.publish(Publish(topic, payload, qos, retain))
        self.turn(client)

    def crash(self, name: str) -> None:
        """Kill a node."""
        self.world.crash(name)

    def restart(self, name: str) -> None:
        """Start a node again with what it had on disk."""
        self.world.restart(name)
        self.at(name, lambda node, now: node.restart(now))
