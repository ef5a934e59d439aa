"""The traps of paper 3 on the code that serves peers: members over the codec.

Beside each trap is what happens if the paper is read literally: the check of the trap then fails.
T3.5 and T3.8 are about elections alone: here is what live peers elect, `test_election.py` has the
costs.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.overlay_net import SETTINGS, SQUARE, OverlayNet

from nearcast.overlay import (
    Climb,
    GridDensity,
    Method,
    OverlayPeer,
    Settings,
    joining,
    repair,
    routing,
    structure,
    violations,
)
from nearcast.overlay.bounds import Bounds, covers
from nearcast.overlay.density import Density
from nearcast.overlay.events import EventBatch
from nearcast.overlay.messages import Address
from nearcast.overlay.seat import Group, Seat
from nearcast.papers.content_overlay.world import SimulatedOverlay


def _columns(net: OverlayNet, count: int) -> None:
    """Add peers with boxes side by side."""
    for number in range(count):
        low = 100.0 / count * number
        box = (low, 0.0), (low + 100.0 / count, 100.0)
        net.add(f"p{number}", [box], ["p0"] if number else [])
        net.run(300)
    net.run(15_000)


def _hosts(net: OverlayNet) -> list[str]:
    """Return the peers that host groups, the root first."""
    tops = {
        name: max(seat.top for seat in peer.core.seats.values()) for name, peer in net.peers.items()
    }
    return sorted((name for name in tops if tops[name] > 0), key=lambda name: -tops[name])


def _who_gets(net: OverlayNet, publisher: str, x: float, *, sure: bool) -> list[str]:
    payload = b"%f %d" % (x, net.now)
    net.publish(publisher, (x, 50.0), payload, sure=sure)
    net.run(12_000 if sure else 500)
    return [name for name in sorted(net.peers) for got in net.got[name] if got == payload]


def _missed_after_two_hosts_died(*, sure: bool) -> list[str]:
    """Return who is still there and does not get its event, or gets it more than once."""
    net, missed = OverlayNet(1), []
    _columns(net, 12)
    for victim in _hosts(net)[:2]:
        net.kill(victim)
        if not sure:
            net.run(15_000)  # at QoS 0 only what is published after the repair arrives
        publisher = min(net.peers)
        for number in range(12):
            name, x = f"p{number}", 100.0 / 12 * (number + 0.5)
            if name in net.peers and name != publisher:
                missed += [name] * (_who_gets(net, publisher, x, sure=sure) != [name])
    return missed


@pytest.mark.parametrize("sure", [False, True])
def test_t3_1_peers_that_crash_are_replaced(sure):
    assert _missed_after_two_hosts_died(sure=sure) == []


def test_t3_1_by_the_paper_alone_nobody_takes_the_place_of_a_host_that_died(monkeypatch):
    """The paper describes joining only: what was below the host gets nothing any more."""
    monkeypatch.setattr(repair, "_parent_lost", lambda *_, **__: None)
    monkeypatch.setattr(repair, "_forget_silent", lambda *_: None)
    assert len(_missed_after_two_hosts_died(sure=False)) >= 3


def test_a_host_whose_process_has_ended_is_replaced_before_it_would_have_been_silent():
    """Nobody listens at its address any more: events at QoS 0 are missed for a moment only."""
    net = OverlayNet(1)
    _columns(net, 12)
    for victim in _hosts(net)[:2]:
        net.kill(victim)
        net.run(SETTINGS.patience_ms // 3)
        publisher = min(net.peers)
        for number in range(12):
            name, x = f"p{number}", 100.0 / 12 * (number + 0.5)
            if name in net.peers and name != publisher:
                assert _who_gets(net, publisher, x, sure=False) == [name]


def _broken_groups() -> tuple[list[str], list[str]]:
    """Return what is wrong with the tree of 16 peers, and after every other one was killed."""
    net = OverlayNet(2)
    _columns(net, 16)
    grown = violations(peer.core for peer in net.peers.values())
    for number in range(0, 16, 2):
        net.kill(f"p{number}")
    net.run(60_000)
    return grown, violations(peer.core for peer in net.peers.values())


def test_t3_2_groups_are_split_and_merged():
    assert _broken_groups() == ([], [])


def test_t3_2_by_the_paper_alone_groups_grow_and_starve(monkeypatch):
    """The paper bounds the fan-out, and does not say what to do beyond the bounds."""
    monkeypatch.setattr(repair, "_shrink", lambda *_: None)
    grown, starved = _broken_groups()
    assert not grown
    assert any("members" in one for one in starved)
    monkeypatch.setattr(structure, "_parts", lambda _seat, _level, entries: [entries])
    grown, _ = _broken_groups()
    assert any("16 members" in one for one in grown)


def _twins_that_get_an_event(*, sure: bool) -> tuple[list[str], list[str]]:
    """Return who of three peers with one box gets an event, before and after the first died."""
    net = OverlayNet(3)
    _columns(net, 6)
    box = (30.0, 30.0), (35.0, 60.0)
    for name in ("first", "second", "third"):
        net.add(name, [box], ["p1"])
        net.run(5_000)
    before = _who_gets(net, "p5", 32.0, sure=sure)
    net.kill("first")
    net.run(15_000)
    after = _who_gets(net, "p5", 32.0, sure=sure)
    found = [[one for one in got if not one.startswith("p")] for got in (before, after)]
    return found[0], found[1]


@pytest.mark.parametrize("sure", [False, True])
def test_t3_3_when_the_relay_of_identical_boxes_goes_another_takes_over(sure):
    assert _twins_that_get_an_event(sure=sure) == (
        ["first", "second", "third"],
        ["second", "third"],
    )


def test_t3_3_by_the_paper_alone_twins_are_lost_with_the_first_of_them(monkeypatch):
    """The paper adds an id to the list of an entry (joining, step 6), and says no more about it.

    So whoever is in the list does nothing when the peer of the entry goes.
    """
    parent_lost = repair._parent_lost

    def as_written(seat: Seat, now: int, wait_ms: int) -> None:
        if seat.top >= 0:
            parent_lost(seat, now, wait_ms)

    monkeypatch.setattr(repair, "_parent_lost", as_written)
    assert _twins_that_get_an_event(sure=False) == (["first", "second", "third"], [])


def test_a_tree_of_twins_alone_has_its_place_and_confirms():
    """Its root hosts no group of boxes, only those that have the same one."""
    net = OverlayNet(3)
    box = (30.0, 0.0), (35.0, 100.0)
    for name in ("first", "second", "third"):
        net.add(name, [box], [] if name == "first" else ["first"])
        net.run(3_000)
    net.peers["first"].meet(["second"])
    net.run(20_000)
    assert all(peer.is_placed for peer in net.peers.values())
    assert _who_gets(net, "second", 32.0, sure=True) == ["first", "third"]
    totals = net.peers["second"].acks.totals
    assert (totals.confirmed, totals.repeated) == (1, 0)


def _copies_for_nested_boxes(*, sure: bool) -> int:
    """Return how often a peer gets an event that lies in all three of its boxes."""
    net = OverlayNet(4)
    _columns(net, 6)
    nested = [
        ((20.0, 0.0), (80.0, 100.0)),
        ((40.0, 40.0), (60.0, 60.0)),
        ((49.0, 49.0), (52.0, 52.0)),
    ]
    net.add("nested", nested, ["p1"])
    net.run(10_000)
    return _who_gets(net, "p0", 50.5, sure=sure).count("nested")


@pytest.mark.parametrize("sure", [False, True])
def test_t3_4_nested_boxes_of_one_peer_get_an_event_once(sure):
    assert _copies_for_nested_boxes(sure=sure) == 1


def test_t3_4_by_the_paper_alone_each_box_gets_a_copy(monkeypatch):
    """An event goes to every child whose box contains it; two ways to one peer are not treated."""
    monkeypatch.setattr(OverlayPeer, "_not_yet", lambda _self, batch, _now: batch)
    assert _copies_for_nested_boxes(sure=False) == 3


def _elected(density: Density | None, method: Method) -> str:
    """Return the host of a group of live peers: a large empty box, a small busy one, two others."""
    net = OverlayNet(5, settings=Settings(SQUARE, density=density, method=method))
    boxes = {
        "large": ((0.0, 0.0), (40.0, 40.0)),
        "busy": ((50.0, 50.0), (85.0, 90.0)),
        "within": ((50.0, 50.0), (80.0, 80.0)),
        "across": ((50.0, 50.0), (80.0, 85.0)),
    }
    for name, box in boxes.items():
        net.add(name, [box], [] if name == "large" else ["large"])
        net.run(300)
    net.run(20_000)
    return _hosts(net)[0]


def test_t3_5_live_peers_elect_by_counted_events_where_there_are_any():
    """By volume the large empty box wins, by a histogram the small one with the events."""
    counts = np.zeros((10, 10))
    counts[5:8, 5:8] = 100
    assert _elected(None, Method.EXACT) == "large"
    assert _elected(GridDensity(SQUARE, counts), Method.EXACT) == "busy"


def test_t3_8_live_peers_elect_the_cheapest_not_the_papers_winner():
    """The paper's formula charges R for each member, so it elects one in the midst of overlaps."""
    assert _elected(None, Method.EXACT) == "large"
    assert _elected(None, Method.CHEAPEST) != "large"


