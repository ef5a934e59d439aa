"""`format("mqtt")`: any broker into Spark and out of it, and nothing is lost over `kill -9`."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.support.mosquitto import Mosquitto
from tests.support.waiting import START_S, wait_for

from nearcast.client.blocking import BlockingClient, BrokerAddress
from nearcast.model import MisuseError
from nearcast.mqtt import FilterRequest, Properties, Publish
from nearcast.pipeline.streaming.data_sources import SpoolReader
from nearcast.pipeline.streaming.formats import register_live_formats
from nearcast.pipeline.streaming.live_events import LiveMessage, MessageReader
from nearcast.pipeline.streaming.mqtt_format import MqttSource
from nearcast.pipeline.streaming.spool import Spooled, SpoolWriter
from nearcast.pipeline.tables.transaction import spark_schema

DRIVER = """
import sys
from nearcast.pipeline.session import spark_session
from nearcast.pipeline.streaming.formats import register_live_formats

address, folder = sys.argv[1:]
spark = spark_session("local[2]", name="driver", memory_gb=1)
register_live_formats(spark)
def source(name):
    return (spark.readStream.format("mqtt").option("address", address).option("topics", "in/#")
            .option("spool", f"{folder}/{name}-spool").option("most", "150").load())
source("table").writeStream.format("parquet").option("path", f"{folder}/table").option(
    "checkpointLocation", f"{folder}/table-state").start()
echo = source("echo").selectExpr("'out/' || substr(topic, 4) topic", "payload", "properties")
echo.writeStream.format("mqtt").option("address", address).option(
    "checkpointLocation", f"{folder}/echo-state").start()
