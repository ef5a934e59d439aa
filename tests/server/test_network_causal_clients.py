"""Real nodes, slow links, a client that moves with clean start: its answer follows the question.

The cluster stands in network namespaces; where none can be made, the test says why it is skipped.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
ROUNDS = 3


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what the benchmark found: one move plain and causal, two moves plain and causal."""
    path = tmp_path_factory.mktemp("moves") / "found.json"
    command = [sys.executable, "-m", "benchmarks.causal_moves", "--rounds", str(ROUNDS)]
    done = subprocess.run(
        [*command, "--json", str(path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    if "skipped" in found:
        pytest.skip(found["skipped"])
    rows: list[dict[str, Any]] = found["rows"]
    return rows


@pytest.mark.parametrize("place", [0, 2], ids=["moved once", "moved twice"])
def test_t2_8_an_answer_from_another_node_never_comes_before_the_question(
    rows: list[dict[str, Any]], place: int
):
    plain, causal = rows[place], rows[place + 1]

    assert plain["peer"] == ROUNDS
    assert causal["peer"] > 0  # on a slow machine some outlive their lifetime
    assert plain["ours"] > 0  # without order the answer is first: the far link is far enough
    assert causal["ours"] == 0
