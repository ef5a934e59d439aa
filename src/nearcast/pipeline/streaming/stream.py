"""`stream`: the `match` job as a query that never ends.

    events/*.parquet ──► micro-batch n ──► output/deliveries/000000000n/
    changes/*.parquet ─► index of the newest change file when batch n began, pinned in
                         checkpoint/pins/n.json

All events of a batch see the subscriptions of one version: all change files up to the pinned one,
in the order of their names; or all segments of an event log that were finished. The pin is written
before the batch is matched, so that a batch repeated after a crash sees the same version and writes
the same rows to the same directory. Readers (`read_deliveries`) see complete batches only.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from nearcast.eventlog import DELIVERIES, LOG_TABLES
from nearcast.eventlog.log_files import is_event_log
from nearcast.matching import MatcherView, save_matcher
from nearcast.model import FileFormatError, MisuseError, Space
from nearcast.pipeline.jobs.match import (
    REASON,
    TOPIC,
    MatchQuery,
    matched_from,
    why_not,
)
from nearcast.pipeline.jobs.match_job import REJECTED_EVENTS
from nearcast.pipeline.sources.column_types import EVENT_KEY, check_event_columns
from nearcast.pipeline.sources.event_logs import events_of_log, node_numbers
from nearcast.pipeline.sources.log_subscriptions import matcher_of_log
from nearcast.pipeline.sources.subscription_tables import matcher_of
from nearcast.pipeline.streaming.changes import newest_change, subscriptions_at
from nearcast.pipeline.streaming.checkpoints import check_checkpoint
from nearcast.pipeline.streaming.delivery import (
    OUTBOX,
    SENT_PAYLOAD,
    SENT_TOPIC,
    outbox_folder,
    outbox_rows,
)
from nearcast.pipeline.streaming.lateness import (
    LATE_EVENTS,
    TIME,
    LateFilter,
    LateRule,
    newest_before,
    record_newest,
)
from nearcast.pipeline.streaming.live_events import PAYLOAD, PROBLEM
from nearcast.pipeline.streaming.query_metrics import QueryMetrics
from nearcast.pipeline.streaming.stopping import BatchGate
from nearcast.pipeline.tables.transaction import spark_schema
from nearcast.pipeline.tables.worker_writes import Batches, PartFile

_DONE = "_SUCCESS"  # the marker file of Spark's own writers
_ALL_TABLES = ("rejected", "late", "deliveries")
_OUTBOX = "outbox"
_WRITTEN = "table string, file string, rows bigint"


@dataclass(frozen=True, slots=True)
class Stream:
    """The input, the query and the output of a stream."""

    events: Path
    changes: Path
    output: Path
    checkpoint: Path
    space: Space
    query: MatchQuery
    files_a_batch: int = 64
    late: LateRule | None = None


TakeBatch = Callable[[DataFrame, int], Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class QueryControl:
    """How a running query is stopped, and what it has done."""

    gate: BatchGate = field(default_factory=BatchGate)
    metrics: QueryMetrics = field(default_factory=QueryMetrics)

    def guard(self, take_batch: TakeBatch) -> Callable[[DataFrame, int], None]:
        """Return a function that takes batches until the gate is closed, and counts rows."""

        def take(events: DataFrame, batch: int) -> None:
            self.metrics.wrote(take_batch(events, batch))

        return self.gate.guard(take)


def start(
    spark: SparkSession,
    stream: Stream,
    *,
    once: bool = False,
    control: QueryControl | None = None,
) -> StreamingQuery:
    """Start the query; with `once` it ends when all present files have been matched."""
    folder = _event_folder(stream.events)
    # Otherwise Spark starts a job to list the files of every batch with more than 32 of them.
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", stream.files_a_batch)
    frame = (
        spark.readStream.schema(spark.read.parquet(str(check_event_files(stream)[0])).schema)
        .option("maxFilesPerTrigger", stream.files_a_batch)
        .option("pathGlobFilter", "*.parquet")  # a log's unfinished parts have other names
        .parquet(str(folder))
    )
    return start_query(frame, stream, partial(match_batch, stream), once=once, control=control)


def start_query(
    frame: DataFrame,
    stream: Stream,
    take_batch: TakeBatch,
    *,
    once: bool,
    control: QueryControl | None = None,
) -> StreamingQuery:
    """Start a query over event rows; with `once` it ends when all present rows have been taken."""
    check_checkpoint(stream.checkpoint, stream.space)
    control = control or QueryControl()
    take = control.guard(take_batch)
    writer = (
        frame.writeStream.queryName("nearcast-stream")
        .option("checkpointLocation", str(stream.checkpoint / "spark"))
        .foreachBatch(take)
    )
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime="0.2 seconds").start()


def unfinished_batch(checkpoint: Path) -> int | None:
    """Return the batch that was begun and not completed, if any.

    A query whose thread dies of an error inside Java may end without an exception, but its
    checkpoint shows the unfinished batch. Starting the stream again repeats that batch.
    """

    def newest(folder: str) -> int:
        names = [path.name for path in (checkpoint / "spark" / folder).glob("*")]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    begun = newest("offsets")
    return begun if begun > newest("commits") else None


def _event_folder(events: Path) -> Path:
    """Return the directory where event files appear: in an event log, its table `events`."""
    return events / "events" if is_event_log(str(events)) else events


def check_event_files(stream: Stream) -> list[Path]:
    """Return the present event files; raise MisuseError if there is none yet."""
    events = _event_folder(stream.events)
    files = sorted(events.glob("*.parquet"))
    if not files:
        raise MisuseError(
            "no event files yet",
            where=str(events),
            expected="one Parquet file at least, which shows the columns",
        )
    return files


def match_batch(
    stream: Stream,
    events: DataFrame,
    batch: int,
    decode: Callable[[Batches], Batches] | None = None,
    *,
    sends: bool = False,
) -> dict[str, int]:
    """Match one micro-batch; repeating it writes the same rows to the same directory.

    Return how many rows each table got.

    One Spark job: workers write deliveries and rejected events themselves; with `decode` they also
    make the events of messages; if the stream `sends`, they also fill the outbox. The marker of the
    deliveries is written last, so a batch that has it is complete.
    """
    pins = stream.checkpoint / "pins"
    version = pinned(pins, batch, lambda: newest_change(stream.changes))
    index = index_at(stream, version).absolute()
    judged = _judged(stream, events, sends=sends) if decode is None else events
    tables = ("rejected", "deliveries") if stream.late is None else _ALL_TABLES
    folders = {table: (stream.output / table / f"{batch:012d}").absolute() for table in tables}
    outbox = {_OUTBOX: outbox_folder(stream.checkpoint, batch)} if sends else {}
    for folder in (*folders.values(), *outbox.values()):
        clear(folder)
    watermark = (
        None if stream.late is None else stream.late.watermark_us(newest_before(pins, batch))
    )
    places = {table: str(folder) for table, folder in {**folders, **outbox}.items()}
    write = _writing(index, stream.query, places, watermark)
    if decode is not None:
        with_topic = is_event_log(str(stream.changes))
        write = _after(write, _judging(decode, stream.late, with_topic, sends))
    done = judged.mapInArrow(write, _WRITTEN).collect()  # at most four rows per task
    if stream.late is not None:
        times = [row["rows"] for row in done if row["table"] == TIME]
        record_newest(pins, batch, max(times, default=None))
    for table, folder in {**outbox, **folders}.items():
        complete(folder, {row["file"] for row in done if row["table"] == table})
    return {t: sum(row["rows"] for row in done if row["table"] == t) for t in folders}


def clear(folder: Path) -> None:
    """Remove the files of an earlier attempt at a batch, its marker first."""
    (folder / _DONE).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def complete(folder: Path, files: set[str]) -> None:
    """Remove the files of tasks that failed or ran twice, and mark the directory as complete."""
    for stray in folder.iterdir():
        if stray.name not in files:
            stray.unlink()
    (folder / _DONE).touch()


def _writing(
    index: Path, query: MatchQuery, folders: dict[str, str], watermark_us: int | None
) -> Callable[[Batches], Batches]:
    """Return a worker function that writes a task's deliveries, rejected and late events.

    It returns which files it wrote, and the newest event time.
    """
    place = str(index)

    def write(batches: Batches) -> Batches:
        with (
            PartFile(folders["deliveries"], DELIVERIES) as found,
            PartFile(folders["rejected"], REJECTED_EVENTS) as rejected,
            PartFile(folders.get("late", ""), LATE_EVENTS) as late,
            PartFile(folders.get(_OUTBOX, ""), OUTBOX) as outbox,
        ):
            good = _without_rejected(batches, rejected)
            lateness = LateFilter(watermark_us, late)
            kept = lateness.kept(good) if "late" in folders else good
            for events, deliveries in matched_from(place, query, kept):
                found.add(deliveries)
                if _OUTBOX in folders:
                    outbox.add(outbox_rows(deliveries, events))
        parts = (
            ("deliveries", found), ("rejected", rejected), ("late", late), (_OUTBOX, outbox),
        )  # fmt: skip
        done = [(table, part.name, part.rows) for table, part in parts if part.rows]
        if lateness.newest_us is not None:
            done.append((TIME, "", lateness.newest_us))
        tables, names, rows = zip(*done, strict=True) if done else ((), (), ())
        yield pa.RecordBatch.from_pydict(
            {
                "table": pa.array(tables, pa.string()),
                "file": pa.array(names, pa.string()),
                "rows": pa.array(rows, pa.int64()),
            }
        )

    return write


def _after(
    second: Callable[[Batches], Batches], first: Callable[[Batches], Batches]
) -> Callable[[Batches], Batches]:
    return lambda batches: second(first(batches))


def _judging(
    decode: Callable[[Batches], Batches], late: LateRule | None, with_topic: bool, sends: bool
) -> Callable[[Batches], Batches]:
    """Return a worker function that gives decoded events the columns of `_judged`."""
    names = {PROBLEM: REASON, "topic": TOPIC}
    left_out = {"t", PAYLOAD} if with_topic else {"t", "topic", PAYLOAD}

    def judge(batches: Batches) -> Batches:
        for batch in decode(batches):
            kept = [name for name in batch.schema.names if name not in left_out]
            columns = [batch.column(name) for name in kept]
            told = [names.get(name, name) for name in kept]
            if sends:
                columns += [batch.column("topic"), batch.column(PAYLOAD)]
                told += [SENT_TOPIC, SENT_PAYLOAD]
            if late is not None:
                columns.append(late.micros(batch))
                told.append(TIME)
            yield pa.RecordBatch.from_arrays(columns, names=told)

    return judge


def _without_rejected(batches: Batches, rejected: PartFile) -> Batches:
    for batch in batches:
        reasons = batch.column(REASON)
        if reasons.null_count == len(batch):
            yield batch
            continue
        bad = batch.filter(reasons.is_valid())
        columns = [bad.column(EVENT_KEY).cast(pa.int64()), bad.column(REASON)]
        rejected.add(pa.RecordBatch.from_arrays(columns, schema=REJECTED_EVENTS))
        yield batch.filter(reasons.is_null())


def _judged(stream: Stream, events: DataFrame, *, sends: bool = False) -> DataFrame:
    """Return the events with the reason why they cannot be matched, and what is to be sent.

    Payloads of a log are decoded.
    """
    if set(LOG_TABLES["events"].names) <= set(events.columns):
        opened = events_of_log(events, stream.space, node_numbers(str(stream.events)))
        reason = F.coalesce("_problem", why_not(stream.space, opened.columns))
    else:
        check_event_columns(events, stream.space)
        opened, reason = events, why_not(stream.space, events.columns)
        if PROBLEM in events.columns:  # a live source decodes payloads itself
            reason = F.coalesce(PROBLEM, reason)
    kept = [EVENT_KEY, *(a.name for a in stream.space.attributes if a.name in opened.columns)]
    columns = [F.col(f"`{name}`") for name in kept]
    if "topic" in opened.columns and is_event_log(str(stream.changes)):
        columns.append(F.col("topic").alias(TOPIC))  # the log's subscriptions have topic filters
    if stream.late is not None:
        kinds = {field.name: field.dataType for field in opened.schema.fields}
        columns.append(stream.late.time(kinds).alias(TIME))
    if sends:
        columns += [F.col("topic").alias(SENT_TOPIC), F.col(PAYLOAD).alias(SENT_PAYLOAD)]
    return opened.select(reason.alias(REASON), *columns)


def read_deliveries(spark: SparkSession, output: Path) -> DataFrame:
    """Return the deliveries of all complete batches."""
    done = sorted(str(mark.parent) for mark in (output / "deliveries").glob(f"*/{_DONE}"))
    if not done:
        return spark.createDataFrame([], spark_schema(DELIVERIES))
    return spark.read.schema(spark_schema(DELIVERIES)).parquet(*done)


def pinned(pins: Path, batch: int, choose: Callable[[], str]) -> str:
    """Return the version that a batch sees; choose and record it the first time."""
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


def index_at(stream: Stream, version: str) -> Path:
    """Return the directory of the index for a version; build it if missing."""
    folder = stream.checkpoint / "indexes"
    index = folder / hashlib.sha256(version.encode()).hexdigest()[:16]
    if (index / "manifest.json").exists():
        return index
    shutil.rmtree(index, ignore_errors=True)  # incomplete, after a crash
    save_matcher(_matcher_at(stream, version), index)
    for old in sorted(folder.iterdir(), key=_modified)[:-3]:  # workers may have these open
        shutil.rmtree(old, ignore_errors=True)
    return index


def _modified(path: Path) -> int:
    return path.stat().st_mtime_ns


def _matcher_at(stream: Stream, version: str) -> MatcherView:
    if is_event_log(str(stream.changes)):
        return matcher_of_log(stream.changes, version, stream.space)
    folded = stream.checkpoint / "subscriptions.parquet"
    table = subscriptions_at(stream.changes, version, stream.space, folded)
    return matcher_of(table, stream.space)
