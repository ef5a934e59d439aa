"""Random histories under the eyes of the happened-before oracle (see conftest.py)."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from nearcast.ordering import (
    CausalProcess,
    DeltaCausal,
    KshemkalyaniSinghal,
    Message,
    Output,
    PrakashRaynalSinghal,
    ProcessId,
    RaynalSchiperToueg,
)
from nearcast.ordering.layout import COUNT, M_SENDER, M_SENT, ME, STRIDE, TABLE, entries_of

SOAK = os.environ.get("NEARCAST_HYPOTHESIS") == "soak"
HISTORIES = 10_000 if SOAK else 200
PARTS = 10

Runner = Callable[[int, type[CausalProcess]], Any]


@pytest.mark.timeout(7200 if SOAK else 300)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_message_leaves_in_causal_order_at_the_instant_promised(
    run: Runner, part: int
) -> None:
    deliveries = discards = 0
    for seed in range(part, HISTORIES, PARTS):
        oracle = run(seed, DeltaCausal)
        deliveries += oracle.deliveries
        discards += oracle.expected_discards
    assert deliveries > 0
    assert discards > 0  # histories in which nothing is ever late prove little


@pytest.mark.timeout(7200 if SOAK else 300)
@pytest.mark.parametrize("peer", [RaynalSchiperToueg, PrakashRaynalSinghal, KshemkalyaniSinghal])
def test_the_compared_algorithms_keep_the_same_promise(
    run: Runner, peer: type[CausalProcess]
) -> None:
    for seed in range(HISTORIES // 10):
        run(seed, peer)


def test_dense_chains_with_clocks_far_apart_keep_the_promise(run_dense: Runner) -> None:
    for seed in range(HISTORIES // 20):
        run_dense(seed, DeltaCausal)


def rows_of(process: CausalProcess) -> dict[int, list[tuple[int, int]]]:
    state = process._state
    rows: dict[int, list[tuple[int, int]]] = {}
    for sender, at_us, bits in entries_of(state, TABLE, int(state[COUNT])):
        rows.setdefault(sender, []).append((at_us, bits))
    return rows


class Watched(DeltaCausal):
    """Checks what must hold of its rows after every arrival."""

    adopted = False

    def adopt(self, past: bytes, now: float) -> None:
        self.adopted = True
        super().adopt(past, now)

    def receive(self, message: Message | bytes, now: float) -> list[Output]:
        outputs = super().receive(message, now)
        self.check()
        return outputs

    def check(self) -> None:
        me = int(self._state[ME])
        for number, row in rows_of(self).items():
            times = [at for at, _ in row]
            union = 0
            for _, bits in row:
                assert not union & bits, "an older and a newer entry share a destination"
                union |= bits
            assert times == sorted(set(times))
            assert all(bits for _, bits in row[:-1]), "an empty entry that is no marker"
            assert not union >> number & 1, "a message to its own sender"
            if not self.adopted:
                assert not union >> me & 1, "we ourselves in our own rows (T2.2)"


def test_rows_stay_ordered_disjoint_and_free_of_ourselves(run: Runner) -> None:
    for seed in range(40):
        run(seed, Watched)


class FullSetEntered(Watched):
    """Trap T2.2: enters the whole destination set, the receiver included."""

    def check(self) -> None:
        state, me = self._state, int(self._state[ME])
        for entry in range(int(state[TABLE]), int(state[TABLE] + state[COUNT] * state[STRIDE]), 4):
            if (state[entry], state[entry + 1]) == (state[M_SENDER], state[M_SENT]):
                state[entry + 2] |= 1 << me
        super().check()


def test_the_invariants_notice_a_receiver_in_its_own_rows(run: Runner) -> None:
    with pytest.raises(AssertionError):
        [run(seed, FullSetEntered) for seed in range(5)]


class FromBytes(DeltaCausal):
    """Gets bytes, one after the other or as a batch."""

    def receive(self, message: Message | bytes, now: float) -> list[Output]:
        data = message if isinstance(message, bytes) else message.encode()
        return super().receive(data, now) if data[2] & 1 else self.receive_many([data], now)


def test_bytes_are_received_as_messages_are(run: Runner) -> None:
    for seed in range(40):
        run(seed, FromBytes)


class Restarting(DeltaCausal):
    """Stops and goes on from its snapshot before every send."""

    def send(self, *arguments: Any, **keywords: Any) -> dict[ProcessId, Message]:
        again = DeltaCausal.restore(self.snapshot())
        self.__dict__.update(again.__dict__)
        return super().send(*arguments, **keywords)


def test_restarts_from_a_snapshot_change_nothing(run: Runner) -> None:
    for seed in range(12):
        run(seed, Restarting)
