"""A world of clients around one node, in memory, with a clock that tests move."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.support.shop_space import Shops

from nearcast.broker import Broker, BrokerSettings, Connection
from nearcast.broker.persistence.unapplied_records import SetAside
from nearcast.mqtt import (
    Connack,
    Connect,
    FilterRequest,
    Packet,
    PacketReader,
    PacketType,
    Properties,
    ProtocolVersion,
    Publish,
    PublishAnswer,
    Subscribe,
    Unsubscribe,
    encode_packet,
)

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5


class Client:
    """A client at the other end of a connection; answers publications unless told not to."""

    def __init__(self, world: World, version: ProtocolVersion, *, answers: bool = True) -> None:
        self.world = world
        self.version = version
        self.answers = answers
        self.link = Connection()
        self.packets: list[Packet] = []
        self.all_bytes = b""
        self.is_closed = False
        self._reader = PacketReader(version)
        self._next_id = 0
        world.node.open(self.link, world.now_ms)
        world.clients.append(self)

    def send_bytes(self, data: bytes) -> None:
        self.world.node.receive(self.link, data, self.world.now_ms)
        self.world.settle()

    def send(self, *packets: Packet) -> None:
        self.send_bytes(b"".join(encode_packet(packet, self.version) for packet in packets))

    def take(self) -> list[Packet]:
        """Return what has arrived since the last call."""
        packets, self.packets = self.packets, []
        return packets

    def publications(self) -> list[Publish]:
        return [packet for packet in self.take() if isinstance(packet, Publish)]

    def payloads(self) -> list[bytes]:
        return [packet.payload for packet in self.publications()]

    def next_id(self) -> int:
        self._next_id = self._next_id % 65_535 + 1
        return self._next_id

    def subscribe(self, topic_filter: str, qos: int = 0, **options: Any) -> list[Packet]:
        identifier = options.pop("identifier", 0)
        properties = Properties(subscription_identifiers=(identifier,) if identifier else ())
        request = FilterRequest(topic_filter, qos, **options)
        self.send(Subscribe(self.next_id(), (request,), properties))
        return [packet for packet in self.packets if not isinstance(packet, Publish)]

    def unsubscribe(self, topic_filter: str) -> None:
        self.send(Unsubscribe(self.next_id(), (topic_filter,)))

    def publish(self, topic: str, payload: bytes = b"x", qos: int = 0, **rest: Any) -> int:
        packet_id = self.next_id() if qos else 0
        self.send(Publish(topic, payload, qos, packet_id=packet_id, **rest))
        return packet_id

    def lose(self) -> None:
        """Lose the connection without a word."""
        self.is_closed = True
        self.world.node.lost(self.link, self.world.now_ms)
        self.world.settle()

    def deliver(self, data: bytes) -> bytes:
        """Take bytes from the node; return the answers."""
        self.all_bytes += data
        packets = self._reader.feed(data)
        self.packets += packets
        if not self.answers:
            return b""
        return b"".join(
            encode_packet(answer, self.version)
            for packet in packets
            if (answer := answer_to(packet)) is not None
        )


def answer_to(packet: Packet) -> PublishAnswer | None:
    """Return what a well-behaved peer says to a publication or a publish answer."""
    if isinstance(packet, Publish) and packet.qos:
        kind = PacketType.PUBACK if packet.qos == 1 else PacketType.PUBREC
        return PublishAnswer(kind, packet.packet_id)
    if isinstance(packet, PublishAnswer):
        if packet.kind is PacketType.PUBREC and packet.reason < 0x80:
            return PublishAnswer(PacketType.PUBREL, packet.packet_id)
        if packet.kind is PacketType.PUBREL:
            return PublishAnswer(PacketType.PUBCOMP, packet.packet_id)
    return None


class World:
    """One node, its clients, and time."""

    def __init__(self, settings: BrokerSettings | None = None, **options: Any) -> None:
        self.settings = settings or BrokerSettings()
        self.options = options
        self.node = Broker(self.settings, rng=Random(1), **options)
        self.now_ms = 1_000_000
        self.clients: list[Client] = []
        self.stored: list[bytes] = []
        self.set_aside: list[SetAside] = []

    def client(
        self,
        name: str = "",
        version: ProtocolVersion = V5,
        *,
        answers: bool = True,
        **connect: Any,
    ) -> Client:
        """Return a client that has sent CONNECT; its CONNACK is still to be taken."""
        client = Client(self, version, answers=answers)
        properties = connect.pop("properties", Properties(**connect.pop("props", {})))
        client.send(Connect(name, version, properties=properties, **connect))
        return client

    def welcome(self, name: str = "", version: ProtocolVersion = V5, **rest: Any) -> Client:
        """Return a client whose CONNACK was good and is taken."""
        client = self.client(name, version, **rest)
        packet = client.packets.pop(0)
        assert isinstance(packet, Connack)
        assert packet.reason == 0
        return client

    def settle(self) -> None:
        """Carry bytes to and fro until nobody has anything to say."""
        busy = True
        while busy:
            busy = False
            self.stored.append(self.node.take_journal())
            for connection in self.node.take_dirty():
                connection.is_dirty = False
                client = next(one for one in self.clients if one.link is connection)
                busy |= self._carry(client)

    def _carry(self, client: Client) -> bool:
        link = client.link
        if link.is_paused and not link.is_closing:
            return False
        data, link.outbox, link.outbox_bytes = b"".join(link.outbox), [], 0
        answers = client.deliver(data) if not client.is_closed else b""
        if answers:
            self.node.receive(link, answers, self.now_ms)
        if link.is_closing and not client.is_closed:
            client.is_closed = True
            self.node.lost(link, self.now_ms)
        self.node.drained(link, self.now_ms)
        return True

    def resume(self, client: Client) -> None:
        """Let a paused client read again, as the server would."""
        client.link.is_paused = False
        self._carry(client)
        self.settle()

    def wait(self, ms: int) -> None:
        """Let time pass, waking the node whenever it wants."""
        until = self.now_ms + ms
        while (wake := self.node.wake_at()) is not None and wake <= until:
            self.now_ms = max(self.now_ms, wake)
            self.node.wake(self.now_ms)
            self.settle()
        self.now_ms = until

    def crash_and_restart(self, after_ms: int = 1) -> None:
        """Lose the node and all connections; a new node gets what was stored."""
        for client in self.clients:
            client.is_closed = True
        self.clients.clear()
        self.now_ms += after_ms
        self.node = Broker(self.settings, rng=Random(2), **self.options)
        self.set_aside = self.node.restore(self.stored, self.now_ms)
        self.settle()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(scope="session")
def make_world() -> type[World]:
    return World


@pytest.fixture
def shops(make_world: Any) -> Shops:
    return Shops(make_world)
