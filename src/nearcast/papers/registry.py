"""The experiments of the five papers, by number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nearcast.model.errors import UnknownNameError
from nearcast.papers.content_overlay import claims as paper_3
from nearcast.papers.delta_causal import claims as paper_2
from nearcast.papers.form import Experiment
from nearcast.papers.learned_retained import claims as paper_4
from nearcast.papers.qr_network import claims as paper_0
from nearcast.papers.ranked_matching import claims as paper_1

PAPERS: Final[dict[int, Experiment]] = {
    0: paper_0,
    1: paper_1,
    2: paper_2,
    3: paper_3,
    4: paper_4,
}


def chosen(numbers: Sequence[int]) -> dict[int, Experiment]:
    """Return the requested papers; all of them if none is named."""
    unknown = [number for number in numbers if number not in PAPERS]
    if unknown:
        raise UnknownNameError(str(unknown[0]), where="--paper", expected="a number from 0 to 4")
    return {number: PAPERS[number] for number in sorted(set(numbers)) or PAPERS}
