"""Clients that behave by the book at QoS 1 and 2, over any number of crashes of the broker."""

from __future__ import annotations

import select
import socket
import time
from collections import Counter
from collections.abc import Callable

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
    Suback,
    Subscribe,
    encode_packet,
)

WAIT_S = 60.0  # for what must come; on a good day nobody waits
PUBACK, PUBREC, PUBREL, PUBCOMP = (PacketType(number) for number in (4, 5, 6, 7))


class Talker:
    """A client with a lasting session that behaves by the book, over any number of crashes."""

    def __init__(self, name: str, version: ProtocolVersion, qos: int) -> None:
        self.name = name
        self.version = version
        self.qos = qos
        self.sock: socket.socket | None = None
        self.reader = PacketReader(version)
        self.inbox: list[int] = []
        self.taken: set[int] = set()  # QoS 2 identifiers that the broker has not released
        self.open: dict[int, tuple[int, bool]] = {}  # identifier: number, released
        self.acknowledged: set[int] = set()
        self.next_number = 0
        self.had_session = False
        self.assigned = ""  # the identifier that the broker has given it

    def connect(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self.reader = PacketReader(self.version)
        properties = Properties()
        if self.version == 5:
            properties = Properties(session_expiry_interval=3600)
        self.send(Connect(self.name, self.version, clean_start=False, properties=properties))
        packets: list[Packet] = []
        while not packets:
            packets = self.reader.feed(self.sock.recv(65_536))
        assert isinstance(packets[0], Connack)
        assert packets[0].session_present == self.had_session
        self.assigned = packets[0].properties.assigned_client_identifier or ""
        self.had_session = True
        for packet_id, (number, released) in self.open.items():
            if released:
                self.send(PublishAnswer(PUBREL, packet_id))
            else:
                self.send(self.message(number, packet_id, again=True))
        for packet in packets[1:]:
            self.take(packet)

    def message(self, number: int, packet_id: int, *, again: bool = False) -> Publish:
        payload = number.to_bytes(4, "big") + bytes(number % 50)
        return Publish("load", payload, self.qos, duplicate=again, packet_id=packet_id)

    def send(self, packet: Packet) -> None:
        assert self.sock is not None
        self.sock.sendall(encode_packet(packet, self.version))

    def subscribe(self) -> None:
        assert self.sock is not None
        self.send(Subscribe(1, (FilterRequest("load", 2),)))
        packets: list[Packet] = []
        while not any(isinstance(one, Suback) for one in packets):
            packets += self.reader.feed(self.sock.recv(65_536))

    def publish_some(self, count: int) -> None:
        for _ in range(count):
            if len(self.open) >= 100:
                return
            packet_id = next(one for one in range(1, 65_536) if one not in self.open)
            number, self.next_number = self.next_number, self.next_number + 1
            self.open[packet_id] = (number, False)
            self.send(self.message(number, packet_id))

    def read(self) -> None:
        assert self.sock is not None
        data = self.sock.recv(65_536)
        if not data:
            raise ConnectionResetError
        for packet in self.reader.feed(data):
            self.take(packet)

    def take(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self.take_message(packet)
        elif isinstance(packet, PublishAnswer):
            self.take_answer(packet)

    def take_message(self, packet: Publish) -> None:
        number = int.from_bytes(packet.payload[:4], "big")
        if packet.qos == 2:
            if packet.packet_id not in self.taken:
                self.inbox.append(number)
                self.taken.add(packet.packet_id)
            self.send(PublishAnswer(PUBREC, packet.packet_id))
        else:
            self.inbox.append(number)
            self.send(PublishAnswer(PUBACK, packet.packet_id))

    def take_answer(self, packet: PublishAnswer) -> None:
        if packet.kind is PUBREL:
            self.taken.discard(packet.packet_id)
            self.send(PublishAnswer(PUBCOMP, packet.packet_id))
        elif packet.packet_id in self.open:
            number, _ = self.open[packet.packet_id]
            if packet.kind is PUBREC:
                self.acknowledged.add(number)
                self.open[packet.packet_id] = (number, True)
                self.send(PublishAnswer(PUBREL, packet.packet_id))
            else:
                self.acknowledged.add(number)
                del self.open[packet.packet_id]

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None


def always() -> bool:
    return True


def talk(
    talkers: list[Talker],
    seconds: float,
    *,
    publishes: bool,
    until: Callable[[], bool],
    at_least: Callable[[], bool] = always,
) -> None:
    """Let everybody talk for a while, or until something holds, or until the broker is gone.

    Where that while is too short for something that must hold at least, it goes on.
    """
    began = time.monotonic()

    def is_over() -> bool:
        passed_s = time.monotonic() - began
        return until() or (passed_s >= seconds and (at_least() or passed_s >= WAIT_S))

    try:
        while not is_over():
            if publishes:
                talkers[0].publish_some(10)
            ready, _, _ = select.select([one.sock for one in talkers if one.sock], [], [], 0.01)
            for talker in talkers:
                if talker.sock in ready:
                    talker.read()
    except OSError:
        pass


def talk_under_load(talkers: list[Talker], sender: Talker, seconds: float) -> None:
    """Publish for this long, and until 60 more messages of the sender are acknowledged."""
    enough = len(sender.acknowledged) + 60
    talk(
        talkers,
        seconds,
        publishes=True,
        until=lambda: False,
        at_least=lambda: len(sender.acknowledged) >= enough,
    )


def talk_to_the_end(talkers: list[Talker], sender: Talker, receivers: list[Talker]) -> None:
    """Publish a little more, wait until all receivers have all of it, and close everybody."""
    talk(talkers, 0.2, publishes=True, until=lambda: False)
    talk(
        talkers,
        WAIT_S,
        publishes=False,
        until=lambda: (
            not sender.open and all(set(one.inbox) >= sender.acknowledged for one in receivers)
        ),
    )
    talk(talkers, 0.3, publishes=False, until=lambda: False)
    for talker in talkers:
        talker.close()


def check_received(sender: Talker, receiver: Talker) -> None:
    """Check that what was acknowledged arrived; at QoS 2 once and in order."""
    times = Counter(receiver.inbox)
    assert sender.acknowledged - set(times) == set()
    if receiver.qos == 2:
        assert [number for number, count in times.items() if count > 1] == []
        assert receiver.inbox == sorted(receiver.inbox)


def send_to_absent(port: int, sender: Talker, receiver: Talker, count: int) -> None:
    """Publish for a receiver that has subscribed and is gone, and wait for the answers."""
    receiver.connect(port)
    receiver.subscribe()
    receiver.close()
    sender.connect(port)
    sender.publish_some(count)
    talk([sender], WAIT_S, publishes=False, until=lambda: not sender.open)


def receive_all(port: int, receiver: Talker, count: int) -> None:
    """Connect a receiver that was gone: it gets everything, in order."""
    receiver.connect(port)
    talk([receiver], WAIT_S, publishes=False, until=lambda: len(receiver.inbox) == count)
    receiver.close()
    assert receiver.inbox == list(range(count))
