"""The learning jobs: plan, train, and a whole nightly run.

    python benchmarks/learning.py [--quick] [--positions FILE]

Rates are rows of input over wall time, with a session that is up and has done each job once on a
small table. `run` is a process of its own, Spark's start included; it needs a file of positions.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.eventlog import LOG_TABLES, POSITIONS
from nearcast.eventlog.segments import VERSION, VERSION_KEY
from nearcast.locality import Rect
from nearcast.pipeline.jobs.plan import PlanRules, lay_out
from nearcast.pipeline.jobs.train import TrainingRules, train
from nearcast.pipeline.session import spark_session
from nearcast.pipeline.tables.transaction import read_version
from nearcast.retained import Mode, TopicSetting, Weights

Row = dict[str, Any]
CORES = 2
START_US = 1_714_557_600_000_000
SETTINGS = [("plant/#", TopicSetting(Mode.LEARNED, Weights(0.7, 5.0), 10.0))]


def write_positions(folder: Path, count: int, files: int = 4) -> None:
    """Write walks of a thousand fixes, a minute apart, sorted as `ingest` leaves them."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    users = max(1, count // 1000 // files)
    for number in range(files):
        rows = users * 1000
        at_home = np.tile(np.arange(1000), users) % 200 < 100  # they stand as long as they go
        steps = np.where(at_home[:, None], 0.0, rng.normal(0, 0.002, (rows, 2)))
        steps = steps.reshape(users, 1000, 2).cumsum(axis=1)
        place = (steps + rng.normal(0, 0.1, (users, 1, 2))).reshape(rows, 2)
        minute = np.tile(np.arange(1000), users)
        columns = {
            "user_id": np.repeat([f"user-{number}-{n}" for n in range(users)], 1000),
            "t": pa.array(START_US + minute * 60_000_000, pa.timestamp("us", tz="UTC")),
            "lon": 8.5 + place[:, 0],
            "lat": 47.3 + place[:, 1],
            "trip": np.zeros(rows, np.int32),
            "step_s": np.where(minute == 0, 0.0, 60.0),
            "step_m": np.zeros(rows),
        }
        arrays = [pa.array(columns[field.name], field.type) for field in POSITIONS]
        table = pa.Table.from_arrays(arrays, schema=POSITIONS)
        pq.write_table(table, folder / f"part-{number}.parquet")


def write_log(root: Path, count: int, topics: int, parts: int = 4) -> None:
    """Write a log of retained publishes at rates between one in 20 s and five a second."""
    rng = np.random.default_rng(2)
    names = pa.array([f"plant/{n % 97}/sensor-{n}" for n in range(topics)])
    rate = np.exp(rng.uniform(np.log(0.05), np.log(5.0), topics))
    span_s = count / rate.sum()
    for number in range(parts):
        rows = count // parts
        chosen = rng.choice(topics, rows, p=rate / rate.sum())
        t_s = np.sort(rng.uniform(number, number + 1, rows)) * span_s / parts
        sequence = np.arange(rows) + number * rows + 1
        _write_part(root, "events", number, rows, {
            "sequence": sequence, "t": _instants(t_s), "topic": names.take(pa.array(chosen)),
        })  # fmt: skip
    came = rng.uniform(0, 0.3 * span_s, topics)
    left = came + np.minimum(rng.exponential(100.0, topics), 0.6 * span_s)
    _write_part(root, "subscriptions", 0, 2 * topics, {
        "sequence": np.arange(2 * topics) + count + 1,
        "t": _instants(np.stack([came, left], axis=1).ravel()),
        "client": [f"client-{n // 2}" for n in range(2 * topics)],
        "filter": names.take(pa.array(np.repeat(np.arange(topics), 2))),
        "added": np.tile([True, False], topics),
    })  # fmt: skip


def _instants(seconds: np.ndarray) -> pa.Array:
    return pa.array(
        (seconds * 1e3).astype(np.int64) + START_US // 1000, pa.timestamp("ms", tz="UTC")
    )


