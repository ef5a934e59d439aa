"""The watcher of paper 2: right orders pass, each kind of fault is counted."""

import pytest

from nearcast.papers.delta_causal.experiment import ALGORITHMS, CausalPoint
from nearcast.papers.delta_causal.oracle import CausalOracle, watched_row


def told(oracle: CausalOracle) -> dict[str, int]:
    return {name: count for name, count in oracle.verdict().items() if count}


def test_cause_before_effect_is_in_order():
    oracle = CausalOracle(3, lifetime_s=1.0)
    question = oracle.sends(0, 10.0)
    oracle.delivers(1, question, 10.1)
    answer = oracle.sends(1, 10.2)
    oracle.delivers(2, question, 10.3)
    oracle.delivers(2, answer, 10.3)
    assert told(oracle) == {"delivered": 3}


def test_an_effect_before_its_cause_is_found_through_a_third_process():
    oracle = CausalOracle(3, lifetime_s=1.0)
    question = oracle.sends(0, 10.0)
    oracle.delivers(1, question, 10.1)
    answer = oracle.sends(1, 10.2)
    oracle.delivers(2, answer, 10.3)
    oracle.delivers(2, question, 10.4)
    assert told(oracle) == {"delivered": 3, "misordered": 1}


def test_knowledge_is_passed_on_from_process_to_process():
    oracle = CausalOracle(4, lifetime_s=1.0)
    first = oracle.sends(0, 10.0)
    oracle.delivers(1, first, 10.1)
    second = oracle.sends(1, 10.2)
    oracle.delivers(2, second, 10.3)  # never sees the first, and yet knows of it
    third = oracle.sends(2, 10.4)
    oracle.delivers(3, third, 10.5)
    oracle.delivers(3, first, 10.6)
    assert told(oracle)["misordered"] == 1


def test_two_messages_of_one_sender_are_ordered_too():
    oracle = CausalOracle(2, lifetime_s=1.0)
    first, second = oracle.sends(0, 10.0), oracle.sends(0, 10.1)
    oracle.delivers(1, second, 10.2)
    oracle.delivers(1, first, 10.3)
    assert told(oracle)["misordered"] == 1


def test_what_has_nothing_to_do_with_each_other_may_come_in_any_order():
    oracle = CausalOracle(3, lifetime_s=1.0)
    first, second = oracle.sends(0, 10.0), oracle.sends(1, 10.1)
    oracle.delivers(2, second, 10.2)
    oracle.delivers(2, first, 10.3)
    assert told(oracle) == {"delivered": 2}


def test_late_doubled_and_missed_are_counted_and_late_arrivals_are_not_due():
    oracle = CausalOracle(3, lifetime_s=1.0)
    message = oracle.sends(0, 10.0)
    oracle.arrives(1, message, 10.5)
    oracle.arrives(2, message, 11.1)
    assert told(oracle) == {"in_time": 1, "missed": 1}
    oracle.delivers(1, message, 11.1)
    oracle.delivers(1, message, 10.6)
    assert told(oracle) == {"in_time": 1, "delivered": 2, "too_late": 1, "doubled": 1}


@pytest.mark.parametrize("pattern", ["subsets", "groups"])
@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_the_real_processes_pass(pattern: str, loss: float):
    point = CausalPoint(processes=6, pattern=pattern, loss=loss, warm_up=0, sends=300, seed=3)
    row = watched_row(point)
    assert row["delivered"] > 100
    assert row["in_time"] == row["delivered"]
    assert not any(row[name] for name in ("misordered", "missed", "too_late", "doubled"))


def test_a_process_that_orders_nothing_is_caught(monkeypatch: pytest.MonkeyPatch):
    from nearcast.ordering import CausalMessage, Deliver, DeltaCausal

    class Hasty(DeltaCausal):
        """Delivers as it arrives, and once more what it has heard properly."""

        def receive(self, message, now):
            return [Deliver(CausalMessage.decode(message))]

        def wake_at(self):
            return None

    monkeypatch.setitem(ALGORITHMS, "ours", Hasty)
    row = watched_row(CausalPoint(processes=6, warm_up=0, sends=300, seed=3))
    assert row["misordered"] > 10
    assert row["too_late"] > 0
