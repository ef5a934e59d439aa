"""Clients: what selections are called, and a conversation with one node."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tests.golden.golden import Maker, as_hex

from nearcast.broker import Broker, Connection, RetainedSettings, SpaceSettings
from nearcast.eventlog.records import Recorder
from nearcast.model import Attribute, Space, read_subscription
from nearcast.mqtt import (
    Connect,
    Disconnect,
    FilterRequest,
    Packet,
    PacketType,
    Properties,
    ProtocolVersion,
    Publish,
    PublishAnswer,
    Subscribe,
    Unsubscribe,
    Will,
    encode_packet,
)

V311, V5 = ProtocolVersion
P = Properties
SHOPS = Space(
    name="shops",
    topic_filter="shops/#",
    attributes=(
        Attribute.number("price", 0, 100),
        Attribute.category("kind", ["food", "tools", "toys"]),
        Attribute.number("lon", -1, 1),
        Attribute.number("lat", -1, 1),
    ),
    longitude="lon",
    latitude="lat",
)


_WILL = Will("w/1", b"gone", 1, True)

# --- selections as text: in filters between nodes, in the journal and in the event log -----------

SELECTIONS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("$where", "price < 10"),),
    (("$where", "price = 10..20 and kind in (food, toys)"),),
    (("$where", "not (price >= 1e3 or kind != tools)"),),
    (("$area", "bbox(-1,-0.5,0.25,1)"),),
    (("$area", "circle(0.5,0.5,1.5km)"),),
    (("$area", 'geojson({"type":"Polygon","coordinates":[[[0,0],[1,0],[1,1],[0,0]]]})'),),
    (("$near", "500m"), ("$retained", "now")),
    (("$where", "price > 1"), ("$near", "2km")),
)


def selections() -> str:
    """Return what each selection is called, as others are told."""
    lines = []
    for pairs in SELECTIONS:
        given = " ".join("=".join(pair) for pair in pairs)
        lines.append(f"{given}  ->  {read_subscription('shops/+', pairs).subscription.identity}")
    return "\n".join(lines) + "\n"


# --- one node and its clients --------------------------------------------------------------------


class Hall:
    """One node whose journal, event log and every packet to a client are written down."""

    def __init__(self) -> None:
        spaces = [SpaceSettings(space=SHOPS)]
        held = [RetainedSettings(topics="plant/#", mode="wait")]
        self.node = Broker(rng=Random(1), with_journal=True, spaces=spaces, retained=held)
        self.node.state.log = Recorder()
        self.lines: list[str] = []
        self.now_ms = 1_000_000
        self._links: dict[str, tuple[Connection, ProtocolVersion]] = {}

    def say(self, name: str, *packets: Packet, version: ProtocolVersion = V5) -> None:
        """Let a client send packets, and write down what follows."""
        self.now_ms += 10
        if name not in self._links:
            self._links[name] = Connection("127.0.0.1:1"), version
            self.node.open(self._links[name][0], self.now_ms)
        link, version = self._links[name]
        data = b"".join(encode_packet(packet, version) for packet in packets)
        self.lines.append(f"{name} > {as_hex(data)}")
        self.node.receive(link, data, self.now_ms)
        self._settle()

    def lose(self, name: str) -> None:
        """Cut a client's connection."""
        self.lines.append(f"{name} is lost")
        self.node.lost(self._links.pop(name)[0], self.now_ms)
        self._settle()

    def _settle(self) -> None:
        names = {link: name for name, (link, _) in self._links.items()}
        for link in self.node.take_dirty():
            link.is_dirty = False
            if link in names:
                self.lines.append(f"{names[link]} < {as_hex(b''.join(link.outbox))}")
            link.outbox, link.outbox_bytes = [], 0
        assert self.node.state.log is not None
        for name, data in (
            ("journal", self.node.take_journal()),
            ("log", b"".join(self.node.state.log.take())),
        ):
            if data:
                self.lines.append(f"{name} {as_hex(data)}")


def offer(lon: float, price: int = 5) -> bytes:
    """Return the payload of an event."""
    return json.dumps({"price": price, "kind": "food", "lon": lon, "lat": 0}).encode()


def wish(text: str, *pairs: tuple[str, str], number: int = 1, qos: int = 1) -> Subscribe:
    """Return a SUBSCRIBE with user properties."""
    return Subscribe(number, (FilterRequest(text, qos),), P(user_properties=pairs))


def told(*pairs: tuple[str, str], **rest: Any) -> Properties:
    """Return the properties of a PUBLISH."""
    return P(user_properties=pairs, **rest)


def hall() -> Hall:
    """Return a node that clients with selections have talked to."""
    one = Hall()
    lasting = P(session_expiry_interval=600, user_properties=(("lon", "0.1"), ("lat", "0")))
    one.say("ann", Connect("ann", properties=lasting))
    one.say("ann", wish("shops/#", ("$near", "20km"), ("$label", "Ann"), ("$explain", "true")))
    one.say("bob", Connect("bob", V311, will=_WILL), version=V311)
    one.say("bob", Subscribe(1, (FilterRequest("shops/+"), FilterRequest("$share/g/a"))))
    one.say("cat", Connect("", properties=P(topic_alias_maximum=4)))
    near = ("$area", "circle(0.2,0,30km)")
    one.say("cat", wish("$where/price%3C10/shops/#"), wish("shops/1", near, ("$weight", "2")))
    one.say("ann", Publish("$position", b'{"lon": 0.11, "lat": 0}', 1, packet_id=2))
    one.say("bob", Publish("shops/1", offer(0.1)))
    best = told(("$top", "1"), ("$rank", "nearest"), ("$lifetime", "1500ms"))
    one.say("cat", Publish("shops/1", offer(0.12), 1, packet_id=5, properties=best))
    one.say("cat", Publish("shops/2", offer(0.1, 50), 1, True, packet_id=6))
    one.say("dan", Connect("dan"), Subscribe(1, (FilterRequest("answers/#"),)))
    asked = told(("$reply", "matches"), response_topic="answers/1", correlation_data=b"7")
    one.say("dan", Publish("shops/3", offer(0.1), 1, packet_id=7, properties=asked))
    one.say("ann", PublishAnswer(PacketType.PUBACK, 1), Unsubscribe(3, ("shops/#",)))
    one.say("dan", Publish("plant/1", b"20.5", 1, True, packet_id=8))
    one.say("ann", wish("plant/+", number=4))
    one.say("dan", Publish("plant/1", b"21.5", 1, packet_id=9))
    one.lose("bob")
    one.say("ann", Disconnect())
    return one


def conversation() -> str:
    """Return all that clients, journal and event log of a node had."""
    return "\n".join(hall().lines) + "\n"


FILES: dict[str, Maker] = {
    "wire/selections.txt": selections,
    "wire/conversation.txt": conversation,
}
