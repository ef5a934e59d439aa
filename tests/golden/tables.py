"""The pipeline: tables and their pointer, files of a live stream, what jobs leave behind."""

from __future__ import annotations

import json
import re
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from tests.golden.eventlog import columns_of
from tests.golden.golden import Maker, as_hex, files_below, hex_lines
from tests.golden.wire import SHOPS
from tests.support.log_segments import write_segment
from tests.support.space_sections import placed_section
from typer.testing import CliRunner

from nearcast.cli import app
from nearcast.config import NetworkSection
from nearcast.eventlog import schemas
from nearcast.eventlog.records import Recorder
from nearcast.mqtt import encode_packet
from nearcast.pipeline.jobs.match_job import REJECTED_EVENTS
from nearcast.pipeline.streaming import live_stream
from nearcast.pipeline.streaming.addresses import NATS, parse_address
from nearcast.pipeline.streaming.collector import remember
from nearcast.pipeline.streaming.data_sources import FeedSource, SpoolReader, SpoolSource
from nearcast.pipeline.streaming.delivery import messages_of
from nearcast.pipeline.streaming.live_events import live_schema
from nearcast.pipeline.streaming.read_limits import ReadAllAvailable
from nearcast.pipeline.streaming.spool import Spooled, SpoolWriter
from nearcast.pipeline.streaming.stream import pinned
from nearcast.pipeline.tables.transaction import transaction

POINTER, SPOOL, CHECKPOINT = "tables/pointer.txt", "tables/spool.hex", "tables/checkpoint.txt"
_SCHEMAS = {
    "positions": schemas.POSITIONS,
    "rejected, of positions": schemas.REJECTED_POSITIONS,
    "rejected, of events": schemas.REJECTED_ROWS,
    "cells": schemas.CELLS,
    "regions": schemas.REGIONS,
    "topic_policies": schemas.TOPIC_POLICIES,
    "deliveries": schemas.DELIVERIES,
    "rejected_events": REJECTED_EVENTS,
    "faults": schemas.FAULTS,
    "unknown": schemas.UNKNOWN,
    "events": schemas.events_schema(SHOPS),
    "live events": live_schema(SHOPS, with_payload=True),
}


def pointer() -> str:
    """Return what a table of two versions is on disk: its files, and what its pointer says."""
    rows = pa.table({"x": [1, 2, 3]})
    with (
        tempfile.TemporaryDirectory() as name,
        mock.patch.object(secrets, "token_hex", lambda size: "ab" * size),
    ):
        for _ in range(2):
            with transaction() as written:
                written.write_small(rows, f"{name}/positions")
        files = [str(one.relative_to(name)) for one in files_below(Path(name))]
        told = (Path(name) / "positions" / "CURRENT").read_text(encoding="utf-8")
    return "\n".join([told, *files]) + "\n"


SPOOLED = [
    Spooled("shops/1", b"\0x", (("k", "v"),), 7, 1_700_000_000_000),
    Spooled("shops/2", b"", (), 0, 1_700_000_000_001),
    Spooled("shops/3", b"z", (), 65_535, 2),
]


def spool() -> str:
    """Return the files of a spool with two blocks, whose first message is settled."""
    with tempfile.TemporaryDirectory() as name:
        writer = SpoolWriter(Path(name))
        writer.append(SPOOLED[:2])
        writer.append(SPOOLED[2:])
        writer.settle(1)
        writer.close()
        files = {one.name: one.read_bytes() for one in files_below(Path(name))}
    return hex_lines(
        "the files of a spool: magic, CRC-32, size, first, count; an Arrow batch", files
    )


