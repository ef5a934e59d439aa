"""The commands' client against a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nearcast.model.errors import EnvironmentProblem, PeerProtocolError
from nearcast.mqtt import FilterRequest, ProtocolVersion, Publish
from nearcast.server.client import Client, Target, broker_figures

pytestmark = pytest.mark.server
versions = pytest.mark.parametrize("version", list(ProtocolVersion))


@versions
def test_messages_come_through_at_every_quality(all_doors: Any, version: ProtocolVersion) -> None:
    target = Target(port=all_doors.port, version=version)
    with Client(target) as receiver, Client(target) as sender:
        receiver.subscribe(FilterRequest("t/#", 2))
        wanted = [Publish("t/x", b"%d" % number, number % 3) for number in range(1500)]
        assert sender.publish(wanted) == 1500
        received = []
        for message in receiver.messages(20):
            received.append((message.payload, message.qos))
            if len(received) == 1500:
                break

    assert sorted(received) == sorted((one.payload, one.qos) for one in wanted)


def test_over_tls_and_with_a_pause(all_doors: Any, certificates: Path) -> None:
    target = Target(port=all_doors.ports["tls"], ca_file=certificates / "ca.pem", keep_alive_s=1)
    with Client(target) as client:
        client.subscribe(FilterRequest("s"))
        assert list(client.messages(2.5)) == []
        client.publish([Publish("s", b"still here")])
        assert next(client.messages(5)).payload == b"still here"


@versions
def test_refusals_are_errors_in_words(all_doors: Any, version: ProtocolVersion) -> None:
    target = Target(port=all_doors.port, version=version)
    with Client(target) as client:
        with pytest.raises(PeerProtocolError, match="a#b"):
            client.subscribe(FilterRequest("a#b"))
        if version == 5:
            with pytest.raises(PeerProtocolError, match="not authorized"):
                client.publish([Publish("$SYS/x", b"", 1)])


def test_nobody_there_is_named() -> None:
    with pytest.raises(EnvironmentProblem, match="no connection"):
        Client(Target(port=1))


def test_figures_of_a_broker(all_doors: Any) -> None:
    figures = broker_figures(Target(port=all_doors.port), 0.5)

    assert figures["version"].startswith("nearcast")
    assert "clients/connected" in figures
