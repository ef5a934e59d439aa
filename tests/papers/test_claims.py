"""Verdicts from hand-made rows: each claim once as the paper has it, and once not."""

import math

import pytest

from nearcast.papers.content_overlay import claims as paper_3
from nearcast.papers.delta_causal import claims as paper_2
from nearcast.papers.delta_causal.experiment import ALGORITHMS
from nearcast.papers.form import Claim, Row, interval
from nearcast.papers.learned_retained import claims as paper_4
from nearcast.papers.qr_network import claims as paper_0
from nearcast.papers.ranked_matching import claims as paper_1


def verdicts(claims: list[Claim]) -> dict[tuple[str, str], bool]:
    return {(claim.id, claim.variant): claim.holds for claim in claims}


# --- paper 0 --------------------------------------------------------------------------------------

AS_THE_PAPER_SAYS = {
    "q": {"brokers": 100, "handovers": 900, "multicast_messages": 100, "ratio": 0.2},
    "qr": {"brokers": 65, "handovers": 500, "multicast_messages": 150, "ratio": 0.1},
    "r": {"brokers": 40, "handovers": 510, "multicast_messages": 200, "ratio": 0.6},
}


def layout_rows(values: dict[str, dict[str, float]], steepness: float = 4.0) -> list[Row]:
    rows = []
    for layout in ("q", "qr", "r", "r-packed"):
        of = values.get(layout, values["r"])
        for subscribers in (500, 1000):
            for seed in (1, 2, 3):
                ratio = of["ratio"] * (1 + seed / 1000) / (steepness if subscribers == 500 else 1)
                rows.append(
                    {
                        "kind": "layout", "layout": layout, "subscribers": subscribers,
                        "rounds": 40, "seed": seed, "brokers": of["brokers"] + seed,
                        "all_blocks": of["brokers"] * 1.3, "handovers": of["handovers"] + seed,
                        "multicast_messages": of["multicast_messages"] + seed,
                        "with_upkeep": of.get("with_upkeep", of["multicast_messages"]) + seed,
                        "retransmissions": 10, "retransmission_ratio": ratio,
                        "ratio_with_deliveries": ratio, "deliveries": 1000,
                    }
                )  # fmt: skip
    return rows


def routing_rows(from_r: float) -> list[Row]:
    return [
        {
            "kind": "routing", "seed": seed, "subscribers": 1000, "places": places,
            "height_q": 4, "height_r": 2, "from_q_mean": 4.0, "from_q_depth": 5,
            "from_r_mean": from_r + seed / 100, "from_r_depth": 8, "comparisons_q": 9.0,
            "comparisons_r": 12.0,
        }
        for seed in (1, 2, 3)
        for places in ("uniform", "people")
    ]  # fmt: skip


def test_all_of_paper_0_holds_for_rows_as_it_describes_them():
    found = paper_0.claims(layout_rows(AS_THE_PAPER_SAYS) + routing_rows(5.0))
    assert len(found) == 11
    assert all(claim.holds for claim in found)
    assert {claim.id for claim in found} == {"C0.1", "C0.2", "C0.3", "C0.4", "C0.5"}
    assert all(claim.seeds == (1, 2, 3) for claim in found)
    assert all(claim.low <= claim.high for claim in found)


def test_none_of_paper_0_holds_when_the_layouts_change_places():
    reverse = {
        "q": AS_THE_PAPER_SAYS["r"],
        "qr": AS_THE_PAPER_SAYS["qr"],
        "r": AS_THE_PAPER_SAYS["q"],
    }
    found = paper_0.claims(layout_rows(reverse, 1.0) + routing_rows(3.0))
    assert not any(claim.holds for claim in found)


def test_both_readings_of_r_only_are_judged_by_their_own_rows():
    packed = {"brokers": 40, "handovers": 510, "multicast_messages": 90, "ratio": 0.1}
    found = verdicts(paper_0.claims(layout_rows(AS_THE_PAPER_SAYS | {"r-packed": packed})))
    wrong = {name for name, holds in found.items() if not holds}
    once = "R-only laid out once"
    assert wrong == {("C0.2", once), ("C0.4", once), ("C0.4", f"{once}, upkeep counted")}


