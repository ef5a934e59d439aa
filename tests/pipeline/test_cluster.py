"""A standalone Spark master with two worker processes: the package and the index reach them."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pyarrow import fs
from tests.support.s3_server import hadoop_settings, s3_jars, s3_server, store_at
from tests.support.space_sections import space_section
from tests.support.spark_tables import fixes
from tests.support.waiting import wait_for

from nearcast.eventlog import VersionedTable
from nearcast.matching import Matcher
from nearcast.model import Attribute, Event, Space, Subscription, parse_where
from nearcast.pipeline.session import packed_package
from nearcast.server.local_cluster import free_port

pytestmark = [pytest.mark.spark, pytest.mark.java]

SPACE = Space(
    name="plane",
    topic_filter="plane/#",
    attributes=(Attribute.number("x", 0, 100), Attribute.number("y", 0, 100)),
)
CONFIG = space_section("plane", x=(0, 100), y=(0, 100))
CHANCE = random.Random(3)
EVENTS = [(i, CHANCE.uniform(0, 100), CHANCE.uniform(0, 100)) for i in range(500)]
WISHES = [(i, CHANCE.uniform(0, 90), CHANCE.uniform(0, 90)) for i in range(80)]


_HIDES = 'mount -t tmpfs tmpfs "$0" && cd / && exec "$@"'


def launched(
    folder: Path, name: str, *arguments: str, hidden: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start one of Spark's own daemons in the foreground, as a group of its own.

    Where `hidden` is, the daemon and its children have an empty directory of their own.
    """
    alone = (
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", _HIDES, str(hidden)]
        if hidden
        else []
    )
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
            [*alone, str(home / "bin" / "spark-class"), *arguments],
            env=environment, cwd=folder, start_new_session=True, stdout=log, stderr=log,
        )  # fmt: skip


def wait_until_said(log: Path, words: str, count: int = 1) -> None:
    wait_for(
        lambda: log.read_text().count(words) >= count, 240, said=lambda: log.read_text()[-3000:]
    )


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the master is, a directory that the workers see, and one that is empty for them."""

    master: str
    folder: Path
    hidden: Path | None

    @property
    def environment(self) -> dict[str, str]:
        """What a driver has: its executors start as it does, and all cache kernels in one place.

        A directory of settings would be on Java's class path, where no prepared classes count.
        """
        flags = os.environ["SPARK_SUBMIT_OPTS"]
        executors = f'"-Dspark.executor.extraJavaOptions={flags}"'
        cache = str(self.folder / "cache")
        return {**os.environ, "SPARK_SUBMIT_OPTS": f"{flags} {executors}", "XDG_CACHE_HOME": cache}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a master and two workers.

    Where this can be had, all that tests have in directories of their own is hidden from the
    workers: each has an empty directory there. What it shares with them is elsewhere.
    """
    can_hide = os.geteuid() == 0 and shutil.which("unshare") is not None
    hidden = tmp_path_factory.getbasetemp() if can_hide else None
    with tempfile.TemporaryDirectory(prefix="nearcast-cluster-") as name:
        folder = Path(name)
        with running(folder, hidden) as master:
            yield Cluster(master, folder, hidden)


@contextmanager
def running(folder: Path, hidden: Path | None) -> Iterator[str]:
    """Start a master and two workers; each has another `hidden` directory than all others."""
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
                "--work-dir", str((hidden or folder) / f"work{i}"), hidden=hidden,
            )
            for i in range(2)
        ]  # fmt: skip
        wait_until_said(folder / "master.log", "Registering worker", count=2)
        yield address
    finally:
        for daemon in reversed(daemons):
            os.killpg(daemon.pid, signal.SIGTERM)
        for daemon in daemons:
            daemon.wait(timeout=120)


@pytest.fixture
def shared(cluster: Cluster) -> Iterator[Path]:
    """Return a new directory that driver and workers see."""
    with tempfile.TemporaryDirectory(dir=cluster.folder) as folder:
        yield Path(folder)


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
def test_a_cluster_of_two_workers_delivers_what_the_matcher_says(cluster: Cluster, shared: Path):
    write_input(shared)
    command = [
        sys.executable, "-c", "from nearcast.cli import main; main()", "pipeline", "match",
        "--master", cluster.master, "--space", "plane", "--config", str(shared / "nearcast.toml"),
        "--input", str(shared / "events"), "--subscriptions", str(shared / "wishes.parquet"),
        "--output", str(shared / "out"), "--top", "3",
    ]  # fmt: skip
    run = subprocess.run(
        command, env=cluster.environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    starting, *progress = run.stderr.splitlines()
    assert starting == f"Starting Spark ({cluster.master}) ..."
    assert all(line.startswith("match: ") and "tasks done" in line for line in progress)
    table = pq.read_table(VersionedTable(str(shared / "out/deliveries")).current_path())
    found = sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))
    assert found == expected()
    assert len(found) > 100
    # The job itself has the kernels that were compiled when the package was set up.
    kept = list((cluster.folder / "cache").rglob("*.nbi"))
    assert kept, "workers cached no compiled kernel"


