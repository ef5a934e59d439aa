"""Segments of an event log, written of what a recorder holds."""

from __future__ import annotations

from pathlib import Path

from nearcast.eventlog.records import Recorder
from nearcast.eventlog.segments import MAGIC, batch_header, finish


def write_segment(
    root: Path, node: str, recorder: Recorder, number: int = 1, *, is_finished: bool = True
) -> Path:
    """Write one batch as a node's open segment, and finish it; return the open segment's path."""
    root.mkdir(parents=True, exist_ok=True)
    batch = b"".join(recorder.take())
    path = root / f"open-{node}-{number:08d}.log"
    path.write_bytes(MAGIC + batch_header(len(batch), recorder.next) + batch)
    if is_finished:
        finish(path)
    return path
