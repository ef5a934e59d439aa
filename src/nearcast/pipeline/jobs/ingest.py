"""`ingest`: reads GPS positions into a clean table; dropped rows are kept with the reason.

Spark parses, partitions and sorts; `nearcast/locality/layout/tracks.py` judges each track.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from nearcast.eventlog import POSITIONS, REJECTED_POSITIONS
from nearcast.model.errors import MisuseError
from nearcast.pipeline.job import JobResult
from nearcast.pipeline.jobs.quality import Quality, page_of, quality_of
from nearcast.pipeline.sources.files import read_source
from nearcast.pipeline.sources.habits import SAMPLE_ROWS, Area, Habits, habits_of
from nearcast.pipeline.sources.input_checks import check_source
from nearcast.pipeline.sources.period import Period
from nearcast.pipeline.tables.output_files import write_text
from nearcast.pipeline.tables.places import PlaceColumns
from nearcast.pipeline.tables.transaction import read_table, spark_schema, transaction
from nearcast.pipeline.tables.worker_writes import Batches, Labelled, gathered

if TYPE_CHECKING:
    from nearcast.locality.layout.tracks import TrackCleaner

COLUMNS = ("user_id", "t", "lon", "lat")
JUDGED = (
    "user_id string, t timestamp, lon double, lat double, trip int, step_s double, step_m double, "
    "reason string, raw string"
)
PAGE = "quality.html"
NO_ROWS = "no rows: the input is empty"
_ROWS_AT_ONCE = 65_536
_REASONS = (None, "duplicate", "impossible speed")


@dataclass(frozen=True, slots=True)
class Cleaning:
    """What counts as clean."""

    max_speed_mps: float = 70.0
    gap_s: float = 600.0
    timezone: str = "UTC"  # of timestamps without a zone
    area: Area | None = None  # where the rest of the data lies: swapped coordinates are told by it
    columns: PlaceColumns = field(default_factory=PlaceColumns)  # that are added
    period: Period = field(default_factory=Period)  # what is read of the input


@dataclass(frozen=True, slots=True)
class Ingested:
    """The number of rows kept, and of rows rejected by reason."""

    kept: int
    rejected: dict[str, int]

    def result(self, table: str, output: str) -> JobResult:
        """Return the counts for people and for JSON."""
        return JobResult(
            {"kept": self.kept, "rejected": self.rejected},
            [
                f"{self.kept:,} {table} in {output}/{table}",
                *(
                    f"{count:,} rows dropped: {reason} (see {output}/rejected)"
                    for reason, count in sorted(self.rejected.items())
                ),
            ],
            {"output": output},
        )


@dataclass(frozen=True, slots=True)
class IngestJob:
    """Reads positions from files, tables or event logs into the table `positions`."""

    name: ClassVar[str] = "ingest"
    inputs: Sequence[str]
    output: str
    columns: Mapping[str, str] = field(default_factory=lambda: {name: name for name in COLUMNS})
    cleaning: Cleaning = field(default_factory=Cleaning)

    def check(self) -> None:
        """Check that the input exists, and the columns of files."""
        for path in self.inputs:
            check_source(path, self.columns)

    def run(self, spark: SparkSession) -> JobResult:
        """Write the tables `positions` and `rejected`."""
        parts = [read_source(spark, path, self.columns) for path in self.inputs]
        source = reduce(lambda one, other: one.unionByName(other), parts)
        sample = source.select("t", "lon", "lat").limit(SAMPLE_ROWS).toArrow()
        habits = habits_of(sample)
        cleaning = replace(self.cleaning, area=habits.area)
        done = ingest(source, self.output, cleaning)
        report = self._report(spark, done, habits)
        result = done.result("positions", self.output)
        where = f"Report: {self.output}/{PAGE}"
        return replace(result, lines=[*result.lines, *report.warnings(), where])

    def _report(self, spark: SparkSession, done: Ingested, habits: Habits) -> Quality:
        positions = read_table(spark, f"{self.output}/positions")
        rejected = read_table(spark, f"{self.output}/rejected")
        zone = self.cleaning.timezone
        report = quality_of(positions, rejected, done.rejected, habits, zone)
        with transaction() as written:
            written.write_small(report.table(), f"{self.output}/quality", spark)
        write_text(self.output, PAGE, page_of(report, f"Quality of {', '.join(self.inputs)}"))
        return report


def ingest(source: DataFrame, output: str, cleaning: Cleaning) -> Ingested:
    """Write the tables `positions` and `rejected` under `output`.

    If no row is good, nothing is written: that is a mistake in the call, not a clean table. The
    result is the same under any partitioning of the source. One pass over it and one shuffle, by
    user; a worker writes the rows that it has judged.
    """
    kept_schema = cleaning.columns.schema(POSITIONS)
    tables = [(f"{output}/positions", kept_schema), (f"{output}/rejected", REJECTED_POSITIONS)]
    with transaction() as written:
        replaces = cleaning.period.replaces
        kept, rejected = written.write_apart(
            _tracked(source, cleaning), _sorter(cleaning), tables,
            replaces={tables[0][0]: replaces} if replaces else None,
        )  # fmt: skip
        if not kept:
            hint = _swap_hint(rejected, parse(source, cleaning.timezone))
            raise nothing_good(rejected, hint)
    return Ingested(sum(kept.values()), rejected)


def judged_tracks(source: DataFrame, cleaning: Cleaning) -> DataFrame:
    """Return all rows, kept ones with trip and step, dropped ones with their `reason`.

    The columns are those of JUDGED. The same under any partitioning; one shuffle, by user.
    """
    return _tracked(source, cleaning).mapInArrow(_cleaner(cleaning), JUDGED)


def dropped_tracks(source: DataFrame, cleaning: Cleaning) -> DataFrame:
    """Return the dropped rows as text, each with its reason; the schema is REJECTED_POSITIONS."""
    sort = _sorter(cleaning)

    def drop(batches: Batches) -> Batches:
        for table, _, rows in sort(batches):
            if table == 1:
                yield rows

    schema = spark_schema(REJECTED_POSITIONS)
    return _tracked(source, cleaning).mapInArrow(drop, schema)


def _tracked(source: DataFrame, cleaning: Cleaning) -> DataFrame:
    """Return the parsed rows, those of one user in one partition and sorted by time.

    Rows that could not be parsed, the only ones with `raw`, may be in any partition.
    """
    parsed = parse(source, cleaning.timezone, cleaning.area)
    if not cleaning.period.is_all:
        parsed = parsed.where(f"t IS NULL OR ({cleaning.period.condition('t')})")
    return parsed.repartition("user_id", "raw").sortWithinPartitions(*COLUMNS)


def parse(source: DataFrame, timezone: str, area: Area | None = None) -> DataFrame:
    """Return each row with typed columns, or with a `reason` and its input as text in `raw`.

    With the `area` of the rest, positions that fit it only with exchanged coordinates are bad.
    """
    kinds = dict(source.dtypes)
    user, lon, lat = F.col("user_id").cast("string"), _number("lon"), _number("lat")
    instant = instant_column("t", kinds["t"], timezone)
    reason = (
        F.when(F.coalesce(user, F.lit("")) == "", "no user")
        .when(F.col("t").isNull(), "no time")
        .when(instant.isNull(), "time not understood")
        .when(F.col("lon").isNull() | F.col("lat").isNull(), "no coordinates")
        .when(
            lon.isNull() | lat.isNull() | F.isnan(lon) | F.isnan(lat), "coordinates are no numbers"
        )
        .when((F.abs(lon) > 180.0) | (F.abs(lat) > 90.0), "coordinates outside the globe")
    )
    if area is not None:
        reason = reason.when(
            ~_inside(area, lon, lat) & _inside(area, lat, lon), "coordinates look swapped"
        )
    # One JSON text: Arrow transfer of lists that are nearly all null takes time quadratic in the
    # batch.
    texts = F.to_json(F.array(*(F.col(c).cast("string") for c in COLUMNS)))
    raw = F.when(reason.isNotNull(), texts)
    return source.select(
        user.alias("user_id"),
        instant.alias("t"),
        lon.alias("lon"),
        lat.alias("lat"),
        reason.alias("reason"),
        raw.alias("raw"),
    )


def _inside(area: Area, lon: Column, lat: Column) -> Column:
    return lon.between(area.west, area.east) & lat.between(area.south, area.north)


def _number(name: str) -> Column:
    return F.expr(f"try_cast(`{name}` AS double)")


def instant_column(name: str, kind: str, timezone: str) -> Column:
    """Return a column parsed as a timestamp.

    Accepts timestamps, seconds, milli-, micro- or nanoseconds since 1970, and ISO text.
    """
    if kind == "timestamp":
        return F.col(name)
    if kind == "timestamp_ntz":
        return F.to_utc_timestamp(F.col(name).cast("timestamp"), timezone)
    if kind in {"int", "bigint", "float", "double"} or kind.startswith("decimal"):
        return _since_epoch(F.col(name).cast("double"))
    text = F.trim(F.col(name).cast("string"))
    # A text with a zone has it at its end; other texts are in the zone of the call.
    has_zone = text.rlike(r"(?i)([zZ]|utc|gmt|[+-]\d{2}:?\d{2}|[+-]\d{2})$") & text.rlike(r":")
    stamp = F.expr(f"try_cast(trim(cast(`{name}` AS string)) AS timestamp)")
    local = F.to_utc_timestamp(stamp, timezone)
    epoch = _since_epoch(F.expr(f"try_cast(`{name}` AS double)"))
    return F.when(text.rlike(r"^-?\d+(\.\d+)?$"), epoch).otherwise(
        F.when(has_zone, stamp).otherwise(local)
    )


def _since_epoch(value: Column) -> Column:
    """Return a number since 1970 as a timestamp.

    Its size tells seconds, milli-, micro- and nanoseconds apart.
    """
    size = F.abs(value)
    micros = (
        F.when(size > 1e17, value / 1e3)
        .when(size > 1e14, value)
        .when(size > 1e11, value * 1e3)
        .otherwise(value * 1e6)
    )
    return F.timestamp_micros(F.round(micros).cast("bigint"))


def _cleaner(cleaning: Cleaning) -> Callable[[Batches], Batches]:
    """Return a worker function from parsed rows of tracks to judged rows."""

    def clean(batches: Batches) -> Batches:
        from nearcast.locality.layout.tracks import TrackCleaner

        cleaner = TrackCleaner(cleaning.max_speed_mps, cleaning.gap_s)
        previous = None
        for batch in gathered(batches, _ROWS_AT_ONCE):
            reason = batch.column("reason")
            if reason.null_count < len(batch):
                yield _unreadable(batch.filter(reason.is_valid()))
                batch = batch.filter(reason.is_null())  # noqa: PLW2901 - the rest of it
            if len(batch):
                yield _judged(batch, previous, cleaner)
                previous = batch.column("user_id")[-1].as_py()

    return clean


def _judged(batch: pa.RecordBatch, previous: str | None, cleaner: TrackCleaner) -> pa.RecordBatch:
    """Judge the positions of a batch; `previous` is the user of the row before it."""
    users = batch.column("user_id")
    is_new = np.empty(batch.num_rows, np.bool_)
    is_new[0] = users[0].as_py() != previous
    is_new[1:] = pc.not_equal(users[1:], users[:-1]).to_numpy(zero_copy_only=False)
    t_us = batch.column("t").cast(pa.int64()).to_numpy()
    lon, lat = batch.column("lon").to_numpy(), batch.column("lat").to_numpy()
    verdict, trip, step_s, step_m = cleaner.clean(is_new, t_us, lon, lat)
    reasons = pa.DictionaryArray.from_arrays(
        pa.array(verdict.astype(np.int8), mask=verdict == 0), pa.array(["", *_REASONS[1:]])
    ).cast(pa.string())
    added = {"trip": trip, "step_s": step_s, "step_m": step_m, "reason": reasons}
    given = [batch.column(name) for name in COLUMNS]
    columns = [*given, *(pa.array(column) for column in added.values()), batch.column("raw")]
    return pa.RecordBatch.from_arrays(columns, names=[*COLUMNS, *added, "raw"])


def _unreadable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows that could not be parsed with the columns of judged rows."""
    count = len(batch)
    none = [pa.nulls(count, kind) for kind in (pa.int32(), pa.float64(), pa.float64())]
    columns = [*(batch.column(name) for name in COLUMNS), *none]
    columns += [batch.column("reason"), batch.column("raw")]
    names = [*COLUMNS, "trip", "step_s", "step_m", "reason", "raw"]
    return pa.RecordBatch.from_arrays(columns, names=names)


