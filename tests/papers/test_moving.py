"""A client that moves takes its causal past along (trap T2.8)."""

import pytest
from tests.support.causal_histories import Broken, run_history

from nearcast.model.errors import MisuseError, PeerProtocolError
from nearcast.ordering import Deliver, Output
from nearcast.papers.delta_causal import MovingProcess


def group(count: int) -> list[MovingProcess]:
    return [MovingProcess(process=p, lifetime=0.25) for p in range(count)]


def payloads(outputs: list[Output]) -> list[bytes]:
    return [output.message.payload for output in outputs if isinstance(output, Deliver)]


def test_a_moved_client_takes_its_past_along() -> None:
    old, new, third, asker = group(4)
    question = asker.send({0, 2}, b"question", 1.0)
    old.receive(question[0], 1.01)
    new.adopt(old.past(1.02), 1.03)
    answer = new.send({2}, b"answer", 1.04)
    assert third.receive(answer[2], 1.05) == []
    assert payloads(third.receive(question[2], 1.06)) == [b"question", b"answer"]


def test_an_adopted_past_keeps_what_is_still_on_its_way_to_us() -> None:
    old, new, third, asker = group(4)
    question = asker.send({0, 1}, b"question", 1.0)
    old.receive(question[0], 1.01)
    new.adopt(old.past(1.02), 1.03)
    third.receive(new.send({2}, b"relayed", 1.04)[2], 1.05)
    back = third.send({1}, b"back", 1.06)
    assert new.receive(back[1], 1.07) == []
    assert payloads(new.receive(question[1], 1.08)) == [b"question", b"back"]


def test_a_damaged_or_future_past_changes_nothing() -> None:
    old, new, *_ = group(3)
    old.send({1, 2}, b"", 1.0)
    past = old.past(1.01)
    for damaged in [*(past[:length] for length in range(len(past))), past + b"x", b"\x0f" + past]:
        with pytest.raises(PeerProtocolError):
            new.adopt(damaged, 1.02)
    with pytest.raises(PeerProtocolError):
        new.adopt(past, 0.9)
    assert new.send({2}, b"", 0.95)[2].waits == set()


def test_time_running_backwards_is_refused() -> None:
    old, new = group(2)
    past = old.past(1.0)
    new.advance(1.1)
    for call in (lambda: new.past(1.0), lambda: new.adopt(past, 1.0)):
        with pytest.raises(MisuseError):
            call()


def test_a_long_past_finds_room() -> None:
    processes = group(300)
    for sender in processes[2:]:
        processes[0].receive(sender.send({0, 1}, b"", 1.0)[0], 1.01)
    processes[1].adopt(processes[0].past(1.02), 1.03)
    assert processes[1].footprint == 298


def test_histories_in_which_clients_move_keep_the_promise() -> None:
    for seed in range(40):
        run_history(seed, MovingProcess)


class PastLeftBehind(MovingProcess):
    """A client moves, its causal past does not."""

    def adopt(self, past: bytes, now: float) -> None:
        pass


def test_the_oracle_notices_a_past_that_is_left_behind() -> None:
    with pytest.raises(Broken):
        [run_history(seed, PastLeftBehind) for seed in range(200)]