def _write_part(root: Path, table: str, number: int, rows: int, given: Row) -> None:
    usual = {"node": "n1", "publisher": "machine", "qos": 0, "retain": True, "payload": b"21.5",
             "lifetime_ms": None, "limited": False, "way": "client", "no_local": False,
             "restored": False}  # fmt: skip
    schema = LOG_TABLES[table]
    arrays = [
        pa.array(given[f.name], f.type)
        if f.name in given
        else _repeated(usual[f.name], rows, f.type)
        for f in schema
    ]
    folder = root / table
    folder.mkdir(parents=True, exist_ok=True)
    whole = pa.Table.from_arrays(arrays, schema=schema.with_metadata({VERSION_KEY: VERSION}))
    pq.write_table(whole, folder / f"part-n1-{number + 1:08d}.parquet")


def _repeated(value: object, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(rows, kind) if value is None else pa.repeat(pa.scalar(value, kind), rows)


def timed(work: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def plan_rows(spark: Any, folder: Path, count: int) -> list[Row]:
    regions = [Rect(8.45, 47.25, 8.48, 47.28), Rect(8.5, 47.3, 8.53, 47.33)]
    rules = PlanRules(brokers=8)
    for name, rows in (("small", 20_000), ("large", count)):
        write_positions(folder / name, rows)
        positions = read_version(spark, str(folder / name))  # as the job reads its input
        seconds, found = timed(lambda positions=positions: lay_out(positions, regions, rules))
    rate = found.occupancy.fixes / seconds
    return [
        {"name": f"plan of {count:,} positions, {len(found.plan.leaves)} leaves, 8 brokers: rows/s",
         "ours": rate, "target": "≥ 1 M/s", "holds": rate >= 1e6},
        {"name": "… handovers against quadrants alone at the same capacity",
         "ours": found.handovers["this plan"], "peer": {"q only": found.handovers["q only"]},
         "ratio": found.handovers["this plan"] / max(1, found.handovers["q only"])},
    ]  # fmt: skip


def train_rows(spark: Any, folder: Path, count: int, topics: int) -> list[Row]:
    rules = TrainingRules()
    for name, rows, names in (("log-small", 20_000, 50), ("log-large", count, topics)):
        write_log(folder / name, rows, names)
        log, out = [str(folder / name)], str(folder / f"out-{name}")
        seconds, done = timed(lambda log=log, out=out: train(spark, log, out, SETTINGS, rules))
    always = TrainingRules(refit="always")
    with_fit, again = timed(lambda: train(spark, log, out, SETTINGS, always))
    rate = count / seconds
    return [
        {"name": f"train on {count:,} events of {topics:,} topics: rows/s",
         "ours": rate, "target": "≥ 1 M/s", "holds": rate >= 1e6},
        {"name": f"… {done.tables:,} tables ({done.groups:,} problems solved), seconds",
         "ours": seconds, "target": "< 300 s", "holds": seconds < 300},
        {"name": f"… with the policy for all topics fitted too ({again.general}), seconds",
         "ours": with_fit, "target": "< 300 s", "holds": with_fit < 300},
    ]  # fmt: skip


def run_rows(folder: Path, positions: str) -> list[Row]:
    code = "from nearcast.cli import main; main()"
    output = str(folder / "nightly")
    rows = []
    for what in ("the first run", "the next"):
        command = [sys.executable, "-c", code, "pipeline", "run", "--input", positions,
                   "--output", output, "--brokers", "4", "--json"]  # fmt: skip
        seconds, done = timed(
            lambda command=command: subprocess.run(
                command, capture_output=True, text=True, check=True
            )
        )
        rows.append(
            {"name": f"pipeline run on {Path(positions).name}, {what}: seconds",
             "ours": seconds, "target": "< 90 s", "holds": seconds < 90,
             "steps": done.stdout}
        )  # fmt: skip
    return rows


def run(*, quick: bool = False, positions: str | None = None) -> dict[str, list[Row]]:
    """Measure all; return the rows."""
    count = 2_000_000 if quick else 20_000_000
    with tempfile.TemporaryDirectory(prefix="nearcast-learning-") as name:
        folder = Path(name)
        rows = run_rows(folder, positions) if positions else []
        spark = spark_session(f"local[{CORES}]", name="nearcast-bench", memory_gb=6)
        try:
            rows += plan_rows(spark, folder, count)
            rows += train_rows(spark, folder, count, 10_000)
        finally:
            spark.stop()
    return {"rows": rows}


if __name__ == "__main__":
    chosen = sys.argv[sys.argv.index("--positions") + 1] if "--positions" in sys.argv else None
    for row in run(quick="--quick" in sys.argv, positions=chosen)["rows"]:
        print({key: value for key, value in row.items() if key != "steps"}, flush=True)
