"""Broker, Kafka, stream, Kafka: what a publisher was acknowledged arrives, whatever is killed."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.kafka_process import Kafka, connector_jars
from pyspark.sql import SparkSession
from tests.support.broker_process import BrokerProcess
from tests.support.kafka import started_kafka
from tests.support.waiting import START_S, wait_for

from nearcast.client.blocking import BlockingClient, BrokerAddress
from nearcast.mqtt import Properties, Publish
from nearcast.pipeline.streaming.kafka import OFFSET_BITS
from nearcast.pipeline.streaming.stream import read_deliveries

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.java]

CONFIG = """
[[space]]
name = "plane"
topics = "plane/#"
[space.attributes]
x = { low = 0, high = 100 }
kind = { categories = ["food", "tools"] }
"""
WISHES = {1: "x < 30", 2: 'kind = "tools" and x >= 20', 3: "x >= 90"}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    server = started_kafka(tmp_path_factory.mktemp("kafka"))
    yield server
    server.kill()


def records(kafka: Kafka, topic: str) -> list[Any]:
    """Return all records of a topic, partition by partition, in order."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": "test", "log_level": 0})
    found: list[Any] = []
    try:
        for partition in consumer.list_topics(topic, 10).topics[topic].partitions:
            place = TopicPartition(topic, partition, 0)
            _, end = consumer.get_watermark_offsets(place, 10)
            consumer.assign([place])
            count = 0
            while count < end:
                portion = [one for one in consumer.consume(1_000, 0.2) if one.error() is None]
                mine = [one for one in portion if one.partition() == partition]
                found += mine
                count += len(mine)
    finally:
        consumer.close()
    return found


def publish(port: int, chance: random.Random, numbers: range) -> None:
    with BlockingClient(BrokerAddress(port=port)) as client:
        for n in numbers:
            body = {"n": n, "x": chance.randint(0, 100), "kind": chance.choice(["food", "tools"])}
            pairs = Properties(user_properties=(("n", str(n)),))
            client.publish(
                [Publish(f"plane/{n % 5}", json.dumps(body).encode(), 1, properties=pairs)]
            )


def fits(body: dict[str, Any]) -> set[int]:
    return {
        key
        for key, fit in {
            1: body["x"] < 30,
            2: body["kind"] == "tools" and body["x"] >= 20,
            3: body["x"] >= 90,
        }.items()
        if fit
    }


@pytest.fixture
def streams() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Return the list of running streams; what is left is killed."""
    running: list[subprocess.Popen[bytes]] = []
    yield running
    for one in running:
        if one.poll() is None:
            kill(one)


def start_stream(folder: Path, kafka: Kafka) -> subprocess.Popen[bytes]:
    source, sink = (f"kafka://{kafka.servers}/{name}" for name in ("in", "out"))
    with (folder / "stream.log").open("ab") as log:
        return subprocess.Popen(
            [
                *(sys.executable, "-c", "from nearcast.cli import main; main()", "pipeline"),
                *("stream", "--config", str(folder / "nearcast.toml"), "--space", "plane"),
                *("--source", source, "--deliver", sink, "--subscriptions", f"{folder}/changes"),
                *("--output", f"{folder}/out", "--checkpoint", f"{folder}/state"),
                *("--master", "local[2]", "--jars", connector_jars(), "--most", "200"),
            ],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def kill(stream: subprocess.Popen[bytes]) -> None:
    os.killpg(stream.pid, signal.SIGKILL)
    stream.wait()


def test_from_a_publisher_through_kafka_and_spark_to_kafka_over_kill_9_of_each(
    kafka: Kafka, tmp_path: Path, spark: SparkSession, streams: list[subprocess.Popen[bytes]]
):
    (tmp_path / "nearcast.toml").write_text(CONFIG)
    (tmp_path / "changes").mkdir()
    wishes = pa.table({"subscription_id": list(WISHES), "where": list(WISHES.values())})
    pq.write_table(wishes, tmp_path / "changes" / "000.parquet")
    for name in ("in", "out"):
        kafka.make_topic(name, 2)
    chance = random.Random(5)
    broker = BrokerProcess(
        tmp_path,
        feed={"kafka": f"kafka://{kafka.servers}/in", "topics": ["plane/#"]},
        durability={"mode": "process"},
    ).start()
    streams.append(start_stream(tmp_path, kafka))
    port = broker.ports["tcp"]
    publish(port, chance, range(200))
    broker.end(signal.SIGKILL)
    broker.start()
    publish(port, chance, range(200, 400))
    output = tmp_path / "out"
    wait_for(lambda: list((output / "deliveries").glob("*/_SUCCESS")), START_S)
    kill(streams[-1])
    kafka.kill()
    publish(port, chance, range(400, 500))  # the broker keeps it for Kafka
    kafka.start()
    streams.append(start_stream(tmp_path, kafka))
    wait_for(lambda: {n for n, _ in told(kafka)} == set(range(500)), START_S, pause_s=0.5)
    fed = records(kafka, "in")
    expected = {
        ((one.partition() << OFFSET_BITS) + one.offset(), key)
        for one in fed
        for key in fits(json.loads(one.value()))
    }
    wait_for(lambda: delivered(kafka) == expected, START_S, pause_s=0.5)
    found = [
        (row.event_id, row.subscription_id) for row in read_deliveries(spark, output).collect()
    ]
    assert len(found) == len(set(found)), "no delivery is written twice"
    assert set(found) == expected
    for partition in (0, 1):
        offsets = [one.offset() for one in fed if one.partition() == partition]
        assert offsets == list(range(len(offsets))), "no gap"
    for one in fed:
        headers = dict(one.headers())
        assert headers["n"] == str(json.loads(one.value())["n"]).encode()
        assert one.key() == f"plane/{int(headers['n']) % 5}".encode()
        assert headers["nearcast-id"]
    broker.end()


def told(kafka: Kafka) -> list[tuple[int, int]]:
    return [(json.loads(one.value())["n"], one.offset()) for one in records(kafka, "in")]


def delivered(kafka: Kafka) -> set[tuple[int, int]]:
    return {(int(dict(one.headers())["event"]), int(one.key())) for one in records(kafka, "out")}
