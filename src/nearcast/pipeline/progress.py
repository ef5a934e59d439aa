"""The progress of Spark jobs: a bar on a terminal, lines where output is redirected."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nearcast.pipeline.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINE_EVERY_S = 10.0
"""How often a line is written where there is no terminal, if anything has been finished."""


@contextmanager
def spark_progress(spark: SparkSession, description: str, *, lines: bool = True) -> Iterator[None]:
    """Show the share of finished tasks of the active Spark stages while the body runs.

    Without a terminal, a line on stderr every ten seconds, unless `lines` is False.
    """
    tracker = _ConnectTracker(spark) if is_connect(spark) else spark.sparkContext.statusTracker()
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(description, total=None)
            with _watched(tracker, lambda done, of: bar.update(task, total=of, completed=done)):
                yield
    elif lines:
        with _watched(tracker, ProgressLines(description).update):
            yield
    else:
        yield


@contextmanager
def _watched(tracker: Any, update: Callable[[int, int], object]) -> Iterator[None]:
    """Call `update` with finished and all tasks, twice a second, while the body runs."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.5):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            total = sum(stage.numTasks for stage in stages if stage)
            if total:
                update(sum(stage.numCompletedTasks for stage in stages if stage), total)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


@dataclass(frozen=True, slots=True)
class _StageInfo:
    numTasks: int  # noqa: N815 - as Spark's own
    numCompletedTasks: int  # noqa: N815


class _ConnectTracker:
    """The stages of a Spark Connect session, as it last told them; like Spark's own tracker."""

    def __init__(self, spark: SparkSession) -> None:
        self._stages: dict[int, _StageInfo] = {}
        spark.registerProgressHandler(self._note)

    def _note(self, stages: Iterable[Any] | None, **_: Any) -> None:
        told = enumerate(stages or ())
        self._stages = {n: _StageInfo(s.num_tasks, s.num_completed_tasks) for n, s in told}

    def getActiveStageIds(self) -> list[int]:  # noqa: N802
        """Return the numbers of the stages."""
        return list(self._stages)

    def getStageInfo(self, stage: int) -> _StageInfo | None:  # noqa: N802
        """Return one of them."""
        return self._stages.get(stage)


class ProgressLines:
    """Writes a line when more tasks are done, not too often: none for a job of some seconds."""

    def __init__(self, description: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._description = description
        self._now_s = now_s
        self._began_s = now_s()
        self._told_s = self._began_s
        self._told = (-1, -1)

    def update(self, done: int, total: int) -> None:
        """Record how many tasks are done."""
        now_s = self._now_s()
        if (done, total) == self._told or now_s < self._told_s + LINE_EVERY_S:
            return
        self._told, self._told_s = (done, total), now_s
        minutes = (now_s - self._began_s) / 60
        text = f"{self._description}: {done} of {total} tasks done after {minutes:.1f} min"
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
