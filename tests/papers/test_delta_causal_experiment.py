"""The experiment runs, repeats itself, and its page tells the truth."""

from itertools import count

import pytest

from nearcast.model.errors import UnknownNameError
from nearcast.papers.delta_causal.experiment import (
    ALGORITHMS,
    CausalPoint,
    as_record,
    claims,
    run_point,
    run_without_order,
    sweep,
)

SMALL = {"processes": 6, "warm_up": 50, "sends": 200}


def ticking() -> float:
    return next(_ticks) * 1e-6


_ticks = count()


def test_a_point_repeats_itself() -> None:
    point = CausalPoint(**SMALL)  # type: ignore[arg-type]
    first, second = (run_point(point, clock=lambda: 0.0) for _ in range(2))
    assert first == second
    assert first.delivered > 0
    assert first.control_bytes > 0
    assert first.delivery_ms == first.transit_ms


@pytest.mark.parametrize("pattern", ["subsets", "groups"])
def test_all_algorithms_deliver_the_same_traffic_at_the_same_instants(pattern: str) -> None:
    rows = [
        run_point(CausalPoint(algorithm=name, pattern=pattern, **SMALL), clock=ticking)
        for name in ALGORITHMS
    ]
    assert len({(r.delivered, r.discarded, r.held, r.transit_ms) for r in rows}) == 1
    assert [c.claim for c in claims(rows, pattern)] == ["C2.1", "C2.2"]
    assert as_record(rows[0])["delivery_ms"] == rows[0].delivery_ms


def test_without_order_some_deliveries_come_after_their_effects() -> None:
    disorder = run_without_order(CausalPoint(processes=10, warm_up=0, sends=500))
    assert 0 < disorder.wrong < disorder.delivered


def test_a_quick_network_needs_no_order() -> None:
    point = CausalPoint(processes=5, warm_up=0, sends=300, mean_extra_delay_s=1e-9, loss=0)
    assert run_without_order(point).wrong == 0


def test_the_sweep_has_every_figure() -> None:
    points = sweep()
    assert {p.processes for p in points if p.algorithm == "KS"} == {5, 10, 20, 30, 40, 50}
    assert max(p.processes for p in points) == 200
    assert len(points) == 2 * (6 * 4 + 2)
    assert len(set(points)) == len(points)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError):
        run_point(CausalPoint(algorithm="best"))
    with pytest.raises(UnknownNameError):
        run_point(CausalPoint(pattern="circles"))
