"""A table of subscriptions that travels to workers inside the function that they run.

A worker process builds the matcher once, from the rows as they are. So no folder has to be shared
between driver and workers, nothing is left behind, and it works with any kind of session.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from nearcast.matching import MatcherView
from nearcast.model import Space
from nearcast.pipeline.sources.subscription_tables import KEY, matcher_of

MOST_BYTES = 64 << 20
"""Of rows: 1.6 million boxes with two attributes. Larger tables are matched by place."""
_NUMBER_BYTES = 8
_READ_HERE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ShippedSubscriptions:
    """The rows of a subscription table, compressed; two with the same digest have the same rows."""

    digest: str
    space: Space = field(compare=False, repr=False)
    packed: bytes = field(compare=False, repr=False)

    @classmethod
    def of(cls, table: pa.Table, space: Space) -> ShippedSubscriptions:
        """Pack a table that is sorted by id."""
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
            writer.write_table(table)
        packed = sink.getvalue().to_pybytes()
        digest = hashlib.sha256(repr(space).encode() + packed).hexdigest()
        return cls(digest, space, packed)

    def table(self) -> pa.Table:
        """Return the rows."""
        with pa.ipc.open_stream(self.packed) as reader:
            return reader.read_all()


@lru_cache(maxsize=2)
def matcher_of_shipped(shipped: ShippedSubscriptions) -> MatcherView:
    """Return the matcher of these rows; built once per process, O(n log n)."""
    return matcher_of(shipped.table(), shipped.space)


def ship(
    selected: DataFrame, space: Space, size: int, most_bytes: int
) -> ShippedSubscriptions | None:
    """Collect a subscription table of `size` bytes; None if it is larger than `most_bytes`.

    The conditions of a small table are read here as well, so that a wrong one is an error before
    workers start; in a large one, a worker raises it.
    """
    if size > most_bytes:
        return None
    shipped = ShippedSubscriptions.of(selected.orderBy(KEY).toArrow(), space)
    if size <= _READ_HERE_BYTES:
        matcher_of_shipped(shipped)
    return shipped


def size_of(selected: DataFrame) -> int:
    """Return about how many bytes a subscription table has in memory; one job, one row."""
    row = selected.agg(F.sum(_bytes_of_row(selected)).alias("bytes")).first()
    return 0 if row is None else int(row["bytes"] or 0)


def _bytes_of_row(selected: DataFrame) -> Column:
    size = F.lit(_NUMBER_BYTES)
    for name, kind in selected.dtypes:
        text = F.coalesce(F.octet_length(f"`{name}`"), F.lit(0))
        size += text if kind == "string" else F.lit(_NUMBER_BYTES)
    return size.cast("bigint")
