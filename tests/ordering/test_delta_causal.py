"""What Δ-causal delivery promises, one example at a time; and what it refuses."""

from random import Random
from typing import Any

import pytest
from tests.support.causal_accounts import account_of, retold

from nearcast.model.errors import LimitError, MisuseError, OutOfRangeError, PeerProtocolError
from nearcast.ordering import CausalMessage, Deliver, DeltaCausal, Discard, DiscardReason, Output
from nearcast.ordering.layout import grown, table_of


def group(count: int, **settings: Any) -> list[DeltaCausal]:
    return [DeltaCausal(process=p, lifetime=0.25, **settings) for p in range(count)]


def payloads(outputs: list[Output]) -> list[bytes]:
    return [output.message.payload for output in outputs if isinstance(output, Deliver)]


def rows_of(process: DeltaCausal) -> list[list[int]]:
    return table_of(process._state).tolist()  # type: ignore[no-any-return]


def reasons(outputs: list[Output]) -> list[DiscardReason]:
    return [output.reason for output in outputs if isinstance(output, Discard)]


def test_an_answer_waits_for_the_question_it_overtook() -> None:
    one, two, three = group(3)
    question = one.send({1, 2}, b"question", 1.0)
    two.receive(question[1], 1.01)
    answer = two.send({2}, b"answer", 1.02)
    assert three.receive(answer[2], 1.03) == []
    assert three.holding == 1
    assert payloads(three.receive(question[2], 1.04)) == [b"question", b"answer"]


def test_a_missing_predecessor_holds_no_longer_than_its_own_deadline() -> None:
    one, two, three = group(3)
    question = one.send({1, 2}, b"question", 1.0)
    two.receive(question[1], 1.01)
    assert three.receive(two.send({2}, b"answer", 1.02)[2], 1.03) == []
    assert three.wake_at() == 1.250001
    assert three.advance(1.25) == []
    assert payloads(three.advance(1.250001)) == [b"answer"]
    assert reasons(three.receive(question[2], 1.26)) == [DiscardReason.LATE]
    assert three.wake_at() is None


def test_the_deadline_itself_is_in_time() -> None:
    one, two = group(2)
    copies = [one.send({1}, b"", at)[1] for at in (1.0, 2.0)]
    assert payloads(two.receive(copies[0], 1.25)) == [b""]
    assert reasons(two.receive(copies[1], 2.250001)) == [DiscardReason.LATE]


def test_a_short_lived_message_gives_up_alone() -> None:
    one, two = group(2)
    first = one.send({1}, b"first", 1.0)[1]
    short = one.send({1}, b"short", 1.01, lifetime=0.05)[1]
    last = one.send({1}, b"last", 1.02)[1]
    assert two.receive(short, 1.03) == two.receive(last, 1.03) == []
    assert two.wake_at() == 1.060001
    assert reasons(two.advance(1.060001)) == [DiscardReason.WAITED_TOO_LONG]
    assert payloads(two.receive(first, 1.1)) == [b"first"]
    assert two.wake_at() == 1.260001  # `last` waits for `short` as if it had been lost
    assert payloads(two.advance(1.260001)) == [b"last"]


def test_doubles_are_discarded_whether_delivered_or_waiting() -> None:
    one, two = group(2)
    first, second = (one.send({1}, b"", at)[1] for at in (1.0, 1.01))
    assert two.receive(second, 1.02) == []
    assert reasons(two.receive(second, 1.02)) == [DiscardReason.DUPLICATE]
    assert len(two.receive(first, 1.03)) == 2
    assert reasons(two.receive(first, 1.04)) == [DiscardReason.DUPLICATE]
    assert two.counters.discarded[DiscardReason.DUPLICATE] == 2
    assert (two.counters.delivered, two.counters.held) == (2, 1)


def test_two_sends_in_one_instant_have_different_stamps() -> None:
    one, _ = group(2)
    assert one.send({1}, b"", 1.0)[1].sent_us + 1 == one.send({1}, b"", 1.0)[1].sent_us