def checkpoint() -> str:
    """Return the small files of a live stream, its offsets, and what it calls its sources."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pinned(folder / "pins", 3, lambda: "000.parquet")
        remember(folder, "nearcast-stream-1", "shops/#", was_seen=True)
        with mock.patch.object(live_stream, "FeedWatch") as watch:
            watch.return_value.identity.return_value = "the stream"
            source = parse_address("nats://127.0.0.1/town", "--source", NATS)
            asked = mock.Mock(source=source, network=NetworkSection())
            live_stream._feed(mock.Mock(checkpoint=folder), asked)
        lines = [f"{one.relative_to(name)}: {one.read_text()}" for one in files_below(folder)]
        writer = SpoolWriter(folder / "spool")
        writer.append(SPOOLED)
        writer.close()
        reader = SpoolReader(folder / "spool", mock.Mock(), 2)
        offsets = [
            reader.initialOffset(),
            reader.latestOffset(reader.initialOffset(), ReadAllAvailable()),
        ]
    lines += [f"offset: {json.dumps(one)}" for one in offsets]
    lines += [f"source: {one.name()}" for one in (SpoolSource, FeedSource)]
    row = {"event_id": 7, "subscription_id": 9, "rank": 2, "topic": "shops/1", "payload": b"x"}
    batch = pa.RecordBatch.from_pylist([row, row | {"rank": 0}])
    lines += [f"delivery: {as_hex(encode_packet(one))}" for one in messages_of(batch, "found/me")]
    return "\n".join(lines) + "\n"


# --- what jobs leave behind (these start Spark) --------------------------------------------------

CONFIG = placed_section("shops", lon=(8, 9), lat=(47, 48)) + '[[retained]]\ntopics = "plant/#"\n'
_START_MS = 1_777_622_400_000
_VERSION = re.compile(r"\b(\d{6})-[0-9a-f]{8}\b")
_PART = re.compile(r"part-[0-9a-f]{32}|part-\d{5}-[0-9a-f-]{36}-c000(?=\.)")
_STAMP = re.compile(r"@[0-9a-f]{8}")
_INDEX = re.compile(r"indexes/[0-9a-f]{16}")  # of files with the time of their last change


def write_log(root: Path) -> None:
    """Write the log of a node: walks, offers and news."""
    log = Recorder()
    log.subscription(_START_MS, "ann", "plant/+", 1, is_added=True)
    for i in range(60):
        now = _START_MS + 1_000 * i
        log.events(1, now, 4, "machine", b"plant/1", b"hd21.5", 2)
        place = json.dumps({"lon": 8.2 + 0.01 * (i % 50), "lat": 47.5}).encode()
        log.events(1, now, 0, "shop", b"shops/bakery", b"hd" + (place if i else b"{}"), 2)
        for walker in range(4):
            log.position(f"w{walker}", 8.3 + 1e-4 * i, 47.4 + 1e-3 * walker, now)
    write_segment(root, "n1", log)


def nearcast(root: Path, *words: str) -> None:
    """Run a command in a directory that stands for `ROOT` in its words."""
    given = [word.replace("ROOT", str(root)) for word in words]
    done = CliRunner().invoke(app, [*given, "--json"], catch_exceptions=False)
    assert done.exit_code in (0, 1), done.output


def listed(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield all files below a directory; names that differ from run to run made the same."""
    for path in files_below(root):
        name = _PART.sub("part-X", _VERSION.sub(r"\1-X", str(path.relative_to(root))))
        name = _INDEX.sub("indexes/X", name)
        if not path.name.startswith((".", "_temporary")) and "/spark/" not in name:
            yield name, path


def keys_of(value: Any, path: str = "run.json") -> Iterator[str]:
    """Yield the paths of all keys of a report, whose figures do not matter here."""
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from keys_of(one, f"{path}.{key}")
    else:
        yield path


def left_behind(root: Path) -> str:
    """Return names and columns of all tables below a directory, and the other files' names."""
    found = dict(listed(root))
    tables = {name: pq.read_schema(one) for name, one in found.items() if name.endswith(".parquet")}
    bare = {name: schema.remove_metadata() for name, schema in tables.items()}
    return "\n".join([*found, "", columns_of(bare)])


def jobs() -> str:
    """Return what `run`, `ingest --space` and `match` leave, and the keys of the report."""
    with tempfile.TemporaryDirectory() as name:
        root, out = Path(name), Path(name) / "out"
        write_log(root / "log")
        (root / "nearcast.toml").write_text(CONFIG)
        config = ("--config", "ROOT/nearcast.toml")
        nearcast(
            root,
            *("pipeline", "run", "--input", "ROOT/log", "--output", "ROOT/out", *config),
            *("--capacity", "0.1", "--brokers", "2"),
        )
        wishes = pa.table({"subscription_id": [1, 2], "where": ["lon < 8.5", "lat > 47.6"]})
        pq.write_table(wishes, root / "wishes.parquet")
        nearcast(
            root,
            *("pipeline", "match", "--input", "ROOT/out/shops/events", "--space", "shops", *config),
            *("--subscriptions", "ROOT/wishes.parquet", "--output", "ROOT/out/matched"),
        )
        report = json.loads((out / "run.json").read_text(encoding="utf-8"))
        report["steps"] = {step.pop("name"): step for step in report["steps"]}
        return "\n".join([left_behind(out), *keys_of(report)]) + "\n"


def stream() -> str:
    """Return what `stream` leaves in its output and checkpoint."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "nearcast.toml").write_text(CONFIG)
        for folder, table in (
            ("events", pa.table({"event_id": [1, 2], "lon": [8.2, None], "lat": [47.7, 47.7]})),
            ("changes", pa.table({"subscription_id": [1], "op": ["put"], "where": ["lon < 8.5"]})),
        ):
            (root / folder).mkdir()
            pq.write_table(table, root / folder / "000.parquet")
        nearcast(
            root,
            *("pipeline", "stream", "--input", "ROOT/events", "--subscriptions", "ROOT/changes"),
            *("--output", "ROOT/out", "--checkpoint", "ROOT/state", "--space", "shops", "--once"),
            *("--config", "ROOT/nearcast.toml"),
        )
        for folder in ("events", "changes"):
            (root / folder / "000.parquet").unlink()
        pins = {one.name: one.read_text() for one in (root / "state" / "pins").iterdir()}
        return left_behind(root) + _STAMP.sub("@X", f"\npins: {pins}\n")


FILES: dict[str, Maker] = {
    "tables/columns.txt": lambda: columns_of(_SCHEMAS),
    POINTER: pointer,
    SPOOL: spool,
    CHECKPOINT: checkpoint,
}
SPARK_FILES: dict[str, Maker] = {"tables/jobs.txt": jobs, "tables/stream.txt": stream}