def _publishers_that_are_not_heard_by_all(climb: Climb) -> list[str]:
    """Return the publishers whose event does not reach exactly those whose box contains it."""
    net, found = OverlayNet(5, settings=Settings(SQUARE, climb=climb)), []
    for number in range(14):  # every other box reaches across the whole space
        low = 7.0 * number
        wide = number % 2
        box = ((0.0, low), (100.0, low + 7)) if wide else ((low, 0.0), (low + 7, 100.0))
        net.add(f"p{number}", [box], ["p0"] if number else [])
        net.run(300)
    net.run(15_000)
    for publisher in sorted(net.peers):
        wanted = sorted(
            name
            for name, peer in net.peers.items()
            if name != publisher
            for seat in peer.core.seats.values()
            if all(a <= 45.5 + 4.5 * i <= b for i, (a, b) in enumerate(zip(*seat.box, strict=True)))
        )
        assert wanted
        if _who_gets(net, publisher, 45.5, sure=False) != wanted:
            found.append(publisher)
    return found


@pytest.mark.parametrize("climb", list(Climb))
def test_t3_6_an_event_reaches_the_groups_beside_the_one_that_contains_it(climb):
    assert _publishers_that_are_not_heard_by_all(climb) == []


def test_t3_6_by_the_paper_alone_events_turn_round_too_early(monkeypatch):
    """An event goes up until a box contains it: groups that overlap there do not see it."""
    route = routing._route

    def as_written(
        seat: Seat, served: Address | None, batch: EventBatch, *, rising: bool, now: int
    ) -> tuple[int, int]:
        event = tuple(batch.lows[0].tolist()), tuple(batch.highs[0].tolist())
        is_inside = covers(seat.entry(seat.top).box, event)
        return route(seat, served, batch, rising=rising and not is_inside, now=now)

    monkeypatch.setattr(routing, "_route", as_written)
    assert _publishers_that_are_not_heard_by_all(Climb.STEPWISE)