def test_upkeep_and_bounded_regions_are_readings_of_their_own():
    reverse = {
        "q": {**AS_THE_PAPER_SAYS["q"], "multicast_messages": 300, "with_upkeep": 300},
        "qr": {**AS_THE_PAPER_SAYS["qr"], "with_upkeep": 400},
        "r": {**AS_THE_PAPER_SAYS["r"], "with_upkeep": 900},
    }
    bounded = [row | {"kind": "bounded"} for row in layout_rows(AS_THE_PAPER_SAYS)]
    few = {**AS_THE_PAPER_SAYS, "qr": {**AS_THE_PAPER_SAYS["qr"], "brokers": 45}}
    rows = layout_rows({**few, **reverse, "qr": {**reverse["qr"], "brokers": 45}})
    found = verdicts(paper_0.claims(rows + bounded))
    for reading in paper_0.READINGS.values():
        assert not found["C0.4", reading]
        assert found["C0.4", f"{reading}, upkeep counted"]
        assert not found["C0.1", reading]
    assert found["C0.1", "regions hold at most 40, fan-out 4"]


def test_the_sensitivity_of_paper_0_is_a_ratio_of_q_plus_r_to_q():
    rows = [
        {
            "kind": "sensitivity", "changed": "capacity 10", "layout": layout, "seed": 1,
            "brokers": brokers, "handovers": 10, "multicast_messages": 0,
        }
        for layout, brokers in (("q", 100), ("qr", 48))
    ]  # fmt: skip
    (table,) = paper_0.tables(rows)
    assert table.lines == (("capacity 10", "0.48", "1.00", "0.00"),)


# --- paper 1 --------------------------------------------------------------------------------------


def touching(matches: int, seed: int, *, paper: float, exact: float, path: float = 4.0) -> Row:
    return {
        "kind": "touching", "seed": seed, "intervals": 1000, "matches": matches, "k": 10,
        "found": matches, "touched_paper": paper, "path_paper": path, "touched_exact": exact,
        "path_exact": path, "paper_us": 1.0, "exact_us": 2.0, "sorting_us": 90.0,
    }  # fmt: skip


def errors(seed: int, *, paper: float, exact: float, asked: int = 100) -> Row:
    return {
        "kind": "errors", "seed": seed, "workload": "uniform", "intervals": 30, "k": 5,
        "asked": asked, "found": 12.0, "wrong_set_paper": paper / 2, "wrong_order_paper": paper,
        "wrong_set_exact": exact, "wrong_order_exact": exact, "wrong_order_printed": paper,
        "wrong_order_quarter": paper, "wrong_set_printed": paper, "wrong_set_quarter": paper,
    }  # fmt: skip


def ranked(
    few: float, many: float, paper_wrong: float, exact_wrong: float
) -> dict[tuple[str, str], bool]:
    rows = []
    for seed in (1, 2):
        rows += [touching(20, seed, paper=10, exact=few), touching(500, seed, paper=10, exact=many)]
        rows.append(errors(seed, paper=paper_wrong, exact=exact_wrong))
    return verdicts(paper_1.claims(rows))


def test_paper_1_holds_where_k_and_the_path_are_touched_and_nothing_is_wrong():
    assert all(ranked(13.0, 14.0, 0.0, 0.0).values())


def test_paper_1_falls_with_every_match_touched_and_a_single_wrong_answer():
    found = ranked(20.0, 500.0, 0.01, 0.0)
    assert found["C1.1", "the paper's walk"]
    assert not found["C1.1", "exact merge"]
    readings = ("the paper's walk", "the walk as printed", "the walk, p = 1/4")
    assert not any(found["C1.2", reading] for reading in readings)
    assert not found["C1.2", "the paper's walk, in any order"]
    assert found["C1.2", "exact merge"]


def test_touching_far_more_than_k_and_the_path_is_too_much_even_if_it_never_grows():
    assert not ranked(40.0, 40.0, 0.0, 0.0)["C1.1", "exact merge"]


def test_no_query_is_no_proof_of_order():
    rows = [touching(m, 1, paper=10, exact=12) for m in (20, 500)]
    found = paper_1.claims([*rows, errors(1, paper=0.0, exact=0.0, asked=0)])
    assert not [claim for claim in found if claim.id == "C1.2" and claim.holds]


def test_shares_of_wrong_answers_are_weighed_by_queries():
    rows = [touching(m, s, paper=10, exact=12) for m in (20, 500) for s in (1, 2)]
    rows += [errors(1, paper=1.0, exact=0.0, asked=10), errors(2, paper=0.0, exact=0.0, asked=90)]
    walk = next(
        c for c in paper_1.claims(rows) if (c.id, c.variant) == ("C1.2", "the paper's walk")
    )
    assert "of 100 queries 10.0%" in walk.measured
    assert "wrong in 5.0%" in walk.measured


# --- paper 2 --------------------------------------------------------------------------------------


def causal_rows(bytes_at_50: dict[str, float], times: dict[str, float], power: float) -> list[Row]:
    rows: list[Row] = []
    for pattern in ("subsets", "groups"):
        for seed in (1, 2, 3):
            rows += [
                _causal_row(
                    "compared", pattern, name, n, seed, size * (n / 50) ** power, times[name]
                )
                for name, size in bytes_at_50.items()
                for n in (10, 50)
            ]
            large = bytes_at_50["ours"] * 2**power
            rows.append(_causal_row("larger", pattern, "ours", 100, seed, large, times["ours"]))
    return rows


