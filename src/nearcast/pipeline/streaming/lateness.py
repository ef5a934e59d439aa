"""Events that come too late: they are written to a table of their own, and not matched.

    watermark of batch n = newest event time of the batches before n − the delay that is allowed

Spark's own watermark drops late rows of queries with state, without a word. Here every event has
one of two ends: it is matched, or it is in the table `late` with the watermark that it missed. The
watermark of a batch is recorded before the batch runs, so that a repeated batch judges as before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, TimestampNTZType, TimestampType

from nearcast.model import MisuseError
from nearcast.pipeline.sources.column_types import EVENT_KEY
from nearcast.pipeline.tables.worker_writes import Batches, PartFile

TIME = "its time"
"""An extra column: the event's time in microseconds; a space's attribute has no such name."""
LATE_EVENTS = pa.schema(
    {
        EVENT_KEY: pa.int64(),
        "t": pa.timestamp("us", tz="UTC"),
        "watermark": pa.timestamp("us", tz="UTC"),
    }
)


@dataclass(frozen=True, slots=True)
class LateRule:
    """The column with an event's time, and how much older than the newest it may be."""

    column: str
    delay_s: float

    def time(self, kinds: dict[str, DataType]) -> Column:
        """Return the event's time in microseconds: of a timestamp, or of seconds since 1970."""
        if self.column not in kinds:
            raise MisuseError(
                f"no column {self.column!r}", where="--event-time", expected=f"one of {list(kinds)}"
            )
        value = F.col(f"`{self.column}`")
        if isinstance(kinds[self.column], TimestampType | TimestampNTZType):
            return F.unix_micros(value.cast("timestamp"))
        return (value.cast("double") * 1_000_000).cast("bigint")

    def micros(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the same of decoded events."""
        if self.column not in batch.schema.names:
            raise MisuseError(
                f"no attribute {self.column!r}",
                where="--event-time",
                expected=f"one of {', '.join(batch.schema.names)}",
            )
        value = batch.column(self.column)
        if pa.types.is_timestamp(value.type):
            return value.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        return pc.cast(pc.multiply(value, 1_000_000.0), pa.int64(), safe=False)

    def watermark_us(self, newest_us: int | None) -> int | None:
        """Return the time before which events are late; None before the second batch."""
        return None if newest_us is None else newest_us - round(self.delay_s * 1_000_000)


class LateFilter:
    """Takes late events out of a task's batches, and keeps the newest time that it has seen."""

    def __init__(self, watermark_us: int | None, late: PartFile) -> None:
        self._watermark_us = watermark_us
        self._late = late
        self.newest_us: int | None = None

    def kept(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Yield what is in time, without the column of times; an event without a time is."""
        for batch in batches:
            times = batch.column(TIME)
            newest = pc.max(times).as_py()
            if newest is not None:
                self.newest_us = max(newest, self.newest_us or newest)
            rest = batch
            if self._watermark_us is not None:
                is_late = pc.fill_null(pc.less(times, self._watermark_us), fill_value=False)
                self._write(batch.filter(is_late))
                rest = batch.filter(pc.invert(is_late))
            yield rest.drop_columns([TIME])

    def _write(self, late: pa.RecordBatch) -> None:
        if not len(late):
            return
        kind = LATE_EVENTS.field("t").type
        marks = pa.array([self._watermark_us] * len(late), pa.int64()).cast(kind)
        columns = [late.column(EVENT_KEY).cast(pa.int64()), late.column(TIME).cast(kind), marks]
        self._late.add(pa.RecordBatch.from_arrays(columns, schema=LATE_EVENTS))


def newest_before(pins: Path, batch: int) -> int | None:
    """Return the newest event time of the batches before one; None if there is none."""
    try:
        return int(json.loads((pins / f"{batch}.newest").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def record_newest(pins: Path, batch: int, newest_us: int | None) -> None:
    """Record the newest event time up to a batch, for the next one."""
    before = newest_before(pins, batch)
    known = [one for one in (before, newest_us) if one is not None]
    if known:
        draft = pins / "newest.new"
        with draft.open("w", encoding="utf-8") as file:
            json.dump(max(known), file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(pins / f"{batch + 1}.newest")
    with suppress(FileNotFoundError):
        (pins / f"{batch - 1}.newest").unlink()
