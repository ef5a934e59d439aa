"""Summaries of many boxes, and the alternative in which everybody knows everybody."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model.errors import LimitError, OutOfRangeError
from nearcast.overlay import (
    EventDelivery,
    Extent,
    OneHopPeer,
    OverlayEvent,
    count_false_positives,
    summarise,
)
from nearcast.overlay.bounds import covers

SQUARE = Extent((0.0, 0.0), (20.0, 20.0))
edges = st.integers(0, 19)
boxes = st.tuples(edges, edges, st.integers(1, 5), st.integers(1, 5)).map(
    lambda b: (
        (float(b[0]), float(b[1])),
        (float(min(b[0] + b[2], 20)), float(min(b[1] + b[3], 20))),
    )
)


def cells(box: Any) -> set[tuple[int, int]]:
    (x1, y1), (x2, y2) = box
    return {(x, y) for x in range(int(x1), int(x2)) for y in range(int(y1), int(y2))}


@given(st.lists(boxes, max_size=25), st.sampled_from([0.0, 0.2, 1.0, 5.0]))
def test_a_summary_covers_every_box_and_wastes_no_more_than_allowed(
    subscribed: Any, looseness: float
) -> None:
    summary = summarise(subscribed, SQUARE, looseness=looseness)
    asked = set().union(*map(cells, subscribed)) if subscribed else set()

    assert all(any(covers(whole, box) for whole in summary.boxes) for box in subscribed)
    assert len(summary.boxes) <= len(set(subscribed))
    for whole in summary.boxes:
        assert len(cells(whole)) <= (1 + looseness) * len(cells(whole) & asked) + 1e-9


@given(st.lists(boxes, min_size=1, max_size=25), st.integers(1, 4))
def test_a_limit_on_the_number_of_boxes_is_kept(subscribed: Any, most: int) -> None:
    summary = summarise(subscribed, SQUARE, looseness=0.0, most=most)
    assert len(summary.boxes) <= most
    assert all(any(covers(whole, box) for whole in summary.boxes) for box in subscribed)


@given(st.lists(boxes, min_size=1, max_size=12), st.integers(0, 99))
def test_false_positives_are_the_events_that_come_for_nobody(subscribed: Any, seed: int) -> None:
    random = Random(seed)
    events = [
        OverlayEvent.point(i, (random.uniform(0, 20), random.uniform(0, 20))) for i in range(60)
    ]
    summary = summarise(subscribed, SQUARE, looseness=2.0)

    def inside(event: OverlayEvent, some: Any) -> bool:
        return any(covers(box, (event.lows, event.highs)) for box in some)

    found = count_false_positives(summary, subscribed, events)
    assert found.admitted == sum(inside(event, summary.boxes) for event in events)
    assert found.wanted == sum(inside(event, subscribed) for event in events)
    assert found.false == found.admitted - found.wanted >= 0


def test_looser_summaries_have_fewer_boxes_and_more_false_positives() -> None:
    random = Random(1)
    subscribed = []
    for _ in range(120):
        x, y = random.uniform(0, 18), random.uniform(0, 18)
        subscribed.append(((x, y), (x + 1.0, y + 1.0)))
    events = [
        OverlayEvent.point(i, (random.uniform(0, 20), random.uniform(0, 20))) for i in range(800)
    ]
    sizes, shares = [], []
    for looseness in (0.0, 0.5, 2.0):
        summary = summarise(subscribed, SQUARE, looseness=looseness)
        sizes.append(len(summary.boxes))
        shares.append(count_false_positives(summary, subscribed, events).share)
    assert sizes[0] > sizes[1] > sizes[2]
    assert shares[0] == 0.0
    assert shares[0] <= shares[1] <= shares[2]


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(OutOfRangeError):
        summarise([], SQUARE, looseness=-0.1)
    with pytest.raises(LimitError):
        summarise([], SQUARE, looseness=0.0, most=0)
    with pytest.raises(OutOfRangeError):
        summarise([((5.0, 5.0), (1.0, 1.0))], SQUARE, looseness=0.0)
    assert summarise([], SQUARE, looseness=0.0).boxes == ()
    assert count_false_positives(summarise([], SQUARE, looseness=0.0), [], []).share == 0.0


def everybody(subscribed: Any) -> tuple[dict[str, OneHopPeer], list[tuple[str, Any]]]:
    peers: dict[str, OneHopPeer] = {}
    delivered: list[tuple[str, Any]] = []
    for number, box in enumerate(subscribed):
        peer = OneHopPeer(f"p{number}", SQUARE, [f"p{number - 1}"] if number else [])
        peers[peer.peer_id] = peer
        carry(peers, peer.peer_id, [*peer.announce([box], 0), *peer.join(0)], delivered)
    return peers, delivered


def carry(peers: Any, sender: str, outputs: Any, delivered: Any) -> int:
    sent, pending = 0, [(sender, output) for output in outputs]
    while pending:
        at, output = pending.pop(0)
        if isinstance(output, EventDelivery):
            delivered += [(at, event_id) for event_id in output.batch.ids]
        else:
            sent += 1
            pending += [(output.to, more) for more in peers[output.to].receive(output.body, 0)]
    return sent


@given(st.lists(boxes, min_size=1, max_size=8), st.integers(0, 7), st.tuples(edges, edges))
def test_one_hop_reaches_exactly_the_matching_peers(subscribed: Any, who: int, point: Any) -> None:
    peers, delivered = everybody(subscribed)
    publisher = f"p{who % len(subscribed)}"
    event = OverlayEvent.point("e", point)

    sent = carry(peers, publisher, peers[publisher].publish([event], 0), delivered)

    meant = [f"p{i}" for i, box in enumerate(subscribed) if covers(box, (event.lows, event.highs))]
    assert sorted(name for name, _ in delivered) == sorted(meant)
    assert sent == len([name for name in meant if name != publisher])


def test_a_change_is_told_to_all_and_an_old_word_is_ignored() -> None:
    peers, delivered = everybody([((0.0, 0.0), (1.0, 1.0))] * 4)
    old = peers["p0"].known["p0"]
    news = peers["p0"].announce([((5.0, 5.0), (6.0, 6.0))], 1)
    assert carry(peers, "p0", news, delivered) == 3
    peers["p3"].receive(old, 2)
    carry(peers, "p3", peers["p3"].publish([OverlayEvent.point("e", (5.5, 5.5))], 3), delivered)
    assert delivered == [("p0", "e")]
    assert (peers["p1"].wake_at(), peers["p1"].advance(9)) == (None, [])


def test_one_hop_refuses_what_is_no_box() -> None:
    with pytest.raises(OutOfRangeError):
        OneHopPeer("a", SQUARE).announce([((5.0, 5.0), (1.0, 1.0))], 0)