SUBMITTED = """
import sys
import nearcast.spark as ns
from pyspark.sql import SparkSession

assert ".zip" in ns.__file__, ns.__file__
spark = SparkSession.builder.getOrCreate()
space = ns.Space(name="plane", topic_filter="plane/#",
                 attributes=[ns.Attribute.number("x", 0, 100), ns.Attribute.number("y", 0, 100)])
events, wishes = (spark.read.parquet(path) for path in sys.argv[1:3])
ns.top_k(events, wishes, space, 3).write.parquet(sys.argv[3])
"""


@pytest.mark.timeout(1200)
def test_a_program_under_spark_submit_brings_the_package_as_a_zip(cluster: Cluster, shared: Path):
    write_input(shared)
    (shared / "job.py").write_text(SUBMITTED)
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    arguments = [str(shared / name) for name in ("events", "wishes.parquet", "out")]
    environment = cluster.environment | {"PYSPARK_PYTHON": sys.executable}
    run = subprocess.run(
        [
            *(submit, "--master", cluster.master, "--py-files", str(packed_package())),
            *("--conf", f"spark.executorEnv.XDG_CACHE_HOME={cluster.folder / 'cache'}"),
            *(str(shared / "job.py"), *arguments),
        ],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    table = pq.read_table(shared / "out")
    assert sorted(zip(*(c.to_pylist() for c in table.columns), strict=True)) == expected()


APART = """
import json, os, sys
import pyarrow as pa
from nearcast.model import Attribute, Space
from nearcast.pipeline.jobs.ingest import IngestJob
from nearcast.pipeline.jobs.match import MatchQuery
from nearcast.pipeline.jobs.match_job import match_tables
from nearcast.pipeline.jobs.plan import PlanJob, PlanRules
from nearcast.pipeline.jobs.regions import RegionsJob
from nearcast.pipeline.packages import package_settings
from nearcast.pipeline.session import spark_session
from nearcast.model.errors import EnvironmentProblem

master, ours, settings = sys.argv[1:4]
lake = "s3a://lake/in"
try:
    more = {**package_settings("auto", [lake]), **json.loads(settings)}
    spark = spark_session(master, memory_gb=1, more=more)
except EnvironmentProblem as problem:
    print(json.dumps({"skipped": str(problem)}))
    sys.exit()

def look(batches):
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"seen": [os.path.exists(ours)] * len(batch)})

seen = spark.range(0, 8, 1, 8).mapInArrow(look, "seen boolean").collect()
space = Space(name="plane", topic_filter="plane/#",
              attributes=(Attribute.number("x", 0, 100), Attribute.number("y", 0, 100)))
events, wishes = (spark.read.parquet(f"{lake}/{name}") for name in ("events", "wishes.parquet"))
out = "s3a://lake/out"
done = match_tables(events, wishes, space, MatchQuery("plane", "plane/x", 3), out)
kept = IngestJob([f"{lake}/fixes.parquet"], out).run(spark).fields["kept"]
RegionsJob(f"{out}/positions", out, cell_m=30.0).run(spark)
plan = PlanJob(f"{out}/positions", f"{out}/regions", out, PlanRules(leaves=8, depth=6)).run(spark)
plan.save()
said = {"seen": [row.seen for row in seen], "deliveries": done.deliveries, "kept": kept}
print(json.dumps(said))
spark.stop()
"""


@pytest.mark.timeout(1200)
def test_workers_with_directories_of_their_own_work_on_an_object_store(
    cluster: Cluster, tmp_path: Path
):
    """Each sees an empty directory where this test has all its files."""
    if cluster.hidden is None:
        pytest.skip("mounting needs root")
    write_input(tmp_path)
    pq.write_table(fixes(30, 200), tmp_path / "fixes.parquet")
    with s3_server(tmp_path) as s3:
        store = store_at(s3)
        for path in (*tmp_path.glob("*.parquet"), *tmp_path.glob("events/*.parquet")):
            name = path.relative_to(tmp_path)
            with store.open_output_stream(f"lake/in/{name}") as stream:
                stream.write(path.read_bytes())
        settings = hadoop_settings(s3) | s3_jars()
        run = subprocess.run(
            [sys.executable, "-c", APART, cluster.master, str(tmp_path), json.dumps(settings)],
            env=cluster.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr[-4000:]
        said = json.loads(run.stdout.splitlines()[-1])
        if "skipped" in said:
            pytest.skip(f"Maven's packages cannot be had here: {said['skipped']}")
        assert set(said["seen"]) == {False}
        assert said["deliveries"] == len(expected())
        assert said["kept"] > 0
        written = {info.path for info in store.get_file_info(fs.FileSelector("lake/out"))}
    assert {"lake/out/deliveries", "lake/out/regions", "lake/out/plan.json"} <= written
