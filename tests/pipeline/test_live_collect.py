"""What a broker acknowledged to a publisher is in the spool once, whatever breaks between."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.support.waiting import WAIT_S, wait_for

from nearcast.client.blocking import BlockingClient, BrokerAddress
from nearcast.model import FileFormatError, MisuseError
from nearcast.model.errors import EnvironmentProblem
from nearcast.mqtt import Publish
from nearcast.pipeline.streaming.addresses import MQTT, parse_address
from nearcast.pipeline.streaming.collector import Collector, Repeats
from nearcast.pipeline.streaming.spool import Spooled, read_spool, spool_end
from nearcast.server.local_cluster import LocalCluster, free_port

pytestmark = pytest.mark.server


# --- repeats, beside a model of a broker -------------------------------------------------------


@dataclass
class ModelBroker:
    """What a broker does for a session at QoS 1: identifiers in a small circle, order kept."""

    waiting: list[int] = field(default_factory=list)
    in_flight: dict[int, int] = field(default_factory=dict)  # identifier: message
    last_id: int = 0

    def send(self, message: int) -> int:
        while True:
            self.last_id = self.last_id % 3 + 1
            if self.last_id not in self.in_flight:
                self.in_flight[self.last_id] = message
                return self.last_id


class OnceOverAnyConnection(RuleBasedStateMachine):
    """Messages that differ are on disk once each and in order, whatever breaks when."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = ModelBroker()
        self.published = 0
        self.disk: list[Spooled] = []
        self.settled = 0
        self.repeats = Repeats([], 0)
        self.arriving: list[tuple[int, int, bool]] = []  # on the wire to us
        self.buffer: list[Spooled] = []
        self.ids: list[int] = []
        self.answers: list[tuple[str, int]] = []  # on the wire to the broker
        self.heard: list[int] = []  # answered pings, on the wire to us

    @rule()
    def publish(self) -> None:
        if len(self.broker.in_flight) < 3:
            message = self.published
            self.published += 1
            self.arriving.append((self.broker.send(message), message, False))

    @rule(count=st.integers(1, 3))
    def arrive(self, count: int) -> None:
        for packet_id, message, may_be in self.arriving[:count]:
            one = Spooled("a", str(message).encode(), (), packet_id)
            self.ids.append(packet_id)
            if not self.repeats.is_repeat(one, may_be=may_be):
                self.buffer.append(one)
        del self.arriving[:count]

    @rule(answers=st.booleans())
    def write(self, answers: bool) -> None:
        first = len(self.disk)
        self.disk += self.buffer
        self.repeats.wrote(self.buffer, first)
        if answers:  # else: killed between the disk and the answer
            self.answers += [("ack", one) for one in self.ids]
            self.answers.append(("ping", len(self.disk)))
            self.buffer, self.ids = [], []
        else:
            self.crash()

    @rule(count=st.integers(1, 4))
    def broker_reads(self, count: int) -> None:
        for kind, number in self.answers[:count]:
            if kind == "ack":
                self.broker.in_flight.pop(number, None)
            else:
                self.heard.append(number)
        del self.answers[:count]

    @rule()
    def hear(self) -> None:
        if self.heard:
            self.settled = max(self.settled, self.heard.pop(0))
            self.repeats.settle(self.settled)

    @rule()
    def connection_breaks(self) -> None:
        self.buffer, self.ids, self.answers, self.heard = [], [], [], []
        self.arriving = [(key, one, True) for key, one in self.broker.in_flight.items()]

    @rule()
    def crash(self) -> None:
        self.connection_breaks()
        self.repeats = Repeats(self.disk[self.settled :], self.settled)

    @invariant()
    def each_once_in_order(self) -> None:
        assert [int(one.payload) for one in self.disk] == list(range(len(self.disk)))

    def teardown(self) -> None:
        self.connection_breaks()
        self.arrive(9)
        self.write(answers=True)
        assert len(self.disk) == self.published


TestOnceOverAnyConnection = OnceOverAnyConnection.TestCase


