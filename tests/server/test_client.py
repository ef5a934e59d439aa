"""The commands' client against a real broker."""

from __future__ import annotations

import socket
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from nearcast.client.blocking import BlockingClient, BrokerAddress, broker_figures
from nearcast.model.errors import EnvironmentProblem, PeerProtocolError
from nearcast.mqtt import (
    Connack,
    Connect,
    FilterRequest,
    PacketReader,
    Pingreq,
    Pingresp,
    ProtocolVersion,
    Publish,
    encode_packet,
)

pytestmark = pytest.mark.server
versions = pytest.mark.parametrize("version", list(ProtocolVersion))


@versions
def test_messages_come_through_at_every_quality(
    all_listeners: Any, version: ProtocolVersion
) -> None:
    target = BrokerAddress(port=all_listeners.port, version=version)
    with BlockingClient(target) as receiver, BlockingClient(target) as sender:
        receiver.subscribe(FilterRequest("t/#", 2))
        wanted = [Publish("t/x", b"%d" % number, number % 3) for number in range(1500)]
        assert sender.publish(wanted) == 1500
        received = []
        for message in receiver.messages(60):
            received.append((message.payload, message.qos))
            if len(received) == 1500:
                break

    assert sorted(received) == sorted((one.payload, one.qos) for one in wanted)


def test_over_tls(all_listeners: Any, certificates: Path) -> None:
    target = BrokerAddress(port=all_listeners.ports["tls"], ca_file=certificates / "ca.pem")
    with BlockingClient(target) as client:
        client.subscribe(FilterRequest("s"))
        assert list(client.messages(0.1)) == []
        client.publish([Publish("s", b"still here")])
        assert next(client.messages(60)).payload == b"still here"


def test_in_a_pause_it_says_in_time_that_it_is_there() -> None:
    """Against a broker that counts: a real one would close if this machine stood still."""
    pings: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as door:

        def answer() -> None:
            line, _ = door.accept()
            reader = PacketReader(ProtocolVersion.V5)
            with line:
                while data := line.recv(1_000):
                    for packet in reader.feed(data):
                        if isinstance(packet, Connect):
                            line.sendall(encode_packet(Connack()))
                        if isinstance(packet, Pingreq):
                            pings.append(time.monotonic())
                            line.sendall(encode_packet(Pingresp()))
                            line.sendall(encode_packet(Publish("s", b"%d" % len(pings))))

        broker = threading.Thread(target=answer)
        broker.start()
        began = time.monotonic()
        with BlockingClient(BrokerAddress(port=door.getsockname()[1], keep_alive_s=1)) as client:
            heard = [one.payload for one in islice(client.messages(60), 2)]
        broker.join()
    assert heard == [b"1", b"2"]
    assert pings[1] - began > 1.4  # not all the time


@versions
def test_refusals_are_errors_in_words(all_listeners: Any, version: ProtocolVersion) -> None:
    target = BrokerAddress(port=all_listeners.port, version=version)
    with BlockingClient(target) as client:
        with pytest.raises(PeerProtocolError, match="a#b"):
            client.subscribe(FilterRequest("a#b"))
        if version == 5:
            with pytest.raises(PeerProtocolError, match="the broker's own"):
                client.publish([Publish("$SYS/x", b"", 1)])


def test_nobody_there_is_named() -> None:
    with pytest.raises(EnvironmentProblem, match="no connection"):
        BlockingClient(BrokerAddress(port=1))


def test_figures_of_a_broker(all_listeners: Any) -> None:
    figures = broker_figures(BrokerAddress(port=all_listeners.port))

    assert figures["version"].startswith("nearcast")
    assert "clients/connected" in figures
