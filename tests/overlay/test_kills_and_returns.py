"""QoS 1 while peers are killed and come back: every history ends as the model says.

The model is in `tests/support/overlay_history.py`: who must get which event, and who may not.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from tests.support.overlay_history import lived

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
    assert any("is missing at" in one for one in lived(0, apart=False).faults())
