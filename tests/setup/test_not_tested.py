"""What was skipped is one line at the end of a run, with numbers and reasons."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
TESTS = """
import pytest

@pytest.mark.skip(reason="Mosquitto is not installed (make setup)")
@pytest.mark.parametrize("number", range(3))
def test_marked(number): ...

def test_skipping():
    pytest.skip("mqtt.js is not installed (make setup)")

def test_running(): ...
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_skipped_tests_are_counted_by_reason_in_one_line(tmp_path: Path, workers: str):
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-n", workers, "-p", "no:cacheprovider", "-rfE"]

    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stdout
    (line,) = [line for line in done.stdout.splitlines() if "not installed" in line]
    assert line == (
        "Not tested: 4 (3: Mosquitto is not installed (make setup); "
        "1: mqtt.js is not installed (make setup))"
    )
