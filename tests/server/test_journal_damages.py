"""A sample of `fuzz/journal.py`: a damaged journal starts, and nothing is lost in silence."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_whatever_is_damaged_a_start_tells_it_and_goes_on_with_the_rest() -> None:
    fuzz = runpy.run_path(str(ROOT / "fuzz" / "journal.py"))
    outcomes = Counter(fuzz["try_one"](seed) for seed in range(1, 61))

    assert outcomes["told"] > 30
    assert outcomes["tail"] > 3
