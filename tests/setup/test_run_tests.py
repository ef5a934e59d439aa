"""`make test` runs few failed tests a second time, says so, and hides nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from scripts.run_tests import MOST_AGAIN

ROOT = Path(__file__).parents[2]
FEW_PLUGINS = ("-p", "no:hypothesispytest", "-p", "no:asyncio")  # a second of each start
FLAKY = """
import pathlib, pytest

def fails_until(path, attempt):
    path = pathlib.Path(path)
    path.write_text(path.read_text() + "x" if path.exists() else "x")
    return len(path.read_text()) < attempt
"""


def run(folder: Path, body: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of one file in a directory of its own."""
    (folder / "pytest.ini").touch()
    (folder / "test_some.py").write_text(FLAKY + body)
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "run_tests.py"), "-q", *FEW_PLUGINS, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def named(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the tests that are said to have passed at the second attempt."""
    _, _, text = done.stdout.partition("Passed at the second attempt:\n")
    return [line.strip() for line in text.splitlines()]


def test_all_that_passes_at_once_runs_once(tmp_path: Path):
    done = run(tmp_path, "def test_a():\n    assert fails_until('a', 2)\n")
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "a").read_text() == "x"
    assert "second attempt" not in done.stdout


@pytest.mark.parametrize("workers", [(), ("-n", "2", "--dist", "loadfile")])
def test_what_passes_at_the_second_attempt_is_named(tmp_path: Path, workers: tuple[str, ...]):
    body = """
@pytest.mark.parametrize("place", ["a b", "x@y", "[c]"])
def test_with_a_name(place):
    assert not fails_until(place, 2)

@pytest.fixture(params=["setup", "teardown"])
def part(request):
    assert request.param != "setup" or not fails_until("setup", 2)
    yield
    assert request.param != "teardown" or not fails_until("teardown", 2)

def test_with_a_fixture(part):
    pass

def test_good():
    assert fails_until("good", 2)
"""
    done = run(tmp_path, body, *workers)
    assert done.returncode == 0, done.stdout
    names = [f"test_with_a_name[{place}]" for place in ("a b", "x@y", "[c]")]
    names += [f"test_with_a_fixture[{part}]" for part in ("setup", "teardown")]
    assert len(names) == MOST_AGAIN
    assert sorted(named(done)) == sorted(f"test_some.py::{name}" for name in names)
    assert (tmp_path / "good").read_text() == "x"


def test_what_fails_twice_fails(tmp_path: Path):
    body = "def test_a():\n    assert 0\ndef test_b():\n    assert not fails_until('b', 2)\n"
    done = run(tmp_path, body)
    assert done.returncode == 1
    assert "test_some.py::test_a" in done.stdout
    assert not named(done)


def test_more_than_a_few_failures_fail_at_once(tmp_path: Path):
    body = f"""
@pytest.mark.parametrize("n", range({MOST_AGAIN + 1}))
def test_a(n):
    assert not fails_until(str(n), 2)
"""
    done = run(tmp_path, body)
    assert done.returncode == 1
    assert not named(done)
    assert (tmp_path / "0").read_text() == "x"


def test_a_failed_test_that_is_skipped_the_second_time_has_not_passed(tmp_path: Path):
    body = """
def test_a():
    if not fails_until("a", 2):
        pytest.skip("not now")
    assert 0
"""
    done = run(tmp_path, body)
    assert done.returncode == 1
    assert "Not passed:\n  test_some.py::test_a\n" in done.stdout


def test_a_failed_test_that_is_gone_the_second_time_has_not_passed(tmp_path: Path):
    body = """
if not fails_until("collected", 2):
    test_others = lambda: None
else:
    def test_a():
        assert 0
"""
    done = run(tmp_path, body)
    assert done.returncode == 1
    assert not named(done)


@pytest.mark.parametrize(("body", "code"), [("import nothing_of_this_name\n", 2), ("", 5)])
def test_other_ends_keep_their_code(tmp_path: Path, body: str, code: int):
    done = run(tmp_path, body)
    assert done.returncode == code
    assert not named(done)


def test_make_test_runs_it_beside_the_checks():
    plan = subprocess.run(
        ["make", "--dry-run", "--always-make", "test-all"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "scripts/run_tests.py" in plan.stdout
    assert "--last-failed" not in plan.stdout
