"""A stream of a live source delivers what the Matcher says of what was published."""

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import takewhile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import settings
from pyspark.sql import SparkSession
from tests.support.waiting import wait_for

from nearcast.cli import main
from nearcast.client.blocking import BlockingClient, BrokerAddress
from nearcast.config import Configuration, load
from nearcast.config.schema import AttributeSection, NetworkSection, SpaceSection
from nearcast.matching import Matcher
from nearcast.model import Event, MisuseError, Subscription, parse_where
from nearcast.model.errors import EnvironmentProblem
from nearcast.mqtt import FilterRequest, Publish
from nearcast.pipeline.jobs.match import MatchQuery
from nearcast.pipeline.sources.subscription_tables import matcher_of
from nearcast.pipeline.streaming.changes import subscriptions_at
from nearcast.pipeline.streaming.jetstream import FeedAddress, FeedWatch
from nearcast.pipeline.streaming.live_events import LiveReader
from nearcast.pipeline.streaming.live_stream import live_of, start_live
from nearcast.pipeline.streaming.spool import read_spool, spool_end, spool_start
from nearcast.pipeline.streaming.stream import Stream, read_deliveries, unfinished_batch
from nearcast.server.local_cluster import LocalCluster, find_nats_server, free_port

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.java]

IS_SOAK = settings.default is not None and settings.default.max_examples > 50
PAGE = (Path(__file__).parents[2] / "docs" / "live-stream.md").read_text(encoding="utf-8")
CONFIG = """
[network]
feed = ["plane/#"]

[[space]]
name = "plane"
topics = "plane/#"
missing = "all"
[space.attributes]
x = { low = 0, high = 100 }
y = { low = 0, high = 100, path = "at.y" }
kind = { categories = ["food", "tools"] }

[[space]]
name = "props"
topics = "props/#"
values = "properties"
[space.attributes]
x = { low = 0, high = 100 }
"""
WISHES = {i: f"x >= {i} and y < {2 * i + 5}" for i in range(0, 40, 2)} | {
    1: 'kind = "food"',
    3: 'kind = "tools" and x < 50',
}


class Broker:
    """A broker in a process of its own, which keeps its port and its data; it feeds a NATS."""

    def __init__(self, folder: Path, fleet: LocalCluster) -> None:
        self.config = folder / "nearcast.toml"
        self.config.write_text(CONFIG)
        self.nats = fleet.start_nats(free_port())
        self.port = free_port()
        self._fleet = fleet
        self.start()

    def start(self) -> None:
        self._child = self._fleet.start_node("broker", self.port, self.nats, self.config)
        self._fleet.wait_until_ready()

    def kill(self) -> None:
        os.kill(self._child.pid, signal.SIGKILL)
        self._child.end(10)
        self._fleet.nodes.remove(self._child)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    try:
        find_nats_server()
    except EnvironmentProblem:
        pytest.skip("nats-server is not installed (make setup)")
    folder = tmp_path_factory.mktemp("broker")
    with LocalCluster(folder) as fleet:
        yield Broker(folder, fleet)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "nearcast.toml"
    path.write_text(CONFIG)
    return path


def write_wishes(folder: Path) -> None:
    folder.mkdir(parents=True)
    table = pa.table({"subscription_id": list(WISHES), "where": list(WISHES.values())})
    pq.write_table(table, folder / "000.parquet")


def events(chance: random.Random, count: int) -> list[dict[str, object]]:
    return [
        {
            "n": chance.getrandbits(60),
            "x": chance.randint(0, 100),
            "at": {"y": chance.randint(0, 100)},
            **({"kind": chance.choice(["food", "tools"])} if chance.random() < 0.7 else {}),
        }
        for _ in range(count)
    ]


def publish(port: int, bodies: list[dict[str, object]], topic: str = "plane/x") -> None:
    with BlockingClient(BrokerAddress(port=port)) as client:
        client.publish(Publish(topic, json.dumps(one).encode(), 1) for one in bodies)


def expected(bodies: list[dict[str, object]], config: Path) -> Counter[tuple[object, int]]:
    """Return who gets which event, by the event's own number."""
    (space, _) = (one.to_space() for one in load(config, {}).space)
    matcher = Matcher([space])
    for key, where in WISHES.items():
        matcher.add(key, Subscription(topic_filter="plane/#", where=parse_where(where)))
    found: Counter[tuple[object, int]] = Counter()
    for body in bodies:
        values = {"x": body["x"], "y": body["at"]["y"], "kind": body.get("kind")}  # type: ignore[index]
        event = Event.of(space, "plane/x", values)
        found.update((body["n"], key) for key in matcher.match(event))
    return found


