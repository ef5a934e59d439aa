"""A progress bar for Spark jobs, shown on a terminal only."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_progress(spark: SparkSession, description: str) -> Iterator[None]:
    """Show the share of finished tasks of the active Spark stages while the body runs."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress

    done = threading.Event()
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=None)

        def watch() -> None:
            tracker = spark.sparkContext.statusTracker()
            while not done.wait(0.5):
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                total = sum(stage.numTasks for stage in stages if stage)
                finished = sum(stage.numCompletedTasks for stage in stages if stage)
                if total:
                    bar.update(task, total=total, completed=finished)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
