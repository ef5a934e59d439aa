"""Ends a query between two batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

TakeBatch = Callable[[DataFrame, int], None]
_COMMIT_S = 5.0
_LOOK_S = 0.02
_MOMENT_S = 0.5


def interruption() -> InterruptedError:
    """Return the error that Spark takes for its own interruption of a query that it stops.

    Its text is short: Spark searches it with a regular expression that recurses for every
    character, and a stack trace overflows its stack.
    """
    told = "py4j.protocol.Py4JJavaError: An error occurred while calling it: "
    return InterruptedError(f"{told}java.lang.InterruptedException")


class BatchGate:
    """Lets batches through until it is closed; the one that runs is completed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_closed = False
        self.has_refused = False  # a batch: it is the first of the next start

    def guard(self, take_batch: TakeBatch) -> TakeBatch:
        """Return a function that takes batches while the gate is open."""

        def take(events: DataFrame, batch: int) -> None:
            with self._lock:
                if not self._is_closed:
                    take_batch(events, batch)
                    return
            self.has_refused = True
            time.sleep(_MOMENT_S)  # until the query is being stopped: then this is no failure
            raise interruption()

        return take

    def close(self) -> None:
        """Wait until the batch that runs is complete, and let no other begin."""
        with self._lock:
            self._is_closed = True


def stop_between_batches(
    query: StreamingQuery, gate: BatchGate, unfinished: Callable[[], int | None]
) -> None:
    """End a query when its batch is complete and Spark has recorded that."""
    gate.close()
    give_up_s = time.monotonic() + _COMMIT_S
    while query.isActive and not gate.has_refused and time.monotonic() < give_up_s:
        if unfinished() is None:
            break
        time.sleep(_LOOK_S)
    query.stop()
