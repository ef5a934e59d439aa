"""The experiment runs, repeats itself, and its page tells the truth."""

from itertools import count

import pytest

from nearcast.model.errors import UnknownNameError
from nearcast.papers.delta_causal.claims import points
from nearcast.papers.delta_causal.experiment import (
    ALGORITHMS,
    CausalPoint,
    run_point,
)
from nearcast.papers.delta_causal.oracle import unordered_row

KINDS = ("compared", "larger")
SMALL = {"processes": 6, "warm_up": 50, "sends": 200}


def ticking() -> float:
    return next(_ticks) * 1e-6


_ticks = count()


def test_a_point_repeats_itself() -> None:
    point = CausalPoint(**SMALL)  # type: ignore[arg-type]
    first, second = (run_point(point, clock=lambda: 0.0) for _ in range(2))
    assert first == second
    assert first["delivered"] > 0
    assert first["control_bytes"] > 0
    assert first["delivery_ms"] == first["transit_ms"]


@pytest.mark.parametrize("pattern", ["subsets", "groups"])
def test_all_algorithms_deliver_the_same_traffic_at_the_same_instants(pattern: str) -> None:
    rows = [
        run_point(CausalPoint(algorithm=name, pattern=pattern, **SMALL), clock=ticking)
        for name in ALGORITHMS
    ]
    counted = ("delivered", "discarded", "held", "transit_ms")
    assert len({tuple(row[name] for name in counted) for row in rows}) == 1
    for row in rows:
        assert row["delivery_ms"] == row["transit_ms"] + row["computation_us"] / 1000


def test_without_order_some_deliveries_come_after_their_effects() -> None:
    row = unordered_row(CausalPoint(processes=10, warm_up=0, sends=500))
    assert 0 < row["wrong"] < row["delivered"]


def test_a_quick_network_needs_no_order() -> None:
    point = CausalPoint(processes=5, warm_up=0, sends=300, mean_extra_delay_s=1e-9, loss=0)
    assert unordered_row(point)["wrong"] == 0


def test_the_points_have_every_figure() -> None:
    found = [point for point in points(quick=False) if point.kind in ("compared", "larger")]
    sizes = {kind: {p.parameters["processes"] for p in found if p.kind == kind} for kind in KINDS}
    assert sizes == {"compared": {5, 10, 20, 30, 40, 50}, "larger": {100, 200}}
    assert len(found) == 3 * 2 * (6 + 2)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError):
        run_point(CausalPoint(algorithm="best"))
    with pytest.raises(UnknownNameError):
        run_point(CausalPoint(pattern="circles"))
