"""A forked process is like a new one: in what it is given, in what it says, in how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked import Forked

pytestmark = pytest.mark.server

SHOW = """
import json, os, sys
told = [sys.argv, os.getcwd(), os.environ.get("COLOUR"), sys.stdin.read(), __name__]
print(json.dumps(told))
print("careful", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("code", [0, 7])
def test_it_has_arguments_directory_variables_and_files_and_ends_alike(tmp_path: Path, code: int):
    def run(kind: type[subprocess.Popen[Any]]) -> tuple[object, ...]:
        with kind(
            [sys.executable, "-c", SHOW, str(code), "two words"],
            cwd=tmp_path,
            env={**os.environ, "COLOUR": "red"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            said = process.communicate("hello", timeout=60)
        return *said, process.returncode

    assert run(Forked) == run(subprocess.Popen)


@pytest.mark.parametrize(
    ("code", "expected"),
    [("raise SystemExit('no more')", 1), ("1 / 0", 1), ("import os; os.abort()", -signal.SIGABRT)],
)
def test_however_it_ends_its_status_is_told(code: str, expected: int):
    with Forked([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as process:
        assert process.wait(60) == expected
    assert process.poll() == expected


def test_it_is_waited_for_and_takes_signals_and_nothing_is_left():
    waiting = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)"]
    with Forked(waiting, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT
    assert not Path(f"/proc/{process.pid}").exists()


def test_a_command_that_is_no_python_runs_as_usual():
    with Forked(["sh", "-c", "exit 3"]) as process:
        assert process.wait(60) == 3


def test_other_settings_of_the_interpreter_need_a_new_process():
    code = "import sys; sys.exit(sys.flags.dev_mode)"
    with Forked([sys.executable, "-c", code], env={**os.environ, "PYTHONDEVMODE": "1"}) as process:
        assert process.wait(60) == 1
