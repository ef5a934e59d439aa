"""`stream`: the `match` job as a query that never ends.

    events/*.parquet ──► micro-batch n ──► output/deliveries/000000000n/
    changes/*.parquet ─► index of the newest change file when batch n began, pinned in
                         checkpoint/pins/n.json

Every event of a batch sees the subscriptions of one version: all change files up to the pinned
one, in the order of their names. The pin is written before the batch is matched, so that a batch
repeated after a crash sees the same version and writes the same rows to the same place. A batch
counts once it is complete; readers (`read_deliveries`) see complete batches only.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.eventlog import DELIVERIES, LOG_TABLES
from nearcast.matching import save_matcher
from nearcast.model import FileFormatError, MisuseError, Space
from nearcast.pipeline.column_types import check_event_columns
from nearcast.pipeline.event_logs import is_event_log, node_numbers
from nearcast.pipeline.ingest_events import events_of_log
from nearcast.pipeline.match import EVENT_KEY, Question, match_by_index, why_not
from nearcast.pipeline.subscriptions import KEY, matcher_of, subscription_columns
from nearcast.pipeline.tables import conform, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

OPERATION = "op"  # of a change: put or remove


@dataclass(frozen=True, slots=True)
class Stream:
    """What is read, asked and written."""

    events: Path
    changes: Path
    output: Path
    checkpoint: Path
    space: Space
    question: Question
    files_a_batch: int = 64


def start(
    spark: SparkSession, stream: Stream, *, once: bool = False, every_s: float = 0.2
) -> StreamingQuery:
    """Start the query; with `once` it ends when all files that are there have been matched."""
    folder = _event_folder(stream.events)
    frame = (
        spark.readStream.schema(_event_schema(spark, folder))
        .option("maxFilesPerTrigger", stream.files_a_batch)
        .option("pathGlobFilter", "*.parquet")  # a log's segments are drafts under other names
        .parquet(str(folder))
    )
    writer = (
        frame.writeStream.queryName("nearcast-stream")
        .option("checkpointLocation", str(stream.checkpoint / "spark"))
        .foreachBatch(partial(match_batch, stream))
    )
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_s} seconds").start()


def unfinished_batch(checkpoint: Path) -> int | None:
    """Return the batch that was begun and not completed, if any.

    A query whose thread dies of an error in Java itself may end without saying so; what it wrote
    down does not lie. Starting the stream again does that batch anew.
    """

    def newest(folder: str) -> int:
        names = [path.name for path in (checkpoint / "spark" / folder).glob("*")]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    begun = newest("offsets")
    return begun if begun > newest("commits") else None


def _event_folder(events: Path) -> Path:
    """Return where event files appear: in an event log that is its table of events."""
    return events / "events" if is_event_log(str(events)) else events


def _event_schema(spark: SparkSession, events: Path):  # type: ignore[no-untyped-def]
    files = sorted(events.glob("*.parquet"))
    if not files:
        raise MisuseError(
            "no event files yet",
            where=str(events),
            expected="one Parquet file at least, which shows the columns",
        )
    return spark.read.parquet(str(files[0])).schema


def match_batch(stream: Stream, events: DataFrame, batch: int) -> None:
    """Match one micro-batch; doing it again writes the same rows to the same place."""
    version = pinned(stream.checkpoint / "pins", batch, lambda: newest_change(stream.changes))
    index = index_at(stream, version).absolute()
    judged = _judged(stream, events)
    names = [a.name for a in stream.space.attributes if a.name in judged.columns]
    good = judged.where("reason IS NULL").select(EVENT_KEY, *names)
    found = conform(match_by_index(good, index, stream.question), DELIVERIES)
    found.write.mode("overwrite").parquet(str(stream.output / "deliveries" / f"{batch:012d}"))
    bad = judged.where("reason IS NOT NULL").select(EVENT_KEY, "reason")
    bad.write.mode("overwrite").parquet(str(stream.output / "rejected" / f"{batch:012d}"))


def _judged(stream: Stream, events: DataFrame) -> DataFrame:
    """Return the events with the reason why they cannot be matched; a log's payloads opened."""
    from pyspark.sql import functions as F  # noqa: N812

    if set(LOG_TABLES["events"].names) <= set(events.columns):
        opened = events_of_log(events, stream.space, node_numbers(str(stream.events)))
        late = why_not(stream.space, opened.columns)
        return opened.withColumn("reason", F.coalesce("_problem", late))
    check_event_columns(events, stream.space, EVENT_KEY)
    return events.withColumn("reason", why_not(stream.space, events.columns))


def read_deliveries(spark: SparkSession, output: Path) -> DataFrame:
    """Return the deliveries of all complete batches."""
    done = sorted(str(mark.parent) for mark in (output / "deliveries").glob("*/_SUCCESS"))
    if not done:
        return spark.createDataFrame([], spark_schema(DELIVERIES))
    return spark.read.schema(spark_schema(DELIVERIES)).parquet(*done)


def pinned(pins: Path, batch: int, choose: Callable[[], str]) -> str:
    """Return the version that a batch sees, choosing and recording it the first time."""
    path = pins / f"{batch}.json"
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["version"])
    except FileNotFoundError:
        version = choose()
    except (ValueError, KeyError, TypeError):
        raise FileFormatError("the pin is damaged", where=str(path)) from None
    pins.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    with draft.open("w", encoding="utf-8") as file:
        json.dump({"version": version}, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    return version


def newest_change(changes: Path) -> str:
    """Return the name of the last change file."""
    names = sorted(path.name for path in changes.glob("*.parquet"))
    if not names:
        raise MisuseError(
            "no subscriptions", where=str(changes), expected="one Parquet file at least"
        )
    return names[-1]


def index_at(stream: Stream, version: str) -> Path:
    """Return the directory of the index for a version, building it unless it is there."""
    folder = stream.checkpoint / "indexes"
    index = folder / version
    if (index / "manifest.json").exists():
        return index
    shutil.rmtree(index, ignore_errors=True)  # half of one, left by a crash
    view = matcher_of(subscriptions_at(stream.changes, version, stream.space), stream.space)
    save_matcher(view, index)
    for old in sorted(folder.iterdir())[:-3]:  # workers may still have the last ones open
        shutil.rmtree(old, ignore_errors=True)
    return index


def subscriptions_at(changes: Path, version: str, space: Space) -> pa.Table:
    """Fold all change files up to a version: the last word on each subscription counts."""
    files = sorted(path for path in changes.glob("*.parquet") if path.name <= version)
    try:
        table = pa.concat_tables([pq.read_table(file) for file in files], promote_options="default")
    except (pa.ArrowInvalid, OSError) as error:
        raise FileFormatError(
            f"a change file cannot be read ({error})", where=str(changes)
        ) from None
    present = table.column_names
    columns = subscription_columns(space, present, str(changes))
    keys = table[KEY].to_numpy()
    _, last = np.unique(keys[::-1], return_index=True)
    table = table.take(pa.array(np.sort(len(keys) - 1 - last)))
    if OPERATION in present:
        table = table.filter(pa.compute.not_equal(table[OPERATION], "remove"))
    return table.select(columns).sort_by(KEY)
