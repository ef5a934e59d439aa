"""Several processes behind one port: one broker to every client, whatever dies."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from tests.support.broker_process import BrokerProcess
from tests.support.real_cluster import PahoClient
from tests.support.talkers import (
    Talker,
    check_received,
    receive_all,
    send_to_absent,
    talk,
    talk_to_the_end,
    talk_under_load,
)
from tests.support.waiting import WAIT_S, wait_for
from tests.support.worker_processes import kill_worker, name_at, worker_pids

from nearcast.mqtt import ProtocolVersion

pytestmark = pytest.mark.server

SPACE = {
    "name": "fleet",
    "topics": "fleet/#",
    "values": "json",
    "longitude": "lon",
    "latitude": "lat",
    "attributes": {
        "price": {"low": 0.0, "high": 100.0},
        "lon": {"low": -180.0, "high": 180.0},
        "lat": {"low": -90.0, "high": 90.0},
    },
}


def with_workers(start: Callable[..., BrokerProcess], count: int, **more: Any) -> BrokerProcess:
    broker = start(durability={"mode": "process"}, **more)
    return again(broker, count)


def again(broker: BrokerProcess, count: int) -> BrokerProcess:
    """Start a broker again with another number of workers."""
    said = broker.end()
    assert said == "", said
    broker.sections["node"]["workers"] = count
    return broker.start()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[BrokerProcess]:
    """Return a broker of two workers with all kinds of listeners, for tests that change nothing."""
    pem = {"certificate": str(certificates / "server.pem"), "key": str(certificates / "server.key")}
    directory = tmp_path_factory.mktemp("workers")
    one = BrokerProcess(
        directory,
        node={"data": str(directory), "workers": 2},
        durability={"mode": "process"},
        listener=[
            {"kind": "tcp", "port": 0},
            {"kind": "tls", "port": 0, **pem},
            {"kind": "ws", "port": 0},
        ],
        space=[SPACE],
    )
    yield one.start()
    said = one.end()
    assert "internal error" not in said, said
    assert "Traceback" not in said, said


@pytest.fixture
def clients(broker: BrokerProcess) -> Iterator[Callable[..., PahoClient]]:
    made: list[PahoClient] = []

    def client(place: int, prefix: str = "client", *, lasting: bool = False) -> PahoClient:
        name = name_at(place, 2, f"{prefix}-{len(made)}")
        made.append(PahoClient(broker.port, name, lasting=lasting))
        return made[-1]

    yield client
    for one in made:
        one.close()


def test_there_are_as_many_processes_as_asked_for_behind_one_port(broker: BrokerProcess) -> None:
    assert sorted(worker_pids(broker)) == [0, 1]
    assert set(broker.ports) == {"tcp", "tls", "ws"}


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(("sender", "receiver"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_a_message_reaches_subscribers_at_every_worker_once(
    clients: Callable[..., PahoClient], qos: int, sender: int, receiver: int
) -> None:
    topic = f"here/{sender}/{receiver}/{qos}"
    listener, plain, talker = clients(receiver), clients(receiver), clients(sender)
    listener.subscribe("here/+/#", qos)
    plain.subscribe(topic, qos)
    for number in range(50):
        talker.publish(topic, b"%d" % number, qos)
    wanted = [(topic, b"%d" % number, qos) for number in range(50)]
    assert listener.take(50) == wanted
    assert plain.take(50) == wanted
    assert listener.rest() == []


def test_a_retained_message_is_at_every_worker(clients: Callable[..., PahoClient]) -> None:
    talker = clients(0)
    talker.publish("kept/there", b"1", 1, retain=True)
    for place in (0, 1):
        late = clients(place)
        late.subscribe("kept/#", 1)
        assert late.take(1) == [("kept/there", b"1", 1)]
    clients(1).publish("kept/there", b"", 1, retain=True)
    time.sleep(0.2)
    after = clients(0)
    after.subscribe("kept/#", 1)
    assert after.rest() == []


def test_a_share_group_spans_the_workers(clients: Callable[..., PahoClient]) -> None:
    members = [clients(0), clients(1), clients(1)]
    for one in members:
        one.subscribe("$share/team/work", 1)
    talkers = [clients(0), clients(1)]
    time.sleep(0.5)  # the workers have told each other how many members are there
    for number in range(60):
        talkers[number % 2].publish("work", b"%d" % number, 1)
    found = [one.rest(1.0) for one in members]
    assert Counter(payload for got in found for _, payload, _ in got) == {
        b"%d" % number: 1 for number in range(60)
    }
    assert min(map(len, found)) >= 10


def test_conditions_and_places_hold_at_every_worker(broker: BrokerProcess) -> None:
    publisher = _fives(broker, name_at(0, 2, "publisher"))
    receivers = {}
    for place, price in ((0, 10), (1, 10), (1, 50)):
        name = name_at(place, 2, f"cheap-{price}-{place}")
        receivers[name] = _fives(broker, name)
        receivers[name].subscribe("fleet/#", where=f"price < {price}")
    near = _fives(broker, name_at(1, 2, "near"))
    near.publish("$position", b"", {"lon": "10.0", "lat": "50.0"})
    near.subscribe("fleet/#", near="500m")
    time.sleep(0.3)
    publisher.publish("fleet/a", b'{"price": 20, "lon": 10.001, "lat": 50.0}')
    publisher.publish("fleet/b", b'{"price": 5, "lon": 11.0, "lat": 50.0}')
    publisher.publish("fleet/c", b'{"price": 5, "lon": 11.0, "lat": 50.0}', {"$top": "1"})
    wait_for(lambda: sum(len(one.got) for one in receivers.values()) >= 5)
    time.sleep(0.3)
    found = {name: [topic for topic, _ in one.got] for name, one in receivers.items()}
    assert sorted(topic for topics in found.values() for topic in topics) == [
        *["fleet/a"] * 1,
        *["fleet/b"] * 3,
        "fleet/c",
    ]
    assert [topic for topic, _ in near.got] == ["fleet/a"]
    for one in (publisher, near, *receivers.values()):
        one.close()


class _Five:
    """An MQTT 5 client of paho, with user properties."""

    def __init__(self, port: int, name: str) -> None:
        self.got: list[tuple[str, bytes]] = []
        self._acks: list[int] = []
        self._client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5)
        self._client.on_message = lambda _c, _u, m: self.got.append((m.topic, bytes(m.payload)))
        self._client.on_subscribe = lambda *_: self._acks.append(1)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def subscribe(self, topic_filter: str, **pairs: str) -> None:
        properties = PahoProperties(PacketTypes.SUBSCRIBE)
        properties.UserProperty = [(f"${key}", value) for key, value in pairs.items()]
        before = len(self._acks)
        self._client.subscribe(topic_filter, 1, properties=properties)
        wait_for(lambda: len(self._acks) > before)

    def publish(self, topic: str, payload: bytes, pairs: dict[str, str] | None = None) -> None:
        properties = PahoProperties(PacketTypes.PUBLISH)
        properties.UserProperty = list((pairs or {}).items())
        self._client.publish(topic, payload, 1, properties=properties).wait_for_publish(WAIT_S)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def _fives(broker: BrokerProcess, name: str) -> _Five:
    return _Five(broker.port, name)


@pytest.mark.parametrize("kind", ["tls", "ws"])
def test_clients_whose_connection_cannot_be_passed_on_are_relayed(
    broker: BrokerProcess, certificates: Path, kind: str, clients: Callable[..., PahoClient]
) -> None:
    got: list[bytes] = []
    talker = clients(0)
    others = []
    for number in range(8):  # some are accepted by the worker of their session, some are not
        one = paho.Client(
            CallbackAPIVersion.VERSION2,
            f"{kind}-{number}",
            transport="websockets" if kind == "ws" else "tcp",
        )
        if kind == "tls":
            one.tls_set(str(certificates / "ca.pem"), tls_version=ssl.PROTOCOL_TLS_CLIENT)
        one.on_message = lambda _c, _u, m: got.append(bytes(m.payload))
        one.on_connect = lambda c, *_: c.subscribe(f"over/{kind}", 1)
        one.connect("localhost", broker.ports[kind])
        one.loop_start()
        others.append(one)
    wait_for(lambda: all(one.is_connected() for one in others))
    time.sleep(0.5)
    talker.publish(f"over/{kind}", b"1", 1)
    for one in others:
        one.publish(f"over/{kind}", b"2", 1).wait_for_publish(WAIT_S)
    wait_for(lambda: len(got) >= 72, said=lambda: str(Counter(got)))
    for one in others:
        one.disconnect()
        one.loop_stop()
    assert Counter(got) == {b"1": 8, b"2": 64}


def test_a_client_that_connects_again_takes_its_session_over(broker: BrokerProcess) -> None:
    name = name_at(1, 2, "twice")
    first, second = Talker(name, ProtocolVersion.V5, 1), Talker(name, ProtocolVersion.V5, 1)
    first.connect(broker.port)
    second.had_session = True
    second.connect(broker.port)
    assert first.sock is not None
    with contextlib.suppress(ConnectionResetError):
        while first.sock.recv(100):  # DISCONNECT, then its end
            pass
    first.close()
    second.close()


def test_a_client_without_an_identifier_finds_its_session_again(broker: BrokerProcess) -> None:
    for _ in range(6):  # whichever worker accepts it
        first = Talker("", ProtocolVersion.V5, 1)
        first.connect(broker.port)
        assert first.assigned
        first.close()
        back = Talker(first.assigned, ProtocolVersion.V5, 1)
        back.had_session = True
        back.connect(broker.port)
        back.close()


def test_a_client_that_sends_no_connect_is_answered_as_by_one_process(
    broker: BrokerProcess,
) -> None:
    import socket

    for data in (b"GET / HTTP/1.0\r\n\r\n", b"\x10\x05\x00\x04MQT", b"\x10\xff\xff\xff\xff"):
        with socket.create_connection(("127.0.0.1", broker.port), timeout=WAIT_S) as one:
            one.sendall(data)
            assert one.recv(100) in (b"", b"\x20\x02\x00\x01")
    with socket.create_connection(("127.0.0.1", broker.port), timeout=WAIT_S) as slow:
        for byte in bytes.fromhex("100e 0004 4d515454 04 02 003c 0002 6162"):
            slow.sendall(bytes([byte]))
            time.sleep(0.01)
        assert slow.recv(100) == b"\x20\x02\x00\x00"


# --- deaths -----------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.timeout(600)
def test_a_worker_that_is_killed_comes_back_with_its_sessions_and_nobody_else_notices(
    start_broker: Any, qos: int
) -> None:
    rng = random.Random(f"workers{qos}")
    broker = with_workers(start_broker, 2)
    sender = Talker(name_at(0, 2, "sender"), ProtocolVersion.V5, qos)
    receivers = [Talker(name_at(place, 2, "in"), ProtocolVersion.V5, qos) for place in (0, 1)]
    bystander = Talker(name_at(0, 2, "bystander"), ProtocolVersion.V5, qos)
    everybody = [sender, *receivers, bystander]
    at = {0: [sender, receivers[0], bystander], 1: [receivers[1]]}
    for one in everybody:
        one.connect(broker.port)
    for one in (*receivers, bystander):
        one.subscribe()
    for place in (1, 0, 1):
        talk_under_load(everybody, sender, rng.uniform(0.05, 0.3))
        others = [one for one in everybody if one not in at[place]]
        kill_worker(broker, place)
        for one in at[place]:
            one.close()
        for one in others:  # their connections have outlived it
            assert one.sock is not None
        for one in at[place]:
            one.connect(broker.port)
    talk_to_the_end(everybody, sender, [*receivers, bystander])
    broker.end()

    assert len(sender.acknowledged) > 150
    for one in (*receivers, bystander):
        check_received(sender, one)


def test_clients_of_other_workers_are_served_while_one_is_dead(start_broker: Any) -> None:
    broker = with_workers(start_broker, 2)
    stays = [Talker(name_at(0, 2, f"stay-{one}"), ProtocolVersion.V5, 1) for one in range(2)]
    for one in stays:
        one.connect(broker.port)
    stays[1].subscribe()
    os.kill(worker_pids(broker)[1], signal.SIGKILL)
    began = time.monotonic()
    longest = 0.0
    while time.monotonic() - began < 2.0:
        before, sent = len(stays[1].inbox), time.monotonic()
        stays[0].publish_some(1)
        talk(stays, WAIT_S, publishes=False, until=lambda: len(stays[1].inbox) > before)  # noqa: B023
        longest = max(longest, time.monotonic() - sent)
    late = Talker(name_at(1, 2, "late"), ProtocolVersion.V5, 1)
    late.connect(broker.port)
    for one in (*stays, late):
        one.close()
    broker.end()
    assert stays[1].inbox == sorted(set(stays[1].inbox))
    assert longest < 1.0


def test_the_workers_end_with_a_parent_that_is_killed_and_nothing_is_lost(
    start_broker: Any,
) -> None:
    broker = with_workers(start_broker, 2)
    sender = Talker(name_at(0, 2, "out"), ProtocolVersion.V5, 2)
    receiver = Talker(name_at(1, 2, "in"), ProtocolVersion.V5, 2)
    send_to_absent(broker.port, sender, receiver, 50)
    pids = worker_pids(broker).values()
    broker.end(signal.SIGKILL)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    broker.start()
    receive_all(broker.port, receiver, 50)
    sender.close()


def test_a_worker_that_keeps_dying_ends_the_broker(start_broker: Any) -> None:
    broker = with_workers(start_broker, 2)
    process = broker.process
    assert process is not None

    def kill() -> bool:
        pid = worker_pids(broker).get(1) if process.poll() is None else None
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        return process.poll() is not None

    wait_for(kill, pause_s=0.3)
    assert "worker 2 has ended (signal 9), for the 6th time" in broker.end()


def test_all_workers_read_the_configuration_again(start_broker: Any, tmp_path: Path) -> None:
    broker = with_workers(start_broker, 2)
    later = {**broker.sections, "position": {"grid": 500.0}, "log": {"segment": 77.0}}
    Path(broker.reload_path).write_text(json.dumps(later))
    os.kill(broker.pid, signal.SIGHUP)
    wait_for(lambda: broker.said().count("needs a restart: log.segment") == 2, said=broker.said)
    Path(broker.reload_path).write_text("{}x")
    os.kill(broker.pid, signal.SIGHUP)
    wait_for(lambda: broker.said().count("refused, the old one stays") == 2, said=broker.said)
    assert sorted(worker_pids(broker)) == [0, 1]
    broker.end()


def test_a_space_in_causal_order_spans_the_workers(start_broker: Any) -> None:
    space = {**SPACE, "order": "causal", "lifetime": 5.0}
    broker = with_workers(start_broker, 2, space=[space])
    asker, answerer = (_fives(broker, name_at(place, 2, "talk")) for place in (0, 1))
    reader = _fives(broker, name_at(0, 2, "reader"))
    for one in (asker, answerer, reader):
        one.subscribe("fleet/#")
    time.sleep(0.5)
    body = b'{"price": 1, "lon": 1.0, "lat": 1.0}'
    for number in range(20):
        asker.publish(f"fleet/question/{number}", body)
        wait_for(lambda: any(topic.endswith(f"question/{number}") for topic, _ in answerer.got))  # noqa: B023
        answerer.publish(f"fleet/answer/{number}", body)
    wait_for(lambda: len(reader.got) == 40)
    topics = [topic for topic, _ in reader.got]
    for number in range(20):
        places = [topics.index(f"fleet/{kind}/{number}") for kind in ("question", "answer")]
        assert places == sorted(places)
    for one in (asker, answerer, reader):
        one.close()
    broker.end()


# --- another number ---------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_sessions_move_when_the_number_of_workers_changes(start_broker: Any) -> None:
    broker = start_broker(durability={"mode": "process"}, space=[SPACE])
    keeper = PahoClient(broker.port, "keeper")
    keeper.publish("kept/one", b"1", 1, retain=True)
    keeper.close()
    receivers = [Talker(f"in-{number}", ProtocolVersion.V5, 2) for number in range(12)]
    for one in receivers:
        one.connect(broker.port)
        one.subscribe()
        one.close()
    sender = Talker("out", ProtocolVersion.V5, 2)
    for count in (2, 3, 2, 1, 3, 1):
        sender.connect(broker.port)
        sender.publish_some(20)
        wanted = sender.next_number
        talk([sender], WAIT_S, publishes=False, until=lambda: not sender.open)
        for one in receivers[: len(receivers) // 2]:  # the others get all of it at the end
            _take(one, broker.port, wanted)
        sender.close()
        again(broker, count)
        assert len(worker_pids(broker)) == (0 if count == 1 else count)
        names = {path.name for path in broker.directory.glob("workers-*")}
        assert names == (set() if count == 1 else {f"workers-{count}"})
        late = PahoClient(broker.port, f"late-{count}")
        late.subscribe("kept/#", 1)
        assert late.take(1) == [("kept/one", b"1", 1)]
        late.close()
    for one in receivers:
        _take(one, broker.port, 120)
        assert one.inbox == list(range(120))
    broker.end()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("qos", "count"), [(1, 3), (2, 3), (2, 1)])
def test_what_waits_between_workers_that_are_killed_moves_with_the_sessions(
    start_broker: Any, qos: int, count: int
) -> None:
    broker = with_workers(start_broker, 2)
    receivers = [Talker(f"in-{number}", ProtocolVersion.V5, qos) for number in range(6)]
    for one in receivers:
        one.connect(broker.port)
        one.subscribe()
        one.close()
    sender = Talker(name_at(0, 2, "out"), ProtocolVersion.V5, qos)
    sender.connect(broker.port)
    sender.publish_some(10)
    talk([sender], WAIT_S, publishes=False, until=lambda: len(sender.acknowledged) == 10)
    pids = worker_pids(broker)
    os.kill(pids[1], signal.SIGSTOP)
    sender.publish_some(20)  # the first worker keeps it for the second one
    talk([sender], WAIT_S, publishes=False, until=lambda: len(sender.acknowledged) == 30)
    sender.close()
    for pid in (broker.pid, *pids.values()):
        os.kill(pid, signal.SIGKILL)
    broker.end(signal.SIGKILL)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids.values()))
    broker.sections["node"]["workers"] = count
    broker.start()
    for one in receivers:
        _take(one, broker.port, 30)
        assert sorted(set(one.inbox)) == list(range(30))  # at QoS 1 some may come twice
        assert qos == 1 or one.inbox == list(range(30))
    broker.end()


def _take(one: Talker, port: int, count: int) -> None:
    """Connect until a client has so many messages."""
    one.connect(port)
    talk([one], WAIT_S, publishes=False, until=lambda: len(one.inbox) >= count)
    one.close()


def test_a_change_that_a_crash_has_interrupted_is_completed_or_begun_again(
    start_broker: Any,
) -> None:
    broker = with_workers(start_broker, 2)
    one = Talker("in", ProtocolVersion.V5, 2)
    one.connect(broker.port)
    one.subscribe()
    one.close()
    sender = Talker("out", ProtocolVersion.V5, 2)
    sender.connect(broker.port)
    sender.publish_some(5)
    talk([sender], WAIT_S, publishes=False, until=lambda: not sender.open)
    sender.close()
    broker.end()
    (broker.directory / "next-workers-3" / "1" / "journal").mkdir(parents=True)  # half a draft
    broker.sections["node"]["workers"] = 3
    broker.start()
    broker.end()
    folder = broker.directory / "workers-3"
    folder.rename(broker.directory / "next-workers-3")  # in force, and not in its place yet
    broker.start()
    one.connect(broker.port)
    talk([one], WAIT_S, publishes=False, until=lambda: len(one.inbox) == 5)
    one.close()
    broker.end()
    assert one.inbox == list(range(5))
