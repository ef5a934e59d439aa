"""Real nodes, slow links, a client that moves with clean start: its answer follows the question.

The cluster stands in network namespaces; where none can be made, the test says why it is skipped.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.slow_link_rows import rows_of

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

ROUNDS = 2


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what the benchmark found: one move plain and causal, two moves plain and causal."""
    return rows_of("benchmarks.causal_moves", ROUNDS, tmp_path_factory.mktemp("found"))


@pytest.mark.parametrize("place", [0, 2], ids=["moved once", "moved twice"])
def test_t2_8_an_answer_from_another_node_never_comes_before_the_question(
    rows: list[dict[str, Any]], place: int
):
    plain, causal = rows[place], rows[place + 1]

    assert plain["peer"] == ROUNDS
    assert causal["peer"] > 0  # on a slow machine some outlive their lifetime
    assert plain["ours"] > 0  # without order the answer is first: the far link is far enough
    assert causal["ours"] == 0