def _sorter(cleaning: Cleaning) -> Callable[[Batches], Labelled]:
    """Return a worker function that sends kept rows to table 0 and dropped rows to table 1."""
    clean = _cleaner(cleaning)

    def sort(batches: Batches) -> Labelled:
        for batch in clean(batches):
            reason = batch.column("reason")
            kept = batch
            if reason.null_count < len(batch):
                kept = batch.filter(reason.is_null())
                yield from _dropped(batch.filter(reason.is_valid()))
            columns = [kept.column(f.name).cast(f.type) for f in POSITIONS]
            rows = pa.RecordBatch.from_arrays(columns, schema=POSITIONS)
            yield 0, "", cleaning.columns.add(rows, POSITIONS)

    return sort


def _dropped(batch: pa.RecordBatch) -> Labelled:
    """Yield dropped rows as text, by reason."""
    told = _as_text(batch)
    for reason in told.column("reason").unique().to_pylist():
        yield 1, reason, told.filter(pc.equal(told.column("reason"), reason))


def _as_text(rejected: pa.RecordBatch) -> pa.RecordBatch:
    """Return rejected rows as text; rows that could not be parsed as their original text."""
    raw = rejected.column("raw")
    texts = [[None] * len(COLUMNS) if row is None else json.loads(row) for row in raw.to_pylist()]
    columns = [
        pc.if_else(
            raw.is_valid(),
            pa.array([row[place] for row in texts], pa.string()),
            _text_of(rejected.column(name)),
        )
        for place, name in enumerate(COLUMNS)
    ]
    return pa.RecordBatch.from_arrays(
        [*columns, rejected.column("reason")], schema=REJECTED_POSITIONS
    )