def stream_of(
    root: Path, config: Path, space: str = "plane", changes: Path | None = None
) -> Stream:
    declared = next(one for one in load(config, {}).space if one.name == space).to_space()
    return Stream(
        Path("live"), changes or root / "changes", root / "out", root / "checkpoint", declared,
        MatchQuery(space, f"{space}/x"),
    )  # fmt: skip


def delivered(
    spark: SparkSession, output: Path, numbers: dict[int, object]
) -> Counter[tuple[object, int]]:
    rows = read_deliveries(spark, output).collect()
    return Counter((numbers[row.event_id], row.subscription_id) for row in rows)


def own_numbers(folder: Path) -> dict[int, object]:
    """Return the number that an event's publisher gave it, for each number of the spool."""
    return {
        row["number"]: json.loads(row["payload"])["n"]
        for batch in read_spool(folder, spool_start(folder), spool_end(folder))
        for row in batch.to_pylist()
        if row["payload"].startswith(b"{")
    }


def is_subscribed(path: Path) -> bool:
    """Say whether a stream has told in its file that the broker knows of it."""
    return path.exists() and json.loads(path.read_text())["was_seen"] is True


@pytest.mark.timeout(1200)
def test_a_broker_s_events_are_matched_as_they_are_published_and_deliveries_come_back(
    spark: SparkSession, tmp_path: Path, config: Path, broker: Broker
):
    write_wishes(tmp_path / "changes")
    chance = random.Random(3)
    before, during, after, away = (events(chance, count) for count in (50, 300, 200, 100))
    publish(broker.port, before)  # nobody listens yet
    source = f"mqtt://127.0.0.1:{broker.port}/plane/#"
    section = load(config, {}).space[0]
    live = live_of(
        source, section, load(config, {}).network, f"mqtt://127.0.0.1:{broker.port}/found"
    )
    stream = stream_of(tmp_path, config)
    spool = tmp_path / "checkpoint" / "spool"
    with BlockingClient(
        BrokerAddress(port=broker.port, client_id="reader", session_expiry_s=900)
    ) as reader:
        reader.subscribe(FilterRequest("found/#", 1))
    with start_live(spark, stream, live) as running:
        publish(broker.port, during)
        with BlockingClient(BrokerAddress(port=broker.port)) as client:
            bad = [b"no json", b'{"x": 500, "at": {"y": 1}, "n": 1}']
            client.publish([Publish("plane/x", one, 1) for one in bad])
        broker.kill()
        broker.start()
        publish(broker.port, after)
        goal = expected(during + after, config)
        wait_for(
            # Stopped while a batch is published, the stream would publish it again.
            lambda: (
                running.has_ended()
                or (matched(spark, tmp_path) >= goal.total() and not unfinished(stream))
            ),
            240,
            pause_s=0.1,
        )
        assert running.query.isActive
    assert delivered(spark, tmp_path / "out", own_numbers(spool)) == goal

    # What is published while the stream is away is matched when it is back.
    publish(broker.port, away)
    with start_live(spark, stream, live, once=True) as running:
        running.wait()
    goal = expected(during + after + away, config)
    numbers = own_numbers(spool)
    assert delivered(spark, tmp_path / "out", numbers) == goal
    reasons = spark.read.parquet(str(tmp_path / "out" / "rejected" / "*")).collect()
    assert sorted(row.reason for row in reasons) == [
        "payload: found b'no json'; expected JSON (Expecting value: line 1 column 1 (char 0))",
        "payload: x: found 500; expected a number from 0 to 100",
    ]

    # The network's feed has all of it, from before the stream as well.
    feed = stream_of(tmp_path / "feed", config, changes=tmp_path / "changes")
    live = live_of(broker.nats, section, load(config, {}).network)
    watch = FeedWatch(FeedAddress(NetworkSection(join=[broker.nats])))
    count = len(before + during + after + away) + len(bad)
    wait_for(lambda: watch.marks()[1] > count, 240)  # it is a moment behind
    watch.close()
    with start_live(spark, feed, live, once=True) as running:
        running.wait()
    fed = read_deliveries(spark, tmp_path / "feed" / "out").count()
    assert fed == expected(before + during + after + away, config).total()
    # Its numbers begin with 1 and 50 events earlier, and are otherwise those of the spool.
    shifted = {(one - 51, key) for one, key in pairs(spark, tmp_path / "feed") if one > 50}
    assert shifted == pairs(spark, tmp_path)

    # Each delivery came back once, in order: nothing broke while they were published.
    with BlockingClient(BrokerAddress(port=broker.port, timeout_s=60)) as client:
        client.publish([Publish("found/end", b"end", 1)])
    resumed = BrokerAddress(
        port=broker.port, client_id="reader", session_expiry_s=900, clean_start=False
    )
    with BlockingClient(resumed) as reader:
        came = list(takewhile(lambda one: one.payload != b"end", reader.messages(60)))
    assert Counter((json.loads(one.payload)["n"], key_of(one)) for one in came) == goal
    for key in WISHES:
        order = [int(dict(one.properties.user_properties)["event"])
                 for one in came if key_of(one) == key]  # fmt: skip
        assert order == sorted(order)