def _place_of_a_box_far_away() -> tuple[bool, list[str]]:
    """Return whether a box outside all others is placed, and who gets an event in it."""
    net = OverlayNet(6)
    for number in range(8):
        net.add(
            f"p{number}", [((40.0 + number, 40.0), (41.0 + number, 60.0))], ["p0"] if number else []
        )
        net.run(300)
    net.add("far", [((0.0, 0.0), (1.0, 100.0))], ["p3"])
    net.run(5_000)
    return net.peers["far"].is_placed, _who_gets(net, "p1", 0.5, sure=False)


def test_t3_7_a_box_that_no_group_contains_is_placed():
    assert _place_of_a_box_far_away() == (True, ["far"])


def test_t3_7_by_the_paper_alone_a_box_that_no_group_contains_has_no_place(monkeypatch):
    """A request goes down to a child that contains the box, and up otherwise: here for ever."""
    least = joining._least_enlarged

    def as_written(seat: Seat, group: Group, box: Bounds, avoid: Address | None) -> list[Address]:
        found = least(seat, group, box, avoid)
        return [one for one in found if covers(group.members[one].box, box)]

    monkeypatch.setattr(joining, "_least_enlarged", as_written)
    assert _place_of_a_box_far_away() == (False, [])


def test_a_peer_without_subscriptions_is_a_contact_for_others():
    net = OverlayNet(7)
    net.add("empty", [])
    net.add("other", [((0.0, 0.0), (50.0, 100.0))], ["empty"])
    net.run(5_000)
    net.add("third", [((0.0, 0.0), (60.0, 100.0))], ["empty"])
    net.run(5_000)
    assert _who_gets(net, "empty", 20.0, sure=True) == ["other", "third"]
    assert violations(peer.core for peer in net.peers.values()) == []


