"""The oracle notices every trap: each class here falls into one, and is caught."""

from collections.abc import Callable
from typing import Any

import pytest

from nearcast.ordering import CausalProcess, DeltaCausal, Discard, Message, Reason
from nearcast.ordering.message import Body, Cast
from nearcast.ordering.wire import Row

Runner = Callable[[int, type[CausalProcess]], Any]


class MessageNotEntered(DeltaCausal):
    """T2.1: the received message never gets into the rows."""

    def _absorb(self, message: Message) -> None:
        bare = message.cast._replace(destinations=self._my_bit)
        super()._absorb(message._replace(cast=bare))


class MessageEnteredTooEarly(DeltaCausal):
    """T2.1: the received message enters our rows before the merge."""

    def _absorb(self, message: Message) -> None:
        cast = message.cast
        row = self._rows.get(cast.sender)
        entry = (cast.sent_us, cast.destinations & ~self._my_bit)
        self._put(cast.sender, Row((*(row.entries if row else ()), entry)))
        super()._absorb(message)


class WaitsForTheWrongTime(DeltaCausal):
    """T2.3: what to wait for carries the time of the present send."""

    def _compose(self, cast: Cast, numbers: list[int], now_us: int) -> list[Message]:
        copies = super()._compose(cast, numbers, now_us)
        return [
            copy._replace(waits=tuple((k, cast.sent_us - 1) for k, _ in copy.waits))
            for copy in copies
        ]


class NeverLooksAgain(DeltaCausal):
    """T2.4: a delivery releases nobody; only timers do."""

    def _released_by(self, sender: int, now_us: int, outputs: Any) -> list[Message]:
        return []


class NoChains(DeltaCausal):
    """T2.4: what a delivery releases is delivered, but releases nobody in turn."""

    def _deliver(self, message: Message, now_us: int, outputs: Any) -> None:
        self.fresh = True
        super()._deliver(message, now_us, outputs)

    def _released_by(self, sender: int, now_us: int, outputs: Any) -> list[Message]:
        if self.fresh:
            self.fresh = False
            return super()._released_by(sender, now_us, outputs)
        return []


class NoTimers(DeltaCausal):
    """T2.4: never asks to be woken."""

    def wake_at(self) -> float | None:
        return None


class ForgetsWithoutSkew(DeltaCausal):
    """T2.6: rows expire at the lifetime of our own clock, though others run behind."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._keep_us = self._lifetime_us


class StampsByTheClockAlone(DeltaCausal):
    """T2.6: stamps a send with the clock, even if what it follows is stamped later."""

    def send(self, *arguments: Any, **keywords: Any) -> Any:
        self._clock_us = -1
        return super().send(*arguments, **keywords)


class RefusesEveryStampAhead(DeltaCausal):
    """T2.6: takes clocks for equal, and discards what a faster one has sent."""

    def _refusal(self, message: Message, now_us: int) -> Reason | None:
        return Reason.FUTURE if message.sent_us > now_us else super()._refusal(message, now_us)


class ShortLivedSettles(DeltaCausal):
    """T2.7: a message that gives up at its own deadline lets its successors go."""

    def _discard(self, message: Message, reason: Reason) -> Discard:
        if reason is Reason.WAITED_TOO_LONG:
            self._delivered[message.cast.sender] = message.sent_us
        return super()._discard(message, reason)


class OwnLifetimeIgnored(DeltaCausal):
    """T2.7: a message waits beyond its own lifetime."""

    def _deadline_us(self, message: Message) -> int:
        return message.sent_us + self._lifetime_us


class PastLeftBehind(DeltaCausal):
    """T2.8: a client moves, its causal past does not."""

    def adopt(self, past: bytes, now: float) -> None:
        pass


class DeadlineExcluded(DeltaCausal):
    """Takes the deadline itself for late."""

    def _deadline_us(self, message: Message) -> int:
        return super()._deadline_us(message) - 1


class DeliversDoubles(DeltaCausal):
    """Forgets what was delivered."""

    def _refusal(self, message: Message, now_us: int) -> Reason | None:
        reason = super()._refusal(message, now_us)
        return None if reason is Reason.DUPLICATE else reason


class DropsMarkersAtOnce(DeltaCausal):
    """Takes a row left out for one that is settled, as if all rows were always sent."""

    def _absorb(self, message: Message) -> None:
        for number in list(self._rows):
            if number not in message.body.rows and number != self._me:
                del self._rows[number]
        super()._absorb(message)


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
    PastLeftBehind,
    DeadlineExcluded,
    DeliversDoubles,
    DropsMarkersAtOnce,
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_oracle_notices(
    mutant: type[DeltaCausal], run: Runner, broken: type[AssertionError]
) -> None:
    with pytest.raises(broken):
        [run(seed, mutant) for seed in range(200)]


class OmitsWhatHasChanged(DeltaCausal):
    """Beyond the paper, done wrong: leaves out old rows although they are news."""

    def _news(self, since_us: int) -> Body:
        rows = {k: r for k, r in self._rows.items() if r.last_us > since_us - self._skew_us}
        return Body(rows, self._clock_us, self._width)


class OmitsWithoutSkew(DeltaCausal):
    """Beyond the paper, done wrong: takes what has expired here for expired everywhere."""

    def _news(self, since_us: int) -> Body:
        rows = {k: r for k, r in self._rows.items() if self._changed[k] >= since_us}
        return Body(rows, self._clock_us, self._width)


def held_after_a_late_lesson(kind: type[DeltaCausal]) -> bool:
    """0 → {1, 3}; 1 → 2; 1 learns of 0's; 1 → 2 again; 2 → 3 must wait at 3 for 0's."""
    zero, one, two, three = (kind(process=p, lifetime=0.25, skew=0.001) for p in range(4))
    old = zero.send({1, 3}, b"", 1.0)
    two.receive(one.send({2}, b"", 1.010)[2], 1.012)
    one.receive(old[1], 1.020)
    two.receive(one.send({2}, b"", 1.030)[2], 1.035)
    return three.receive(two.send({3}, b"", 1.040)[3], 1.045) == []


def held_after_a_loss_between_clocks(kind: type[DeltaCausal]) -> bool:
    """1 tells 2 twice, the first is lost; 2's clock is 0.1 s ahead of 3's; 2 → 3 must wait."""
    zero, one, two, three = (kind(process=p, lifetime=0.25, skew=0.1) for p in range(4))
    old = zero.send({1, 3}, b"", 1.0)
    one.receive(old[1], 1.010)
    one.send({2}, b"lost", 1.020)
    assert two.receive(one.send({2}, b"", 1.030)[2], 1.150) == []
    assert len(two.advance(1.271)) == 1
    return three.receive(two.send({3}, b"", 1.272)[3], 1.180) == []


def test_leaving_out_what_was_told_before_is_safe_only_as_it_is_done() -> None:
    assert held_after_a_late_lesson(DeltaCausal)
    assert not held_after_a_late_lesson(OmitsWhatHasChanged)
    assert held_after_a_loss_between_clocks(DeltaCausal)
    assert not held_after_a_loss_between_clocks(OmitsWithoutSkew)