def test_a_repeat_is_told_by_the_flag_the_identifier_and_every_byte():
    one = Spooled("a", b"1", (("k", "v"),), 7)
    repeats = Repeats([one, replace(one, packet_id=0)], 10)
    assert repeats.is_repeat(one, may_be=True)
    assert not repeats.is_repeat(one, may_be=False)
    for other in (
        replace(one, topic="b"),
        replace(one, payload=b"2"),
        replace(one, pairs=()),
        replace(one, packet_id=8),
        replace(one, packet_id=0),
    ):
        assert not repeats.is_repeat(other, may_be=True)
    repeats.settle(10)
    assert repeats.is_repeat(one, may_be=True)
    repeats.settle(11)
    assert not repeats.is_repeat(one, may_be=True)
    repeats.wrote([one], 11)
    repeats.forget()
    assert not repeats.is_repeat(one, may_be=True)


# --- with a real broker ------------------------------------------------------------------------


class Broker:
    """A broker in a process of its own, which keeps its port."""

    def __init__(self, fleet: LocalCluster, config: Path | None = None) -> None:
        self.port = free_port()
        self._fleet = fleet
        self._config = config
        self.start()

    def start(self) -> None:
        self._child = self._fleet.start_node("broker", self.port, None, self._config)
        self._fleet.wait_until_ready()

    def kill(self) -> None:
        os.kill(self._child.pid, signal.SIGKILL)
        self._child.end(10)
        self._fleet.nodes.remove(self._child)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "fleet") as fleet:
        yield fleet


@pytest.fixture
def broker(fleet: LocalCluster) -> Broker:
    return Broker(fleet)


def collector(port: int, folder: Path, topics: str = "city/#", user: str = "") -> Collector:
    address = parse_address(f"mqtt://{user}127.0.0.1:{port}/{topics}", "--source", MQTT)
    return Collector(address, topics, folder)


def publish(port: int, *payloads: bytes, qos: int = 1, topic: str = "city/a") -> None:
    with BlockingClient(BrokerAddress(port=port, timeout_s=WAIT_S)) as client:
        client.publish(Publish(topic, one, qos) for one in payloads)


def spooled(folder: Path) -> list[bytes]:
    return [
        payload
        for batch in read_spool(folder, 0, spool_end(folder))
        for payload in batch.column("payload").to_pylist()
    ]


def wait_until_spooled(folder: Path, count: int) -> list[bytes]:
    wait_for(lambda: spool_end(folder) >= count)
    return spooled(folder)


def all_up_to_a_mark(broker: Broker, folder: Path) -> list[bytes]:
    """Return what was collected before a mark that is published now; a second copy would show."""
    mark = f"mark {time.monotonic_ns()}".encode()
    publish(broker.port, mark)
    wait_for(lambda: mark in spooled(folder))
    return [one for one in spooled(folder) if not one.startswith(b"mark")]


def numbered(first: int, behind: int) -> list[bytes]:
    return [str(number).encode() for number in range(first, behind)]


def test_what_comes_while_it_is_away_comes_later_and_nothing_twice(broker: Broker, tmp_path: Path):
    folder = tmp_path / "spool"
    one = collector(broker.port, folder)
    one.start()
    publish(broker.port, *numbered(0, 300))
    publish(broker.port, b"0", topic="elsewhere")
    assert all_up_to_a_mark(broker, folder) == numbered(0, 300)
    one.stop()
    publish(broker.port, *numbered(300, 500))
    again = collector(broker.port, folder)
    again.start()
    assert all_up_to_a_mark(broker, folder) == numbered(0, 500)
    assert again.repeated == 0, "all that came before was acknowledged"
    again.stop()


def test_a_broker_that_is_killed_and_started_again_loses_nothing(broker: Broker, tmp_path: Path):
    folder = tmp_path / "spool"
    one = collector(broker.port, folder)
    one.start()
    for round_ in range(3):
        publish(broker.port, *numbered(100 * round_, 100 * round_ + 100))
        broker.kill()
        broker.start()
    publish(broker.port, b"last")
    assert all_up_to_a_mark(broker, folder) == [*numbered(0, 300), b"last"]
    one.stop()


