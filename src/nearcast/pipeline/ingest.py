"""`ingest`: GPS files become a clean table; what is dropped is kept aside with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nearcast.eventlog import POSITIONS, REJECTED_POSITIONS
from nearcast.model.errors import MisuseError
from nearcast.pipeline.tables import drafts

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

COLUMNS = ("user_id", "t", "lon", "lat")
_REASONS = (None, "duplicate", "impossible speed")
_JUDGED = (
    "user_id string, t timestamp, lon double, lat double, "
    "trip int, step_s double, step_m double, reason string"
)


@dataclass(frozen=True, slots=True)
class Cleaning:
    """What counts as clean."""

    max_speed_mps: float = 70.0
    gap_s: float = 600.0
    timezone: str = "UTC"  # of instants that name none


@dataclass(frozen=True, slots=True)
class Ingested:
    """What became of the rows."""

    kept: int
    rejected: dict[str, int]


def ingest(source: DataFrame, output: str, cleaning: Cleaning) -> Ingested:
    """Write the tables `positions` and `rejected` under `output`.

    When no row is good, nothing is written: that is a mistake in the call, not a clean table.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions as F  # noqa: N812

    judged = judge(source, cleaning).persist(StorageLevel.DISK_ONLY)
    try:
        counts = {row["reason"]: row["count"] for row in judged.groupBy("reason").count().collect()}
        kept = counts.pop(None, 0)
        if not kept:
            raise _nothing_good(counts, judged)
        good = judged.where(F.col("reason").isNull())
        rejected = _as_text(judged.where(F.col("reason").isNotNull()))
        with drafts() as written:
            written.write(good, f"{output}/positions", POSITIONS)
            written.write(rejected, f"{output}/rejected", REJECTED_POSITIONS)
    finally:
        judged.unpersist()
    return Ingested(kept, counts)


def judge(source: DataFrame, cleaning: Cleaning) -> DataFrame:
    """Return every row with `trip`, `step_s`, `step_m` and the `reason` for dropping it, if any.

    Deterministic under any partitioning of `source`. One shuffle, by user.
    """
    from pyspark.sql import functions as F  # noqa: N812

    parsed = parse(source, cleaning.timezone)
    malformed = parsed.where(F.col("reason").isNotNull())
    readable = parsed.where(F.col("reason").isNull())
    tracked = readable.repartition("user_id").sortWithinPartitions(*COLUMNS)
    cleaned = tracked.select(*COLUMNS).mapInArrow(_cleaner(cleaning), _JUDGED)
    return cleaned.withColumn("raw", F.lit(None).cast("array<string>")).unionByName(
        malformed, allowMissingColumns=True
    )


def parse(source: DataFrame, timezone: str) -> DataFrame:
    """Give each row typed columns, or the reason why that cannot be; `raw` keeps what was there."""
    from pyspark.sql import functions as F  # noqa: N812

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
    raw = F.when(reason.isNotNull(), F.array(*(F.col(c).cast("string") for c in COLUMNS)))
    return source.select(
        user.alias("user_id"),
        instant.alias("t"),
        lon.alias("lon"),
        lat.alias("lat"),
        reason.alias("reason"),
        raw.alias("raw"),
    )


def _number(name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.expr(f"try_cast(`{name}` AS double)")


def instant_column(name: str, kind: str, timezone: str) -> Column:
    """Read an instant: a timestamp, seconds/milliseconds/microseconds since 1970, or ISO text."""
    from pyspark.sql import functions as F  # noqa: N812

    if kind == "timestamp":
        return F.col(name)
    if kind == "timestamp_ntz":
        return F.to_utc_timestamp(F.col(name).cast("timestamp"), timezone)
    if kind in {"int", "bigint", "float", "double"} or kind.startswith("decimal"):
        return _since_epoch(F.col(name).cast("double"))
    text = F.trim(F.col(name).cast("string"))
    # A text that names its zone says so at its end; other texts are in the zone of the call.
    has_zone = text.rlike(r"(?i)([zZ]|utc|gmt|[+-]\d{2}:?\d{2}|[+-]\d{2})$") & text.rlike(r":")
    stamp = F.expr(f"try_cast(trim(cast(`{name}` AS string)) AS timestamp)")
    local = F.to_utc_timestamp(stamp, timezone)
    epoch = _since_epoch(F.expr(f"try_cast(`{name}` AS double)"))
    return F.when(text.rlike(r"^-?\d+(\.\d+)?$"), epoch).otherwise(
        F.when(has_zone, stamp).otherwise(local)
    )


def _since_epoch(value: Column) -> Column:
    """Tell seconds, milliseconds and microseconds apart by their size."""
    from pyspark.sql import functions as F  # noqa: N812

    size = F.abs(value)
    micros = F.when(size > 1e14, value).when(size > 1e11, value * 1e3).otherwise(value * 1e6)
    return F.timestamp_micros(F.round(micros).cast("bigint"))


def _cleaner(cleaning: Cleaning):  # type: ignore[no-untyped-def]
    def clean(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from nearcast.locality.tracks import TrackCleaner

        cleaner = TrackCleaner(cleaning.max_speed_mps, cleaning.gap_s)
        previous = None
        for batch in batches:
            if not batch.num_rows:
                continue
            users = batch.column("user_id")
            is_new = np.empty(batch.num_rows, np.bool_)
            is_new[0] = users[0].as_py() != previous
            is_new[1:] = pc.not_equal(users[1:], users[:-1]).to_numpy(zero_copy_only=False)
            previous = users[-1].as_py()
            t_us = batch.column("t").cast(pa.int64()).to_numpy()
            lon, lat = batch.column("lon").to_numpy(), batch.column("lat").to_numpy()
            verdict, trip, step_s, step_m = cleaner.clean(is_new, t_us, lon, lat)
            reasons = pa.DictionaryArray.from_arrays(
                pa.array(verdict.astype(np.int8), mask=verdict == 0), pa.array(["", *_REASONS[1:]])
            ).cast(pa.string())
            added = {"trip": trip, "step_s": step_s, "step_m": step_m, "reason": reasons}
            names = [*batch.schema.names, *added]
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, *(pa.array(column) for column in added.values())], names=names
            )

    return clean


def _as_text(rejected: DataFrame) -> DataFrame:
    """Return rejected rows as text, as they were where they could not be read."""
    from pyspark.sql import functions as F  # noqa: N812

    return rejected.select(
        *(
            F.coalesce(F.col("raw")[i], F.col(name).cast("string")).alias(name)
            for i, name in enumerate(COLUMNS)
        ),
        "reason",
    )


def _nothing_good(counts: dict[str, int], judged: DataFrame) -> MisuseError:
    if not counts:
        return MisuseError("no rows: the input is empty", todo="Give another --input")
    told = ", ".join(f"{count} rows: {reason}" for reason, count in sorted(counts.items()))
    swapped = "coordinates outside the globe" in counts and _looks_swapped(judged)
    todo = (
        "Longitude and latitude look swapped: --columns lon=lat,lat=lon"
        if swapped
        else "Look at the input, or say which column is which with --columns"
    )
    return MisuseError(f"no row is good ({told})", todo=f"{todo}. Nothing was written")


def _looks_swapped(judged: DataFrame) -> bool:
    from pyspark.sql import functions as F  # noqa: N812

    odd = judged.where(F.col("reason") == "coordinates outside the globe")
    fits = (F.abs("lon") <= 90.0) & (F.abs("lat") <= 180.0)
    row = odd.agg(F.avg(fits.cast("double"))).first()
    return row is not None and (row[0] or 0.0) > 0.5
