"""Run pytest; run the few tests that failed once more, alone.

    python scripts/run_tests.py -n 3 --dist loadfile

Arguments are those of pytest. Some tests wait for other processes and fail now and then on a busy
machine. So where at most `MOST_AGAIN` tests failed, each of them runs a second time, in one process
and by its own name, and that result counts. The last lines name every test that needed it. The exit
code is 0 only if each test passed at its first or its second attempt: more failures, a test that is
skipped or not found the second time, and every other end of pytest keep a code that is not 0.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

MOST_AGAIN = 5
_AGAIN = "--second-attempt"


class Outcomes:
    """Names of the tests that failed and of those that passed; a file that cannot be read fails."""

    def __init__(self) -> None:
        self.failed: dict[str, None] = {}
        self.passed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = None
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = None


def main(arguments: list[str]) -> int:
    """Return the exit code of a run with these arguments of pytest, after a second attempt."""
    outcomes = Outcomes()
    code = int(pytest.main(arguments, plugins=[outcomes]))
    failed = list(outcomes.failed)
    if code != pytest.ExitCode.TESTS_FAILED or not 0 < len(failed) <= MOST_AGAIN:
        return code
    print(f"\n{len(failed)} failed: a second attempt, alone\n", flush=True)
    again = subprocess.run([sys.executable, __file__, _AGAIN, *failed], check=False)
    if again.returncode:
        print(f"Failed at the second attempt too: see above. First: {', '.join(failed)}")
        return code
    print("\nPassed at the second attempt:", *failed, sep="\n  ")
    return 0


def second_attempt(names: list[str]) -> int:
    """Return 0 if each of these tests is there and passes, run one after another."""
    outcomes = Outcomes()
    code = int(pytest.main([*names], plugins=[outcomes]))  # which adds options to its list
    missing = [name for name in names if name not in outcomes.passed]
    if missing:
        print("Not passed:", *missing, sep="\n  ")
    return code or int(bool(missing))


if __name__ == "__main__":
    given = sys.argv[1:]
    sys.exit(second_attempt(given[1:]) if given[:1] == [_AGAIN] else main(given))
