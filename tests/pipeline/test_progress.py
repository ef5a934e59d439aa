"""Progress where output is redirected: lines, not too many, on stderr."""

from __future__ import annotations

import io
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from nearcast.pipeline import progress
from nearcast.pipeline.progress import LINE_EVERY_S, ProgressLines, spark_progress


def test_a_line_now_and_then_and_none_where_nothing_was_done(capsys: pytest.CaptureFixture[str]):
    now = [100.0]
    lines = ProgressLines("reproduce", lambda: now[0])
    for after_s, done in ((0, 0), (1, 1), (LINE_EVERY_S, 7), (1, 8), (LINE_EVERY_S, 7), (60, 340)):
        now[0] += after_s
        lines.update(done, 340)
    assert capsys.readouterr().err.splitlines() == [
        "reproduce: 7 of 340 tasks done after 0.2 min",
        "reproduce: 340 of 340 tasks done after 1.4 min",
    ]


@pytest.mark.parametrize("lines", [True, False])
def test_redirected_output_has_lines_where_they_are_wanted(
    lines: bool, monkeypatch: pytest.MonkeyPatch
):
    stage = SimpleNamespace(numTasks=12, numCompletedTasks=5)
    tracker = SimpleNamespace(getActiveStageIds=lambda: [1], getStageInfo=lambda _: stage)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.1)
    with spark_progress(spark, "reproduce", lines=lines):
        deadline = time.monotonic() + 30
        while lines and not written.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert written.getvalue().startswith("reproduce: 5 of 12 tasks") is lines
    assert bool(written.getvalue()) is lines