print("started", flush=True)
spark.streams.awaitAnyTermination()
"""


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    broker = Mosquitto(tmp_path_factory.mktemp("mosquitto"))
    yield broker
    broker.end()


def _named(n: int) -> tuple[tuple[str, str]]:
    return (("n", str(n)),)


def publish(port: int, numbers: range) -> None:
    with BlockingClient(BrokerAddress(port=port)) as client:
        client.publish(
            Publish(
                f"in/{n % 3}", str(n).encode(), 1, properties=Properties(user_properties=_named(n))
            )
            for n in numbers
        )


def driver(address: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, address, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)  # the driver, its Java, its workers
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def is_subscribed(folder: Path) -> bool:
    files = [folder / f"{name}-spool" / "source.json" for name in ("table", "echo")]
    return all(file.exists() and '"was_seen": true' in file.read_text() for file in files)


@pytest.mark.spark
@pytest.mark.java
@pytest.mark.server
def test_nothing_that_mosquitto_acknowledged_is_lost_over_kill_9_of_the_driver(
    mosquitto: Mosquitto, tmp_path: Path, spark: SparkSession
):
    address = f"mqtt://127.0.0.1:{mosquitto.port}"
    listener = BlockingClient(
        BrokerAddress(port=mosquitto.port, client_id="listener", session_expiry_s=900)
    )
    listener.subscribe(FilterRequest("out/#", 1))
    running = driver(address, tmp_path)
    wait_for(lambda: is_subscribed(tmp_path), START_S)
    publish(mosquitto.port, range(300))
    wait_for(lambda: list((tmp_path / "table").glob("*.parquet")), START_S)
    publish(mosquitto.port, range(300, 500))
    kill(running)
    publish(mosquitto.port, range(500, 700))
    running = driver(address, tmp_path)
    echoed: set[int] = set()
    for message in listener.messages(START_S):
        assert dict(message.properties.user_properties) == {"n": message.payload.decode()}
        assert message.topic == f"out/{int(message.payload) % 3}"
        echoed.add(int(message.payload))
        if len(echoed) == 700:
            break
    listener.close()
    assert echoed == set(range(700))
    table = tmp_path / "table"
    wait_for(lambda: spark.read.parquet(str(table)).count() >= 700, START_S)
    kill(running)
    rows = spark.read.parquet(str(table)).orderBy("number").collect()
    assert [row.number for row in rows] == list(range(700)), "each offset once, no gap"
    assert sorted(int(row.payload) for row in rows) == list(range(700))


@pytest.mark.spark
@pytest.mark.server
def test_rows_of_a_table_are_published(mosquitto: Mosquitto, spark: SparkSession):
    register_live_formats(spark)
    with BlockingClient(BrokerAddress(port=mosquitto.port)) as client:
        client.subscribe(FilterRequest("rows/#", 1))
        rows = spark.sql("select 'rows/' || id topic, 'é' || id payload, true retain from range(3)")
        address = f"mqtt://127.0.0.1:{mosquitto.port}"
        rows.write.format("mqtt").option("address", address).mode("append").save()
        found = {}
        for message in client.messages(30):
            found[message.topic] = message.payload.decode()
            if len(found) == 3:
                break
    assert found == {f"rows/{n}": f"é{n}" for n in range(3)}


@pytest.mark.spark
@pytest.mark.server
def test_the_example_of_the_page(mosquitto: Mosquitto, tmp_path: Path, spark: SparkSession):
    text = (Path(__file__).parents[2] / "docs" / "live-stream.md").read_text(encoding="utf-8")
    code = text.partition("<!-- tested: plain spark -->\n```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    exec(code.replace("1883", str(mosquitto.port)).replace('"state/', f'"{tmp_path}/'), names)
    try:
        assert names["spark"].sparkContext is spark.sparkContext
        source = tmp_path / "spool" / "source.json"
        wait_for(lambda: source.exists() and '"was_seen": true' in source.read_text(), START_S)
        with BlockingClient(BrokerAddress(port=mosquitto.port)) as client:
            client.subscribe(FilterRequest("copy/#", 1))
            client.publish([Publish("shops/5", b"bread", 1)])
            copy = next(client.messages(START_S))
        assert (copy.topic, copy.payload) == ("copy/shops/5", b"bread")
    finally:
        names["query"].stop()


# --- without Spark ----------------------------------------------------------------------------


def test_rows_of_messages_have_their_properties():
    messages = [
        LiveMessage(4, 1_500, "a/b", b"x", (("k", "1"), ("k", "2"))),
        LiveMessage(5, 0, "a", b"", ()),
    ]
    rows = MessageReader().batch(iter(messages)).to_pylist()
    assert rows[0]["t"].timestamp() == 1.5
    assert [dict(row["properties"]) for row in rows] == [{"k": "2"}, {}]
    told = [(row["number"], row["topic"], row["payload"]) for row in rows]
    assert told == [(4, "a/b", b"x"), (5, "a", b"")]
    assert MessageReader().batch(iter([])).num_rows == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"address": "tcp://host"}, "expected mqtt://host:port/… or mqtts://"),
        ({"address": "mqtt://host"}, "expected a topic filter, such as shops/#"),
        ({"address": "mqtt://host/a/#/b", "spool": "x"}, "topics: found 'a/#/b'"),
        ({"path": "mqtt://host/a"}, "no option 'spool'"),
    ],
)
def test_a_wrong_option_says_what_is_expected(options: dict[str, str], words: str):
    with pytest.raises(MisuseError, match=words):
        MqttSource({"spool": "x", **options} if "path" not in options else options).streamReader(
            spark_schema(MessageReader.schema)
        )


@pytest.mark.parametrize(
    ("columns", "options"),
    [(["topic"], {}), (["payload"], {}), (["topic", "payload", "colour"], {"topic": "a"})],
)
def test_columns_that_mean_nothing_are_refused(columns: list[str], options: dict[str, str]):
    schema = spark_schema(pa.schema({name: pa.string() for name in columns}))
    with pytest.raises(MisuseError, match=r"expected topic .or the option 'topic'., payload"):
        MqttSource({"address": "mqtt://host", **options}).streamWriter(schema, overwrite=False)


def test_a_query_that_goes_on_takes_no_more_than_a_batch(tmp_path: Path):
    """Spark 4.1 asks for the end of a batch without its start."""
    writer = SpoolWriter(tmp_path)
    writer.append([Spooled("a", b"") for _ in range(100)])
    first = SpoolReader(tmp_path, MessageReader(), 1, 30)
    start = first.initialOffset()
    end = first.latestOffset()
    assert (start, end) == ({"next": 0}, {"next": 30})
    first.partitions(start, end)
    again = SpoolReader(tmp_path, MessageReader(), 1, 30)
    assert again.latestOffset() == {"next": 60}
    writer.close()
