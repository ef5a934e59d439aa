"""The shell functions of set-up: a step says what it does, and uv has pip behind it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(script: str, venv: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run a few lines of shell behind the functions, with an environment directory of its own."""
    places = os.pathsep.join([path, os.environ["PATH"]]) if path else os.environ["PATH"]
    return subprocess.run(
        ["sh", "-c", f"set -eu\n. scripts/steps.sh\n{script}"],
        cwd=ROOT,
        env={"PATH": places, "VENV": str(venv), "PYTHON": "python3"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def program(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_step_says_what_it_does_a_dot_each_second_and_how_long_it_took(tmp_path: Path):
    shown = tmp_path / "shown"
    until_two_dots = f"echo noise; until grep -qF .. {shown}; do sleep 0.05; done"
    done = run(f"step 'Fetching much' sh -c '{until_two_dots}' > {shown}", tmp_path)

    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"Fetching much (\.+) (\d+) s\n", shown.read_text())
    assert found is not None
    dots, seconds = len(found[1]), int(found[2])
    assert 2 <= dots <= seconds  # a busy machine is late with its dots
    assert (tmp_path / "setup.log").read_text() == "noise\n"


def test_a_step_that_fails_shows_what_it_said_and_ends_the_script(tmp_path: Path):
    done = run("step 'Fetching' sh -c 'echo no such host; exit 3'\necho went on", tmp_path)

    assert done.returncode == 3
    assert done.stdout == "Fetching  failed:\n"
    assert done.stderr == "no such host\n"


def test_a_step_that_is_interrupted_ends_its_command(tmp_path: Path):
    script = f"""
    step 'Waiting' sh -c 'echo $$ > {tmp_path}/pid; exec sleep 50' &
    until [ -s {tmp_path}/pid ]; do sleep 0.05; done
    kill $!
    wait $! || true
    ! kill -0 "$(cat {tmp_path}/pid)"
    """
    assert run(script, tmp_path).returncode == 0


@pytest.mark.parametrize("uv_works", [True, False])
def test_pip_installs_where_uv_cannot(tmp_path: Path, uv_works: bool):
    calls = tmp_path / "calls"
    program(tmp_path / "bin" / "python", f'echo "python $*" >> {calls}')
    program(tmp_path / "tools" / "uv", f'echo "uv $*" >> {calls}\nexit {0 if uv_works else 2}')

    done = run("install 'nearcast[spark]'", tmp_path, str(tmp_path / "tools"))

    assert done.returncode == 0, done.stderr
    said = [line.split(" -c constraints.txt ") for line in calls.read_text().splitlines()]
    installs = [line[0] for line in said if line[-1] == "nearcast[spark]"]
    by_uv = f"uv pip install --python {tmp_path}/bin/python"
    by_pip = "python -m pip install --disable-pip-version-check"
    assert installs == ([by_uv] if uv_works else [by_uv, by_pip])


def test_the_core_is_compiled_in_the_background_unless_it_is(tmp_path: Path):
    calls = tmp_path / "calls"
    body = f"""echo "python $*" >> {calls}
    case $* in *is_compiled*) exit $(cat {tmp_path}/is_not) ;; esac"""
    program(tmp_path / "bin" / "python", body)

    (tmp_path / "is_not").write_text("0")
    done = run("begin_core", tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "-m nearcast.compiling" not in calls.read_text()

    (tmp_path / "is_not").write_text("1")
    done = run("begin_core; wait", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The broker's core is compiled in the background")
    assert calls.read_text().splitlines()[-1] == "python -m nearcast.compiling"


def test_a_compiler_comes_as_a_wheel_where_nobody_may_install_one(tmp_path: Path):
    calls = tmp_path / "calls"
    body = f"""echo "python $*" >> {calls}
    case $* in *--missing*) echo there is no C compiler ;; esac"""
    program(tmp_path / "bin" / "python", body)
    program(tmp_path / "tools" / "uv", f'echo "uv $*" >> {calls}')

    script = "is_root_with_apt() { false; }\nget_compiler"
    done = run(script, tmp_path, str(tmp_path / "tools"))

    assert done.returncode == 0, done.stderr
    assert calls.read_text().splitlines()[-2].endswith("-c constraints.txt ziglang")
