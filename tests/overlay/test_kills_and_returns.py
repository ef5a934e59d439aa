"""QoS 1 while peers are killed and come back: every history ends as the model says.

The model is in `tests/support/overlay_history.py`: who must get which event, and who may not.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from tests.support.overlay_history import halved, lived

from nearcast.overlay import repair
from nearcast.overlay.live.acknowledged import Acknowledgements

IS_SOAK = settings.default is not None and settings.default.max_examples > 50
SEEDS = range(2_000) if IS_SOAK else range(8)


@pytest.mark.parametrize("apart", [True, False], ids=["one at a time", "at any time"])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_subscriber_gets_what_it_is_due_and_once(seed, apart):
    history = lived(seed, apart=apart)
    assert history.faults() == []
    assert any(one.due for one in history.published)


def test_the_model_notices_publishers_that_take_a_clean_answer_for_the_end(monkeypatch):
    """As it was: an event was forgotten once confirmed, whoever was cut off at that moment."""
    monkeypatch.setattr(Acknowledgements, "missed", lambda *_: None)
    faults = (fault for seed in (0, 18, 28) for fault in lived(seed, apart=False).faults())
    assert any("is missing at" in one for one in faults)


@pytest.mark.parametrize("seed", range(200) if IS_SOAK else (21, 129, 133, 1, 2, 3))
def test_those_who_are_left_when_half_of_all_die_at_once_are_one_tree_again(seed):
    assert halved(seed).is_repaired()


def test_those_who_know_their_neighbours_alone_stay_apart(monkeypatch):
    """As it was: greetings named nobody, and pairs that were left knew nothing of others."""
    monkeypatch.setattr(repair, "_TOLD", 0)
    assert not all(halved(seed).is_repaired() for seed in (21, 129, 133))