def _causal_row(
    kind: str, pattern: str, name: str, n: int, seed: int, size: float, us: float
) -> Row:
    return {
        "kind": kind, "algorithm": name, "processes": n, "pattern": pattern, "lifetime_s": 0.25,
        "seed": seed, "sends": 600, "copies": 600, "delivered": 600, "discarded": 0, "held": 0,
        "control_bytes": size + seed / 1000, "transit_ms": 60.0, "send_us": us, "encode_us": 0.0,
        "decode_us": 0.0, "receive_us": 0.0, "computation_us": us, "delivery_ms": 60 + us / 1000,
    }  # fmt: skip


def watched(**wrong: int) -> Row:
    return {
        "kind": "watched", "algorithm": "ours", "processes": 8, "pattern": "subsets", "seed": 1,
        "loss": 0.01, "delivered": 100, "in_time": 90, "misordered": 0, "missed": 0, "too_late": 0,
        "doubled": 0, **wrong,
    }  # fmt: skip


def test_all_of_paper_2_holds_for_rows_as_it_describes_them():
    sizes = {"ours": 100.0, "KS": 100.0, "PRS": 300.0, "RST": 500.0}
    times = {"ours": 10.0, "KS": 50.0, "PRS": 12.0, "RST": 12.0}
    found = paper_2.claims([*causal_rows(sizes, times, 1.0), watched()])
    assert len(found) == 10
    assert all(claim.holds for claim in found)


def test_none_of_paper_2_holds_for_rows_that_contradict_it():
    sizes = {"ours": 400.0, "KS": 100.0, "PRS": 300.0, "RST": 500.0}
    times = {"ours": 10.0, "KS": 11.0, "PRS": 9.0, "RST": 12.0}
    found = paper_2.claims([*causal_rows(sizes, times, 1.5), watched(misordered=1, missed=1)])
    assert not any(claim.holds for claim in found)


@pytest.mark.parametrize("fault", ["missed", "too_late", "doubled"])
def test_liveness_falls_with_one_fault_of_any_kind_and_safety_does_not(fault: str):
    sizes = dict.fromkeys(("ours", "KS", "PRS", "RST"), 100.0)
    found = verdicts(paper_2.claims([*causal_rows(sizes, sizes, 1.0), watched(**{fault: 1})]))
    assert found["C2.3", "safety"]
    assert not found["C2.3", "liveness"]


def test_the_five_algorithms_take_turns_in_being_first():
    assert {paper_2._turned(seed)[0] for seed in range(5)} == set(ALGORITHMS)
    assert all(sorted(paper_2._turned(s)) == sorted(ALGORITHMS) for s in range(5))


# --- paper 3 --------------------------------------------------------------------------------------


def overlay_rows(curve: dict[float, float], wide: dict[float, float], **share: float) -> list[Row]:
    factor = {"RS": 2.0, "LVS": 1.4, "CES": 1.0}
    rows: list[Row] = [
        {
            "kind": "paper", "seed": seed, "method": method, "peers": 300, "events": 300,
            "subscription_sigma": sigma, "event_sigma": event_sigma,
            "mean_overhead": overhead * times,
            "overhead_per_delivery": overhead * times * (sigma / 100),
            "gini": 0.9 if method == "CES" else 0.8,
            "bearing_share": share.get("bearing", 0.15) * (sigma / 100) ** 0.5,
            "share_bearing_95_percent": 0.1, "groups_of_5_percent": [1.0] * 20,
        }
        for sigma, overheads in ((100.0, curve), (300.0, wide))
        for method, times in factor.items()
        for event_sigma, overhead in overheads.items()
        for seed in (1, 2)
    ]  # fmt: skip
    for size, cost in ((0, 10.0), (200, share.get("cached", 8.0))):
        for seed in (1, 2):
            some = rows[0] | {"kind": "cache", "seed": seed, "repeats": 50, "cache_size": size}
            rows.append(some | {"with_answers": cost})
    return rows


def test_all_of_paper_3_holds_for_rows_as_it_describes_them():
    found = paper_3.claims(
        overlay_rows({10.0: 9.0, 120.0: 5.0, 500.0: 8.0}, {10.0: 5.0, 120.0: 5.1, 300.0: 5.0})
    )
    assert {claim.id for claim in found} == {f"C3.{n}" for n in range(1, 7)}
    assert all(claim.holds for claim in found if claim.counts)
    assert {c.variant for c in found if c.id == "C3.1"} == {"total", "per delivery"}


