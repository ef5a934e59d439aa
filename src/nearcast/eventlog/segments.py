"""Segments on disk: append-only while open, Parquet once finished.

    eventlog/
    ├── open-<node>-00000007.log                 batches: size twice, next number, records
    ├── events/part-<node>-00000006.parquet      written under another name, renamed when complete
    ├── deliveries/…  subscriptions/…  positions/…  presence/…  drops/…  causal/…  gaps/…

A killed broker leaves an open segment; an incomplete last batch is ignored. A broker that ends in
order writes an empty batch last. There is no checksum: it would cost more than writing, and the
event log is no journal. Finishing the same segment twice
gives the same files. `records.py` has the records.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from struct import Struct
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.eventlog import records
from nearcast.eventlog.records import (
    Arrival,
    CausalStep,
    Dropped,
    LoggedRates,
    Record,
    RetainedChoice,
)
from nearcast.eventlog.schemas import LOG_TABLES
from nearcast.model.errors import FileFormatError

MAGIC = b"nearcast events 3\n"
BATCH = Struct("<IIQ")  # size, size XOR MARK, the sequence number after the batch
MARK = 0x5EC7104E
_GROUP_ROWS = 100_000
VERSION_KEY, VERSION = b"nearcast-events", b"3"
"""The format version, in the metadata of every Parquet file of a log."""

Columns = dict[str, list[Any]]


def batch_header(size: int, next_number: int) -> bytes:
    """Return the header of a batch of `size` bytes.

    `next_number` follows its last sequence number.
    """
    return BATCH.pack(size, size ^ MARK, next_number)


def open_segments(directory: Path) -> list[Path]:
    """Return the unfinished segments, oldest first."""
    return sorted(directory.glob("open-*-????????.log"))


def _batches(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield each batch with the sequence number after it; stop at an incomplete last batch."""
    with path.open("rb") as file:
        magic = file.read(len(MAGIC))
        if magic != MAGIC and magic != MAGIC[: len(magic)]:
            raise FileFormatError(repr(magic), where=str(path), expected=repr(MAGIC))
        while len(head := file.read(BATCH.size)) == BATCH.size:
            size, check, next_number = BATCH.unpack(head)
            if size ^ MARK != check:
                return
            batch = file.read(size)
            if len(batch) < size:
                return
            yield next_number, batch


def read_segment(path: Path) -> Iterator[tuple[Record, bytes]]:
    """Yield the records of a segment; an incomplete last batch is left out."""
    for _, batch in _batches(path):
        position = 0
        while position < len(batch):
            kind, size = records.HEADER.unpack_from(batch, position)
            position += records.HEADER.size
            yield Record(kind), batch[position : position + size]
            position += size


def table_of(kind: Record) -> str:
    """Return the name of the table that records of this kind become rows of."""
    return _MAKERS[kind][0]


def last_sequence(path: Path) -> int:
    """Return the highest sequence number of a segment, 0 if it has none."""
    return max((next_number - 1 for next_number, _ in _batches(path)), default=0)


def is_complete(path: Path) -> bool:
    """Return whether a segment's broker has ended in order: its last batch is empty."""
    sizes = [len(batch) for _, batch in _batches(path)]
    return bool(sizes) and not sizes[-1]


def finish(path: Path) -> dict[str, int]:
    """Convert an open segment to Parquet files and remove it; return the number of rows per table.

    Memory: one batch and one row group of each table.
    """
    node, _, number = path.stem.removeprefix("open-").rpartition("-")
    with ExitStack() as stack:
        tables = {
            name: _TableFile(path.parent / name, f"part-{node}-{number}", schema)
            for name, schema in LOG_TABLES.items()
        }
        for table in tables.values():
            stack.callback(table.abandon)
        for kind, body in read_segment(path):
            name, make = _MAKERS[kind]
            tables[name].add(node, make(body))
        counts = {name: table.close() for name, table in tables.items()}
    path.unlink(missing_ok=True)
    return counts


class _TableFile:
    """A Parquet file that is being written; it gets its final name when it is complete."""

    def __init__(self, folder: Path, name: str, schema: pa.Schema) -> None:
        self._whole = folder / f"{name}.parquet"
        self._draft = folder / f"{name}.{os.getpid()}.new"
        self._schema = schema
        self._columns: Columns = {one: [] for one in schema.names}
        self._writer: pq.ParquetWriter | None = None
        self._rows = 0

    def add(self, node: str, rows: Columns) -> None:
        """Append rows, given by columns."""
        count = len(rows["sequence"])
        self._columns["node"] += [node] * count
        for name, values in rows.items():
            self._columns[name] += values
        if len(self._columns["node"]) >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._writer is None:
            self._draft.parent.mkdir(exist_ok=True)
            schema = self._schema.with_metadata({VERSION_KEY: VERSION})
            self._writer = pq.ParquetWriter(self._draft, schema)
        table = pa.Table.from_pydict(self._columns, self._schema)
        self._writer.write_table(table)
        self._rows += table.num_rows
        self._columns = {one: [] for one in self._schema.names}

    def close(self) -> int:
        """Complete and rename the file, if it has rows; return their number."""
        if self._columns["node"]:
            self._flush()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self._draft.rename(self._whole)
        return self._rows

    def abandon(self) -> None:
        """Remove the file if `close` was not reached."""
        if self._writer is not None:
            self._writer.close()
            self._draft.unlink(missing_ok=True)


