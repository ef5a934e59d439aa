"""The blocking client, against a broker that is a few lines: what it reads, and what it answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nearcast.client.blocking import BlockingClient, BrokerAddress
from nearcast.model.errors import PeerProtocolError
from nearcast.mqtt import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketReader,
    Pingreq,
    Pingresp,
    ProtocolVersion,
    Publish,
    PublishAnswer,
    encode_packet,
)

WAIT_S = 60.0  # for what must come


@contextmanager
def broker(
    *sends: Packet, receive_maximum: int | None = None
) -> Iterator[tuple[int, list[Packet]]]:
    """Run a broker that answers CONNECT and sends some packets; yield its port and what came."""
    came: list[Packet] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            line, _ = server.accept()
            reader = PacketReader(ProtocolVersion.V5)
            with line:
                while data := line.recv(1_000):
                    for packet in reader.feed(data):
                        came.append(packet)
                        if isinstance(packet, Connect):
                            line.sendall(b"".join(map(encode_packet, (Connack(), *sends))))
                        if isinstance(packet, Pingreq):
                            line.sendall(encode_packet(Pingresp()))

        serving = threading.Thread(target=serve)
        serving.start()
        yield server.getsockname()[1], came
        serving.join(WAIT_S)


def test_messages_before_a_disconnect_are_read_and_then_its_reason_is_raised():
    with broker(Publish("t", b"1"), Publish("t", b"2"), Disconnect(0x8B)) as (port, _):
        read: list[bytes] = []
        with BlockingClient(BrokerAddress(port=port)) as client:
            messages = client.messages(WAIT_S)
            read += [next(messages).payload, next(messages).payload]
            with pytest.raises(PeerProtocolError, match="closed the connection: server shutting"):
                next(messages)
    assert read == [b"1", b"2"]


@pytest.mark.parametrize("acknowledges", [True, False])
def test_a_message_is_acknowledged_at_once_or_when_the_caller_says_so(*, acknowledges: bool):
    with broker(Publish("t", b"1", 1, packet_id=7)) as (port, came):
        address = BrokerAddress(port=port)
        with BlockingClient(address, acknowledges=acknowledges) as client:
            next(client.messages(WAIT_S))
            client.wait_for_answer()
            before = [one.packet_id for one in came if isinstance(one, PublishAnswer)]
            client.acknowledge([7])
    answers = [one.packet_id for one in came if isinstance(one, PublishAnswer)]
    assert before == ([7] if acknowledges else [])
    assert answers == [*before, 7]
