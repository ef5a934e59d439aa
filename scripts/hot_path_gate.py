"""Has the broker's hot path got slower? Its speed now beside that of another revision.

    python scripts/hot_path_gate.py HEAD~50
    python scripts/hot_path_gate.py HEAD~20 --rounds 5 --least 0.97

Runs `nearcast bench broker --quick` of the revision and of the work tree by turns, on the same
machine with the same packages, and prints for each load how many messages per second of broker CPU
the work tree delivers, relative to the revision. Each figure is first divided by Mosquitto's of
the same run, so that a machine that is busy for a while counts for neither. Both run as plain
Python. The exit code is 1 where the median of a load is below `--least`. Run it by hand, on a quiet
machine: three rounds take about half an hour; `--only throughput` takes the most telling loads.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BENCH = """
import json, sys
from benchmarks.broker import run
rows = run(quick=True, only=sys.argv[1])["rows"]
print(json.dumps({row["name"]: row["ratio"] for row in rows if row.get("holds") is not None}))
"""
_MORE_IS_WORSE = ("latency", "kB per", "start of")


def unpack(revision: str, target: Path) -> None:
    """Write the files of a revision into a directory."""
    archive = subprocess.run(
        ["git", "archive", revision], cwd=ROOT, capture_output=True, check=False
    )
    if archive.returncode:
        sys.exit(f"error: found {revision!r}; expected a commit or tag of this repository")
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive.stdout, check=True)


def measure(tree: Path, only: str) -> dict[str, float]:
    """Return our figure relative to Mosquitto's for each load, in a checkout; more is better."""
    paths = os.pathsep.join([str(tree), str(tree / "src")])
    done = subprocess.run(
        [sys.executable, "-c", _BENCH, only],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": paths, "NEARCAST_PLAIN": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {
        name: 1 / one if name.startswith(_MORE_IS_WORSE) else one for name, one in found.items()
    }


def compared(before: list[dict[str, float]], now: list[dict[str, float]]) -> dict[str, list[float]]:
    """Return for each load that all rounds have the ratios of the work tree to the revision.

    >>> compared([{"a": 2.0}, {"a": 4.0}], [{"a": 3.0}, {"a": 2.0, "new": 1.0}])
    {'a': [1.5, 0.5]}
    """
    names = [name for name in before[0] if all(name in one for one in [*before, *now])]
    return {
        name: [new[name] / old[name] for old, new in zip(before, now, strict=True)]
        for name in names
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("revision", help="what the work tree is compared with: the last release")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--least", type=float, default=0.95, help="the least ratio that passes")
    parser.add_argument("--only", default="", help="one section: throughput, mixed, retained …")
    given = parser.parse_args()
    before: list[dict[str, float]] = []
    now: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="nearcast-gate-") as directory:
        unpack(given.revision, Path(directory))
        for number in range(given.rounds):
            print(f"Round {number + 1} of {given.rounds} ...", file=sys.stderr)
            before.append(measure(Path(directory), given.only))
            now.append(measure(ROOT, given.only))
    slower = 0
    for name, ratios in compared(before, now).items():
        median = statistics.median(ratios)
        slower += median < given.least
        mark = "  SLOWER" if median < given.least else ""
        print(f"{median:5.2f}  ({min(ratios):.2f} to {max(ratios):.2f})  {name}{mark}")
    sys.exit(bool(slower))


if __name__ == "__main__":
    main()
