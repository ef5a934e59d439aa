"""Connections that the server ends: what it has said arrives, whatever was still sent to it."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nearcast.mqtt import (
    Connack,
    Connect,
    Disconnect,
    FilterRequest,
    Packet,
    PacketReader,
    PacketType,
    Pingreq,
    ProtocolVersion,
    Publish,
    PublishAnswer,
    ReasonCode,
    Subscribe,
    encode_packet,
)
from nearcast.server.local_cluster import free_port

pytestmark = pytest.mark.server
V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
WAIT_S = 60.0  # for what must come; on a good day nobody waits
MUCH = encode_packet(Pingreq()) * (1 << 20)  # more than a server reads at once


class Plug:
    """A client that reads and writes when it is told to."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        plain = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self.socket = plain if context is None else context.wrap_socket(plain)
        self._packets = PacketReader(V5)

    def welcome(self, name: str = "", version: ProtocolVersion = V5, **options: Any) -> Plug:
        self._packets.version = version
        self.send(Connect(name, version, **options))
        assert isinstance(self.next()[0], Connack)
        return self

    def send(self, *packets: Packet) -> None:
        version = self._packets.version
        self.socket.sendall(b"".join(encode_packet(one, version) for one in packets))

    def next(self) -> list[Packet]:
        """Return what comes next; at the end nothing, and close."""
        while data := self.socket.recv(1 << 16):
            if packets := list(self._packets.feed(data)):
                return packets
        self.socket.close()
        return []

    def rest(self) -> list[Packet]:
        """Return all that comes until the end."""
        found: list[Packet] = []
        while packets := self.next():
            found += packets
        return found


@pytest.mark.parametrize("door", ["tcp", "tls"])
def test_who_sends_on_hears_why_the_connection_ends(
    all_listeners: Any, certificates: Path, door: str
) -> None:
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    context.check_hostname = False
    client = Plug(all_listeners.ports[door], context if door == "tls" else None).welcome()

    client.send(Publish("a", b"1", 1, packet_id=7), Connect("twice"))
    client.socket.sendall(MUCH)

    answer, last = client.rest()
    assert answer == PublishAnswer(PacketType.PUBACK, 7, ReasonCode.NO_MATCHING_SUBSCRIBERS)
    assert isinstance(last, Disconnect)
    assert last.reason == ReasonCode.PROTOCOL_ERROR


def test_a_websocket_says_goodbye_and_bears_what_still_comes(start_broker: Callable[..., Any]):
    broker = start_broker(listener=[{"kind": "ws", "port": free_port()}])
    with socket.create_connection(("127.0.0.1", broker.ports["ws"]), timeout=WAIT_S) as client:
        client.sendall(
            b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
        )
        while b"\r\n\r\n" not in client.recv(1 << 16):
            pass
        twice = encode_packet(Connect("twice"), V5) * 2
        client.sendall(b"\x82" + bytes([0x80 | len(twice)]) + bytes(4) + twice)
        client.sendall((b"\x89\x80" + bytes(4)) * 100_000)  # pings
        got = b"".join(iter(lambda: client.recv(1 << 16), b""))

    assert got.endswith(b"\x88\x02\x03\xe8")
    said = got[got.index(b"\x82") :]  # pongs may come first
    *_, last = PacketReader(V5).feed(said[2 : 2 + said[1]])
    assert isinstance(last, Disconnect)
    assert last.reason == ReasonCode.PROTOCOL_ERROR
    assert broker.end().count("\n") == 1, "the fault of the client, and none of the broker"


def test_who_never_ends_its_side_is_not_waited_for(start_broker: Callable[..., Any]) -> None:
    broker = start_broker()
    client = Plug(broker.port).welcome()

    broker.end()  # returns, though this side stays open

    assert client.rest() == [Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)]


class Careless:
    """A publisher at QoS 2 that, after it comes again, publishes anew what was not completed.

    Whatever it has said of it before: so does paho-mqtt when it reconnects at the second attempt.
    """

    def __init__(self) -> None:
        self.open: dict[int, bytes] = {}
        self.sent: list[bytes] = []
        self._numbers = itertools.count()
        self._client: Plug | None = None

    def come(self, port: int) -> None:
        self._client = Plug(port).welcome("careless", V311, clean_start=False)
        self._send(*self.open)

    def _send(self, *numbers: int) -> None:
        assert self._client is not None
        self._client.send(*(Publish("a", self.open[one], 2, packet_id=one) for one in numbers))

    def publish_until_the_end(self, *, at_once: int) -> None:
        """Have some messages on their way at all times, until the server ends the connection."""
        self._publish(at_once - len(self.open))
        while self._answer():
            self._publish(at_once - len(self.open))

    def complete(self) -> None:
        while self.open:
            assert self._answer()

    def leave(self) -> None:
        assert self._client is not None
        self._client.socket.close()

    def _publish(self, count: int) -> None:
        numbers = [next(self._numbers) for _ in range(count)]
        fresh = {one % 65_535 + 1: b"%d" % one for one in numbers}
        self.open |= fresh
        self.sent += fresh.values()
        self._send(*fresh)

    def _answer(self) -> bool:
        assert self._client is not None
        answers = self._client.next()
        for answer in answers:
            assert isinstance(answer, PublishAnswer)
            if answer.kind is PacketType.PUBREC:
                self._client.send(PublishAnswer(PacketType.PUBREL, answer.packet_id))
            else:
                del self.open[answer.packet_id]
        return bool(answers)


def test_an_orderly_restart_doubles_nothing_even_for_a_careless_client(
    start_broker: Callable[..., Any],
) -> None:
    broker = start_broker(durability={"mode": "process"})
    got: Counter[bytes] = Counter()
    publisher = Careless()
    for is_last in (False, False, False, True):
        listener = Plug(broker.port).welcome()
        listener.send(Subscribe(1, (FilterRequest("a"),)))
        listener.next()
        reading = threading.Thread(
            target=lambda one: got.update(m.payload for m in one.rest() if isinstance(m, Publish)),
            args=(listener,),
        )
        reading.start()
        publisher.come(broker.port)
        if is_last:
            publisher.complete()
            publisher.leave()
        else:
            timer = threading.Timer(0.3, os.kill, (broker.pid, signal.SIGTERM))
            timer.start()
            publisher.publish_until_the_end(at_once=200)
        broker.end()
        reading.join()
        if not is_last:
            broker.start()

    assert got == Counter(publisher.sent)