def test_paper_3_falls_where_its_curves_are_others():
    falling = {10.0: 9.0, 120.0: 5.0, 500.0: 1.0}
    found = verdicts(paper_3.claims(overlay_rows(falling, falling, bearing=0.4, cached=12.0)))
    wrong = {name for name, holds in found.items() if not holds}
    assert wrong == {
        ("C3.1", "total"),
        ("C3.1", "per delivery"),
        ("C3.3", ""),
        ("C3.4", "who bears it"),
        ("C3.5", ""),
    }


def test_measured_values_of_paper_3_read_as_text():
    rows = overlay_rows({10.0: 9.0, 120.0: 5.25, 500.0: 8.0}, {10.0: 5.0, 120.0: 5.1, 300.0: 5.0})
    first, _, _, flat, *_ = paper_3.claims(rows)
    assert first.measured == (
        "least at event σ: 120; overhead by event σ: 9 at 10, 5.25 at 120, 8 at 500"
    )
    assert flat.measured.endswith("most / least: 1.02; CES least everywhere: yes")


# --- paper 4 --------------------------------------------------------------------------------------


def reward_rows(
    kind: str,
    over: str,
    plain: dict[float, float],
    gain: dict[float, float],
    mean: float | None = None,
) -> list[Row]:
    """Return rows of a sweep; `mean` is the gain in the mean per step, if it is another one."""
    fixed = {"omega": 0.7, "publish": 0.6, "subscribe": 0.2, "leave": 0.1, "message_cost": 5.0}
    return [
        fixed
        | {
            "kind": kind, "seed": seed, over: x, "plain": reward, "learned": reward + gain[x],
            "hold_max": 10, "shape": "exponential", "wait": 0.0, "general": 0.0, "best": 0.0,
            "mean_plain": reward, "mean_learned": reward + (gain[x] if mean is None else mean),
        }
        for seed in (1, 2)
        for x, reward in plain.items()
    ]  # fmt: skip


def both(gain_at_small_omega: float, gain_at_small_publish: float) -> dict[tuple[str, str], bool]:
    gains = {0.1: gain_at_small_omega, 0.9: 0.0}
    more = {0.1: gain_at_small_publish, 2.0: 0.01}
    return verdicts(
        paper_4.claims(
            reward_rows("omega", "omega", {0.1: -5.0, 0.9: 0.5}, gains)
            + reward_rows("publish", "publish", {0.1: 0.2, 2.0: -3.0}, more)
        )
    )


def test_paper_4_holds_where_the_learned_policy_falls_less_and_is_never_worse():
    assert all(both(0.4, 0.1).values())


def test_paper_4_says_under_which_reading_a_claim_holds():
    rows = reward_rows("omega", "omega", {0.1: -5.0, 0.9: 0.5}, {0.1: 0.4, 0.9: 0.0})
    sweep = {0.05: 0.2, 2.0: -3.0}
    rows += reward_rows("publish", "publish", sweep, {0.05: 0.1, 2.0: 0.01}, mean=-0.01)
    found = verdicts(paper_4.claims(rows))
    assert found["C4.2", "discounted, θ = 0.95"]
    assert not found["C4.2", "mean per step"]
    told = [one.measured for one in paper_4.claims(rows) if one.variant == "mean per step"]
    assert told[1].endswith("Not better at λP = 0.05.")


def test_paper_4_falls_where_the_learned_policy_is_worse():
    assert not any(both(-0.4, -0.1).values())


# --- what all share -------------------------------------------------------------------------------


def test_the_interval_is_students():
    low, high = interval([1.0, 2.0, 3.0])
    assert (low + high) / 2 == pytest.approx(2.0)
    assert high - low == pytest.approx(2 * 4.303 / 3**0.5)
    assert interval([1.0, 2.0, 3.0, math.inf]) == (low, high)


def test_one_seed_gives_no_interval_and_claims_json_says_null():
    assert all(map(math.isnan, interval([1.0])))
    rows = [touching(m, 1, paper=10, exact=12) for m in (20, 500)]
    claim = paper_1.claims([*rows, errors(1, paper=0.0, exact=0.0)])[0]
    assert claim.record()["confidence_interval"] is None
    assert claim.record()["seeds"] == [1]


@pytest.mark.parametrize("paper", [paper_0, paper_1, paper_2, paper_3, paper_4])
def test_every_paper_lists_points_with_three_seeds_or_more(paper):
    for quick in (True, False):
        points = paper.points(quick=quick)
        assert len({point.seed for point in points}) >= 3
        assert all(point.cost_s > 0 for point in points)
    assert len(paper.points(quick=True)) <= len(paper.points(quick=False)) * 1.01
