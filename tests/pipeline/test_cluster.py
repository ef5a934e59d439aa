"""A standalone Spark master with two worker processes: the package and the index reach them."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from tests.support.waiting import wait_for

from nearcast.eventlog import VersionedTable
from nearcast.matching import Matcher
from nearcast.model import Attribute, Event, Space, Subscription, parse_where
from nearcast.server.local_cluster import free_port

pytestmark = [pytest.mark.spark, pytest.mark.java]

SPACE = Space(
    name="plane",
    topic_filter="plane/#",
    attributes=(Attribute.number("x", 0, 100), Attribute.number("y", 0, 100)),
)
CONFIG = """
[[space]]
name = "plane"
topics = "plane/#"
[space.attributes]
x = { low = 0, high = 100 }
y = { low = 0, high = 100 }
"""
CHANCE = random.Random(3)
EVENTS = [(i, CHANCE.uniform(0, 100), CHANCE.uniform(0, 100)) for i in range(500)]
WISHES = [(i, CHANCE.uniform(0, 90), CHANCE.uniform(0, 90)) for i in range(80)]


def launched(folder: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start one of Spark's own daemons in the foreground, as a group of its own."""
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
    }
    environment.pop("PYTHONPATH", None)  # workers get the package from the job, not from us
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [str(home / "bin" / "spark-class"), *arguments],
            env=environment, cwd=folder, start_new_session=True, stdout=log, stderr=log,
        )  # fmt: skip


def wait_until_said(log: Path, words: str, count: int = 1) -> None:
    wait_for(
        lambda: log.read_text().count(words) >= count, 240, said=lambda: log.read_text()[-3000:]
    )


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the master is, and where its workers keep what is theirs."""

    master: str
    folder: Path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    flags = os.environ["SPARK_SUBMIT_OPTS"]
    (folder / "spark-defaults.conf").write_text(f"spark.executor.extraJavaOptions {flags}\n")
    address = f"spark://127.0.0.1:{(port := free_port())}"
    daemons = [
        launched(
            folder, "master", "org.apache.spark.deploy.master.Master",
            "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0",
        )
    ]  # fmt: skip
    try:
        wait_until_said(folder / "master.log", "I have been elected leader")
        daemons += [
            launched(
                folder, f"worker{i}", "org.apache.spark.deploy.worker.Worker", address,
                "--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0",
                "--work-dir", str(folder / f"work{i}"),
            )
            for i in range(2)
        ]  # fmt: skip
        wait_until_said(folder / "master.log", "Registering worker", count=2)
        yield Cluster(address, folder)
    finally:
        for daemon in reversed(daemons):
            os.killpg(daemon.pid, signal.SIGTERM)
        for daemon in daemons:
            daemon.wait(timeout=120)


def write_input(root: Path) -> None:
    ids, xs, ys = zip(*EVENTS, strict=True)
    events = pa.table({"event_id": ids, "x": xs, "y": ys})
    for part in range(4):  # four tasks, so that both workers have something to do
        (root / "events").mkdir(exist_ok=True)
        pq.write_table(events.slice(part * 125, 125), root / "events" / f"{part}.parquet")
    wheres = [f"{x} <= x <= {x + 10} and {y} <= y <= {y + 10}" for _, x, y in WISHES]
    wishes = pa.table({"subscription_id": [i for i, *_ in WISHES], "where": wheres})
    pq.write_table(wishes, root / "wishes.parquet")
    (root / "nearcast.toml").write_text(CONFIG)


def expected() -> list[tuple[int, int, int]]:
    matcher = Matcher([SPACE])
    for key, x, y in WISHES:
        where = parse_where(f"{x} <= x <= {x + 10} and {y} <= y <= {y + 10}")
        matcher.add(key, Subscription(topic_filter="plane/#", where=where))
    return sorted(
        (event_id, match.key, rank)
        for event_id, x, y in EVENTS
        for rank, match in enumerate(
            matcher.top(Event.of(SPACE, "plane/x", {"x": x, "y": y}), 3), start=1
        )
    )


@pytest.mark.timeout(1200)
def test_a_cluster_of_two_workers_delivers_what_the_matcher_says(cluster: Cluster, tmp_path: Path):
    write_input(tmp_path)
    command = [
        sys.executable, "-c", "from nearcast.cli import main; main()", "pipeline", "match",
        "--master", cluster.master, "--space", "plane", "--config", str(tmp_path / "nearcast.toml"),
        "--input", str(tmp_path / "events"), "--subscriptions", str(tmp_path / "wishes.parquet"),
        "--output", str(tmp_path / "out"), "--top", "3",
    ]  # fmt: skip
    environment = {
        **os.environ,
        "SPARK_CONF_DIR": str(cluster.folder),
        "XDG_CACHE_HOME": str(cluster.folder / "cache"),
    }
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    starting, *progress = run.stderr.splitlines()
    assert starting == f"Starting Spark ({cluster.master}) ..."
    assert all(line.startswith("match: ") and "tasks done" in line for line in progress)
    table = pq.read_table(VersionedTable(str(tmp_path / "out/deliveries")).current_path())
    found = sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))
    assert found == expected()
    assert len(found) > 100
    # The job itself has the kernels that were compiled when the package was set up.
    kept = list((cluster.folder / "cache").rglob("*.nbi"))
    assert kept, "workers cached no compiled kernel"
