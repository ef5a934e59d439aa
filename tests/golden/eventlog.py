"""Event log: every kind of record, a segment, the rows and columns that it becomes, the folder."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.golden.golden import Maker, files_below, hex_lines, read_hex_lines

from nearcast.eventlog.records import (
    Arrival,
    CausalNote,
    CausalStep,
    Dropped,
    LoggedRates,
    Recorder,
    RetainedChoice,
)
from nearcast.eventlog.segments import MAGIC, batch_header, finish
from nearcast.server.eventlog.event_log import EventLog

NOW_MS = 1_700_000_000_000
RECORDS, SEGMENT = "eventlog/records.hex", "eventlog/segment.hex"
ROWS, COLUMNS = "eventlog/rows.txt", "eventlog/columns.txt"
NAME = "open-n.1-00000007.log"


def story() -> Iterator[tuple[str, bytes]]:
    """Yield every kind of record, with every value that its enumerations have."""
    log = Recorder(5)
    note = CausalNote("talk", "n1", NOW_MS * 1_000, 400_000, "n2,n3")
    rates = LoggedRates(0.5, 0.25, 0.125)
    steps: dict[str, Any] = {
        "events, a run of two": lambda: log.events(2, NOW_MS, 1, "ann", b"a/b", b"HDxyHDzw", 2),
        **{
            f"event, way {int(way)}": lambda way=way: log.events(
                1, NOW_MS, 14 | way << 4, "bob", b"t", b"", 0, 1_500
            )
            for way in Arrival
        },
        "deliveries": lambda: log.delivered(["ann", "bob"], 1, 1),
        **{
            f"drops, reason {int(reason)}": lambda reason=reason: log.dropped(
                ["ann"], 2, reason, NOW_MS, 5
            )
            for reason in Dropped
        },
        "sent": lambda: log.sent(5, "ann", NOW_MS, NOW_MS + 1_500),
        "present": lambda: log.present("$node/n2", NOW_MS, is_there=True),
        "gone": lambda: log.present("", NOW_MS, is_there=False),
        **{
            f"causal, step {int(step)}": lambda step=step: log.causal(step, note, NOW_MS, 6)
            for step in CausalStep
        },
        "subscription": lambda: log.subscription(
            NOW_MS, "ann", "$near/5m/a", 2, is_added=True, no_local=True, is_restored=True
        ),
        "subscription that ends": lambda: log.subscription(NOW_MS, "ann", "b", 0, is_added=False),
        "position": lambda: log.position("ann", 8.5, 47.25, NOW_MS),
        **{
            f"retained, choice {int(choice)}": lambda choice=choice: log.retained_decision(
                "ann", "t", choice, NOW_MS, rates=rates, policy="learned", reason="why"
            )
            for choice in RetainedChoice
        },
        "retained, no rates": lambda: log.retained_decision(
            "ann", "t", RetainedChoice.SENT_NOW, NOW_MS
        ),
        "gap": lambda: log.gap(100, 7, "sampled"),
    }
    for name, step in steps.items():
        step()
        yield name, b"".join(log.take())


def segment() -> bytes:
    """Return a segment of two batches."""
    records = [data for _, data in story()]
    batches = [b"".join(records[:3]), b"".join(records[3:])]
    return MAGIC + b"".join(batch_header(len(one), 40 + n) + one for n, one in enumerate(batches))


def finished(folder: Path, data: bytes) -> dict[str, pa.Table]:
    """Let a segment become Parquet; return its tables by the paths of their files."""
    (folder / NAME).write_bytes(data)
    finish(folder / NAME)
    return {str(path.relative_to(folder)): pq.read_table(path) for path in files_below(folder)}


def rows(data: bytes) -> str:
    """Return the rows of a segment, each as a line of JSON behind the path of its file."""
    with tempfile.TemporaryDirectory() as name:
        tables = finished(Path(name), data)
    lines = [
        f"{path} {json.dumps(row, default=_told)}\n"
        for path, table in tables.items()
        for row in table.to_pylist()
    ]
    return "".join(lines)


def _told(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else value.isoformat()


def columns_of(tables: dict[str, pa.Schema]) -> str:
    """Return each table's columns, types, whether they may be null, and metadata of ours."""
    lines = []
    for path, schema in tables.items():
        lines.append(path)
        lines += [
            f"  {one.name}: {one.type}{'' if one.nullable else ', never null'}" for one in schema
        ]
        marks = schema.metadata or {}
        lines += [f"  # {key.decode()} = {marks[key].decode()}" for key in sorted(marks)]
    return "\n".join(lines) + "\n"


def columns() -> str:
    """Return the columns of a finished segment's files."""
    with tempfile.TemporaryDirectory() as name:
        tables = finished(Path(name), segment())
    return columns_of({path: table.schema for path, table in tables.items()})


def folder() -> str:
    """Return the files that a broker's event log leaves, and what the small ones say."""

    async def run(path: Path) -> None:
        log = EventLog(path, "n.1", 1.0, 300.0)
        log.recorder.position("ann", 8.5, 47.25, NOW_MS)
        log.recorder.events(1, NOW_MS, 0, "ann", b"t", b"x", 0)
        log.close()

    with tempfile.TemporaryDirectory() as name:
        asyncio.run(run(Path(name)))
        found = {str(one.relative_to(name)): one.read_bytes() for one in files_below(Path(name))}
    told = {
        path: "" if path.endswith(".parquet") else data.decode() for path, data in found.items()
    }
    return "".join(f"{path}: {text}\n" for path, text in told.items())


FILES: dict[str, Maker] = {
    RECORDS: lambda: hex_lines("records of an event log, all kinds and values", dict(story())),
    SEGMENT: lambda: hex_lines("a segment with all of records.hex", {NAME: segment()}),
    ROWS: lambda: rows(read_hex_lines(SEGMENT)[NAME]),
    COLUMNS: columns,
}
SERVER_FILES: dict[str, Maker] = {"eventlog/folder.txt": folder}
