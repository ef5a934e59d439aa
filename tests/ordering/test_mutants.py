"""The oracle notices every trap: each class here falls into one, and is caught."""

from typing import Any

import pytest
from tests.support.causal_accounts import account_of, retold
from tests.support.causal_histories import Broken, run_history
from tests.support.ordering_mutants import (
    ForgetsNobody,
    ForgetsWithoutSkew,
    MarkersForEver,
    MessageEnteredTooEarly,
    MessageNotEntered,
    NoChains,
    OwnLifetimeIgnored,
    RefusesEveryStampAhead,
    ShortLivedSettles,
    WaitsForTheWrongTime,
    expired_leaves_nothing,
    gone_stays_gone,
    set_table,
)

from nearcast.ordering import CausalMessage, DeltaCausal, DiscardReason, Output
from nearcast.ordering.layout import (
    CLOCK,
    DELIVERED,
    ME,
    SKEW,
    UNTIL,
    WATCHERS,
    table_of,
)


class NeverLooksAgain(DeltaCausal):
    """T2.4: a delivery releases nobody; only timers do."""

    def receive(self, message: CausalMessage, now: float) -> list[Output]:  # type: ignore[override]
        self._state[self._state[WATCHERS] : self._state[UNTIL]] = 0
        return super().receive(message, now)


class NoTimers(DeltaCausal):
    """T2.4: never asks to be woken."""

    def wake_at(self) -> float | None:
        return None


class StampsByTheClockAlone(DeltaCausal):
    """T2.6: stamps a send with the clock, even if what it follows is stamped later."""

    def send(self, *arguments: Any, **keywords: Any) -> Any:
        self._state[CLOCK] = -1
        return super().send(*arguments, **keywords)


class DeadlineExcluded(DeltaCausal):
    """Takes the deadline itself for late."""

    def receive(self, message: CausalMessage, now: float) -> list[Output]:  # type: ignore[override]
        own_us = account_of(message).lifetime_us or self._lifetime_us
        if round(now * 1e6) == message.sent_us + own_us:
            return [self._discard(message, DiscardReason.LATE)]
        return super().receive(message, now)


class DeliversDoubles(DeltaCausal):
    """Forgets what was delivered."""

    def receive(self, message: CausalMessage, now: float) -> list[Output]:  # type: ignore[override]
        self._state[self._state[DELIVERED] + message.sender_number] = -1
        return super().receive(message, now)


class DropsMarkersAtOnce(DeltaCausal):
    """Takes a row left out for one that is settled, as if all rows were always sent."""

    def receive(self, message: CausalMessage, now: float) -> list[Output]:  # type: ignore[override]
        told = {*account_of(message).rows, int(self._state[ME])}
        set_table(self, [row.copy() for row in table_of(self._state) if int(row[0]) in told])
        return super().receive(message, now)


