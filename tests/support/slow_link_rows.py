"""What the benchmarks of causal order find on a cluster with slow links."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]


def rows_of(module: str, rounds: int, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a short run; skip where no network namespace can be made."""
    path = folder / "found.json"
    command = [sys.executable, "-m", module, "--rounds", str(rounds), "--json", str(path)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    if "skipped" in found:
        pytest.skip(found["skipped"])
    rows: list[dict[str, Any]] = found["rows"]
    return rows
