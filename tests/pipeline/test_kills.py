"""`kill -9` of a worker and of the driver: tables stay whole, and the next run leaves nothing.

Every job that writes is killed over an existing table. Here one of them is, once with each kind of
kill; `make soak` does it ten times with each job, at random moments, and NEARCAST_KILLS=2 twice.
Streams have kills of their own (test_stream.py, test_live_recipe.py, test_kafka.py).
"""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import settings
from pyspark.sql import SparkSession
from tests.support.commands import ENVIRON, NEARCAST
from tests.support.spark_tables import fixes
from tests.support.waiting import wait_for
from tests.support.walks_log import write_log
from typer.testing import CliRunner

from nearcast.cli import app
from nearcast.eventlog import VersionedTable

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(2400)]
IS_SOAK = settings.default is not None and settings.default.max_examples > 50
KILLS = int(os.environ.get("NEARCAST_KILLS", "10" if IS_SOAK else "0"))
SEEN_S = 3.0  # a kill comes at most so long after the first worker was seen
CONFIG = """
[[retained]]
topics = "plant/#"
mode = "learned"
hold = "10s"

[[space]]
name = "plane"
topics = "plane/#"
[space.attributes]
x = { low = 0, high = 1 }
y = { low = 0, high = 1 }
"""


def write_inputs(folder: Path) -> None:
    rng = np.random.default_rng(1)
    (folder / "nearcast.toml").write_text(CONFIG)
    points, boxes = rng.random((400_000, 2)), rng.random((4_000, 2)) * 0.9
    pq.write_table(
        pa.table({"event_id": np.arange(len(points)), "x": points[:, 0], "y": points[:, 1]}),
        folder / "events.parquet",
    )
    bounds = {f"{n}_{side}": boxes[:, i] + width for i, n in enumerate("xy")
              for side, width in (("low", 0), ("high", 0.05))}  # fmt: skip
    wishes = pa.table({"subscription_id": np.arange(len(boxes)), **bounds})
    pq.write_table(wishes, folder / "wishes.parquet")
    pq.write_table(fixes(30, 400), folder / "fixes.parquet")
    write_log(folder / "log", events=400)


JOBS = {
    "match": (
        "deliveries",
        (
            "match --config nearcast.toml --space plane --input events.parquet "
            "--subscriptions wishes.parquet --topic plane/x --output out"
        ),
    ),
    "ingest": ("positions", "ingest --input fixes.parquet --output out"),
    "regions": ("regions", "regions --input out/positions --output out --cell 30"),
    "plan": (
        "positions",
        "plan --input out/positions --regions out/regions --output out --depth 6",
    ),
    "ingest-events": (
        "events",
        (
            "ingest --config nearcast.toml --space plane --input events.parquet --output out "
            "--columns event_id=event_id"
        ),
    ),
    "histogram": (
        "events",
        "histogram --config nearcast.toml --space plane --input out/events --output out",
    ),
    "train": ("topic_policies", "train --config nearcast.toml --input log --output out"),
    "audit": ("faults", "audit --config nearcast.toml --input log --output out"),
    "run": ("positions", "run --config nearcast.toml --input log --output out"),
}
NEEDED = {
    "regions": ("ingest",),
    "plan": ("ingest", "regions"),
    "histogram": ("ingest-events",),
}
FILES = ("plan.json", "policies.json", "histogram-plane.json")
"""What brokers load; a job that was killed leaves the last one."""


def started(folder: Path, command: str) -> "subprocess.Popen[bytes]":
    with (folder / "said.txt").open("wb") as said:
        return subprocess.Popen(
            [*NEARCAST, "pipeline", *command.split(), "--master", "local[2]"],
            env={**ENVIRON, "TMPDIR": str(folder / "tmp")}, cwd=folder, start_new_session=True,
            stdout=said, stderr=said,
        )  # fmt: skip


def finished(folder: Path, command: str) -> None:
    run = started(folder, command)
    assert run.wait(600) == 0, (folder / "said.txt").read_text()[-3000:]


