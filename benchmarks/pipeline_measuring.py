"""Clocks for the benchmark of the Spark jobs: wall, processors, tasks, memory of workers.

Seconds of processor time are those of this process and of all below it (Java, its Python workers,
a pool). On a machine that others use at the same time they say more than the clock on the wall.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Taken:
    """What a piece of work took."""

    wall_s: float
    cpu_s: float


def timed(work: Callable[..., Any]) -> tuple[Taken, Any]:
    begun, used = time.perf_counter(), cpu_seconds()
    result = work()
    return Taken(time.perf_counter() - begun, cpu_seconds() - used), result


def cpu_seconds() -> float:
    """Return the processor time of this process, of those below it, and of those they outlived."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # gone meanwhile
            continue
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        used[pid] = sum(map(int, fields[11:15])) / _TICKS
    return sum(each for pid, each in used.items() if _is_ours(pid, parents))


def _is_ours(pid: int, parents: dict[int, int]) -> bool:
    while pid and pid != os.getpid():
        pid = parents.get(pid, 0)
    return pid != 0


def task_seconds(spark: Any) -> dict[int, list[float]]:
    """Return the run times of the tasks of every stage that Spark remembers."""
    jvm, store = spark._jvm, spark.sparkContext._jsc.sc().statusStore()
    times: dict[int, list[float]] = {}
    no_quantiles = spark.sparkContext._gateway.new_array(spark._jvm.double, 0)
    stages = store.stageList(jvm.java.util.ArrayList(), False, False, no_quantiles, None)
    for at in range(stages.size()):
        stage = stages.apply(at)
        tasks = store.taskList(stage.stageId(), stage.attemptId(), 10_000)
        times[stage.stageId()] = [
            tasks.apply(i).taskMetrics().get().executorRunTime() / 1e3
            for i in range(tasks.size())
            if tasks.apply(i).taskMetrics().isDefined()
        ]
    return times


def worker_mb() -> float:
    """Return the largest memory that any Python worker of ours has had."""
    peak = 0.0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            command = (status.parent / "cmdline").read_bytes()
            text = status.read_text()
        except OSError:
            continue
        if b"pyspark.daemon" in command or b"pyspark/daemon" in command:
            peak = max(peak, float(text.split("VmHWM:")[1].split()[0]) / 1024)
    return peak
