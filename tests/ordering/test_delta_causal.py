"""What Δ-causal delivery promises, one example at a time; and what it refuses."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from nearcast.model.errors import (
    KeyInUseError,
    LimitError,
    MisuseError,
    OutOfRangeError,
    PeerProtocolError,
    UnknownNameError,
)
from nearcast.ordering import (
    Deliver,
    DeltaCausal,
    Discard,
    KshemkalyaniSinghal,
    Message,
    Output,
    Reason,
    offset_of,
)
from nearcast.ordering.account import write_account


def group(count: int, **settings: Any) -> list[DeltaCausal]:
    return [DeltaCausal(process=p, lifetime=0.25, **settings) for p in range(count)]


def payloads(outputs: list[Output]) -> list[bytes]:
    return [output.message.payload for output in outputs if isinstance(output, Deliver)]


def reasons(outputs: list[Output]) -> list[Reason]:
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
    assert reasons(three.receive(question[2], 1.26)) == [Reason.LATE]
    assert three.wake_at() is None


def test_the_deadline_itself_is_in_time() -> None:
    one, two = group(2)
    copies = [one.send({1}, b"", at)[1] for at in (1.0, 2.0)]
    assert payloads(two.receive(copies[0], 1.25)) == [b""]
    assert reasons(two.receive(copies[1], 2.250001)) == [Reason.LATE]


def test_a_short_lived_message_gives_up_alone() -> None:
    one, two = group(2)
    first = one.send({1}, b"first", 1.0)[1]
    short = one.send({1}, b"short", 1.01, lifetime=0.05)[1]
    last = one.send({1}, b"last", 1.02)[1]
    assert two.receive(short, 1.03) == two.receive(last, 1.03) == []
    assert two.wake_at() == 1.060001
    assert reasons(two.advance(1.060001)) == [Reason.WAITED_TOO_LONG]
    assert payloads(two.receive(first, 1.1)) == [b"first"]
    assert two.wake_at() == 1.260001  # `last` waits for `short` as if it had been lost
    assert payloads(two.advance(1.260001)) == [b"last"]


def test_doubles_are_discarded_whether_delivered_or_waiting() -> None:
    one, two = group(2)
    first, second = (one.send({1}, b"", at)[1] for at in (1.0, 1.01))
    assert two.receive(second, 1.02) == []
    assert reasons(two.receive(second, 1.02)) == [Reason.DUPLICATE]
    assert len(two.receive(first, 1.03)) == 2
    assert reasons(two.receive(first, 1.04)) == [Reason.DUPLICATE]
    assert two.counters.discarded[Reason.DUPLICATE] == 2
    assert (two.counters.delivered, two.counters.held) == (2, 1)


def test_two_sends_in_one_instant_have_different_stamps() -> None:
    one, _ = group(2)
    assert one.send({1}, b"", 1.0)[1].sent_us + 1 == one.send({1}, b"", 1.0)[1].sent_us


def test_a_message_from_the_future_is_discarded_and_counted() -> None:
    one, two = group(2, skew=0.01)
    ahead, far_ahead = (one.send({1}, b"", at)[1] for at in (1.01, 1.02))
    assert reasons(two.receive(far_ahead, 1.0)) == [Reason.FUTURE]
    assert two.counters.skew_violations == 1
    assert payloads(two.receive(ahead, 1.0)) == [b""]
    assert two.send({0}, b"", 1.0)[0].sent_us == 1_010_001  # later than what it follows


def test_measured_offsets_beyond_the_bound_are_counted() -> None:
    one, *_ = group(3, skew=0.01)
    assert one.observe_offset(1, -0.01)
    assert not one.observe_offset(2, 0.011)
    assert one.offsets == {1: -0.01, 2: 0.011}
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


def test_whoever_left_is_taken_out_of_all_destination_sets() -> None:
    one, *_ = group(4)
    one.send({1, 3}, b"", 1.0)
    one.forget(3)
    assert one.send({1}, b"", 1.01)[1].account().rows == {}
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
    bob.receive(Message.decode(question["bob"].encode()), 1.01)
    answer = bob.send({"cy"}, b"answer", 1.02)["cy"]
    assert answer.sender == "bob"
    assert cy.receive(Message.decode(answer.encode()), 1.03) == []
    assert payloads(cy.receive(question["cy"], 1.04)) == [b"question", b"answer"]


# -- bytes, and several at once ------------------------------------------------------------


def test_bytes_are_judged_and_received_in_one_step() -> None:
    one, two, three = group(3)
    question = one.send({1, 2}, b"question", 1.0)
    two.receive(question[1].encode(), 1.01)
    answer = two.send({2}, b"answer", 1.02)[2].encode()
    assert three.receive(answer, 1.03) == []
    assert three.receive(answer, 1.03)[0].reason is Reason.DUPLICATE  # type: ignore[union-attr]
    outputs = three.receive(question[2].encode(), 1.04)
    assert payloads(outputs) == [b"question", b"answer"]
    assert [output.message.sender for output in outputs] == [0, 1]


def test_bytes_that_are_no_message_change_nothing() -> None:
    one, two = group(2)
    data = one.send({1}, b"payload", 1.0)[1].encode()
    before = two.snapshot()
    for length in range(len(data)):
        with pytest.raises(PeerProtocolError):
            two.receive(data[:length], 1.01)
    with pytest.raises(PeerProtocolError):
        two.receive(data + b"x", 1.01)
    with pytest.raises(MisuseError):
        two.receive(data, -1.0)
    again = DeltaCausal.restore(before)
    assert two.counters == again.counters
    assert payloads(two.receive(data, 1.0)) == [b"payload"]


def test_a_damaged_message_does_not_keep_the_others_of_its_batch() -> None:
    one, two = group(2)
    first, second = (one.send({1}, text, at)[1].encode() for text, at in ((b"a", 1.0), (b"b", 1.1)))
    outputs = two.receive_many([second, first[:-1], b"", first], 1.11)
    assert payloads(outputs) == [b"a", b"b"]
    assert reasons(outputs) == [Reason.MALFORMED, Reason.MALFORMED]
    assert two.counters.discarded[Reason.MALFORMED] == 2
    assert two.receive_many([], 1.11) == []
    with pytest.raises(MisuseError):
        two.receive_many([first], 1.0)


def test_names_are_received_in_batches_too() -> None:
    ada, bob = (DeltaCausal(process=p, lifetime=0.25) for p in ("ada", "bob"))
    messages = [ada.send({"bob"}, b"x", at)["bob"].encode() for at in (1.0, 1.1)]
    outputs = bob.receive_many([*messages, b"x"], 1.11)
    assert payloads(outputs) == [b"x", b"x"]
    assert reasons(outputs) == [Reason.MALFORMED]


@pytest.mark.parametrize("kind", [DeltaCausal, KshemkalyaniSinghal])
@pytest.mark.parametrize("seed", range(8))
def test_many_at_once_are_received_as_one_after_the_other(
    seed: int, kind: type[DeltaCausal]
) -> None:
    random = Random(seed)
    ids = random.choice([range(4), [0, 1, 63, 64, 200]])
    senders = {p: kind(process=p, lifetime=0.25) for p in ids}
    together, singly = (kind(process=9, lifetime=0.25) for _ in range(2))
    waiting: list[bytes] = []
    for step in range(300):
        now = 1.0 + step * 0.004
        sender = random.choice(list(ids))
        to = {*random.sample([p for p in ids if p != sender], 2), 9}
        for one, copy in senders[sender].send(to, b"p", now).items():
            if one == 9:
                waiting.append(copy.encode())
            elif random.random() < 0.8:
                senders[int(one)].receive(copy, now)
        if random.random() < 0.1:
            random.shuffle(waiting)
            batch, waiting = waiting, []
            expected = [output for data in batch for output in singly.receive(data, now)]
            assert together.receive_many(batch, now) == expected
            assert together.counters == singly.counters
            assert together.wake_at() == singly.wake_at()
    assert singly.counters.held > 10


def test_a_thousand_that_wait_for_one_are_released_by_it() -> None:
    one, two = group(2)
    first, *others = [one.send({1}, b"%d" % i, 1.0 + i / 10_000)[1].encode() for i in range(1000)]
    assert two.receive_many(others[::-1], 1.1) == []
    assert two.holding == 999
    assert payloads(two.receive(first, 1.2)) == [b"%d" % i for i in range(1000)]


# -- room, restarts, clocks ----------------------------------------------------------------


def test_numbers_and_entries_beyond_the_first_room_find_room() -> None:
    ids = [*range(130), 4095]
    processes = {p: DeltaCausal(process=p, lifetime=10) for p in ids}
    now = 1.0
    for sender in ids:
        now += 0.001
        to = {ids[(ids.index(sender) + step) % len(ids)] for step in (1, 2, 70, 130)} - {sender}
        for one, copy in processes[sender].send(to, b"", now).items():
            outputs = processes[int(one)].receive(Message.decode(copy.encode()), now)
            assert outputs == [] or payloads(outputs)[0] == b""
    assert max(p.footprint for p in processes.values()) > 64


def talked() -> tuple[DeltaCausal, DeltaCausal, DeltaCausal, dict[Any, Message]]:
    one, two, three = group(3)
    question = one.send({1, 2}, b"question", 1.0)
    two.receive(question[1], 1.01)
    assert three.receive(two.send({2}, b"answer", 1.02)[2], 1.03) == []
    three.observe_offset(1, 0.005)
    return one, two, three, question


def test_a_restored_process_goes_on_where_the_other_stopped() -> None:
    *_, three, question = talked()
    again = DeltaCausal.restore(three.snapshot())
    assert (again.process, again.lifetime, again.offsets) == (2, 0.25, {1: 0.005})
    assert again.counters == three.counters
    assert again.wake_at() == three.wake_at() == 1.250001
    assert payloads(again.receive(question[2], 1.04)) == [b"question", b"answer"]
    sent, expected = again.send({0, 1}, b"", 1.05), None
    three.receive(question[2], 1.04)
    expected = three.send({0, 1}, b"", 1.05)
    assert {k: m.encode() for k, m in sent.items()} == {k: m.encode() for k, m in expected.items()}
    assert again.snapshot() == three.snapshot()


def test_a_restored_process_wakes_for_what_it_holds() -> None:
    again = DeltaCausal.restore(talked()[2].snapshot())
    assert payloads(again.advance(1.250001)) == [b"answer"]
    assert again.holding == 0


def test_a_restored_member_of_a_closed_group_knows_the_others() -> None:
    ada = DeltaCausal(process="ada", lifetime=1, processes=["bob", "ada", "cy"])
    ada.forget("cy")
    again = DeltaCausal.restore(ada.snapshot())
    assert again.send({"bob"}, b"", 1.0)["bob"].names == ("bob", "ada", "cy")
    with pytest.raises(UnknownNameError):
        again.send({"cy"}, b"", 1.1)


def test_a_damaged_or_foreign_snapshot_is_refused() -> None:
    snapshot = talked()[2].snapshot()
    for damaged in (b"", snapshot[:-1], snapshot[:40] + b"x" + snapshot[41:], b"x" + snapshot[1:]):
        with pytest.raises(PeerProtocolError):
            DeltaCausal.restore(damaged)
    with pytest.raises(PeerProtocolError):
        KshemkalyaniSinghal.restore(snapshot)


def test_an_offset_is_measured_from_a_question_and_its_answer() -> None:
    offset = offset_of(asked=10.0, heard=12.25, answered=12.5, returned=10.75)
    assert (offset.ahead_s, offset.error_s) == (2.0, 0.25)
    assert offset.exceeds(1.5)
    assert not offset.exceeds(1.75)
    for bad in ((2.0, 1.0, 1.0, 1.0), (1.0, 2.0, 1.0, 2.0), (1.0, 1.0, 9.0, 2.0)):
        with pytest.raises(OutOfRangeError):
            offset_of(*bad)
    with pytest.raises(OutOfRangeError):
        offset_of(float("nan"), 1.0, 1.0, 1.0)


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
        ({"lifetime": 1, "process": 3, "processes": [1, 2]}, UnknownNameError),
        ({"lifetime": 1, "processes": [1, 1]}, KeyInUseError),
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
        ({1, 9}, b"", 2.0, None),
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
    one = DeltaCausal(process=0, lifetime=0.25, processes=range(3))
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
        lambda: two.past(1.0),
        lambda: two.adopt(one.past(1.0), 1.0),
    ):
        with pytest.raises(MisuseError):
            call()
    assert payloads(two.receive(message, 1.1)) == [b""]


def test_unknown_members_are_refused_until_admitted() -> None:
    one = DeltaCausal(process=0, lifetime=0.25, processes=[0, 1])
    stranger = DeltaCausal(process=2, lifetime=0.25)
    assert reasons(one.receive(stranger.send({0}, b"", 1.0)[0], 1.0)) == [Reason.UNKNOWN_PROCESS]
    with pytest.raises(UnknownNameError):
        one.forget(2)
    with pytest.raises(MisuseError):
        one.forget(0)
    one.admit(2)
    assert payloads(one.receive(stranger.send({0}, b"", 1.5)[0], 1.5)) == [b""]
    one.forget(2)
    with pytest.raises(UnknownNameError):
        one.send({2}, b"", 1.6)


def test_misdirected_and_foreign_messages_are_discarded() -> None:
    one, two, three = group(3)
    copies = one.send({1, 2}, b"", 1.0)
    assert reasons(three.receive(copies[1], 1.0)) == [Reason.NOT_FOR_US]
    other = KshemkalyaniSinghal(process=0, lifetime=0.25).send({1}, b"", 1.0)[1]
    assert reasons(two.receive(other, 1.0)) == [Reason.OTHER_ALGORITHM]
    named = DeltaCausal(process="a", lifetime=0.25).send({"b"}, b"", 1.0)["b"]
    assert reasons(two.receive(named, 1.0)) == [Reason.UNKNOWN_PROCESS]
    assert payloads(two.receive(copies[1], 1.0)) == [b""]


def retold(message: Message, **changes: Any) -> Message:
    """Return the message with another account of the past."""
    data = write_account(replace(message.account(), **changes), len(message.payload))
    return Message(data, len(data), message.payload, message.names)


def lies() -> list[Message]:
    honest = DeltaCausal(process=0, lifetime=0.25).send({1}, b"", 1.0)[1]
    return [
        retold(honest, rows={1: ((999_999, 4),)}),  # knows a message that we never sent
        retold(honest, waits=((1, 900_000),)),  # has us wait for ourselves
    ]


def impossible() -> list[Message]:
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
def test_what_no_process_can_truthfully_say_is_not_even_read(message: Message) -> None:
    with pytest.raises(PeerProtocolError):
        Message.decode(message.encode())


@pytest.mark.parametrize("lie", lies())
def test_a_provable_lie_about_the_past_is_discarded_and_leaves_no_trace(lie: Message) -> None:
    two = DeltaCausal(process=1, lifetime=0.25)
    two.advance(0.9)
    assert reasons(two.receive(lie, 1.0)) == [Reason.CONTRADICTION]
    assert two.counters.discarded[Reason.CONTRADICTION] == 1
    assert two.send({0, 2}, b"", 1.0)[2].account().rows == {}


def test_a_lie_that_could_be_true_holds_only_the_liar_and_only_for_a_lifetime() -> None:
    one, two, three = group(3)
    lie = retold(one.send({1}, b"lie", 1.0)[1], waits=((9, 999_000),))
    assert two.receive(lie, 1.01) == []
    assert payloads(two.receive(three.send({1}, b"honest", 1.02)[1], 1.03)) == [b"honest"]
    assert payloads(two.advance(1.249001)) == [b"lie"]
