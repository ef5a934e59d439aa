"""The peers of the broker's benchmarks, and the load that all of them get."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import peers
from benchmarks.broker_load import link, publish_packet, read_packet, subscribe
from benchmarks.broker_paced import (
    PacedClients,
    PacedLoad,
    many_topics,
    measured,
    pairs,
    requests,
    serves,
)
from benchmarks.broker_processes import OURS, running

from nearcast import compiling

needs_a_compiler = pytest.mark.skipif(not compiling.compiler(), reason="there is no C compiler")


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "flashmq=/opt/flashmq mosquitto-2.1=/opt/mosquitto mosquitto-2.0=/usr/mosquitto"
    monkeypatch.setenv(peers.NAMED, text)


def test_a_peer_is_where_the_environment_says_and_may_have_versions(named: None) -> None:
    found = peers.programs()

    assert found["flashmq"] == "/opt/flashmq"
    assert found["mosquitto-2.0"] == "/usr/mosquitto"
    assert peers.newest("mosquitto") == "mosquitto-2.1"
    assert peers.of("flashmq") == ["flashmq"]
    assert "flashmq" not in peers.missing()
    assert "aedes" in peers.missing()
    assert peers.of("aedes") == []


def test_a_name_that_nobody_declared_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(peers.NAMED, "hivemq=/opt/hivemq")
    with pytest.raises(SystemExit, match="hivemq"):
        peers.programs()


@pytest.mark.parametrize("name", [one for one in peers.PEERS if one != peers.FLOOR])
def test_a_peer_is_told_its_port_and_that_of_loopback_only(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(peers.NAMED, f"{name}-9=/opt/peer")
    for listener in peers.PEERS[name].listeners:
        words = peers.command(f"{name}-9", listener, 12345, tmp_path, tmp_path / "server.pem")
        told = " ".join(words) + (tmp_path / "conf").read_text()
        assert "12345" in told
        assert "127.0.0.1" in told
        assert "0.0.0.0" not in told
        assert ("server.pem" in told) == (listener == "tls")


def test_a_peer_gets_no_load_that_it_cannot_serve() -> None:
    assert serves("rumqttd", pairs(1, 1, 1))
    assert not serves("rumqttd", pairs(1, 1, 1, 5))
    assert not serves("mochi-2.7", pairs(1, 1, 1, 4, "tls"))
    assert serves("mosquitto-2.1", pairs(1, 1, 1, 5))
    assert not serves(peers.FLOOR, many_topics(100, 10))
    assert serves(OURS, many_topics(100, 10))


LOADS = [
    pairs(10, 200, 0),
    pairs(10, 200, 1),
    pairs(50, 50, 2),  # a publisher waits a second, as each has one identifier
    pairs(10, 0, 1),
    requests(1),
    PacedLoad("large", ("p/0",) * 2, ("p/0",) * 2, 20, 1, size=100_000),
]


@pytest.mark.server
@needs_a_compiler
@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_the_floor_forwards_what_the_broker_forwards(load: PacedLoad) -> None:
    """`run` waits until all has come, and fails after a minute."""
    for kind in (OURS, peers.FLOOR):
        with running(kind) as broker:
            clients = PacedClients(broker.port, load)
            delivered = clients.run(0.3)
            assert delivered % clients.copies == 0
            assert delivered >= 0.2 * load.rate * clients.copies > -1
            assert delivered > 0
            clients.close()


@pytest.mark.server
@needs_a_compiler
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_floor_acknowledges_and_forwards_whole_messages(qos: int) -> None:
    with running(peers.FLOOR) as broker:
        sock, other = link(broker.port, 4, "a"), link(broker.port, 4, "b")
        subscribe(other, 4, "t/1", 2)
        sock.sendall(publish_packet("t/1", 4, qos, 7, 9))
        if qos:
            assert read_packet(sock) == (0x40 if qos == 1 else 0x50, b"\0\7")
        identifier = b"\0\1" if qos else b""
        assert read_packet(other) == (0x30 | qos << 1, b"\0\3t/1" + identifier + b"x" * 9)
        sock.close()
        other.close()


@pytest.mark.server
@pytest.mark.parametrize(
    "load",
    [pairs(5, 200, 1, 4, "tls"), pairs(5, 200, 1, 5, "ws"), pairs(5, 100, 1, 5, "durable")],
    ids=lambda load: load.name,
)
def test_the_load_goes_through_every_kind_of_listener(load: PacedLoad) -> None:
    assert measured(load, [OURS], 1, 0.3)[OURS][0] > 0


@pytest.mark.server
def test_every_message_of_many_topics_has_another_topic_and_one_receiver() -> None:
    load = many_topics(2_000, 200)
    assert len(set(load.topics)) == 2_000
    with running(OURS) as broker:
        clients = PacedClients(broker.port, load)
        assert clients.run(0.3) > 300
        clients.close()


@pytest.mark.server
def test_a_peer_that_fails_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(peers.NAMED, "mosquitto-0=/bin/false")
    for more in ("", "cold"):
        figures = measured(pairs(2, 50, 0, 4, more), [OURS, "mosquitto-0"], 1, 0.2)
        assert list(figures) == [OURS]
        assert len(figures[OURS]) == 1
    assert "mosquitto-0 is left out of: 2 pairs" in capsys.readouterr().err
