"""The five papers by number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nearcast.model.errors import UnknownNameError
from nearcast.reproduction import paper_0, paper_1, paper_2, paper_3, paper_4
from nearcast.reproduction.form import Experiment

PAPERS: Final[dict[int, Experiment]] = {
    0: paper_0,
    1: paper_1,
    2: paper_2,
    3: paper_3,
    4: paper_4,
}


def chosen(numbers: Sequence[int]) -> dict[int, Experiment]:
    """Return the papers asked for, all of them if none was named."""
    unknown = [number for number in numbers if number not in PAPERS]
    if unknown:
        raise UnknownNameError(str(unknown[0]), where="--paper", expected="a number from 0 to 4")
    return {number: PAPERS[number] for number in sorted(set(numbers)) or PAPERS}
