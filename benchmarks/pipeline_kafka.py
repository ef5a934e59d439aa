"""Kafka in, matched, Kafka out, at a steady rate; part of benchmarks/pipeline.py.

The producer, Kafka, Spark and its workers share this machine. An event's delay is from when it was
given to the producer until its batch is complete: its deliveries are in the table and in Kafka.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from benchmarks.kafka_process import Kafka, connector_jars
from benchmarks.pipeline_measuring import cpu_seconds

from nearcast.pipeline.streaming.kafka import OFFSET_BITS

Row = dict[str, Any]
CONFIG = """
[[space]]
name = "plane"
topics = "plane/#"
[space.attributes]
x = { low = 0, high = 1 }
y = { low = 0, high = 1 }
"""
_WARM_S = 60  # Java compiles for so long
_TICK_S = 0.05
_DIFFERENT = 20_000


def kafka_rows(boxes: Path, per_s: int, seconds: int) -> list[Row]:
    """Return delays and rates of `per_s` events a second into a stream, one delivery each."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        kafka = Kafka(root)
        try:
            return _measured(kafka, root, boxes, per_s, seconds)
        finally:
            kafka.kill()


def _measured(kafka: Kafka, root: Path, boxes: Path, per_s: int, seconds: int) -> list[Row]:
    (root / "nearcast.toml").write_text(CONFIG)
    (root / "changes").mkdir()
    (root / "changes" / "000.parquet").write_bytes(boxes.read_bytes())
    kafka.make_topic("in", 2)
    kafka.make_topic("out", 2)
    stream = _start(kafka, root)
    try:
        _wait_until_listening(root)
        sent, used, begun = _produce(kafka, per_s, _WARM_S + seconds, _WARM_S)
        done = _completed(root, sum(len(times) for times in sent))
        busy = (cpu_seconds() - used) / (time.time() - begun)
    finally:
        os.killpg(stream.pid, signal.SIGKILL)
        stream.wait()
    delays = _delays(sent, done, begun)
    p50, p99 = np.quantile(delays, [0.5, 0.99]) if len(delays) else (np.nan, np.nan)
    assert done, (root / "stream.log").read_text()[-3_000:]
    last = max(done.values())
    count = sum(int((np.array(times) >= begun).sum()) for times in sent)
    told = f"Kafka to Kafka, 100,000 subscriptions, best 1, {per_s:,} events/s"
    return [
        {"name": f"{told}: events/s until the last was delivered", "ours": count / (last - begun),
         "target": ">= 50,000", "holds": count / (last - begun) >= 50_000, "cores_busy": busy,
         "cpu_us_an_event": busy * (time.time() - begun) / count * 1e6},
        {"name": f"{told}: p50 seconds to delivery", "ours": p50, "target": "< 2",
         "holds": bool(p50 < 2)},
        {"name": f"{told}: p99 seconds to delivery", "ours": p99, "target": "< 5",
         "holds": bool(p99 < 5)},
    ]  # fmt: skip


def _start(kafka: Kafka, root: Path) -> subprocess.Popen[bytes]:
    source, sink = (f"kafka://{kafka.servers}/{name}" for name in ("in", "out"))
    with (root / "stream.log").open("wb") as log:
        return subprocess.Popen(
            [
                *(sys.executable, "-c", "from nearcast.cli import main; main()", "pipeline"),
                *("stream", "--config", str(root / "nearcast.toml"), "--space", "plane"),
                *("--source", source, "--deliver", sink, "--subscriptions", f"{root}/changes"),
                *("--output", f"{root}/out", "--checkpoint", f"{root}/state", "--top", "1"),
                *("--jars", connector_jars()),
            ],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _wait_until_listening(root: Path) -> None:
    deadline = time.monotonic() + 240
    while "Listening" not in (root / "stream.log").read_text():
        assert time.monotonic() < deadline, (root / "stream.log").read_text()[-3_000:]
        time.sleep(0.2)


def _produce(
    kafka: Kafka, per_s: int, seconds: int, warm_s: int
) -> tuple[list[list[float]], float, float]:
    """Produce at a rate; return when each record was sent, by partition, and when warm."""
    from confluent_kafka import Producer

    rng = np.random.default_rng(3)
    bodies = [b'{"x": %.6f, "y": %.6f}' % (x, y) for x, y in rng.random((_DIFFERENT, 2)).tolist()]
    producer = Producer({"bootstrap.servers": kafka.servers, "linger.ms": 20,
                         "queue.buffering.max.messages": 2_000_000})  # fmt: skip
    sent: list[list[float]] = [[], []]
    first = 0
    began = counted = time.time()
    used = 0.0
    for tick in range(round(seconds / _TICK_S)):
        time.sleep(max(0.0, began + tick * _TICK_S - time.time()))
        now = time.time()
        if not used and now - began >= warm_s:
            used, counted = cpu_seconds(), now
        until = round((tick + 1) * _TICK_S * (per_s if now - began >= warm_s / 2 else per_s / 5))
        count = until - round(tick * _TICK_S * (per_s if now - began >= warm_s / 2 else per_s / 5))
        for number in range(first, first + count):
            producer.produce("in", bodies[number % _DIFFERENT], partition=number & 1)
        for partition in (0, 1):
            mine = (first + count + 1 - partition) // 2 - (first + 1 - partition) // 2
            sent[partition] += [now] * mine
        first += count
        producer.poll(0)
    producer.flush(60)
    return sent, used, counted


def _completed(root: Path, events: int) -> dict[int, float]:
    """Wait until all are matched; return when the batch of every tenth event was complete."""
    out, state = root / "out" / "deliveries", root / "state"
    deadline = time.monotonic() + 180
    done: dict[int, float] = {}
    seen: set[str] = set()
    while time.monotonic() < deadline:
        for mark in (state / "spark" / "commits").glob("[0-9]*"):
            if mark.name in seen:
                continue
            seen.add(mark.name)
            at = mark.stat().st_mtime
            for file in (out / f"{int(mark.name):012d}").glob("*.parquet"):
                ids = pq.read_table(file, columns=["event_id"])["event_id"].to_numpy()
                done.update(dict.fromkeys(ids[::10].tolist(), at))
                if len(ids):
                    done[int(ids.max())] = at
        if _is_all(done, events):
            break
        time.sleep(0.5)
    return done


def _is_all(done: dict[int, float], events: int) -> bool:
    highest = [0, 0]
    for key in done:
        partition = key >> OFFSET_BITS
        highest[partition] = max(highest[partition], key & ((1 << OFFSET_BITS) - 1))
    return sum(highest) + 200 >= events


def _delays(sent: list[list[float]], done: dict[int, float], begun: float) -> np.ndarray:
    found = []
    for key, at in done.items():
        when = sent[key >> OFFSET_BITS][key & ((1 << OFFSET_BITS) - 1)]
        if when >= begun:
            found.append(at - when)
    return np.array(found)
