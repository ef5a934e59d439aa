"""Causal processes with one mistake each."""

from typing import Any

import numpy as np
from tests.support.causal_accounts import account_of, retold

from nearcast.ordering import CausalMessage, DeltaCausal, Discard, DiscardReason, Output
from nearcast.ordering.layout import (
    COUNT,
    DELIVERED,
    KEEP,
    LIFETIME,
    ME,
    WORDS,
    table_of,
)


def set_table(process: DeltaCausal, rows: list[Any]) -> None:
    state = process._state
    rows.sort(key=lambda row: (row[0], row[1]))
    state[COUNT] = len(rows)
    if rows:
        table_of(state)[:] = np.array(rows)


class MessageNotEntered(DeltaCausal):
    """T2.1: the received message never gets into the rows."""

    def receive(self, message: CausalMessage, now: float) -> list[Output]:  # type: ignore[override]
        return super().receive(retold(message, destinations=1 << int(self._state[ME])), now)


class MessageEnteredTooEarly(DeltaCausal):
    """T2.1: the received message enters our rows before the merge."""

    def receive(self, message: CausalMessage, now: float) -> list[Output]:  # type: ignore[override]
        state, sender = self._state, message.sender_number
        words, me = int(state[WORDS]), int(state[ME])
        if words == 1 and message.sent_us > state[state[DELIVERED] + sender]:
            bits = account_of(message).destinations & ~(1 << me)
            rows = [row.copy() for row in table_of(self._state)]
            known = any((row[0], row[1]) == (sender, message.sent_us) for row in rows)
            if bits < 1 << 63 and state[COUNT] < 20 and not known:
                set_table(self, [*rows, np.array([sender, message.sent_us, bits, 0])])
        return super().receive(message, now)


class WaitsForTheWrongTime(DeltaCausal):
    """T2.3: what to wait for carries the time of the present send."""

    def send(self, *arguments: Any, **keywords: Any) -> Any:
        copies = super().send(*arguments, **keywords)
        return {
            to: retold(copy, waits=tuple((k, copy.sent_us - 1) for k, _ in account_of(copy).waits))
            for to, copy in copies.items()
        }


class NoChains(DeltaCausal):
    """T2.4: what a delivery releases is delivered, but releases nobody in turn."""

    def receive(self, message: CausalMessage, now: float) -> list[Output]:  # type: ignore[override]
        outputs = super().receive(message, now)
        return [
            one
            for one in outputs
            if one.message is message or message.sender in {k for k, _ in one.message.waits}
        ]


class ForgetsWithoutSkew(DeltaCausal):
    """T2.6: rows expire at the lifetime of our own clock, though others run behind."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._state[KEEP] = self._state[LIFETIME]


class RefusesEveryStampAhead(DeltaCausal):
    """T2.6: takes clocks for equal, and discards what a faster one has sent."""

    def receive(self, message: CausalMessage, now: float) -> list[Output]:  # type: ignore[override]
        if message.sent_us > round(now * 1e6):
            return [self._discard(message, DiscardReason.FUTURE)]
        return super().receive(message, now)


class ShortLivedSettles(DeltaCausal):
    """T2.7: a message that gives up at its own deadline lets its successors go."""

    def advance(self, now: float) -> list[Output]:
        outputs = super().advance(now)
        for one in outputs:
            if isinstance(one, Discard):
                at = self._state[DELIVERED] + one.message.sender_number
                self._state[at] = max(self._state[at], one.message.sent_us)
        return outputs


class OwnLifetimeIgnored(DeltaCausal):
    """T2.7: a message waits beyond its own lifetime."""

    def receive(self, message: CausalMessage, now: float) -> list[Output]:  # type: ignore[override]
        return super().receive(retold(message, lifetime_us=0), now)


class ForgetsNobody(DeltaCausal):
    """T2.5: whoever leaves stays in all destination sets."""

    def forget(self, process: int | str) -> None:
        pass


class MarkersForEver(DeltaCausal):
    """T2.5: by the paper's listing, each sender's last marker is kept for ever."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._state[KEEP] = 1 << 40


def gone_stays_gone(kind: type[DeltaCausal]) -> bool:
    one = kind(process=0, lifetime=0.25)
    one.send({1, 3}, b"", 1.0)
    one.forget(3)
    return not any(
        bits >> 3 & 1
        for row in account_of(one.send({1}, b"", 1.01)[1]).rows.values()
        for _, bits in row
    )


def expired_leaves_nothing(kind: type[DeltaCausal]) -> bool:
    processes = [kind(process=p, lifetime=0.25) for p in range(5)]
    for step in range(50):
        sender, now = step % 5, 1.0 + step / 100
        for to, copy in processes[sender].send({(sender + 1) % 5}, b"", now).items():
            processes[int(to)].receive(copy, now + 0.001)
    for process in processes:
        process.advance(9.0)
    return all(process.footprint == 0 for process in processes)
