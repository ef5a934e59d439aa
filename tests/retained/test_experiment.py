"""The experiment's rows: complete, repeatable, and saying what must be true."""

import math

import pytest

from nearcast.model.errors import UnknownNameError
from nearcast.papers.form import Row
from nearcast.papers.learned_retained.claims import claims
from nearcast.papers.learned_retained.experiment import (
    POLICIES,
    reward_point,
    sensitivity_points,
    topic_point,
)


def test_a_point_is_the_same_for_the_same_seed() -> None:
    assert reward_point(seed=4, publish=0.1) == reward_point(seed=4, publish=0.1)


def test_no_policy_beats_the_best_and_none_of_ours_loses_to_plain() -> None:
    for omega in (0.2, 0.7, 0.95):
        row = reward_point(seed=1, omega=omega)
        assert all(row[name] <= row["best"] + 1e-9 for name in POLICIES)
        assert row["learned"] >= row["plain"]
        assert row["general"] >= row["plain"] - 1e-9


def test_where_nothing_can_be_gained_there_is_no_share() -> None:
    row = reward_point(seed=1, omega=0.95)

    assert row["share_learned"] is None
    assert row["attainable"] == pytest.approx(0.0, abs=1e-9)


def swept(kind: str, values: tuple[float, ...], seeds: tuple[int, ...]) -> list[Row]:
    """Return rows of a figure over `omega` or `publish`."""
    return [
        reward_point(seed=seed, **{kind: value}) | {"kind": kind}  # type: ignore[arg-type]
        for value in values
        for seed in seeds
    ]


def test_both_claims_hold_on_a_short_sweep() -> None:
    rows = swept("omega", (0.2, 0.5, 0.8), (1, 2)) + swept("publish", (0.1, 0.4, 0.8, 2.0), (1, 2))
    first, first_mean, second, second_mean = claims(rows)

    assert all(claim.holds for claim in (first, first_mean, second, second_mean))
    assert first.id == "C4.1"
    assert second.seeds == (1, 2)
    assert 0.0 < second.low <= second.high


def test_a_claim_that_the_rows_contradict_does_not_hold() -> None:
    rows = swept("omega", (0.2, 0.5, 0.8), (1,)) + swept("publish", (0.1, 2.0), (1,))
    assert all(claim.holds for claim in claims(rows))
    for row in rows[:4]:  # all of omega, the smallest publish
        row["learned"] = row["plain"] - 0.01
        row["mean_learned"] = row["mean_plain"] - 0.01

    assert not any(claim.holds for claim in claims(rows))


@pytest.mark.parametrize("kind", ["bursty", "very bursty", "steady"])
def test_publishing_otherwise_than_poisson_is_bounded_by_the_best(kind: str) -> None:
    row = reward_point(seed=1, publish=0.3, kind=kind)

    assert all(row[name] <= row["best"] + 1e-9 for name in POLICIES)


def test_an_unknown_way_of_publishing_is_refused() -> None:
    with pytest.raises(UnknownNameError):
        reward_point(seed=1, kind="sometimes")


def test_everything_to_be_varied_is_varied() -> None:
    assert {point["varied"] for point in sensitivity_points()} == {
        "shape", "floor", "scale", "Dmax", "kind",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("interval_s", "jitter"), [(0.1, 0.2), (1.0, 0.2), (2.0, 0.2), (1.0, None)]
)
def test_on_quick_topics_copies_fall_by_80_per_cent_within_the_age_that_omega_allows(
    interval_s: float, jitter: float | None
) -> None:
    row = topic_point(seed=2, interval_s=interval_s, jitter=jitter, newcomers=1000)

    assert row["traffic_saved"] >= 0.8
    assert row["age_s_learned"] <= row["bound_s"]
    assert row["wait_max_s_learned"] <= 10.0


@pytest.mark.parametrize("jitter", [0.2, None])
@pytest.mark.parametrize("interval_s", [30.0, 60.0])
def test_on_quiet_topics_nobody_waits_longer_than_with_plain_mqtt(
    interval_s: float, jitter: float | None
) -> None:
    row = topic_point(seed=3, interval_s=interval_s, jitter=jitter, newcomers=1000)

    assert row["wait_max_s_learned"] == row["wait_max_s_immediate"] == 0.0
    assert row["copies_learned"] == row["copies_immediate"]


def test_where_timeliness_is_all_that_counts_everyone_is_served_at_once() -> None:
    row = topic_point(seed=1, interval_s=1.0, omega=0.99, newcomers=300)

    assert row["wait_max_s_learned"] == 0.0
    assert math.isclose(row["age_s_learned"], row["age_s_immediate"])
