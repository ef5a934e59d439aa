"""Random histories under the eyes of the happened-before oracle (see conftest.py)."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from nearcast.ordering import (
    CausalProcess,
    DeltaCausal,
    KshemkalyaniSinghal,
    PrakashRaynalSinghal,
    RaynalSchiperToueg,
)

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


class Watched(DeltaCausal):
    """Checks what must hold of its rows after every delivery."""

    adopted = False

    def adopt(self, past: bytes, now: float) -> None:
        self.adopted = True
        super().adopt(past, now)

    def _absorb(self, message: Any) -> None:
        super()._absorb(message)
        for number, row in self._rows.items():
            times = [at for at, _ in row.entries]
            assert times == sorted(set(times))
            assert all(bits for _, bits in row.entries[:-1]), "an empty entry that is no marker"
            assert not row.union >> number & 1, "a message to its own sender"
            assert sum(bits.bit_count() for _, bits in row.entries) == row.union.bit_count(), (
                "an older and a newer entry of one sender share a destination"
            )
            if not self.adopted:
                assert not row.union & self._my_bit, "we ourselves in our own rows (T2.2)"


def test_rows_stay_ordered_disjoint_and_free_of_ourselves(run: Runner) -> None:
    for seed in range(40):
        run(seed, Watched)


class FullSetEntered(Watched):
    """Trap T2.2: enters the whole destination set, the receiver included."""

    def _absorb(self, message: Any) -> None:
        self._my_bit, bit = 0, self._my_bit
        DeltaCausal._absorb(self, message)
        self._my_bit = bit
        assert self.adopted or not any(row.union & bit for row in self._rows.values())


def test_the_invariants_notice_a_receiver_in_its_own_rows(run: Runner) -> None:
    with pytest.raises(AssertionError):
        [run(seed, FullSetEntered) for seed in range(5)]
