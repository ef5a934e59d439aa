"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.support.small_plans import SPACE

from nearcast.locality import CellCounts, Plan


@pytest.fixture
def make_plan() -> Callable[..., Plan]:
    """A plan whose Q part splits around (1, 1) and whose regions are given."""

    def make(regions: list[tuple[float, float, float, float]], **options: object) -> Plan:
        xs = np.array([0.5, 1.0, 1.5, 1.2])
        counts = CellCounts.from_positions(SPACE, regions, xs, xs, depth=3)
        return Plan.build(SPACE, regions, counts, **{"capacity": 2, **options})  # type: ignore[arg-type]

    return make
