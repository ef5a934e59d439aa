"""A table of subscriptions that travels to workers inside the function that they run.

The driver reads conditions and areas and builds their matcher, once; its arrays travel, and a
worker process only unpacks them. A table of bounds travels as it is, since it is smaller than its
index, which a worker builds at half a microsecond a box. So no folder has to be shared between
driver and workers, nothing is left behind, and it works with any kind of session.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from nearcast.matching import MatcherView
from nearcast.matching.files import matcher_of_parts, parts_of
from nearcast.model import Space
from nearcast.pipeline.sources.subscription_tables import KEY, has_conditions, matcher_of
from nearcast.pipeline.tables.worker_reads import small_table

MOST_BYTES = 64 << 20
"""Of rows: 1.6 million boxes with two attributes. Larger tables are matched by place."""
_NUMBER_BYTES = 8


@dataclass(frozen=True, slots=True)
class ShippedSubscriptions:
    """A packed matcher, or the rows for one; two with the same digest have the same rows."""

    digest: str
    space: Space = field(compare=False, repr=False)
    is_built: bool = field(compare=False)
    size: int = field(compare=False, repr=False)  # unpacked
    packed: bytes = field(compare=False, repr=False)

    @classmethod
    def of(cls, table: pa.Table, space: Space) -> ShippedSubscriptions:
        """Pack a table that is sorted by id; raise if a condition in it cannot be read."""
        is_built = has_conditions(table)
        content = _parts(table, space) if is_built else _rows(table)
        packed = pa.compress(content, codec="zstd", asbytes=True)
        digest = hashlib.sha256(repr(space).encode() + packed).hexdigest()
        return cls(digest, space, is_built, len(content), packed)

    def matcher(self) -> MatcherView:
        """Unpack or build the matcher."""
        content = pa.decompress(self.packed, self.size, codec="zstd", asbytes=True)
        if self.is_built:
            # The same trust as in the function that carries it, which is a pickle as well.
            return matcher_of_parts(pickle.loads(content), [self.space])  # noqa: S301
        with pa.ipc.open_stream(content) as reader:
            return matcher_of(reader.read_all(), self.space)


def _parts(table: pa.Table, space: Space) -> bytes:
    return pickle.dumps(parts_of(matcher_of(table, space)), protocol=5)


def _rows(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@lru_cache(maxsize=2)
def matcher_of_shipped(shipped: ShippedSubscriptions) -> MatcherView:
    """Return the matcher of these rows; made once per process."""
    return shipped.matcher()


def ship(
    subscriptions: DataFrame, columns: Sequence[str], space: Space, most_bytes: int
) -> tuple[ShippedSubscriptions | None, int]:
    """Collect a subscription table, unless it is larger than `most_bytes`; return its size as well.

    A condition that cannot be read is an error here, before workers start. Plain files are read
    without a Spark job, if even the files are no larger than that.
    """
    selected = subscriptions.select(*columns)
    table = small_table(subscriptions, columns, most_bytes)
    size = size_of(selected) if table is None else table.nbytes
    if size > most_bytes:
        return None, size
    table = selected.toArrow() if table is None else table
    return ShippedSubscriptions.of(table.sort_by(KEY), space), size


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
