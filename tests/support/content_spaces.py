"""Four spaces of a simulated cluster: with and without geography, one of them in causal order."""

from __future__ import annotations

from typing import Any

from tests.support.simulated_city import SimulatedCity

from nearcast.broker import SpaceSettings
from nearcast.model import Attribute, Space, split_prefixes
from nearcast.model import Subscription as Selection
from nearcast.model.requests import SELECTING, decoded, read_subscription
from nearcast.mqtt import split_shared
from nearcast.simulator.mqtt_node import SimulatedClient, SimulatedNode
from nearcast.simulator.world import Send

PRICE = Attribute.number("price", 0, 10)
SHOP = Space(
    name="shop",
    topic_filter="shop/#",
    attributes=(PRICE, Attribute.category("kind", ["x", "y", "z"])),
)
JOB = Space(
    name="job",
    topic_filter="job/#",
    attributes=(Attribute.number("price", 0, 20), Attribute.number("age", 0, 9)),
    missing="none",
)
TALK = Space(name="talk", topic_filter="talk/#", attributes=(PRICE,))
WALK = Space(
    name="walk",
    topic_filter="walk/#",
    attributes=(Attribute.number("lon", -9, 9), Attribute.number("lat", -9, 9), PRICE),
    longitude="lon",
    latitude="lat",
)
SPACES = [
    SpaceSettings(space=SHOP),
    SpaceSettings(space=WALK),
    SpaceSettings(space=JOB),
    SpaceSettings(space=TALK, order="causal", lifetime_ms=2_000),
]


def city(nodes: int = 2, **more: Any) -> SimulatedCity:
    return SimulatedCity(nodes, spaces=SPACES, **more)


def payloads(client: SimulatedClient) -> list[bytes]:
    return [one.payload for one in client.received]


def drop_client(client: SimulatedClient, node: SimulatedNode, now: int) -> list[Send]:
    return node.drop(client, now)


def selection_of(text: str) -> Selection:
    prefixes, topic_filter = split_prefixes(split_shared(text).topic_filter, SELECTING)
    return read_subscription(topic_filter, decoded(prefixes)).subscription