def test_a_message_from_the_future_is_discarded_and_counted() -> None:
    one, two = group(2, skew=0.01)
    ahead, far_ahead = (one.send({1}, b"", at)[1] for at in (1.01, 1.02))
    assert reasons(two.receive(far_ahead, 1.0)) == [DiscardReason.FUTURE]
    assert two.counters.skew_violations == 1
    assert payloads(two.receive(ahead, 1.0)) == [b""]
    assert two.send({0}, b"", 1.0)[0].sent_us == 1_010_001  # later than what it follows


def test_measured_offsets_beyond_the_bound_are_counted() -> None:
    one, *_ = group(3, skew=0.01)
    assert one.observe_offset(1, -0.01)
    assert not one.observe_offset(2, 0.011)
    assert one.counters.skew_violations == 1
    assert one.observe_offset(2, 0.015, error=0.006)  # it may be 9 ms
    assert not one.observe_offset(2, 0.015, error=0.004)
    for offset, error in ((float("nan"), 0.0), (0.0, -1.0), (0.0, float("inf"))):
        with pytest.raises(OutOfRangeError):
            one.observe_offset(1, offset, error=error)
    with pytest.raises(MisuseError):
        one.observe_offset("one", 0.0)


def test_a_measured_clock_adds_no_name_to_messages() -> None:
    ada = DeltaCausal(process="ada", lifetime=1)
    ada.observe_offset("stranger", 0.0)
    assert ada.send({"bob"}, b"", 1.0)["bob"].names == ("ada", "bob")


def test_whoever_left_is_taken_out_of_all_destination_sets() -> None:
    one, *_ = group(4)
    one.send({1, 3}, b"", 1.0)
    one.forget(3)
    assert account_of(one.send({1}, b"", 1.01)[1]).rows == {}
    assert one.send({3}, b"", 1.02)[3].waits == set()


def test_what_has_expired_leaves_no_trace() -> None:
    processes = group(6)
    random = Random(1)
    for step in range(400):
        now = 1.0 + step / 100
        sender = random.randrange(6)
        copies = processes[sender].send({(sender + 1) % 6, (sender + 2) % 6}, b"", now)
        for to, copy in copies.items():
            processes[int(to)].receive(copy, now + 0.005)
    for process in processes:
        process.advance(6.0)
        assert process.footprint == 0
        assert (process.holding, process.wake_at()) == (0, None)


def test_a_late_joiner_learns_the_past_from_its_first_message() -> None:
    one, two, three = group(3)
    old = one.send({1, 2}, b"old", 1.0)
    two.receive(old[1], 1.01)
    newcomer = DeltaCausal(process=7, lifetime=0.25)
    newcomer.receive(two.send({7}, b"", 1.02)[7], 1.03)
    assert three.receive(newcomer.send({2}, b"new", 1.04)[2], 1.05) == []
    assert payloads(three.receive(old[2], 1.06)) == [b"old", b"new"]


def test_names_serve_as_well_as_numbers() -> None:
    ada, bob, cy = (DeltaCausal(process=p, lifetime=0.25) for p in ("ada", "bob", "cy"))
    question = ada.send({"bob", "cy"}, b"question", 1.0)
    bob.receive(CausalMessage.decode(question["bob"].encode()), 1.01)
    answer = bob.send({"cy"}, b"answer", 1.02)["cy"]
    assert answer.sender == "bob"
    assert cy.receive(CausalMessage.decode(answer.encode()), 1.03) == []
    assert payloads(cy.receive(question["cy"], 1.04)) == [b"question", b"answer"]


# -- bytes ------------------------------------------------------------


def test_bytes_are_judged_and_received_in_one_step() -> None:
    one, two, three = group(3)
    question = one.send({1, 2}, b"question", 1.0)
    two.receive(question[1].encode(), 1.01)
    answer = two.send({2}, b"answer", 1.02)[2].encode()
    assert three.receive(answer, 1.03) == []
    assert three.receive(answer, 1.03)[0].reason is DiscardReason.DUPLICATE  # type: ignore[union-attr]
    outputs = three.receive(question[2].encode(), 1.04)
    assert payloads(outputs) == [b"question", b"answer"]
    assert [output.message.sender for output in outputs] == [0, 1]