def test_boxes_can_change_all_at_once():
    net = OverlayNet(8)
    _columns(net, 5)
    net.peers["p2"].set_boxes([((0.0, 0.0), (10.0, 10.0)), ((90.0, 0.0), (95.0, 100.0))], net.now)
    net._carry("p2")
    net.run(15_000)
    assert net.peers["p2"].is_placed
    assert "p2" in _who_gets(net, "p0", 92.0, sure=True)
    assert "p2" not in _who_gets(net, "p0", 50.0, sure=True)
    net.peers["p2"].set_boxes([], net.now)
    net._carry("p2")
    net.run(15_000)
    assert "p2" not in _who_gets(net, "p0", 92.0, sure=True)


def test_a_partition_heals_into_one_tree_and_each_side_goes_on_meanwhile():
    net = OverlayNet(9)
    _columns(net, 8)
    west, east = [f"p{number}" for number in range(4)], [f"p{number}" for number in range(4, 8)]
    net.cut = {frozenset((one, other)) for one in west for other in east}
    net.run(12_000)
    assert _who_gets(net, "p0", 30.0, sure=True) == ["p2"]
    assert _who_gets(net, "p7", 55.0, sure=True) == ["p4"]
    assert _who_gets(net, "p0", 95.0, sure=False) == []
    net.publish("p1", (80.0, 50.0), b"to the east", sure=True)
    net.publish("p6", (20.0, 50.0), b"to the west", sure=True)
    net.run(5_000)
    assert not any(net.got[name] for name in ("p1", "p6"))
    net.cut = set()
    net.run(60_000)
    assert net.got["p6"].count(b"to the east") == net.got["p1"].count(b"to the west") == 1
    assert violations(peer.core for peer in net.peers.values()) == []
    assert _who_gets(net, "p7", 5.0, sure=True) == ["p0"]
    assert _who_gets(net, "p0", 95.0, sure=False) == ["p7"]


def test_the_claims_are_measured_on_the_code_that_serves_peers():
    """C3.1 to C3.6: the experiment's peers and those behind the sockets are of one class."""
    measured = SimulatedOverlay(Settings(SQUARE), 1).add("a")
    served = OverlayNet(1).add("a", []).core
    assert type(measured) is type(served)
    assert (measured.settings.climb, measured.settings.split) == (
        served.settings.climb,
        served.settings.split,
    )