def test_killed_between_disk_and_acknowledgement_nothing_is_doubled(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "spool"
    one = collector(broker.port, folder)
    one.start()
    with monkeypatch.context() as patch:
        patch.setattr("nearcast.client.blocking.BlockingClient.acknowledge", _nothing)
        patch.setattr("nearcast.pipeline.streaming.mqtt_connection.MqttConnection.ping", _nothing)
        publish(broker.port, *numbered(0, 50))
        assert wait_until_spooled(folder, 50) == numbered(0, 50)
        assert one._connection is not None
        one._connection.drop()  # as if it were killed: no goodbye
        one._ends.set()
        one._thread.join()
        one._spool.close()
    again = collector(broker.port, folder)
    again.start()
    publish(broker.port, *numbered(50, 60))
    assert all_up_to_a_mark(broker, folder) == numbered(0, 60)
    assert again.repeated == 50
    again.stop()


def _nothing(*_: object) -> None:
    pass


def test_a_full_spool_holds_the_broker_back_and_goes_on_later(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "spool"
    one = collector(broker.port, folder)
    one._most_bytes = 1
    one.start()
    publish(broker.port, b"0")
    wait_until_spooled(folder, 1)  # the first is written: nothing was there
    publish(broker.port, b"1", b"2")
    held_back: list[int] = []
    hold_back = one._hold_back

    def count_and_hold_back() -> None:
        held_back.append(1)
        hold_back()

    monkeypatch.setattr(one, "_hold_back", count_and_hold_back)
    wait_for(lambda: len(one._buffer) == 2)
    seen = len(held_back)
    wait_for(lambda: len(held_back) > seen + 3)  # it has looked for room again and again
    assert spool_end(folder) <= 1
    first = one._connection
    broker.kill()  # what waited is sent again, and must not wait twice
    broker.start()
    wait_for(lambda: one._connection not in (None, first) and len(one._buffer) == 2)
    one._most_bytes = 1 << 30
    assert all_up_to_a_mark(broker, folder) == numbered(0, 3)
    one.stop()


def test_a_disk_that_takes_nothing_ends_it_and_nothing_is_acknowledged(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "spool"
    one = collector(broker.port, folder)
    one.start()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("nearcast.pipeline.streaming.spool.SpoolWriter.append", full)
        publish(broker.port, b"0")
        one._thread.join(WAIT_S)
    assert isinstance(one.problem, OSError)
    one.stop()
    again = collector(broker.port, folder)
    again.start()
    assert all_up_to_a_mark(broker, folder) == [b"0"]
    again.stop()


def test_bad_sources_are_said(fleet: LocalCluster, tmp_path: Path):
    with pytest.raises(EnvironmentProblem, match="no connection"):
        collector(free_port(), tmp_path / "a").start()
    (tmp_path / "users").write_text("")
    config = tmp_path / "nearcast.toml"
    config.write_text(f'[auth]\nusers = "{tmp_path}/users"\nanonymous = "never"\n')
    broker = Broker(fleet, config)
    with pytest.raises(MisuseError, match=r"refused the connection .*Check user and password"):
        collector(broker.port, tmp_path / "b", user="me:wrong@").start()
    with pytest.raises(MisuseError, match="with which this checkpoint was begun"):
        collector(1, tmp_path / "a", topics="other/#")
    (tmp_path / "a" / "source.json").write_text("{")
    with pytest.raises(FileFormatError, match="damaged"):
        collector(1, tmp_path / "a")


def test_a_session_that_the_broker_forgot_is_said(
    broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    folder = tmp_path / "spool"
    one = collector(broker.port, folder)
    one.start()
    one.stop()
    assert not caplog.records
    with BlockingClient(BrokerAddress(port=broker.port, client_id=one._client_id)):
        pass  # a clean start ends the session
    again = collector(broker.port, folder)
    again._repeats.wrote([Spooled("city/a", b"0", (), 1)], 0)
    again.start()
    assert not again._repeats.is_repeat(Spooled("city/a", b"0", (), 1), may_be=True)
    again.stop()
    assert "has no session" in caplog.text


@pytest.mark.parametrize(
    "text", ["ftp://h/x", "mqtt:/h", "mqtt://", "mqtt://h:port/x", "mqtt://me:secret@/x", "x"]
)
def test_addresses_that_are_none_are_said_without_the_password(text: str):
    with pytest.raises(MisuseError, match="--source: found") as told:
        parse_address(text, "--source", MQTT)
    assert "secret" not in str(told.value)