def unfinished(stream: Stream) -> bool:
    return unfinished_batch(stream.checkpoint) is not None


def matched(spark: SparkSession, root: Path) -> int:
    return read_deliveries(spark, root / "out").count()


def pairs(spark: SparkSession, root: Path) -> set[tuple[int, int]]:
    return {(row[0], row[1]) for row in read_deliveries(spark, root / "out").collect()}


def key_of(message: Publish) -> int:
    return int(message.topic.removeprefix("found/"))


@pytest.mark.timeout(1200)
def test_killed_in_the_middle_nothing_is_lost_and_nothing_doubled(
    spark: SparkSession, tmp_path: Path, config: Path, broker: Broker
):
    write_wishes(tmp_path / "changes")
    chance = random.Random(5)
    bodies = events(chance, 400)
    said = tmp_path / "said.txt"
    published = 0
    for _ in range(2 if IS_SOAK else 1):
        with said.open("ab") as file:
            run = subprocess.Popen(
                command(tmp_path, broker),
                start_new_session=True,
                stdout=file,
                stderr=file,
                cwd=tmp_path,
            )
        wait_for(partial(is_subscribed, tmp_path / "state" / "spool" / "source.json"), 240)
        more = batches(tmp_path) + 1
        while batches(tmp_path) < more and published < len(bodies) - 100:
            assert run.poll() is None, said.read_text()
            publish(broker.port, bodies[published : published + 10])
            published += 10
            time.sleep(0.2)
        time.sleep(chance.uniform(0, 0.5))
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    publish(broker.port, bodies[published:])
    done = subprocess.run(
        [*command(tmp_path, broker), "--once"],
        check=False,
        timeout=600,
        capture_output=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr.decode()
    numbers = own_numbers(tmp_path / "state" / "spool")
    assert delivered(spark, tmp_path / "found", numbers) == expected(bodies, config)


def batches(root: Path) -> int:
    return len(list((root / "found" / "deliveries").glob("*/_SUCCESS")))


def command(root: Path, broker: Broker) -> list[str]:
    """Return the command of the page, for this broker, space and folder."""
    (line,) = (one for one in PAGE.splitlines() if "--source mqtt" in one)
    line = line.replace("127.0.0.1:1883/shops/#", f"127.0.0.1:{broker.port}/plane/#")
    words = shlex.split(line.removesuffix("&").replace("--space shops", "--space plane"))
    assert words[0] == "nearcast"
    return [sys.executable, "-c", "from nearcast.cli import main; main()", *words[1:]]


def test_the_page_s_configuration_and_program_are_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    blocks: dict[str, str] = {}
    for one in PAGE.split("```")[1::2]:
        kind, _, text = one.partition("\n")
        blocks.setdefault(kind, text)
    configuration = Configuration.model_validate(tomllib.loads(blocks["toml"]))
    assert configuration.network.feed == [configuration.space[0].topics]
    exec(blocks["python"], {})
    space = configuration.space[0].to_space()
    matcher = matcher_of(subscriptions_at(tmp_path / "changes", "000.parquet", space), space)
    event = Event.of(space, "shops/5", {"price": 20, "kind": "tools"})
    assert sorted(matcher.match(event)) == [1, 2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--source", "http://h/x"], "expected mqtt://host:port/… or mqtts://"),
        (["--source", "kafka://h"], "expected kafka://host:port/TOPIC"),
        (["--source", "mqtt://h/shops/#"], "topics of the space plane, which are 'plane/#'"),
        (["--source", "mqtt://h/plane/a#"], "# alone"),
        (["--source", "mqtt://h/#", "--input", "x"], "both --input and --source"),
        ([], "neither --input nor --source"),
        (["--input", "x", "--deliver", "mqtt://h/found"], "--deliver with --input"),
        (["--source", "mqtt://h/#", "--deliver", "mqtt://h"], "/PREFIX, a topic"),
        (["--source", "mqtt://h/#", "--deliver", "nats://h/x"], "expected mqtt://host:port"),
    ],
)
def test_bad_options_are_said(
    options: list[str],
    words: str,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    base = ["--space", "plane", "--config", str(config), "--subscriptions", "c", "--output", "o"]
    told = ["nearcast", "pipeline", "stream", *base, "--checkpoint", "s", *options]
    monkeypatch.setattr(sys, "argv", told)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_an_attribute_that_hides_a_column_is_said():
    attributes = {"topic": AttributeSection(low=0, high=1)}
    section = SpaceSection(name="s", topics="s/#", attributes=attributes)
    with pytest.raises(MisuseError, match="an attribute named 'topic'"):
        LiveReader(section, with_payload=False)
