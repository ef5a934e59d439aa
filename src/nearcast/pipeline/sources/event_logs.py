"""Reads the event logs of brokers with Spark: finished segments, and those still being written.

`nearcast/eventlog/log_files.py` finds the segments. A task finishes and reads a private copy of an
open one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from nearcast.eventlog import LOG_TABLES
from nearcast.eventlog.log_files import Segment, finished, segments_of, table_segments
from nearcast.eventlog.segments import read_segment, table_of
from nearcast.model import FileFormatError, MisuseError, Space
from nearcast.pipeline.sources.column_types import EVENT_DETAILS, EVENT_KEY
from nearcast.pipeline.tables.transaction import spark_schema
from nearcast.pipeline.tables.worker_reads import RowGroups, pieces_of, scan

Batches = Iterable[pa.RecordBatch]
SEQUENCE_BITS = 41  # 2 · 10¹² events per node; the upper 22 bits are the node's number


def read_logs(spark: SparkSession, paths: Sequence[str], table: str) -> DataFrame:
    """Return all rows of one table in several logs; the schema is that in LOG_TABLES."""
    return reduce(_one_after_other, [read_log(spark, path, table) for path in paths])


def nothing_in(paths: Sequence[str], what: str) -> MisuseError:
    """Return the error for a log that lacks what a job needs."""
    todo = "Run the broker for a while first; what was learned before stays"
    return MisuseError(f"an empty log: {what}", where=", ".join(paths), todo=todo)


def read_log(spark: SparkSession, path: str, table: str) -> DataFrame:
    """Return all rows of one table of the log; the schema is that in LOG_TABLES."""
    schema = spark_schema(LOG_TABLES[table])
    parts, waiting = _found(path, table)
    frames = [spark.read.schema(schema).parquet(*parts)] if parts else []
    if waiting:
        frames.append(_map_segments(spark, waiting, table, _as_they_are, schema))
    return reduce(_one_after_other, frames) if frames else spark.createDataFrame([], schema)


def map_log(
    spark: SparkSession,
    path: str,
    table: str,
    columns: Sequence[str],
    make: Callable[[Batches], Batches],
    schema: str,
    *,
    coded: Sequence[str] = (),
) -> DataFrame:
    """Return `make` applied to one table of the log; workers read the files themselves.

    `make` sees the rows of one task at a time. Columns in `coded` may come as Arrow dictionaries.
    """
    parts, waiting = _found(path, table)
    pieces = _pieces(parts)
    frames = [scan(spark, pieces, columns, make, schema, coded=coded)] if pieces else []
    if waiting:
        frames.append(_map_segments(spark, waiting, table, make, schema))
    return reduce(_one_after_other, frames) if frames else spark.createDataFrame([], schema)


def _found(path: str, table: str) -> tuple[list[str], list[Segment]]:
    parts, waiting = table_segments(Path(path).absolute(), table)
    return [str(part) for part in parts], waiting


def has_rows(paths: Sequence[str], table: str) -> bool:
    """Return whether any of these logs has a row in this table; starts no Spark job.

    Open segments are read until a row is found, finished files are known by their footers.
    """
    found = [_found(path, table) for path in paths]
    if any(_has_row(one, table) for _, waiting in found for one in waiting):
        return True
    return any(_pieces(parts) for parts, _ in found)


def _has_row(segment: Segment, table: str) -> bool:
    try:
        return any(table_of(kind) == table for kind, _ in read_segment(segment.open_path))
    except FileNotFoundError:  # finished meanwhile
        part = segment.path(table)
        return part.exists() and bool(_pieces([str(part)]))


def _map_segments(
    spark: SparkSession,
    waiting: list[Segment],
    table: str,
    make: Callable[[Batches], Batches],
    schema: StructType | str,
) -> DataFrame:
    """Return what `make` makes of the rows of open segments: a task for each, no shuffle."""

    def work(numbers: Batches) -> Batches:
        for batch in numbers:
            for number in batch.column("id").to_pylist():
                yield from make(_segment_rows(waiting[number], table))

    return spark.range(0, len(waiting), 1, len(waiting)).mapInArrow(work, schema)


def _as_they_are(rows: Batches) -> Batches:
    return rows


def _pieces(parts: list[str]) -> list[RowGroups]:
    try:
        return pieces_of(parts)
    except (pa.ArrowException, OSError) as problem:
        raise FileFormatError(
            f"it cannot be read ({problem})", where=", ".join(parts[:3]),
            expected="whole Parquet files",
        ) from None  # fmt: skip


def _one_after_other(one: DataFrame, other: DataFrame) -> DataFrame:
    return one.unionAll(other)


def node_numbers(path: str) -> dict[str, int]:
    """Return a number for each node that wrote to a log; it is the same in every run.

    Raises MisuseError where two names get the same number (one in millions).
    """
    numbers: dict[int, str] = {}
    for node in sorted({one.node for one in segments_of(path)}):
        number = zlib.crc32(node.encode()) >> 10
        if number in numbers:
            raise MisuseError(
                f"nodes {numbers[number]!r} and {node!r}, whose events would get the same ids",
                where=path,
                todo="Read the logs of the two nodes one by one",
            )
        numbers[number] = node
    return {node: number for number, node in numbers.items()}


def events_of_log(log: DataFrame, space: Space, nodes: Mapping[str, int]) -> DataFrame:
    """Return a space's events from the table `events` of a log, with a column per attribute.

    The id of an event is its node's number and, in the lower bits, its sequence number. `_problem`
    says that a payload is no JSON object with values of the right types. No shuffle.
    """
    numbers = F.create_map(*(F.lit(each) for pair in nodes.items() for each in pair))
    fields = ", ".join(
        f"`{a.name}` {'string' if a.is_category else 'double'}" for a in space.attributes
    )
    text = F.col("payload").cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt"}
    parsed = F.from_json(text, f"{fields}, _corrupt string", options)
    mine = log.where(F.col("topic").rlike(topic_pattern(space.topic_filter)))
    opened = mine.withColumn("_values", parsed)
    problem = F.when(
        F.col("_values").isNull() | F.col("_values._corrupt").isNotNull(),
        "the payload is no JSON object with values of the right kinds",
    )
    number = F.element_at(numbers, F.col("node")).cast("bigint")
    return opened.select(
        F.shiftleft(number, SEQUENCE_BITS).bitwiseOR(F.col("sequence")).alias(EVENT_KEY),
        *EVENT_DETAILS,
        *(F.col(f"_values.`{a.name}`").alias(a.name) for a in space.attributes),
        text.alias("payload"),
        problem.alias("_problem"),
    )


def topic_pattern(topic_filter: str) -> str:
    r"""Return the regular expression of the topics that match a filter.

    >>> topic_pattern("shops/+/#")
    '^\\Qshops\\E/[^/]*(/.*)?$'
    """
    levels = topic_filter.split("/")
    texts = ["[^/]*" if level == "+" else rf"\Q{level}\E" for level in levels if level != "#"]
    start = "(?!\\$)" if levels[0] in {"+", "#"} else ""
    end = "(/.*)?" if levels[-1] == "#" and texts else ".*" if levels[-1] == "#" else ""
    return f"^{start}{'/'.join(texts)}{end}$"


def _segment_rows(segment: Segment, table: str) -> Batches:
    with finished(segment) as files:
        part = files.path(table)
        if part.exists():
            yield from _in_microseconds(pq.read_table(part)).to_batches()


def _in_microseconds(table: pa.Table) -> pa.Table:
    """Return the table with timestamps in microseconds, the only unit that Spark accepts."""
    fields = [
        field.with_type(pa.timestamp("us", tz="UTC"))
        if pa.types.is_timestamp(field.type)
        else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))
