"""A broker process and its journal: damage and single records never keep it from starting."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nearcast.broker.persistence.journal import Journal
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.session.session import Session, WillMessage
from nearcast.mqtt import (
    Connack,
    Connect,
    FilterRequest,
    Packet,
    PacketReader,
    Properties,
    ProtocolVersion,
    Publish,
    PublishAnswer,
    Suback,
    Subscribe,
    encode_packet,
)
from nearcast.mqtt.wire import encode_string
from nearcast.server import JournalFile

pytestmark = pytest.mark.server
V5 = ProtocolVersion.V5


class Talk:
    """A client with a session that lasts."""

    def __init__(self, port: int, name: str) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.reader = PacketReader(V5)
        self.waiting: list[Packet] = []
        lasting = Properties(session_expiry_interval=3_600)
        self.send(Connect(name, clean_start=False, properties=lasting))
        self.had_session = self.next(Connack).session_present

    def send(self, packet: Packet) -> None:
        self.sock.sendall(encode_packet(packet, V5))

    def next(self, kind: Any) -> Any:
        while True:
            while self.waiting:
                packet = self.waiting.pop(0)
                if isinstance(packet, kind):
                    return packet
            data = self.sock.recv(1 << 16)
            assert data, "the broker closed the connection"
            self.waiting += self.reader.feed(data)


@pytest.fixture
def talk() -> Iterator[Callable[[Any, str], Talk]]:
    """Return what connects a client to a broker; its sockets are closed at the end."""
    made: list[Talk] = []

    def connect(broker: Any, name: str) -> Talk:
        made.append(Talk(broker.port, name))
        return made[-1]

    yield connect
    for one in made:
        one.sock.close()


def journal_of(broker: Any) -> Path:
    path: Path
    (path,) = (broker.directory / "journal").glob("journal-*.log")
    return path


def test_a_will_that_cannot_be_published_is_set_aside_and_the_broker_starts(
    start_broker: Any, talk: Any
) -> None:
    broker = start_broker(durability={"mode": "process"})
    steady = talk(broker, "steady")
    steady.send(Subscribe(1, (FilterRequest("#", 1),)))
    steady.next(Suback)
    broker.end(signal.SIGKILL)
    journal, file = Journal(), JournalFile(broker.directory / "journal")
    batches = list(file.batches())
    poisoned = Session("poisoned", 999)
    head = MessageHead(encode_string("/".join("x" * 200)), 4, 1)
    journal.session(poisoned)
    journal.will(poisoned, WillMessage(Message(head, b"deep"), 0, -1))
    file.begin([*batches, journal.take()])
    file.close()
    broker.start()
    said = broker.said()

    assert "a record was set aside" in said
    assert "WILL of client 'poisoned', topic 'x/x/" in said
    (aside,) = (broker.directory / "journal").glob("*.set-aside")
    assert [json.loads(line)["kind"] for line in aside.read_text().splitlines()] == ["WILL"]
    assert talk(broker, "steady").had_session
    broker.end(signal.SIGTERM)
    broker.start()
    assert "set aside" not in broker.said()


def test_damage_in_the_middle_is_told_and_the_rest_is_served(start_broker: Any, talk: Any) -> None:
    broker = start_broker(durability={"mode": "process"})
    talk(broker, "away").send(Subscribe(1, (FilterRequest("t", 1),)))
    sender = talk(broker, "sender")
    for number in range(20):
        payload = b"<%d>" % number
        sender.send(Publish("t", payload, 1, packet_id=number + 1))
        sender.next(PublishAnswer)
    broker.end(signal.SIGKILL)
    path = journal_of(broker)
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"<7>", b"<8>", 1))
    broker.start()
    said = broker.said()

    assert f"{path}, byte " in said
    assert "bytes that are no whole batch" in said
    assert f"is kept as {path.with_suffix('.damaged')}" in said
    assert path.with_suffix(".damaged").exists()
    away = talk(broker, "away")
    assert away.had_session
    found = [away.next(Publish).payload for _ in range(19)]
    assert found == [b"<%d>" % number for number in range(20) if number != 7]


def test_topics_of_the_greatest_length_survive_a_kill(start_broker: Any, talk: Any) -> None:
    broker = start_broker(durability={"mode": "process"})
    topics = ["a" * 65_534, "b" * 65_535]
    receiver, sender = talk(broker, "away"), talk(broker, "sender")
    receiver.send(Subscribe(1, tuple(FilterRequest(one, 1) for one in topics)))
    receiver.next(Suback)
    receiver.sock.close()
    for number, topic in enumerate(topics, 1):
        sender.send(Publish(topic, b"x", 1, retain=True, packet_id=number))
        sender.next(PublishAnswer)
    broker.end(signal.SIGKILL)
    broker.start()
    again = talk(broker, "away")

    assert broker.said() == ""
    assert [again.next(Publish).topic for _ in topics] == topics
    newcomer = talk(broker, "newcomer")
    newcomer.send(Subscribe(1, (FilterRequest("#", 0),)))
    assert sorted(newcomer.next(Publish).topic for _ in topics) == topics
