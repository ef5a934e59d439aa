"""Readings of what the papers leave open: each is measured, and judged as its claim is."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from nearcast.papers.content_overlay import claims as paper_3
from nearcast.papers.content_overlay.event_walk import EventWalk
from nearcast.papers.content_overlay.experiment import (
    Parameters,
    event_points,
    grown,
    overheads,
    publish_all,
)
from nearcast.papers.delta_causal import claims as paper_2
from nearcast.papers.delta_causal.experiment import ALGORITHMS, CausalPoint, run_point
from nearcast.papers.delta_causal.transcriptions import TRANSCRIPTIONS, run_transcribed
from nearcast.papers.form import Row


@pytest.mark.parametrize("pattern", ["subsets", "groups"])
def test_the_listings_in_plain_python_deliver_what_the_compiled_algorithms_deliver(pattern: str):
    for seed in (1, 2):
        for name in TRANSCRIPTIONS:
            point = CausalPoint(name, 9, pattern, warm_up=0, sends=150, loss=0.1, seed=seed)
            compiled, plain = run_point(point), run_transcribed(point)
            assert plain["delivered"] == compiled["delivered"]
            assert plain["transit_ms"] == pytest.approx(compiled["transit_ms"], abs=1e-6)


def test_the_papers_own_form_waits_for_what_its_listing_waits_for():
    point = CausalPoint("paper", 6, "subsets", warm_up=0, sends=1)
    compiled: list[Any] = [ALGORITHMS["paper"](process=p, lifetime=0.25) for p in range(6)]
    plain: list[Any] = [TRANSCRIPTIONS["paper"](p, 0.25) for p in range(6)]
    random, waited = Random(point.seed), 0
    under_way = []
    for step in range(300):
        now_s, sender = 1.0 + step * 0.003, random.randrange(6)
        others = {p for p in range(6) if p != sender}
        to = set(random.sample(sorted(others), random.randint(1, 3)))
        copies, listed = (each[sender].send(to, b"", now_s) for each in (compiled, plain))
        for one in to:
            assert copies[one].waits == set(listed[one].waits)
            waited += bool(listed[one].waits)
        under_way += [(one, copies[one], listed[one]) for one in to]
        random.shuffle(under_way)
        while len(under_way) > 8:
            one, copy, message = under_way.pop()
            compiled[one].receive(copy, now_s)
            plain[one].receive(message, now_s)
    assert waited > 100


def test_an_event_that_begins_at_the_root_burdens_whom_it_burdens_in_the_overlay():
    parameters = Parameters(peers=60, events=60, subscription_sigma=300.0, event_sigmas=(120.0,))
    net = grown(parameters, 1)
    net.reset()
    walk, points = EventWalk(net, 1.0), event_points(parameters, 120.0, 1)
    publish_all(net, points, "e120.0")
    order = Random("1/e120.0").sample(sorted(net.peers), len(net.peers))
    burden = dict.fromkeys(walk.seats, 0.0)
    for number, values in enumerate(points.tolist()):
        walk.publish(order[number % len(order)], values, burden, to_root=True)
    assert sum(burden.values()) == overheads(net).sum() > 0


# --- verdicts from hand-made rows -----------------------------------------------------------------


def causal_rows(kind: str, of: dict[str, float]) -> list[Row]:
    return [
        {
            "kind": kind, "algorithm": name, "processes": n, "pattern": pattern, "seed": seed,
            "lifetime_s": 0.25, "sends": 10, "control_bytes": value * n, "computation_us": value,
            "transit_ms": 60.0,
        }
        for name, value in of.items()
        for n in (10, 50)
        for pattern in ("subsets", "groups")
        for seed in (1, 2, 3)
    ]  # fmt: skip


def read_verdicts(rows: list[Row], reading: str) -> dict[str, bool]:
    found = [one for one in paper_2.claims(rows) if one.reading == reading]
    return {f"{one.id} {one.variant}": one.holds for one in found}


def test_c2_2_is_also_judged_by_the_listings_in_plain_python():
    compiled = {"ours": 9.0, "paper": 10.0, "KS": 12.0, "PRS": 11.0, "RST": 12.0}
    rows = causal_rows("compared", compiled)
    plain = {"paper": 10.0, "KS": 55.0, "PRS": 11.0, "RST": 12.0}
    found = read_verdicts(rows + causal_rows("transcribed", plain), paper_2.UNCOMPILED)
    assert found == {"C2.2 random subsets": True, "C2.2 fixed groups": True}
    slow = read_verdicts(
        rows + causal_rows("transcribed", plain | {"KS": 12.0}), paper_2.UNCOMPILED
    )
    assert not any(slow.values())


def test_c2_1_is_also_judged_by_the_papers_own_form():
    of = {"ours": 1.0, "paper": 2.0, "KS": 2.0, "PRS": 5.0, "RST": 6.0}
    found = read_verdicts(causal_rows("compared", of), paper_2.OWN_FORM)
    assert found["C2.1 random subsets"]
    assert not read_verdicts(causal_rows("compared", of | {"paper": 3.0}), paper_2.OWN_FORM)[
        "C2.1 random subsets"
    ]


@pytest.mark.parametrize(
    ("bars", "holds"),
    [([9.0, 4.0, 1.0] + [0.1] * 17, True), ([3.0] * 8 + [0.0] * 12, False)],
)
def test_c3_4_is_also_judged_by_the_bars_of_the_papers_figure(bars: list[float], holds: bool):
    row = {"groups_of_5_percent": bars, "seed": 1, "peers": 100, "events": 100}
    row |= {"subscription_sigma": 100.0, "event_sigma": 100.0, "method": "CES"}
    assert paper_3._bars([row, row | {"seed": 2}]).holds is holds


def test_every_reading_of_paper_3_has_its_points():
    kinds = {point.kind for point in paper_3.points(quick=True)}
    assert {f"read: {name}" for name in paper_3.READINGS} <= kinds
