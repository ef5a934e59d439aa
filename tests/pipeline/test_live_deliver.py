"""Deliveries reach a broker once at least, whatever happens to it."""

import os
import signal
import threading
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pyarrow as pa
import pytest

from nearcast.client.blocking import BlockingClient, BrokerAddress
from nearcast.model import MisuseError
from nearcast.model.errors import EnvironmentProblem
from nearcast.mqtt import FilterRequest, Publish
from nearcast.pipeline.streaming import delivery
from nearcast.pipeline.streaming.addresses import MQTT, LiveAddress, parse_address
from nearcast.pipeline.streaming.delivery import Publisher
from nearcast.pipeline.streaming.mqtt_connection import MqttConnection
from nearcast.server.local_cluster import ChildProcess, LocalCluster, free_port

pytestmark = pytest.mark.server

WAIT_S = 60.0  # for what must come; on a good day nobody waits
CONFIG = """
[limits]
inflight = 20
[[auth.rules]]
action = "publish"
topic = "secret/#"
allow = false
[[auth.rules]]
"""


class Broker:
    """A broker in a process of its own, which keeps its port and its data."""

    def __init__(self, folder: Path, fleet: LocalCluster) -> None:
        self.port = free_port()
        self._fleet = fleet
        self._config = folder / "nearcast.toml"
        self._config.write_text(CONFIG)
        self._child: ChildProcess | None = None
        self.start()

    @property
    def sink(self) -> LiveAddress:
        return parse_address(f"mqtt://127.0.0.1:{self.port}/found", "--deliver", MQTT)

    def start(self) -> None:
        self._child = self._fleet.start_node("broker", self.port, None, self._config)
        self._fleet.wait_until_ready()

    def kill(self) -> None:
        assert self._child is not None
        os.kill(self._child.pid, signal.SIGKILL)
        self._child.end(10)
        self._fleet.nodes.remove(self._child)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("broker")
    with LocalCluster(folder) as fleet:
        yield Broker(folder, fleet)


def reader(broker: Broker, *, fresh: bool) -> BlockingClient:
    return BlockingClient(
        BrokerAddress(
            port=broker.port,
            client_id="r",
            session_expiry_s=900,
            clean_start=fresh,
            timeout_s=WAIT_S,
        )
    )


def test_a_broker_killed_meanwhile_gets_the_rest_when_it_is_back(broker: Broker):
    with reader(broker, fresh=True) as client:
        client.subscribe(FilterRequest("found/#", 1))
    publisher = Publisher(broker.sink)
    half, killed = threading.Event(), threading.Event()

    def publish() -> None:
        for number in range(2_000):
            if number == 1_000:  # up to `inflight` of those before it are unanswered
                half.set()
                killed.wait()
            publisher.publish(Publish(f"found/{number % 5}", str(number).encode(), 1))
        publisher.finish()

    publishing = threading.Thread(target=publish)
    publishing.start()
    half.wait()
    broker.kill()
    killed.set()
    broker.start()
    publishing.join()
    with BlockingClient(BrokerAddress(port=broker.port, timeout_s=WAIT_S)) as client:
        client.publish([Publish("found/end", b"end", 1)])
    with reader(broker, fresh=False) as client:
        payloads = (one.payload for one in client.messages(WAIT_S))
        came = [int(one) for one in takewhile(lambda one: one != b"end", payloads)]
    assert set(came) == set(range(2_000))
    assert list(dict.fromkeys(came)) == list(range(2_000)), "the first of each, in order"


def test_no_more_is_unanswered_than_the_broker_allows(broker: Broker):
    unanswered: list[int] = []
    with MqttConnection(broker.sink, "sender", session_expiry_s=0) as connection:

        def messages() -> Iterator[Publish]:
            for number in range(100):
                unanswered.append(len(connection.conversation.unsettled))
                yield Publish("found/x", str(number).encode(), 1)

        connection.publish(messages())
        assert not connection.conversation.unsettled
    assert max(unanswered) == 19, "and one more is sent then: 20, as the broker allows"


def test_a_broker_that_stays_away_or_refuses_is_said(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
):
    nobody = parse_address(f"mqtt://127.0.0.1:{free_port()}/found", "--deliver", MQTT)
    with monkeypatch.context() as patch:
        patch.setattr(delivery, "PATIENCE_S", 0.5)
        patch.setattr(delivery, "_PAUSE_S", 0.1)
        publisher = Publisher(nobody)
        publisher.publish(Publish("found/x", b"", 1))
        with pytest.raises(EnvironmentProblem, match="deliveries cannot be published"):
            publisher.finish()
    publisher = Publisher(broker.sink)
    publisher.publish(Publish("secret/x", b"", 1))
    with pytest.raises(MisuseError, match="refused the message to secret/x"):
        publisher.finish()


def test_each_delivery_in_the_outbox_has_the_message_of_its_event():
    events = pa.RecordBatch.from_pydict(
        {
            "event_id": pa.array([7, 3, 5], pa.int64()),
            delivery.SENT_TOPIC: ["a/7", "a/3", "a/5"],
            delivery.SENT_PAYLOAD: pa.array([b"seven", b"three", b"five"]),
        }
    )
    found = pa.RecordBatch.from_pydict(
        {
            "event_id": pa.array([3, 3, 7], pa.int64()),
            "subscription_id": pa.array([1, 2, 1], pa.int64()),
            "rank": pa.array([1, 2, 0], pa.int32()),
        }
    )
    rows = delivery.outbox_rows(found, events).to_pylist()
    assert [(row["subscription_id"], row["topic"], row["payload"]) for row in rows] == [
        (1, "a/3", b"three"),
        (2, "a/3", b"three"),
        (1, "a/7", b"seven"),
    ]
    assert delivery.outbox_rows(found.slice(0, 0), events).num_rows == 0