def _events(body: bytes) -> Columns:
    first, count, ms, flags, head, size, name_size, topic_size, lifetime_ms = (
        records.EVENTS.unpack_from(body)
    )
    at = records.EVENTS.size
    publisher = body[at : at + name_size].decode()
    at += name_size
    topic = body[at : at + topic_size].decode()
    at += topic_size
    starts = range(at, at + count * size, size) if size else [at] * count
    return {
        "sequence": list(range(first, first + count)),
        "t": [ms] * count,
        "publisher": [publisher] * count,
        "topic": [topic] * count,
        "qos": [flags & records.QOS] * count,
        "retain": [bool(flags & records.RETAIN)] * count,
        "payload": [body[start + head : start + size] for start in starts],
        "lifetime_ms": [lifetime_ms or None] * count,
        "limited": [bool(flags & records.LIMITED)] * count,
        "way": [Arrival(flags >> records.WAY).name.lower()] * count,
    }


def _deliveries(body: bytes) -> Columns:
    first, count, qos = records.DELIVERIES.unpack_from(body)
    receivers = body[records.DELIVERIES.size :].decode().split("\0")
    return {
        "sequence": list(range(first, first + count)) * len(receivers),
        "receiver": [receiver for receiver in receivers for _ in range(count)],
        "qos": [qos] * count * len(receivers),
    }


def _subscriptions(body: bytes) -> Columns:
    number, ms, flags, qos, name_size, _ = records.SUBSCRIPTION.unpack_from(body)
    at = records.SUBSCRIPTION.size
    return {
        "sequence": [number],
        "t": [ms],
        "client": [body[at : at + name_size].decode()],
        "filter": [body[at + name_size :].decode()],
        "qos": [qos],
        "added": [bool(flags & records.ADDED)],
        "no_local": [bool(flags & records.NO_LOCAL)],
        "restored": [bool(flags & records.RESTORED)],
    }


def _positions(body: bytes) -> Columns:
    number, ms, lon, lat = records.POSITION.unpack_from(body)
    client = body[records.POSITION.size :].decode()
    return {"sequence": [number], "t": [ms], "client": [client], "lon": [lon], "lat": [lat]}


def _retained(body: bytes) -> Columns:
    number, ms, choice, *rest = records.RETAINED.unpack_from(body)
    rates, sizes = rest[:3], rest[3:]
    row: Columns = {
        "sequence": [number],
        "t": [ms],
        "choice": [RetainedChoice(choice).name.lower()],
    }
    at = records.RETAINED.size
    for name, size in zip(("client", "topic", "policy", "reason"), sizes, strict=True):
        row[name] = [body[at : at + size].decode()]
        at += size
    for name, rate in zip(LoggedRates._fields, rates, strict=True):
        row[name] = [None if math.isnan(rate) else rate]
    return row


def _presence(body: bytes) -> Columns:
    number, ms, is_there = records.PRESENCE.unpack_from(body)
    client = body[records.PRESENCE.size :].decode()
    return {"sequence": [number], "t": [ms], "client": [client], "there": [bool(is_there)]}


def _drops(body: bytes) -> Columns:
    first, count, ms, reason = records.DROPS.unpack_from(body)
    receivers = body[records.DROPS.size :].decode().split("\0")
    rows = count * len(receivers)
    return {
        "sequence": list(range(first, first + count)) * len(receivers),
        "t": [ms] * rows,
        "receiver": [receiver for receiver in receivers for _ in range(count)],
        "reason": [Dropped(reason).name.lower()] * rows,
    }


def _sent(body: bytes) -> Columns:
    number, ms, deadline_ms = records.SENT.unpack_from(body)
    receiver = body[records.SENT.size :].decode()
    return {"sequence": [number], "t": [ms], "receiver": [receiver], "deadline": [deadline_ms]}


def _causal(body: bytes) -> Columns:
    number, ms, step, stamp_us, lifetime_us, *sizes = records.CAUSAL.unpack_from(body)
    row: Columns = {"sequence": [number], "t": [ms], "step": [CausalStep(step).name.lower()]}
    at = records.CAUSAL.size
    for name, size in zip(("group", "sender", "detail"), sizes, strict=True):
        row[name] = [body[at : at + size].decode(errors="replace")]
        at += size
    return row | {"stamp_us": [stamp_us], "lifetime_us": [lifetime_us]}


def _gaps(body: bytes) -> Columns:
    first, count = records.GAP.unpack_from(body)
    reason = body[records.GAP.size :].decode()
    return {"sequence": [first], "count": [count], "reason": [reason]}


_MAKERS: dict[Record, tuple[str, Callable[[bytes], Columns]]] = {
    Record.EVENTS: ("events", _events),
    Record.DELIVERIES: ("deliveries", _deliveries),
    Record.SUBSCRIPTION: ("subscriptions", _subscriptions),
    Record.POSITION: ("positions", _positions),
    Record.RETAINED: ("retained", _retained),
    Record.PRESENCE: ("presence", _presence),
    Record.DROPS: ("drops", _drops),
    Record.SENT: ("sent", _sent),
    Record.CAUSAL: ("causal", _causal),
    Record.GAP: ("gaps", _gaps),
}


if __name__ == "__main__":
    os.nice(10)  # so that a broker on the same machine has priority
    for name in sys.argv[1:]:
        with suppress(FileNotFoundError):  # somebody was faster
            finish(Path(name))
