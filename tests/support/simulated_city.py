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
        self, nodes: int = 3, seed: int = 1, link: SimulatedLink | None = None, **settings: Any
    ) -> None:
        self.world = World(seed, link=link or SimulatedLink(delay=uniform(1, 3)))
        self.names = [f"n{number}" for number in range(nodes)]
        self.nodes = {
            name: self.world.add(name, SimulatedNode(name, seed, **settings)) for name in self.names
        }
        self.homes: dict[str, str] = {}
        self.prepare()
        for name in self.names:
            self.at(name, lambda node, now: node.meet(self.names, now))
        self.run(1_000)

    def prepare(self) -> None:
        """Change the nodes before they meet."""

    def at(self, name: str, action: Callable[[SimulatedNode, int], list[Send]]) -> None:
        """Do something at a node."""
        self.world.perform(name, action(self.nodes[name], self.world.now))

    def run(self, ms: int) -> None:
        """Let time pass."""
        self.world.run(self.world.now + ms)

    def client(
        self, name: str, home: str, *filters: str, version: ProtocolVersion = ProtocolVersion.V5
    ) -> SimulatedClient:
        """Let a client connect to a node and subscribe."""
        client = SimulatedClient(name, version=version)
        self.homes[name] = home
        self.admit(client)
        for one in filters:
            client.subscribe(one)
        self.turn(client)
        return client

    def admit(self, client: SimulatedClient, name: str | None = None) -> None:
        """Let a client come again, to the node it was at or to another one."""
        self.homes[client.name] = name or self.homes[client.name]
        self.at(self.homes[client.name], lambda node, now: node.admit(client, now))

    def turn(self, client: SimulatedClient) -> None:
        """Let a client's node hear what it has said."""
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
        """Let a client publish."""
        client.publish(Publish(topic, payload, qos, retain))
        self.turn(client)

    def crash(self, name: str) -> None:
        """Kill a node."""
        self.world.crash(name)

    def restart(self, name: str) -> None:
        """Let a node come back with what it had on disk."""
        self.world.restart(name)
        self.at(name, lambda node, now: node.restart(now))