def workers_of(run: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    """Return the Python processes that run tasks: children of the daemon, a child of Java."""
    try:
        daemons = [one for one in psutil.Process(run.pid).children(recursive=True)
                   if "nearcast.pipeline.worker_daemon" in one.cmdline()]  # fmt: skip
    except psutil.Error:
        return []
    known = {one.pid for one in daemons}
    return [one for one in daemons if one.ppid() in known]


def rows_of(folder: Path, table: str) -> pa.Table:
    root = VersionedTable(str(folder / "out" / table))
    return pq.read_table(root.current_path()) if root.current() else None


def files_of(folder: Path) -> dict[str, object]:
    """Return the files for brokers, which can be read at any moment."""
    paths = [folder / "out" / name for name in FILES]
    return {path.name: json.loads(path.read_text()) for path in paths if path.exists()}


def killed(run: "subprocess.Popen[bytes]", what: str, pause_s: float) -> bool:
    """Kill the driver with all that it started, or one worker, once workers run.

    Return whether there was something left to kill.
    """
    wait_for(lambda: bool(workers_of(run)) or run.poll() is not None, 300)
    time.sleep(pause_s)
    try:
        if what == "driver":
            os.killpg(run.pid, signal.SIGKILL)
        else:
            workers_of(run)[0].kill()
    except (ProcessLookupError, psutil.NoSuchProcess, IndexError):  # the job has ended
        return False
    finally:
        run.wait(300)
    return True


def kill_and_repeat(folder: Path, job: str, what: str, pause_s: float) -> bool:
    table, command = JOBS[job]
    before, files = rows_of(folder, table), files_of(folder)
    was_killed = killed(started(folder, command), what, pause_s)
    assert files_of(folder).keys() >= files.keys()
    if (after := rows_of(folder, table)) is not None or before is not None:
        key = [(name, "ascending") for name in after.column_names]
        assert before is None or after.sort_by(key).equals(before.sort_by(key))
    finished(folder, command)
    assert list((folder / "tmp").iterdir()) == []
    return was_killed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_inputs(tmp_path)
    (tmp_path / "tmp").mkdir()
    return tmp_path


def test_a_killed_driver_leaves_the_table_and_the_next_run_leaves_no_file(
    folder: Path, spark: SparkSession
):
    paths = {one: str(folder / one) for one in (*(path.name for path in folder.iterdir()), "out")}
    words = [paths.get(one, one) for one in JOBS["match"][1].split()]
    done = CliRunner().invoke(app, ["pipeline", *words])
    assert done.exit_code == 0, done.output
    kill_and_repeat(folder, "match", "driver", 0.2)


def test_a_killed_worker_is_said_and_the_table_stays(folder: Path):
    run = started(folder, JOBS["match"][1])
    killed(run, "worker", 0.0)
    said = (folder / "said.txt").read_text()
    if run.returncode:  # it had not finished its work
        assert "a Python process of Spark was killed" in said
        assert "Traceback" not in said
        assert rows_of(folder, "deliveries") is None
    assert list((folder / "tmp").iterdir()) == []


@pytest.mark.skipif(not KILLS, reason="a soak: twenty kills of each job")
@pytest.mark.parametrize("job", JOBS)
def test_kills_of_driver_and_worker_in_every_job(folder: Path, job: str):
    chance = random.Random(job)
    for needed in NEEDED.get(job, ()):
        finished(folder, JOBS[needed][1])
    finished(folder, JOBS[job][1])
    for what in ("driver", "worker"):
        kills, longest_s = 0, SEEN_S
        while kills < KILLS:
            if kill_and_repeat(folder, job, what, chance.uniform(0, longest_s)):
                kills += 1
            else:  # it ends sooner than that
                longest_s /= 2


SMALL = """
import sys
import nearcast.spark as ns
from nearcast.pipeline.session import spark_session
from nearcast.pipeline.jobs.match_job import match_tables
from nearcast.pipeline.jobs.match import MatchQuery

spark = spark_session("local[2]", memory_gb=1)
assert spark.conf.get("spark.driver.maxResultSize") == "2m"
space = ns.Space(name="plane", topic_filter="plane/#",
                 attributes=[ns.Attribute.number("x", 0, 1), ns.Attribute.number("y", 0, 1)])
events = spark.read.parquet("events.parquet").where("event_id < 40000")
wishes = spark.read.parquet("wishes.parquet")
done = match_tables(events, wishes, space, MatchQuery("plane", "plane/x"), "out")
assert done.deliveries > 200_000, done
copies = spark.range(10).withColumnRenamed("id", "copy")
fixes = spark.read.parquet("fixes.parquet").crossJoin(copies)
named = fixes.selectExpr("concat(user_id, '-', copy) AS user_id", "t", "lon", "lat")
clean = ns.clean_tracks(named)
clean.write.parquet("clean")
clean = spark.read.parquet("clean")
regions = ns.slow_regions(clean, cell_m=30.0)
found = ns.lay_out(clean, regions, rules=ns.PlanRules(leaves=8, depth=6))
print(clean.count(), len(found.plan.leaves))
try:
    clean.unionAll(clean).collect()
except Exception as error:
    assert "maxResultSize" in str(error), error
else:
    raise SystemExit("the limit does not hold: nothing is shown")
"""


def test_what_grows_with_the_data_is_not_collected(folder: Path):
    limit = f"{os.environ['SPARK_SUBMIT_OPTS']} -Dspark.driver.maxResultSize=2m"
    run = subprocess.run(
        [NEARCAST[0], "-c", SMALL], cwd=folder, check=False, capture_output=True, text=True,
        env={**ENVIRON, "SPARK_SUBMIT_OPTS": limit, "TMPDIR": str(folder / "tmp")},
        timeout=900,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