def test_bytes_that_are_no_message_change_nothing() -> None:
    one, two = group(2)
    data = one.send({1}, b"payload", 1.0)[1].encode()
    before = two.counters
    for length in range(len(data)):
        with pytest.raises(PeerProtocolError):
            two.receive(data[:length], 1.01)
    with pytest.raises(PeerProtocolError):
        two.receive(data + b"x", 1.01)
    with pytest.raises(MisuseError):
        two.receive(data, -1.0)
    assert two.counters == before
    assert payloads(two.receive(data, 1.0)) == [b"payload"]


def test_a_thousand_that_wait_for_one_are_released_by_it() -> None:
    one, two = group(2)
    first, *others = [one.send({1}, b"%d" % i, 1.0 + i / 10_000)[1].encode() for i in range(1000)]
    assert [two.receive(other, 1.1) for other in others[::-1]] == [[]] * 999
    assert two.holding == 999
    assert payloads(two.receive(first, 1.2)) == [b"%d" % i for i in range(1000)]


# -- room ----------------------------------------------------------------


def test_numbers_and_entries_beyond_the_first_room_find_room() -> None:
    ids = [*range(130), 4095]
    processes = {p: DeltaCausal(process=p, lifetime=10) for p in ids}
    now = 1.0
    for sender in ids:
        now += 0.001
        to = {ids[(ids.index(sender) + step) % len(ids)] for step in (1, 2, 70, 130)} - {sender}
        for one, copy in processes[sender].send(to, b"", now).items():
            outputs = processes[int(one)].receive(CausalMessage.decode(copy.encode()), now)
            assert outputs == [] or payloads(outputs)[0] == b""
    assert max(p.footprint for p in processes.values()) > 64


def test_what_is_due_at_an_arrival_leaves_room_for_it() -> None:
    """Two that wait bring ten rows each, one that arrives 26; tables begin with room for 32."""
    processes = {p: DeltaCausal(process=p, lifetime=0.25) for p in range(60)}
    roomy = DeltaCausal(process=0, lifetime=0.25)
    roomy._use(grown(roomy._state, 63, 512, 512, 512))
    for teller in (1, 2):
        processes[teller].send({0}, b"lost", 1.0)
    for teller, others in ((1, range(10, 20)), (2, range(20, 30)), (3, range(30, 56))):
        for other in others:
            copies = processes[other].send({teller, 59}, b"", 1.02)
            processes[teller].receive(copies[teller], 1.02)
    held = [processes[teller].send({0}, b"held", 1.03)[0] for teller in (1, 2)]
    arrives = processes[3].send({0}, b"arrives", 1.1)[0]
    for process in (processes[0], roomy):
        assert [process.receive(one, 1.04) for one in held] == [[], []]
        assert payloads(process.receive(arrives, 1.255)) == [b"held", b"held", b"arrives"]
    assert rows_of(processes[0]) == rows_of(roomy)
    assert len(rows_of(roomy)) > 30