def _text_of(column: pa.Array) -> pa.Array:
    if not pa.types.is_timestamp(column.type):
        return column.cast(pa.string())
    in_utc = column.cast(pa.int64()).cast(pa.timestamp("us"))
    text = pc.strftime(in_utc, format="%Y-%m-%d %H:%M:%S")  # with six decimal places of seconds
    return pc.replace_substring_regex(text, r"\.?0+$", "")


def nothing_good(counts: dict[str, int], hint: str = "") -> MisuseError:
    """Return the error for input of which every row was rejected."""
    if not counts:
        return MisuseError(NO_ROWS, todo="Give another --input")
    reasons = ", ".join(f"{count} rows: {reason}" for reason, count in sorted(counts.items()))
    todo = hint or "Look at the input, or name its columns with --columns"
    return MisuseError(f"no row is good ({reasons})", todo=f"{todo}. Nothing was written")


def _swap_hint(counts: dict[str, int], parsed: DataFrame) -> str:
    if "coordinates outside the globe" in counts and _looks_swapped(parsed):
        return "Longitude and latitude look swapped: --columns lon=lat,lat=lon"
    return ""


def _looks_swapped(parsed: DataFrame) -> bool:
    odd = parsed.where(F.col("reason") == "coordinates outside the globe")
    fits = (F.abs("lon") <= 90.0) & (F.abs("lat") <= 180.0)
    row = odd.agg(F.avg(fits.cast("double"))).first()
    return row is not None and (row[0] or 0.0) > 0.5
