"""Segments on disk: append-only while open, Parquet once finished.

    eventlog/
    ├── open-<node>-00000007.log                 batches: length twice, records
    ├── events/part-<node>-00000006.parquet      written beside, renamed when whole
    ├── deliveries/…  subscriptions/…  positions/…  retained/…  gaps/…

A killed broker leaves an open segment; its last batch may be cut short and is then dropped. There
is no checksum: it would cost more than the writing, and a log is no journal.
Finishing the same segment twice gives the same files.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.eventlog import records
from nearcast.eventlog.records import Choice, LoggedRates, Record
from nearcast.eventlog.schemas import LOG_TABLES
from nearcast.model.errors import FileFormatError

_BATCH = Struct("<II")
_MARK = 0x5EC7104E
_MOST_PIECES = 1_000  # of one writev
_MAGIC = b"nearcast events 1\n"
_ALONE = (Record.SUBSCRIPTION, Record.POSITION, Record.RETAINED)  # one number each


class OpenSegment:
    """A segment being written; `append` is one write call."""

    def __init__(self, directory: Path, node: str, number: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"open-{node}-{number:08d}.log"
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(self._descriptor, _MAGIC)

    def append(self, parts: list[bytes]) -> None:
        """Write records given in pieces; they survive the process from here on."""
        size = sum(map(len, parts))
        pieces: list[bytes] = [_BATCH.pack(size, size ^ _MARK), *parts]
        for start in range(0, len(pieces), _MOST_PIECES):
            self._write(pieces[start : start + _MOST_PIECES])

    def _write(self, pieces: list[bytes]) -> None:
        written = os.writev(self._descriptor, pieces)
        if written < sum(map(len, pieces)):  # a disk that is nearly full
            view = memoryview(b"".join(pieces))[written:]
            while view:
                view = view[os.write(self._descriptor, view) :]

    def close(self) -> None:
        """Write no more."""
        os.close(self._descriptor)


def open_segments(directory: Path) -> list[Path]:
    """Return the segments that are not finished, the oldest first."""
    return sorted(directory.glob("open-*-????????.log"))


def read_segment(path: Path) -> Iterator[tuple[Record, bytes]]:
    """Yield the records of a segment; stop at a last batch that was cut short."""
    data = path.read_bytes()
    if not data.startswith(_MAGIC):
        raise FileFormatError(repr(data[:20]), where=str(path), expected=repr(_MAGIC))
    position, end = len(_MAGIC), len(data)
    while position + _BATCH.size <= end:
        size, check = _BATCH.unpack_from(data, position)
        start = position + _BATCH.size
        batch = data[start : start + size]
        if len(batch) < size or size ^ _MARK != check:
            return
        yield from _split(batch)
        position = start + size


def _split(batch: bytes) -> Iterator[tuple[Record, bytes]]:
    position = 0
    while position < len(batch):
        kind, size = records.HEADER.unpack_from(batch, position)
        position += records.HEADER.size
        yield Record(kind), batch[position : position + size]
        position += size


def last_sequence(path: Path) -> int:
    """Return the highest number that a segment speaks of, 0 if none."""
    highest = 0
    for kind, body in read_segment(path):
        if kind is Record.EVENTS:
            first, count = records.EVENTS.unpack_from(body)[:2]
        elif kind is Record.GAP:
            first, count = records.GAP.unpack_from(body)
        elif kind in _ALONE:
            first, count = records.NUMBER.unpack_from(body)[0], 1
        else:
            continue
        highest = max(highest, first + count - 1)
    return highest


def finish(path: Path) -> dict[str, int]:
    """Turn an open segment into Parquet files and remove it; return the rows of each table."""
    node, _, number = path.stem.removeprefix("open-").rpartition("-")
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in LOG_TABLES}
    for kind, body in read_segment(path):
        name, make = _MAKERS[kind]
        rows[name] += ({"node": node, **row} for row in make(body))
    for name, schema in LOG_TABLES.items():
        if rows[name]:
            folder = path.parent / name
            folder.mkdir(exist_ok=True)
            whole = folder / f"part-{node}-{number}.parquet"
            draft = whole.with_suffix(".new")
            pq.write_table(pa.Table.from_pylist(rows[name], schema), draft)
            draft.rename(whole)
    path.unlink()
    return {name: len(found) for name, found in rows.items()}


def _events(body: bytes) -> Iterator[dict[str, Any]]:
    first, count, ms, flags, head, size, name_size, topic_size = records.EVENTS.unpack_from(body)
    at = records.EVENTS.size
    publisher = body[at : at + name_size].decode()
    at += name_size
    topic = body[at : at + topic_size].decode()
    at += topic_size
    for place in range(count):
        start = at + place * size
        yield {
            "sequence": first + place,
            "t": ms,
            "publisher": publisher,
            "topic": topic,
            "qos": flags & 3,
            "retain": bool(flags & 4),
            "payload": body[start + head : start + size],
        }


def _deliveries(body: bytes) -> Iterator[dict[str, Any]]:
    first, count, qos = records.DELIVERIES.unpack_from(body)
    for receiver in body[records.DELIVERIES.size :].decode().split("\0"):
        for place in range(count):
            yield {"sequence": first + place, "receiver": receiver, "qos": qos}


def _subscriptions(body: bytes) -> Iterator[dict[str, Any]]:
    number, ms, added, qos, name_size, _ = records.SUBSCRIPTION.unpack_from(body)
    at = records.SUBSCRIPTION.size
    yield {
        "sequence": number,
        "t": ms,
        "client": body[at : at + name_size].decode(),
        "filter": body[at + name_size :].decode(),
        "qos": qos,
        "added": bool(added),
    }


def _positions(body: bytes) -> Iterator[dict[str, Any]]:
    number, ms, lon, lat = records.POSITION.unpack_from(body)
    client = body[records.POSITION.size :].decode()
    yield {"sequence": number, "t": ms, "client": client, "lon": lon, "lat": lat}


def _retained(body: bytes) -> Iterator[dict[str, Any]]:
    number, ms, choice, *rest = records.RETAINED.unpack_from(body)
    rates, sizes = rest[:3], rest[3:]
    row: dict[str, Any] = {"sequence": number, "t": ms, "choice": Choice(choice).name.lower()}
    at = records.RETAINED.size
    for name, size in zip(("client", "topic", "policy", "reason"), sizes, strict=True):
        row[name] = body[at : at + size].decode()
        at += size
    for name, rate in zip(LoggedRates._fields, rates, strict=True):
        row[name] = None if math.isnan(rate) else rate
    yield row


def _gaps(body: bytes) -> Iterator[dict[str, Any]]:
    first, count = records.GAP.unpack_from(body)
    yield {"sequence": first, "count": count, "reason": body[records.GAP.size :].decode()}


_MAKERS: dict[Record, tuple[str, Callable[[bytes], Iterator[dict[str, Any]]]]] = {
    Record.EVENTS: ("events", _events),
    Record.DELIVERIES: ("deliveries", _deliveries),
    Record.SUBSCRIPTION: ("subscriptions", _subscriptions),
    Record.POSITION: ("positions", _positions),
    Record.RETAINED: ("retained", _retained),
    Record.GAP: ("gaps", _gaps),
}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        finish(Path(name))
