"""A NATS cluster of three servers with slow links between them: order where it is asked for.

The cluster stands in network namespaces; where none can be made, the test says why it is skipped.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.slow_link_rows import rows_of

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

ROUNDS = 30


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what the benchmark found in a short run: plain and causal, far and too far."""
    return rows_of("benchmarks.causal_cluster", ROUNDS, tmp_path_factory.mktemp("found"))


def test_answers_overtake_questions_in_a_plain_space_and_never_in_a_causal_one(
    rows: list[dict[str, Any]],
):
    plain, causal, plain_too_far, causal_too_far = (one["ours"] for one in rows)

    assert plain + plain_too_far > 0  # on a slow machine everything takes longer than the far link
    assert (causal, causal_too_far) == (0, 0)


def test_a_plain_space_loses_nothing_however_slow_the_link(rows: list[dict[str, Any]]):
    for one in rows[::2]:
        assert one["questions_heard"] == one["questions_due"] == 9 * ROUNDS
        assert one["peer"] == 18 * ROUNDS


def test_every_copy_in_causal_order_is_delivered_or_discarded_and_counted(
    rows: list[dict[str, Any]],
):
    for one in rows[1::2]:
        counted = {"discarded": 0, **one["counted"]}
        assert counted["delivered"] + counted["discarded"] == 2 * counted["sent"]
    assert sum(one["counted"].get("held", 0) for one in rows[1::2]) > 0


def test_what_takes_longer_than_its_lifetime_is_discarded(rows: list[dict[str, Any]]):
    counted = rows[3]["counted"]

    assert counted["discarded"] >= 3 * ROUNDS  # all that crosses the far link
    assert rows[3]["questions_heard"] <= 7 * ROUNDS  # two of nine never come
