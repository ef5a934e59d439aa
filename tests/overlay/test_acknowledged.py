"""QoS 1 between peers: every live subscriber gets an event once, although one relay dies."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import settings
from tests.support.overlay_net import OverlayNet

from nearcast.model.errors import PeerProtocolError
from nearcast.overlay import OverlayEvent
from nearcast.overlay.live.acknowledged import (
    Acknowledgements,
    AckTiming,
    EventAck,
    decode_acks,
    encode_acks,
    identity_of,
    is_sure,
    make_id,
)
from nearcast.overlay.messages import Address
from nearcast.overlay.seat import Gap

IS_SOAK = settings.default is not None and settings.default.max_examples > 50
SEEDS = range(300) if IS_SOAK else range(4)
A, B, C = (Address(name, 0) for name in "abc")


def _box(random: Random) -> tuple[tuple[float, float], tuple[float, float]]:
    x, y = random.uniform(0, 80), random.uniform(0, 80)
    return (x, y), (x + random.uniform(5, 30), y + random.uniform(5, 30))


def _wants(box: tuple[tuple[float, ...], tuple[float, ...]], point: tuple[float, float]) -> bool:
    return all(low <= x <= high for low, x, high in zip(box[0], point, box[1], strict=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_each_live_subscriber_gets_an_event_once_although_peers_die_one_by_one(seed):
    net, random = OverlayNet(seed), Random(seed)
    boxes = {}
    for number in range(random.randint(8, 16)):
        name = f"p{number}"
        boxes[name] = _box(random)
        net.add(name, [boxes[name]], [f"p{random.randrange(number)}"] if number else [])
        net.run(200)
    net.run(5_000)
    due: list[tuple[bytes, str, tuple[float, float], set[str]]] = []
    for _ in range(3):
        victim, moment = random.choice(sorted(net.peers)), random.randrange(10)
        for place in range(10):
            if place == moment:
                net.kill(victim)
            publisher = random.choice(sorted(set(net.peers) - {victim}))
            point = random.uniform(0, 100), random.uniform(0, 100)
            payload = b"%d" % len(due)
            net.publish(publisher, point, payload, sure=True)
            due.append((payload, publisher, point, set(net.peers) - {publisher, victim}))
            net.run(random.randint(1, 600))
        net.run(20_000)
    net.run(15_000)
    for payload, publisher, point, others in due:
        for name in others & set(net.peers):
            expected = int(_wants(boxes[name], point))
            assert net.got[name].count(payload) == expected, (payload, publisher, name)
    assert not any(len(peer.acks) for peer in net.peers.values())  # all confirmed


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_lost_messages_are_repeated_until_all_have_answered(seed):
    net, random = OverlayNet(seed), Random(seed)
    boxes = {f"p{number}": _box(random) for number in range(8)}
    for number, (name, box) in enumerate(boxes.items()):
        net.add(name, [box], ["p0"] if number else [])
        net.run(300)
    net.run(15_000)
    net._loss = 0.2
    for number in range(10):
        point = random.uniform(0, 100), random.uniform(0, 100)
        net.publish("p3", point, b"%d" % number, sure=True)
        net.run(100)
        boxes_of = {name: _wants(box, point) for name, box in boxes.items() if name != "p3"}
        net._loss = 0.2 if number < 5 else 0.0
        net.run(12_000)
        for name, wants in boxes_of.items():
            assert net.got[name].count(b"%d" % number) == int(wants)


def test_an_event_whose_answers_are_lost_is_sent_again_and_taken_once(monkeypatch):
    net = OverlayNet(1)
    net.add("a", [((0.0, 0.0), (10.0, 10.0))])
    net.add("b", [((0.0, 0.0), (50.0, 50.0))], ["a"])
    net.run(15_000)
    acks = net.peers["a"].acks
    monkeypatch.setattr(acks, "answered", lambda *_: None)
    net.publish("a", (5.0, 5.0), b"once", sure=True)
    net.run(8_000)
    assert acks.totals.repeated >= 2
    assert net.got["b"] == [b"once"]
    monkeypatch.undo()
    net.run(5_000)
    assert (len(acks), acks.totals.confirmed, net.got["b"]) == (0, 1, [b"once"])


def test_in_a_tree_at_rest_an_event_is_sent_once_and_confirmed():
    net = OverlayNet(1)
    for number in range(9):
        low = 10.0 * number
        net.add(f"p{number}", [((low, 0.0), (low + 5, 100.0))], ["p0"] if number else [])
        net.run(300)
    net.run(30_000)
    for number in range(9):
        net.publish("p4", (10.0 * number, 50.0), b"%d" % number, sure=True)
    net.run(900)
    totals = net.peers["p4"].acks.totals
    assert (totals.confirmed, totals.repeated, totals.unconfirmed) == (9, 0, 0)
    assert [net.got[f"p{number}"] for number in range(9) if number != 4] == [
        [b"%d" % number] for number in range(9) if number != 4
    ]


def test_at_rest_a_peer_sends_no_more_than_three_messages_a_second():
    net, random = OverlayNet(2), Random(2)
    for number in range(20):
        net.add(f"p{number}", [_box(random)], ["p0"] if number else [])
        net.run(300)
    net.run(30_000)
    before = net.messages
    net.run(20_000)
    assert (net.messages - before) / 20 / 20 <= 3


# --- the account of answers, by hand -------------------------------------------------------------


def _own(acks: Acknowledgements) -> bytes:
    event_id = acks.new_id(sure=True)
    assert acks.keep(OverlayEvent(event_id, (0.0,), (0.0,), b""), 0)
    return event_id


def test_an_event_is_kept_until_the_last_branch_has_answered():
    acks = Acknowledgements(bytes(8))
    event_id = _own(acks)
    acks.passed(event_id, None, [A, B], 0, is_clean=True)
    acks.answered("a", [EventAck(event_id, 0, True)])
    acks.answered("a", [EventAck(event_id, 0, True)])  # a second answer of the same branch
    acks.answered("c", [EventAck(event_id, 0, True)])  # a branch that was not asked
    assert (len(acks), acks.advance(999)) == (1, [])
    acks.answered("b", [EventAck(event_id, 0, True)])
    assert (len(acks), acks.totals.confirmed) == (0, 1)


@pytest.mark.parametrize("way", ["answer", "loss", "doubt", "silence"])
def test_an_event_whose_answer_is_not_clean_is_published_again(way):
    acks = Acknowledgements(bytes(8), AckTiming(retry_ms=100, keep_ms=1_000))
    event_id = _own(acks)
    acks.passed(event_id, None, [A], 0, is_clean=way != "doubt")
    if way == "loss":
        acks.lost("a")
    elif way != "silence":
        acks.answered("a", [EventAck(event_id, 0, way != "answer")])
    [again] = acks.advance(100)
    assert again.event_id != event_id
    assert identity_of(again.event_id) == identity_of(event_id)  # type: ignore[arg-type]
    acks.passed(again.event_id, None, [B], 100, is_clean=True)  # type: ignore[arg-type]
    acks.answered("b", [EventAck(again.event_id, 0, True)])  # type: ignore[arg-type]
    assert (len(acks), acks.totals.repeated, acks.totals.confirmed) == (0, 1, 1)


def _confirmed(acks: Acknowledgements, now: int) -> bytes:
    """Return an event of x = 5 that was sent at `now`, and confirmed at once."""
    event_id = acks.new_id(sure=True)
    assert acks.keep(OverlayEvent(event_id, (5.0,), (5.0,), b"payload"), now)
    acks.passed(event_id, None, [], now, is_clean=True)
    return event_id


@pytest.mark.parametrize(
    ("box", "since", "is_sent"),
    [
        (((4.0,), (6.0,)), 500, True),
        (((4.0,), (6.0,)), None, True),
        (((4.0,), (6.0,)), 1_001, False),  # sent before it began
        (((6.0,), (7.0,)), 500, False),  # elsewhere
    ],
)
def test_a_confirmed_event_that_fell_into_a_gap_is_sent_again(box, since, is_sent):
    told: list[Any] = []
    acks = Acknowledgements(bytes(8), AckTiming(hold_ms=9_000))
    acks.on_settled = told.append
    event_id = _confirmed(acks, 1_000)
    assert len(acks) == 0
    acks.missed(Gap(box, since), 100, 5_000)
    again = acks.advance(5_100)
    assert [identity_of(one.event_id) for one in again] == [identity_of(event_id)] * is_sent  # type: ignore[arg-type]
    for one in again:
        acks.passed(one.event_id, None, [], 5_100, is_clean=True)  # type: ignore[arg-type]
    assert (len(acks), acks.totals.confirmed, len(told)) == (0, 1, 1)


def test_a_confirmed_event_is_held_for_a_while_and_within_limits():
    timing = AckTiming(hold_ms=9_000, most_held=2, most_held_bytes=20)
    acks = Acknowledgements(bytes(8), timing)
    everything = Gap(((0.0,), (9.0,)), None)
    _confirmed(acks, 0)
    acks.missed(everything, 0, 9_000)  # too late
    assert acks.advance(20_000) == []
    last = [_confirmed(acks, 20_000) for _ in range(3)][-2:]
    acks.missed(everything, 0, 20_001)
    again = [identity_of(one.event_id) for one in acks.advance(20_001)]  # type: ignore[arg-type]
    assert again == [identity_of(one) for one in last]


def test_an_event_that_waits_already_is_sent_sooner_when_a_gap_ends():
    acks = Acknowledgements(bytes(8), AckTiming(retry_ms=1_000))
    event_id = _own(acks)
    acks.passed(event_id, None, [A], 0, is_clean=True)
    acks.missed(Gap(((0.0,), (9.0,)), None), 50, 100)
    assert len(acks.advance(150)) == 1


def test_an_event_is_given_up_in_the_end_and_counted():
    acks = Acknowledgements(bytes(8), AckTiming(retry_ms=100, keep_ms=1_000))
    event_id, now, sent = _own(acks), 0, 0
    acks.passed(event_id, None, [A], 0, is_clean=True)
    while (due := acks.wake_at()) is not None:
        now = due
        sent += len(acks.advance(now))
    assert (len(acks), acks.totals.unconfirmed) == (0, 1)
    assert sent >= 3


def test_an_answer_in_doubt_counts_once_all_doubts_of_the_beginning_have_ended():
    acks = Acknowledgements(bytes(8), AckTiming(retry_ms=100, keep_ms=9_000), doubt_ms=500)
    event_id = _own(acks)
    acks.passed(event_id, None, [], 0, is_clean=False)
    attempts = []
    while len(acks):
        due = acks.wake_at()
        assert due is not None
        for again in acks.advance(due):
            attempts.append(due)
            acks.passed(again.event_id, None, [], due, is_clean=False)  # type: ignore[arg-type]
    assert attempts == [100, 300, 700]
    assert (acks.totals.confirmed, acks.totals.unconfirmed) == (1, 0)
    acks.missed(Gap(((0.0,), (9.0,)), 600), 0, 5_000)  # it is held all the same
    assert len(acks.advance(5_000)) == 1
    while (last := acks.wake_at()) is not None:  # nobody answers
        acks.advance(last)
    assert (acks.totals.confirmed, acks.totals.unconfirmed) == (1, 0)


def test_repetitions_that_are_due_at_about_the_same_time_go_together():
    acks = Acknowledgements(bytes(8))
    for now in range(0, 1_000, 20):
        event_id = acks.new_id(sure=True)
        assert acks.keep(OverlayEvent(event_id, (0.0,), (0.0,), b""), now)
    sent: list[int] = []
    while sum(sent) < 50:
        due = acks.wake_at()
        assert due is not None
        assert 1_000 <= due < 2_250
        sent.append(len(acks.advance(due)))
    assert len(sent) <= 5


def test_a_relay_answers_when_all_its_branches_have():
    acks = Acknowledgements(bytes(8))
    event_id = make_id(b"another!", 1, sure=True)
    acks.passed(event_id, Address("up", 3), [A, B], 0, is_clean=True)
    acks.answered("a", [EventAck(event_id, 0, True)])
    assert acks.take() == []
    acks.answered("b", [EventAck(event_id, 0, False)])
    assert acks.take() == [("up", EventAck(event_id, 3, False))]
    acks.passed(event_id, Address("up", 4), [], 0, is_clean=True)
    assert acks.take() == [("up", EventAck(event_id, 4, True))]


def test_a_relay_that_loses_a_branch_does_not_answer():
    """An answer in doubt may count in the end; here nobody knows what became of the branch."""
    acks = Acknowledgements(bytes(8), AckTiming(relay_ms=500))
    event_id = make_id(b"another!", 1, sure=True)
    acks.passed(event_id, Address("up", 3), [A, B], 0, is_clean=True)
    acks.lost("a")
    acks.answered("b", [EventAck(event_id, 0, True)])
    assert acks.take() == []


def test_a_peer_that_is_perhaps_outside_the_tree_confirms_nothing_however_late():
    net = OverlayNet(1)
    net.add("alone", [((0.0, 0.0), (9.0, 9.0))], ["not there"])
    net.publish("alone", (5.0, 5.0), b"event", sure=True)
    net.run(25_000)
    totals = net.peers["alone"].acks.totals
    assert (totals.confirmed, totals.unconfirmed) == (0, 0)
    assert totals.repeated >= 5
    net.run(10_000)
    assert (totals.confirmed, totals.unconfirmed) == (0, 1)


def test_a_relay_forgets_what_nobody_answers_for():
    acks = Acknowledgements(bytes(8), AckTiming(relay_ms=500))
    event_id = make_id(b"another!", 1, sure=True)
    acks.passed(event_id, Address("up", 3), [A], 0, is_clean=True)
    assert acks.wake_at() == 500
    acks.advance(500)
    acks.answered("a", [EventAck(event_id, 0, True)])
    assert (acks.take(), acks.wake_at()) == ([], None)


def test_no_more_events_are_kept_than_allowed():
    acks = Acknowledgements(bytes(8), AckTiming(most_kept=1))
    _own(acks)
    event = OverlayEvent(acks.new_id(sure=True), (0.0,), (0.0,), b"")
    assert (acks.has_room, acks.keep(event, 0), acks.totals.refused) == (False, False, 1)


def test_answers_are_written_and_read():
    event_id = make_id(b"12345678", 2**40, sure=True, attempt=9)
    acks = [EventAck(event_id, 0, True), EventAck(event_id, 7, False)]
    assert decode_acks(encode_acks(2, acks)) == (2, acks)
    assert (is_sure(event_id), is_sure(make_id(bytes(8), 1, sure=False))) == (True, False)
    for damaged in (b"", b"\0", b"\0\xc1", encode_acks(0, [EventAck(b"short", 0, True)])):
        with pytest.raises(PeerProtocolError):
            decode_acks(damaged)
