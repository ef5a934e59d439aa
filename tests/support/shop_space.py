"""The space `shops`, and a broker with clients that buy there."""

from __future__ import annotations

import json
from typing import Any

from nearcast.broker import OpenAccess, SpaceSettings
from nearcast.model import Attribute, Space
from nearcast.mqtt import (
    FilterRequest,
    Properties,
    ProtocolVersion,
    PublishAnswer,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
SHOPS = Space(
    name="shops",
    topic_filter="shops/#",
    attributes=(
        Attribute.number("price", 0, 100),
        Attribute.category("kind", ["food", "tools"]),
        Attribute.number("lon", -180, 180),
        Attribute.number("lat", -90, 90),
    ),
    longitude="lon",
    latitude="lat",
    missing="none",
)
PLACED_OFFER = (
    Attribute.number("price", 0, 100),
    Attribute.number("lon", -180, 180),
    Attribute.number("lat", -90, 90),
)
BREAD = {"price": 3, "kind": "food", "lon": 8.5, "lat": 47.5}
HERE_TOO = {"lon": 8.5, "lat": 47.5}
HERE, NEARBY, FAR = (8.5, 47.5), (8.501, 47.501), (9.5, 48.5)


class Shops:
    """A world with the space `shops`, and short ways to say things."""

    def __init__(self, make_world: Any, **settings: Any) -> None:
        options = {
            name: settings.pop(name) for name in ("access", "with_journal") if name in settings
        }
        node = settings.pop("node", None)
        self.world = make_world(node, spaces=[SpaceSettings(space=SHOPS, **settings)], **options)
        self.publisher = self.world.welcome("publisher")

    def client(self, name: str, version: ProtocolVersion = V5, **rest: Any) -> Any:
        return self.world.welcome(name, version, **rest)

    def subscribe(self, client: Any, text: str, qos: int = 0, **wish: Any) -> Suback:
        options = wish.pop("options", {})
        pairs = tuple((f"${name}", value) for name, value in wish.items())
        request = FilterRequest(text, qos, **options)
        properties = Properties(user_properties=pairs)
        client.send(Subscribe(client.next_id(), (request,), properties))
        found = [one for one in client.packets if isinstance(one, Suback)]
        client.packets = [one for one in client.packets if not isinstance(one, Suback)]
        return found[-1]

    def unsubscribe(self, client: Any, text: str, **wish: Any) -> int:
        pairs = tuple((f"${name}", value) for name, value in wish.items())
        client.send(Unsubscribe(client.next_id(), (text,), Properties(user_properties=pairs)))
        return next(one for one in client.take() if isinstance(one, Unsuback)).reasons[0]

    def publish(
        self, values: object = None, topic: str = "shops/1", qos: int = 1, **wish: Any
    ) -> PublishAnswer | None:
        """Publish, and return the answer."""
        properties = wish.pop("properties", {})
        retain = wish.pop("retain", False)
        pairs = tuple((name if name[0] != "_" else "$" + name[1:], v) for name, v in wish.items())
        payload = values if isinstance(values, bytes) else json.dumps(values or BREAD).encode()
        self.publisher.publish(
            topic,
            payload,
            qos,
            retain=retain,
            properties=Properties(user_properties=pairs, **properties),
        )
        answers = [one for one in self.publisher.take() if isinstance(one, PublishAnswer)]
        return answers[0] if answers else None

    def move(self, client: Any, place: tuple[float, float]) -> None:
        client.publish("$position", json.dumps({"lon": place[0], "lat": place[1]}).encode())


class OnlyShops(OpenAccess):
    """Rules: shops and replies for everybody, nothing else."""

    def is_restricted(self, _connection: object) -> bool:
        return True

    def may_publish(self, _user_name: str | None, client_id: str, topic: str) -> bool:
        return topic.startswith(("shops", "$position", f"to/{client_id}"))

    def may_subscribe(self, _user_name: str | None, _client_id: str, topic_filter: str) -> bool:
        return topic_filter.startswith(("shops", "to"))

    def refusal(self, _user: str | None, _client: str, _filter: str, *, subscribes: bool) -> str:
        return f"no rule for {'subscribing' if subscribes else 'publishing'}"
