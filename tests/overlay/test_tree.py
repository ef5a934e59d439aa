"""Delivered = matching, each once, from any publisher; and the tree is one."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearcast.model.errors import KeyInUseError, KeyMissingError, MisuseError, OutOfRangeError
from nearcast.overlay import (
    Climb,
    Extent,
    Method,
    OverlayEvent,
    OverlayPeer,
    Settings,
    Split,
    violations,
)

MakeTown = Callable[..., Any]

edges = st.integers(0, 9)
boxes = st.tuples(edges, edges, edges, edges).map(
    lambda b: (
        (float(min(b[0], b[1])), float(min(b[2], b[3]))),
        (float(max(b[0], b[1])), float(max(b[2], b[3]))),
    )
)
TINY = Extent((0.0, 0.0), (9.0, 9.0))
few = settings(
    max_examples=max(10, settings.default.max_examples // 2) if settings.default else 25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@few
@given(
    subscribed=st.lists(boxes, min_size=1, max_size=14),
    events=st.lists(st.tuples(st.integers(0, 13), boxes, st.booleans()), min_size=1, max_size=4),
    method=st.sampled_from(Method),
    split=st.sampled_from(Split),
    climb=st.sampled_from(Climb),
)
def test_every_matching_peer_gets_an_event_once_whoever_publishes_it(
    make_town: MakeTown, subscribed: Any, events: Any, method: Method, split: Split, climb: Climb
) -> None:
    town = make_town(extent=TINY, method=method, split=split, climb=climb)
    for lows, highs in subscribed:
        town.join(lows, highs)
        town.net.run(60)
    town.net.rest()

    assert violations(town.net.peers.values()) == []
    for publisher, (lows, highs), is_point in events:
        got, meant = town.publish(
            f"p{publisher % len(subscribed)}", lows, lows if is_point else highs
        )
        assert got == meant


@pytest.mark.parametrize("climb", Climb)
def test_t3_4_a_peer_with_several_boxes_gets_an_event_once(
    make_town: MakeTown, climb: Climb
) -> None:
    """Trap T3.4: the event travels several paths to the same peer."""
    town = make_town(climb=climb)
    town.join((0, 0), (50, 50), "many")
    now = town.net.world.now
    for key in range(5):
        peer = town.net.peers["many"]
        town.net.perform("many", peer.subscribe(key, (key, key), (60 + key, 60 + key), now))
    for place in range(6):
        town.join((place * 10, 0), (place * 10 + 30, 40))
        town.net.run(60)
    town.net.rest()

    got, meant = town.publish("p1", (30, 30))

    assert got == meant
    assert "many" in got
    assert sum(seat.tally.delivered for seat in town.net.peers["many"].seats.values()) == 6


def test_t3_6_an_event_in_the_overlap_of_two_groups_reaches_both(make_town: MakeTown) -> None:
    """Trap T3.6: stopping where the MBR contains the event would miss the sibling group."""
    town = make_town()
    for place in range(4):
        town.join((place * 3, place * 3), (place * 3 + 20, place * 3 + 20))
        town.net.run(60)
    for place in range(4):
        town.join((15 + place, 15 + place), (60 + place, 60 + place))
        town.net.run(60)
    town.net.rest()
    hosts = [s for p in town.net.peers.values() for s in p.seats.values() if s.top == 1]
    point = (20.0, 20.0)
    around = [
        h
        for h in hosts
        if all(
            a <= v <= b
            for a, v, b in zip(h.groups[1].box()[0], point, h.groups[1].box()[1], strict=True)
        )
    ]
    assert len(around) > 1, "the case needs groups that overlap at the event"

    for publisher in sorted(town.boxes):
        got, meant = town.publish(publisher, point)
        assert got == meant


def test_t3_7_a_box_that_no_child_contains_is_placed_all_the_same(make_town: MakeTown) -> None:
    """Trap T3.7: passed down and up for ever by the literal rule."""
    town = make_town()
    for place in range(8):
        town.join((place * 5, place * 5), (place * 5 + 4, place * 5 + 4))
        town.net.run(60)
    town.net.rest()
    before = town.net.sent["Join"]

    straddling = town.join((2, 2), (33, 33))
    town.net.run(200)
    outside = town.join((90, 90), (99, 99))
    town.net.run(200)

    assert town.net.sent["Join"] - before < 30
    assert violations(town.net.peers.values()) == []
    for name, point in ((straddling, (3.0, 30.0)), (outside, (95.0, 95.0))):
        got, meant = town.publish("p0", point)
        assert got == meant
        assert name in got


def test_t3_2_groups_stay_within_their_bounds_as_peers_come_and_go(make_town: MakeTown) -> None:
    """Trap T3.2: without splits a group would grow, without merging it would starve."""
    town = make_town(least=2, most=4)
    random = Random(3)
    for _ in range(40):
        x, y = random.randrange(90), random.randrange(90)
        town.join((x, y), (x + 5, y + 5))
        town.net.run(60)
    town.net.rest()
    assert violations(town.net.peers.values()) == []
    assert max(s.top for p in town.net.peers.values() for s in p.seats.values()) >= 2

    for name in random.sample(sorted(town.boxes), 32):
        town.leave(name)
        town.net.run(200)
    town.net.rest(60)

    assert violations(town.net.peers.values()) == []
    assert max(s.top for p in town.net.peers.values() for s in p.seats.values()) <= 3


@pytest.mark.parametrize("goodbye", ["leave", "crash"])
def test_t3_3_twins_share_an_entry_and_another_takes_over_when_the_relay_goes(
    make_town: MakeTown, goodbye: str
) -> None:
    """Trap T3.3: followers of a relay that is gone would get nothing any more."""
    town = make_town(most=4)
    for place in (50, 70):
        town.join((place, place), (place + 10, place + 10), f"other{place}")
        town.net.run(60)
    for _ in range(5):
        town.join((10, 10), (20, 20))
        town.net.run(60)
    town.net.rest()
    seats = {n: p.seats[0] for n, p in town.net.peers.items()}
    relays = [n for n, s in seats.items() if s.top >= 0 and not n.startswith("other")]
    followers = [n for n, s in seats.items() if s.top == -1]
    assert (len(relays), len(followers)) == (1, 4)

    getattr(town, goodbye)(relays[0])
    town.net.rest(60)

    assert violations(town.net.peers.values()) == []
    got, meant = town.publish("other50", (15, 15))
    assert got == meant == sorted(followers)


def test_a_changed_box_gets_what_it_wants_now_and_nothing_else(make_town: MakeTown) -> None:
    town = make_town()
    for place in range(9):
        town.join((place * 10, 0), (place * 10 + 9, 9))
        town.net.run(60)
    town.net.rest()

    for name in ("p0", "p4", "p8"):
        town.change(name, (50, 80), (60, 90))
        town.net.run(300)
    town.net.rest(60)

    assert violations(town.net.peers.values()) == []
    for point in ((55, 85), (5, 5), (45, 5)):
        got, meant = town.publish("p1", point)
        assert got == meant


def test_a_missing_value_means_all_values(make_town: MakeTown) -> None:
    town = make_town()
    for place in range(5):
        town.join((place * 20, 0), (place * 20 + 10, 9 + place))
        town.net.run(60)
    town.net.rest()

    got, meant = town.publish("p0", (-math.inf, 5.0), (math.inf, 5.0))

    assert got == meant == ["p0", "p1", "p2", "p3", "p4"]


def test_a_peer_without_subscriptions_can_publish(make_town: MakeTown) -> None:
    town = make_town()
    for place in range(5):
        town.join((place * 20, 0), (place * 20 + 10, 9))
        town.net.run(60)
    town.net.rest()
    town.net.add("mute", ["p3"])

    got, meant = town.publish("mute", (5, 5))

    assert got == meant == ["p0"]


def test_events_that_go_the_same_way_travel_together(make_town: MakeTown) -> None:
    sent = {}
    for wait in (0, 200):
        town = make_town(coalesce_ms=wait)
        for place in range(9):
            town.join((place * 5, 0), (place * 5 + 30, 9))
            town.net.run(60)
        town.net.rest()
        before = town.net.sent["Events"]
        for number in range(50):
            town.net.publish("p1", [OverlayEvent.point(number, (20.0, 5.0))])
        town.net.run(3_000)
        sent[wait] = town.net.sent["Events"] - before
        assert all(
            sorted(town.net.delivered[number]) == town.meant((20.0, 5.0), (20.0, 5.0))
            for number in range(50)
        )
    assert sent[200] < sent[0] / 10


@pytest.mark.parametrize("climb", Climb)
def test_in_a_tree_at_rest_no_copy_of_an_event_is_sent_twice(
    make_town: MakeTown, climb: Climb
) -> None:
    town = make_town(least=2, most=4, beat_ms=20_000, patience_ms=70_000, climb=climb)
    random = Random(9)
    for _ in range(40):
        x, y = random.randrange(80), random.randrange(80)
        town.join((x, y), (x + 15, y + 15))
        town.net.run(60)
    town.net.rest()
    for name in sorted(town.boxes):
        got, meant = town.publish(name, (random.randrange(100), random.randrange(100)))
        assert got == meant
    seats = [seat for peer in town.net.peers.values() for seat in peer.seats.values()]
    assert sum(seat.tally.duplicates for seat in seats) == 0


def test_hops_grow_with_the_logarithm_of_the_peers(make_town: MakeTown) -> None:
    heights = {}
    for count in (8, 64):
        town = make_town(least=2, most=4)
        random = Random(7)
        for _ in range(count):
            x, y = random.randrange(90), random.randrange(90)
            town.join((x, y), (x + 9, y + 9))
            town.net.run(40)
        town.net.rest()
        assert violations(town.net.peers.values()) == []
        for _ in range(20):
            town.publish("p0", (random.randrange(100), random.randrange(100)))
        top = max(s.top for p in town.net.peers.values() for s in p.seats.values())
        heights[count] = top
        assert max(town.net.hops, default=0) <= top + 2  # to the root, down, to a twin
        assert top <= math.log2(count) + 1
    assert heights[64] > heights[8]


SQUARE = Extent((0.0, 0.0), (100.0, 100.0))


def peer() -> OverlayPeer:
    return OverlayPeer("a", Settings(SQUARE), Random(1))


@pytest.mark.parametrize(
    ("lows", "highs"),
    [
        ((5.0, 5.0), (1.0, 9.0)),
        ((math.nan, 0.0), (1.0, 1.0)),
        ((200.0, 200.0), (300.0, 300.0)),
        ((1.0,), (2.0,)),
        ((1.0, 1.0), (2.0,)),
    ],
)
def test_a_box_that_is_none_or_lies_outside_the_space_is_refused_and_changes_nothing(
    lows: tuple[float, ...], highs: tuple[float, ...]
) -> None:
    subject = peer()
    subject.subscribe("good", (1.0, 1.0), (2.0, 2.0), now=0)
    with pytest.raises(MisuseError):
        subject.subscribe("bad", lows, highs, now=1)
    with pytest.raises(MisuseError):
        subject.change("good", lows, highs, now=1)
    assert len(subject.seats) == 1
    assert subject.seats[0].wanted == ((1.0, 1.0), (2.0, 2.0))


def test_boxes_without_volume_are_taken_and_matched(make_town: MakeTown) -> None:
    town = make_town()
    for place in range(12):
        town.join((place * 5, 7), (place * 5, 7))
        town.net.run(60)
    town.net.rest()
    assert violations(town.net.peers.values()) == []
    got, meant = town.publish("p0", (25, 7))
    assert got == meant == ["p5"]


def test_keys_are_unique_and_known() -> None:
    subject = peer()
    subject.subscribe("k", (1.0, 1.0), (2.0, 2.0), now=0)
    with pytest.raises(KeyInUseError):
        subject.subscribe("k", (1.0, 1.0), (2.0, 2.0), now=0)
    with pytest.raises(KeyMissingError):
        subject.change("other", (1.0, 1.0), (2.0, 2.0), now=0)
    with pytest.raises(KeyMissingError):
        subject.unsubscribe("other", now=0)


@pytest.mark.parametrize(
    "bad",
    [
        OverlayEvent.point("e", (1.0,)),
        OverlayEvent.point("e", (math.nan, 1.0)),
        OverlayEvent("e", (5.0, 5.0), (1.0, 9.0)),
    ],
)
def test_an_event_that_is_none_is_refused(bad: OverlayEvent) -> None:
    subject = peer()
    subject.subscribe("k", (1.0, 1.0), (2.0, 2.0), now=0)
    with pytest.raises(MisuseError):
        subject.publish([bad], now=1)


@pytest.mark.parametrize(("least", "most"), [(1, 4), (3, 4), (0, 0)])
def test_a_fan_out_that_cannot_be_split_is_refused(least: int, most: int) -> None:
    with pytest.raises(OutOfRangeError):
        Settings(SQUARE, least=least, most=most)


def test_a_patience_shorter_than_the_beat_is_refused() -> None:
    with pytest.raises(OutOfRangeError):
        Settings(SQUARE, beat_ms=1000, patience_ms=500)