MUTANTS = [
    MessageNotEntered,
    MessageEnteredTooEarly,
    WaitsForTheWrongTime,
    NeverLooksAgain,
    NoChains,
    NoTimers,
    ForgetsWithoutSkew,
    StampsByTheClockAlone,
    RefusesEveryStampAhead,
    ShortLivedSettles,
    OwnLifetimeIgnored,
    DeadlineExcluded,
    DeliversDoubles,
    DropsMarkersAtOnce,
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_oracle_notices(mutant: type[DeltaCausal]) -> None:
    with pytest.raises(Broken):
        [run_history(seed, mutant) for seed in range(200)]


# -- T2.5: who has gone, and what has expired, must not stay -----------------------------------


def test_the_gone_and_the_expired_stay_nowhere() -> None:
    assert gone_stays_gone(DeltaCausal)
    assert not gone_stays_gone(ForgetsNobody)
    assert expired_leaves_nothing(DeltaCausal)
    assert not expired_leaves_nothing(MarkersForEver)


# -- beyond the paper: rows that their destination knows are left out --------------------------


class OmitsWhatHasChanged(DeltaCausal):
    """Leaves out rows that were known once, although they have grown since."""

    def receive(self, message: CausalMessage, now: float) -> list[Output]:  # type: ignore[override]
        known: dict[int, int] = {}
        for row in table_of(self._state):
            known[int(row[0])] = known.get(int(row[0]), 0) | int(row[3])
        outputs = super().receive(message, now)
        for row in table_of(self._state):
            row[3] |= known.get(int(row[0]), 0)
        return outputs


class OmitsWithoutSkew(DeltaCausal):
    """Takes what has expired here for expired everywhere."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._state[SKEW] = 0


class TakesTheLostForTold(DeltaCausal):
    """Takes every row it has for known to all destinations of whatever arrives."""

    def receive(self, message: CausalMessage, now: float) -> list[Output]:  # type: ignore[override]
        outputs = super().receive(message, now)
        for row in table_of(self._state):
            row[3] |= account_of(message).destinations
        return outputs


def held_after_a_late_lesson(kind: type[DeltaCausal]) -> bool:
    """0 → {1, 3} twice; between, 1 tells 2 of the first; 2 → 3 must wait at 3 for the second."""
    zero, one, two, three = (kind(process=p, lifetime=0.25, skew=0.001) for p in range(4))
    first = zero.send({1, 3}, b"", 1.0)
    one.receive(first[1], 1.005)
    two.receive(one.send({2}, b"", 1.010)[2], 1.012)
    three.receive(first[3], 1.013)
    one.receive(zero.send({1, 3}, b"", 1.015)[1], 1.020)
    two.receive(one.send({2}, b"", 1.030)[2], 1.035)
    return three.receive(two.send({3}, b"", 1.040)[3], 1.045) == []


def held_after_a_loss_between_clocks(kind: type[DeltaCausal]) -> bool:
    """1 tells 2 twice, the first is lost; 2's clock is 0.1 s ahead of 3's; 2 → 3 must wait."""
    zero, two, three = (DeltaCausal(process=p, lifetime=0.25, skew=0.1) for p in (0, 2, 3))
    one = kind(process=1, lifetime=0.25, skew=0.1)
    old = zero.send({1, 3}, b"", 1.0)
    one.receive(old[1], 1.010)
    one.send({2}, b"lost", 1.020)
    assert two.receive(one.send({2}, b"", 1.030)[2], 1.150) == []
    assert len(two.advance(1.271)) == 1
    return three.receive(two.send({3}, b"", 1.272)[3], 1.180) == []


def held_after_a_loss_beside_us(kind: type[DeltaCausal]) -> bool:
    """1 tells 2 and 3, lost at 3; 2 → 3; 3's clock is 0.1 s ahead of 4's; 3 → 4 must wait."""
    zero, one, three, four = (DeltaCausal(process=p, lifetime=0.25, skew=0.1) for p in (0, 1, 3, 4))
    two = kind(process=2, lifetime=0.25, skew=0.1)
    one.receive(zero.send({1, 4}, b"", 1.0)[1], 1.010)
    two.receive(one.send({2, 3}, b"", 1.020)[2], 1.025)
    assert three.receive(two.send({3}, b"", 1.030)[3], 1.150) == []
    assert len(three.advance(1.271)) == 1
    return four.receive(three.send({4}, b"", 1.272)[4], 1.180) == []


def held_though_only_we_were_told(kind: type[DeltaCausal]) -> bool:
    """2 knows of 0's message; 1 → {2, 3} does not; 2 → 3 must tell, so that 3 → 4 waits."""
    zero, one, three, four = (DeltaCausal(process=p, lifetime=0.25) for p in (0, 1, 3, 4))
    two = kind(process=2, lifetime=0.25)
    two.receive(zero.send({2, 4}, b"", 1.0)[2], 1.010)
    news = one.send({2, 3}, b"", 1.020)
    two.receive(news[2], 1.030)
    three.receive(news[3], 1.030)
    three.receive(two.send({3}, b"", 1.040)[3], 1.050)
    return four.receive(three.send({4}, b"", 1.060)[4], 1.070) == []


class OmitsItsOwnRow(DeltaCausal):
    """Leaves out its own row where it is known, so that it seems to be settled."""

    def send(self, *arguments: Any, **keywords: Any) -> Any:
        copies = super().send(*arguments, **keywords)
        own = int(self._state[ME])
        return {
            to: retold(copy, rows={k: r for k, r in account_of(copy).rows.items() if k != own})
            for to, copy in copies.items()
        }


def held_though_others_told_of_us(kind: type[DeltaCausal]) -> bool:
    """1 → {2, 5}; 5 tells 6, 6 tells 1 and 3 of it; then 1 → 3; 3 → 2 must wait at 2."""
    two, three, five, six = (DeltaCausal(process=p, lifetime=0.25) for p in (2, 3, 5, 6))
    one = kind(process=1, lifetime=0.25)
    five.receive(one.send({2, 5}, b"", 1.0)[5], 1.01)
    six.receive(five.send({6}, b"", 1.02)[6], 1.03)
    told = six.send({1, 3}, b"", 1.04)
    one.receive(told[1], 1.05)
    three.receive(told[3], 1.05)
    three.receive(one.send({3}, b"", 1.06)[3], 1.07)
    return two.receive(three.send({2}, b"", 1.08)[2], 1.09) == []


def test_leaving_out_what_is_known_is_safe_only_as_it_is_done() -> None:
    assert held_though_others_told_of_us(DeltaCausal)
    assert not held_though_others_told_of_us(OmitsItsOwnRow)
    assert held_after_a_late_lesson(DeltaCausal)
    assert not held_after_a_late_lesson(OmitsWhatHasChanged)
    assert held_after_a_loss_between_clocks(DeltaCausal)
    assert not held_after_a_loss_between_clocks(OmitsWithoutSkew)
    assert held_after_a_loss_beside_us(DeltaCausal)
    assert not held_after_a_loss_beside_us(OmitsWithoutSkew)
    assert held_though_only_we_were_told(DeltaCausal)
    assert not held_though_only_we_were_told(TakesTheLostForTold)


def test_what_its_destination_knows_is_not_repeated() -> None:
    zero, one, two = (DeltaCausal(process=p, lifetime=0.25) for p in range(3))
    one.receive(zero.send({1, 9}, b"", 1.0)[1], 1.010)
    news = one.send({2, 3}, b"", 1.020)
    assert set(account_of(news[2]).rows) == {0}
    two.receive(news[2], 1.030)
    assert 0 not in account_of(two.send({3}, b"", 1.040)[3]).rows  # 1 has told it
    assert 0 not in account_of(two.send({1}, b"", 1.050)[1]).rows  # it is from 1
    assert set(account_of(two.send({5}, b"", 1.060)[5]).rows) >= {0}
