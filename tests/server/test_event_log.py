"""The event log of a running broker: it never waits, and tells what is missing."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.support.waiting import until

from nearcast.eventlog import segments
from nearcast.eventlog.records import Recorder
from nearcast.eventlog.segments import batch_header, is_complete, open_segments, read_segment
from nearcast.server.eventlog import event_log, log_writer
from nearcast.server.eventlog.event_log import EventLog

pytestmark = pytest.mark.server


def rows(directory: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted((directory / table).glob("*.parquet")):
        found += pq.read_table(path).to_pylist()
    return found


def numbers(directory: Path) -> list[int]:
    """Return every number that is in a table or in a gap."""
    seen = [one["sequence"] for one in rows(directory, "events")]
    for gap in rows(directory, "gaps"):
        seen += range(gap["sequence"], gap["sequence"] + gap["count"])
    return sorted(seen)


def note(log: EventLog, size: int = 10) -> None:
    log.recorder.events(1, 0, 0, "p", b"t", b"x" * size, 0)
    log.turn_ended()


def test_writer_and_reader_agree_on_the_form_of_a_segment() -> None:
    assert log_writer.MAGIC == segments.MAGIC
    assert log_writer.BATCH.format == segments.BATCH.format
    assert log_writer.MARK == segments.MARK


async def test_little_is_written_soon_without_another_turn(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "n", 1.0, 60.0)
    note(log)
    (path,) = open_segments(tmp_path) or [tmp_path / "open-n-00000001.log"]

    await until(lambda: path.exists() and list(read_segment(path)))
    log.close()
    assert numbers(tmp_path) == [1]
    assert open_segments(tmp_path) == []


async def test_segments_follow_one_another_by_size_and_the_next_start_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "SEGMENT_BYTES", 10_000)
    monkeypatch.setattr(event_log, "FLUSH_BYTES", 1_000)
    for start in range(2):
        log = EventLog(tmp_path, "n", 1.0, 60.0)
        assert log.recorder.next == 1 + 30 * start
        for _ in range(30):
            note(log, 500)
        log.close()

    assert numbers(tmp_path) == list(range(1, 61))
    assert len(list((tmp_path / "events").glob("*.parquet"))) == 4


async def test_a_segment_ends_by_age_though_nothing_comes(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "n", 1.0, 0.4)
    note(log)

    await until(lambda: rows(tmp_path, "events"))
    log.close()


async def test_a_disk_that_stands_still_stops_nobody_and_leaves_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "MOST_WAITING_BYTES", 3 << 20)
    log = EventLog(tmp_path, "n", 1.0, 60.0)
    os.kill(log._pump.pid, signal.SIGSTOP)
    for _ in range(400):  # who waits for the disk waits for ever
        note(log, 50_000)
    assert log._waiting_bytes < 4 << 20
    os.kill(log._pump.pid, signal.SIGCONT)
    log.close()

    assert numbers(tmp_path) == list(range(1, 401))
    assert {one["reason"] for one in rows(tmp_path, "gaps")} == {"backlog"}


async def test_at_the_end_all_is_written_though_a_signal_cuts_a_write_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EventLog(tmp_path, "n", 1.0, 60.0)
    for _ in range(20):
        note(log, 50)
    write = os.writev
    monkeypatch.setattr("os.writev", lambda pipe, parts: write(pipe, [b"".join(parts)[:100]]))
    log.close()

    assert numbers(tmp_path) == list(range(1, 21))


async def test_a_writer_that_dies_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "RESTART_S", 0.0)
    log = EventLog(tmp_path, "n", 1.0, 60.0)
    log._pump.kill()
    log._pump.wait()
    note(log, 200_000)  # this one is lost: it meets the broken pipe
    note(log, 200_000)
    log.close()

    again = EventLog(tmp_path, "n", 1.0, 60.0)
    again.close()
    assert [one["sequence"] for one in rows(tmp_path, "events")] == [2]
    assert "crash" in rows(tmp_path, "gaps")[0]["reason"]


def test_what_the_disk_refuses_leaves_a_gap(tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    pump = subprocess.Popen(
        [
            *(sys.executable, "-I", "-S", log_writer.__file__, str(tmp_path)),
            *("n", "1", str(lock), "60", "1000000000"),
        ],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[lock],
    )
    resource.prlimit(pump.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
    recorder = Recorder()
    sent = b""
    for size in (10, 200_000, 150_000, 20):
        recorder.events(1, 0, 0, "p", b"t", b"x" * size, 0)
        batch = b"".join(recorder.take())
        sent += batch_header(len(batch), recorder.next) + batch
    _, said = pump.communicate(sent + batch_header(0, recorder.next), timeout=120)
    os.close(lock)

    assert b"cannot be written" in said
    assert [len(one["payload"]) for one in rows(tmp_path, "events")] == [10, 20]
    assert numbers(tmp_path) == [1, 2, 3, 4]
    assert {one["reason"] for one in rows(tmp_path, "gaps")} == {"disk"}


# --- the end --------------------------------------------------------------------------------


async def test_the_end_does_not_wait_for_ever_for_a_disk_that_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = EventLog(tmp_path, "n", 1.0, 60.0)
    os.kill(log._pump.pid, signal.SIGSTOP)
    for _ in range(100):
        note(log, 50_000)  # more than the pipe takes
    monkeypatch.setattr(event_log, "END_S", 0.5)
    began_s = time.monotonic()
    log.close()
    assert 0.4 < time.monotonic() - began_s < 20
    assert "could not be written" in caplog.text
    os.kill(log._pump.pid, signal.SIGCONT)
    log._pump.wait(60)

    monkeypatch.setattr(event_log, "END_S", 60.0)
    EventLog(tmp_path, "n", 1.0, 60.0).close()
    assert any("crash" in one["reason"] for one in rows(tmp_path, "gaps"))


async def test_the_end_does_not_wait_for_ever_for_tables_and_the_next_start_makes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # The writer starts without it (-S), the worker that makes tables sleeps in it.
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text("import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", f"{slow}:{os.environ.get('PYTHONPATH', '')}")
    log = EventLog(tmp_path / "log", "n", 1.0, 60.0)
    monkeypatch.undo()
    monkeypatch.setattr(event_log, "END_S", 0.5)
    note(log)
    log.close()
    (worker,) = _children(log._pump.pid)
    assert "before its event log is turned into tables" in caplog.text
    (left,) = open_segments(tmp_path / "log")
    assert is_complete(left)

    monkeypatch.setattr(event_log, "END_S", 60.0)
    monkeypatch.setattr(event_log, "_LOCK_S", 5.0)
    EventLog(tmp_path / "log", "n", 1.0, 60.0).close()  # nobody holds the lock
    os.kill(worker, signal.SIGKILL)
    log._pump.wait(60)
    assert numbers(tmp_path / "log") == [1]
    assert rows(tmp_path / "log", "gaps") == []
    assert open_segments(tmp_path / "log") == []


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def test_a_segment_that_is_cut_short_is_not_complete(tmp_path: Path) -> None:
    path = tmp_path / "open-n-00000001.log"
    batch = batch_header(3, 5) + b"abc"
    for data, expected in (
        (b"", False),
        (segments.MAGIC, False),
        (segments.MAGIC + batch, False),
        (segments.MAGIC + batch + batch_header(0, 5), True),
        (segments.MAGIC + batch_header(0, 5), True),
        (segments.MAGIC + batch_header(0, 5)[:-1], False),
        (segments.MAGIC + batch_header(0, 5) + batch, False),
    ):
        path.write_bytes(data)
        assert is_complete(path) is expected
