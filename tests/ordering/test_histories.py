"""Random histories under the happened-before oracle of `support/causal_histories.py`."""

from collections.abc import Iterable
from typing import Any

import pytest
from tests.support.causal_histories import number_of, run_chains, run_history
from tests.support.history_counts import HISTORIES, SOAK

from nearcast.ordering import CausalMessage, CausalProcess, DeltaCausal, Output, ProcessId
from nearcast.ordering.layout import COUNT, M_SENDER, M_SENT, ME, STRIDE, TABLE, WORDS, table_of

PARTS = 10


@pytest.mark.timeout(7200 if SOAK else 300)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_message_leaves_in_causal_order_at_the_instant_promised(part: int) -> None:
    deliveries = discards = 0
    for seed in range(part, HISTORIES, PARTS):
        oracle = run_history(seed, DeltaCausal)
        deliveries += oracle.deliveries
        discards += oracle.expected_discards
    assert deliveries > 0
    assert discards > 0  # histories in which nothing is ever late prove little


def test_dense_chains_with_clocks_far_apart_keep_the_promise() -> None:
    for seed in range(HISTORIES // 20):
        run_chains(seed, DeltaCausal)


class Named(DeltaCausal):
    """Has a name, and numbers the others as it meets them: each process in another way."""

    def __init__(self, process: int, lifetime: float, *, skew: float) -> None:
        super().__init__(f"n{process}", lifetime, skew=skew)

    def send(self, destinations: Iterable[ProcessId], *rest: Any, **more: Any) -> Any:
        copies = super().send({f"n{one}" for one in destinations}, *rest, **more)
        return {number_of(name): copy for name, copy in copies.items()}

    def forget(self, process: ProcessId) -> None:
        super().forget(f"n{process}")


@pytest.mark.timeout(7200 if SOAK else 300)
def test_names_that_each_process_numbers_its_own_way_keep_the_promise() -> None:
    for seed in range(HISTORIES // 2):
        run_history(seed, Named)


def rows_of(process: CausalProcess) -> dict[int, list[tuple[int, int]]]:
    words = int(process._state[WORDS])
    rows: dict[int, list[tuple[int, int]]] = {}
    for entry in table_of(process._state):
        bits = int.from_bytes(entry[2 : 2 + words].tobytes(), "little")
        rows.setdefault(int(entry[0]), []).append((int(entry[1]), bits))
    return rows


class Watched(DeltaCausal):
    """Checks what must hold of its rows after every arrival."""

    def receive(self, message: CausalMessage | bytes, now: float) -> list[Output]:
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
            assert not union >> me & 1, "we ourselves in our own rows (T2.2)"


def test_rows_stay_ordered_disjoint_and_free_of_ourselves() -> None:
    for seed in range(40):
        run_history(seed, Watched)


class FullSetEntered(Watched):
    """Trap T2.2: enters the whole destination set, the receiver included."""

    def check(self) -> None:
        state, me = self._state, int(self._state[ME])
        for entry in range(int(state[TABLE]), int(state[TABLE] + state[COUNT] * state[STRIDE]), 4):
            if (state[entry], state[entry + 1]) == (state[M_SENDER], state[M_SENT]):
                state[entry + 2] |= 1 << me
        super().check()


def test_the_invariants_notice_a_receiver_in_its_own_rows() -> None:
    with pytest.raises(AssertionError):
        [run_history(seed, FullSetEntered) for seed in range(5)]


def test_bytes_are_received_as_messages_are() -> None:
    for seed in range(40):
        run_history(seed, DeltaCausal, wire=bytes)