# -- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"lifetime": 0}, OutOfRangeError),
        ({"lifetime": -1}, OutOfRangeError),
        ({"lifetime": float("nan")}, OutOfRangeError),
        ({"lifetime": 1, "skew": -0.1}, OutOfRangeError),
        ({"lifetime": 1, "process": -1}, LimitError),
        ({"lifetime": 1, "process": 5000}, LimitError),
        ({"lifetime": 1, "process": ""}, MisuseError),
        ({"lifetime": 1, "process": True}, MisuseError),
    ],
)
def test_a_process_that_cannot_be_is_refused(
    settings: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        DeltaCausal(**{"process": 1, **settings})


@pytest.mark.parametrize(
    ("destinations", "payload", "now", "lifetime"),
    [
        (set(), b"", 2.0, None),
        ({0}, b"", 2.0, None),
        ({1, 0}, b"", 2.0, None),
        ({1, 4096}, b"", 2.0, None),
        ({1, "two"}, b"", 2.0, None),
        ("12", b"", 2.0, None),
        ({1}, "text", 2.0, None),
        ({1}, b"", 0.9, None),
        ({1}, b"", float("inf"), None),
        ({1}, b"", 2.0, 0),
        ({1}, b"", 2.0, 0.3),
    ],
)
def test_a_bad_send_raises_and_changes_nothing(
    destinations: Any, payload: Any, now: float, lifetime: float | None
) -> None:
    one = DeltaCausal(process=0, lifetime=0.25)
    one.send({1}, b"", 1.0)
    with pytest.raises(MisuseError):
        one.send(destinations, payload, now, lifetime=lifetime)
    after = one.send({1, 2}, b"", 1.1)
    assert after[1].waits == {(0, 1_000_000)}
    assert one.counters.sent == 2


def test_time_running_backwards_is_refused_everywhere() -> None:
    one, two = group(2)
    message = one.send({1}, b"", 1.0)[1]
    two.advance(1.1)
    for call in (
        lambda: two.receive(message, 1.0),
        lambda: two.advance(1.0),
    ):
        with pytest.raises(MisuseError):
            call()
    assert payloads(two.receive(message, 1.1)) == [b""]


def test_misdirected_and_foreign_messages_are_discarded() -> None:
    one, two, three = group(3)
    copies = one.send({1, 2}, b"", 1.0)
    assert reasons(three.receive(copies[1], 1.0)) == [DiscardReason.NOT_FOR_US]
    named = DeltaCausal(process="a", lifetime=0.25).send({"b"}, b"", 1.0)["b"]
    assert reasons(two.receive(named, 1.0)) == [DiscardReason.UNKNOWN_PROCESS]
    assert payloads(two.receive(copies[1], 1.0)) == [b""]
    with pytest.raises(MisuseError):
        one.forget(0)


def test_a_name_too_many_is_discarded() -> None:
    ada = DeltaCausal(process="ada", lifetime=0.25)
    ada.send({f"n{i}" for i in range(4095)}, b"", 1.0)
    stranger = DeltaCausal(process="stranger", lifetime=0.25).send({"ada"}, b"", 1.0)["ada"]
    assert reasons(ada.receive(stranger, 1.0)) == [DiscardReason.UNKNOWN_PROCESS]
    with pytest.raises(LimitError):
        ada.send({"stranger"}, b"", 1.1)


def lies() -> list[CausalMessage]:
    honest = DeltaCausal(process=0, lifetime=0.25).send({1}, b"", 1.0)[1]
    return [
        retold(honest, rows={1: ((999_999, 4),)}),  # knows a message that we never sent
        retold(honest, waits=((1, 900_000),)),  # has us wait for ourselves
    ]


def impossible() -> list[CausalMessage]:
    honest = DeltaCausal(process=0, lifetime=0.25).send({1}, b"", 1.0)[1]
    return [
        retold(honest, rows={2: ((1_000_000, 8),)}),  # knows what is not yet sent
        retold(honest, rows={2: ((900_000, 4),)}),  # somebody sends to itself
        retold(honest, rows={2: ((900_000, 8), (800_000, 16))}),  # one sender out of order
        retold(honest, waits=((2, 1_000_000),)),  # has us wait for what comes after
        retold(honest, destinations=4),  # is not for us after all
        retold(honest, destinations=3),  # goes to its own sender
    ]


@pytest.mark.parametrize("message", impossible())
def test_what_no_process_can_truthfully_say_is_not_even_read(message: CausalMessage) -> None:
    with pytest.raises(PeerProtocolError):
        CausalMessage.decode(message.encode())


@pytest.mark.parametrize("lie", lies())
def test_a_provable_lie_about_the_past_is_discarded_and_leaves_no_trace(lie: CausalMessage) -> None:
    two = DeltaCausal(process=1, lifetime=0.25)
    two.advance(0.9)
    assert reasons(two.receive(lie, 1.0)) == [DiscardReason.CONTRADICTION]
    assert two.counters.discarded[DiscardReason.CONTRADICTION] == 1
    assert account_of(two.send({0, 2}, b"", 1.0)[2]).rows == {}


def test_a_lie_that_could_be_true_holds_only_the_liar_and_only_for_a_lifetime() -> None:
    one, two, three = group(3)
    lie = retold(one.send({1}, b"lie", 1.0)[1], waits=((9, 999_000),))
    assert two.receive(lie, 1.01) == []
    assert payloads(two.receive(three.send({1}, b"honest", 1.02)[1], 1.03)) == [b"honest"]
    assert payloads(two.advance(1.249001)) == [b"lie"]
