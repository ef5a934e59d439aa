"""Repairs wait for nobody who is dead, and for nobody who does not know of them."""

from __future__ import annotations

from random import Random

import pytest
from tests.support.overlay_net import SETTINGS, OverlayNet

from nearcast.overlay import OverlayPeer, repair
from nearcast.overlay.bounds import Bounds
from nearcast.overlay.live.member import OverlayMember
from nearcast.overlay.messages import (
    Address,
    Adopt,
    Envelope,
    Join,
    MemberEntry,
    MemberLeft,
    Output,
    Unknown,
)
from nearcast.overlay.seat import Seat

BEAT_MS = SETTINGS.beat_ms


def _grown(count: int, seed: int = 1) -> OverlayNet:
    """Return peers with boxes side by side in one tree."""
    net = OverlayNet(seed)
    for number in range(count):
        low = 100.0 / count * number
        box = (low, 0.0), (low + 100.0 / count, 100.0)
        net.add(f"p{number}", [box], ["p0"] if number else [])
        net.run(300)
    net.run(15_000)
    return net


def _seat(member: OverlayMember) -> Seat:
    [seat] = member.core.seats.values()
    return seat


def _member_of_a_member(net: OverlayNet) -> OverlayMember:
    return next(one for one in net.peers.values() if len(_seat(one).path) > 1)


def _bodies(outputs: list[Output], kind: type) -> list[tuple[Address, object]]:
    return [
        (one.to, one.body)
        for one in outputs
        if isinstance(one, Envelope) and isinstance(one.body, kind)
    ]


def _churned(seed: int) -> list[int]:
    """Return how long repairs take: two of thirty die at once and two come, six times."""
    net, random, took = OverlayNet(seed), Random(seed), []
    names: list[str] = []

    def come() -> None:
        x, y = random.uniform(0, 80), random.uniform(0, 80)
        box: Bounds = (x, y), (x + random.uniform(3, 20), y + random.uniform(3, 20))
        names.append(f"p{len(names)}")
        alive = sorted(net.peers)
        net.add(names[-1], [box], random.sample(alive, min(2, len(alive))))

    for _ in range(30):
        come()
        net.run(100)
    net.run(15_000)
    for _ in range(6):
        for victim in random.sample(sorted(net.peers), 2):
            net.kill(victim)
        left, began = set(net.peers), net.now
        for _ in range(2):
            come()
        while not _is_one_tree(net, left):
            net.run(50)
        took.append(net.now - began)
        net.run(9_000)
    return took


def _is_one_tree(net: OverlayNet, names: set[str]) -> bool:
    """Return whether these peers are below one root, and each host on the way knows of them."""
    seats = {_seat(one).address: _seat(one) for one in net.peers.values()}
    roots = set()
    for name in names:
        seat = _seat(net.peers[name])
        while seat.parent is not None:
            above = seats.get(seat.parent)
            if above is None or not any(seat.address in one.members for one in above.groups):
                return False
            seat = above
        roots.add(seat.address)
    return len(roots) == 1


def test_nearly_all_repairs_take_less_than_a_beat_or_two():
    took = sorted(one for seed in range(4) for one in _churned(seed))
    assert took[len(took) * 9 // 10] <= BEAT_MS
    assert took[-1] <= 5 * BEAT_MS


def test_a_request_to_a_peer_that_has_ended_is_repeated_at_once_elsewhere():
    net = _grown(12)
    member = _member_of_a_member(net)
    seat, now = _seat(member), net.now
    assert seat.parent is not None
    grandparent = seat.path[-2]
    asked = [to for to, _ in _bodies(member.core.drop_peer(seat.parent.peer, now), Join)]
    assert asked == [grandparent]  # its siblings elect it, so it asks for all of them
    again = _bodies(member.core.drop_peer(grandparent.peer, now + 5), Join)
    assert [to.peer for to, _ in again] not in ([], [grandparent.peer])


def test_peers_that_were_not_reached_lately_are_asked_last():
    net = _grown(12)
    member = _member_of_a_member(net)
    seat, now = _seat(member), net.now
    member.core.lose(seat.path[0].peer, now)
    member.core.lose(seat.path[1].peer, now)
    asked = _bodies(member.core.drop_peer(seat.path[-1].peer, now), Join)
    assert asked
    assert all(member.core.unreached.get(to.peer, 0) <= now for to, _ in asked)


def test_members_are_asked_last_as_they_know_this_tree_alone():
    net = _grown(12)
    [seat] = _root(net).seats.values()
    stranger, silent = Address("another", 0), Address("silent", 0)
    seat.unreached[silent.peer] = net.now + 1
    seat.refuges = [_below(seat), silent, stranger]
    assert repair._promising(seat, net.now) == [stranger]
    assert repair._promising(seat, net.now + 1) == [silent, stranger]


def test_a_seat_believes_after_a_beat_that_its_parent_does_not_know_it():
    net = _grown(12)
    seat, core = _seat(_member_of_a_member(net)), _member_of_a_member(net).core
    parent, other = seat.parent, Address("another", 0)
    assert parent is not None
    seat.parent_since, seat.next_beat = net.now, net.now + 9 * BEAT_MS
    for at, sender in ((0, parent), (BEAT_MS - 1, other)):
        core.receive(Envelope(seat.address, sender, Unknown(seat.top + 1)), net.now + at)
        assert seat.parent == parent
    assert seat.next_beat <= net.now + BEAT_MS  # it reports again as soon as that is over
    core.receive(Envelope(seat.address, other, Unknown(seat.top + 2)), net.now + BEAT_MS)
    assert seat.parent == parent  # another group
    core.receive(Envelope(seat.address, other, Unknown(seat.top + 1)), net.now + BEAT_MS)
    assert seat.parent is None


def _root(net: OverlayNet) -> OverlayPeer:
    return next(one.core for one in net.peers.values() if _seat(one).parent is None)


@pytest.mark.parametrize(
    ("nonce", "age_ms", "is_declined"),
    [(None, 0, False), (None, BEAT_MS, True), (77, 0, True)],
    ids=["a handover may be on its way", "it is not", "an answer to a request given up"],
)
def test_who_is_taken_for_the_host_of_a_group_that_it_does_not_have_says_so(
    nonce, age_ms, is_declined
):
    net = _grown(12)
    core, stranger = _root(net), Address("another", 0)
    [seat] = core.seats.values()
    seat.parent_since = net.now - age_ms
    claim = Adopt(seat.top + 3, 99, (), (stranger,), (), nonce)
    outputs = core.receive(Envelope(seat.address, stranger, claim), net.now)
    declined = [(stranger, MemberLeft(seat.top + 3))]
    assert _bodies(outputs, MemberLeft) == (declined if is_declined else [])


def test_a_request_that_comes_back_from_above_does_not_show_that_there_is_one_tree():
    """Whoever sends it down believes that this root is its member: it is not, any more."""
    net = _grown(12)
    core, stranger = _root(net), Address("another", 0)
    [seat] = core.seats.values()
    seat.settled = False
    entry = MemberEntry(seat.address, seat.entry(seat.top).box)
    own = Join(seat.address, entry, seat.top, 5, descend=seat.top + 1)
    outputs = core.receive(Envelope(seat.address, stranger, own), net.now)
    assert _bodies(outputs, MemberLeft) == [(stranger, MemberLeft(seat.top + 2))]
    assert not seat.settled


def test_the_end_of_a_peer_with_nobody_below_leaves_no_doubt():
    """Nobody has lost a parent by it; where a host has ended, answers are in doubt for a while."""
    net = _grown(12)
    hosts = {one.core.peer_id for one in net.peers.values() if _seat(one).top > 0}
    neighbour = next(
        one
        for one in net.peers.values()
        if _seat(one).top > 0 and len(_seat(one).groups[1].members) > net.settings.least
    )
    leaf = next(one.peer for one in _seat(neighbour).groups[1].members if one.peer not in hosts)
    before = neighbour.repairs
    net.kill(leaf)
    net.run(20)
    assert neighbour.repairs == before + 1
    assert _confirms_at_once(net, neighbour.core.peer_id, 100.0 / 12 * (int(leaf[1:]) + 0.5))


def test_the_end_of_a_host_leaves_a_doubt_about_what_is_below():
    net = _grown(12)
    root = next(one for one in net.peers.values() if _seat(one).parent is None)
    group = _seat(root).groups[_seat(root).top]
    host = next(one for one in group.members.values() if one.address != _seat(root).address)
    root.ended(host.address.peer, net.now)
    assert host.box in [box for _, box in root._lost]


def _confirms_at_once(net: OverlayNet, publisher: str, x: float) -> bool:
    acks = net.peers[publisher].acks
    before = acks.totals.confirmed
    net.publish(publisher, (x, 50.0), b"event", sure=True)
    net.run(100)
    return acks.totals.confirmed > before


def test_two_parts_that_ask_each_other_at_the_same_time_become_one():
    """Each passes the other one's request on, while it looks itself: not to where it came from."""
    net = OverlayNet(1)
    for low, name in enumerate("ab"):
        net.add(name, [((float(low), 0.0), (9.0, 9.0))])
    net.run(2_000)
    one, two = (_seat(net.peers[name]) for name in "ab")
    for seat, other in ((one, two), (two, one)):
        seat.settled, seat.refuges, seat.next_beat = False, [other.address], net.now + 1
    net.run(100)
    assert (one.parent == two.address) != (two.parent == one.address)


def test_a_request_that_others_without_a_parent_pass_back_shows_nothing():
    net = _grown(12)
    core = _root(net)
    [seat] = core.seats.values()
    own = Join(seat.address, seat.entry(seat.top), seat.top, 5)
    for sender, is_settled in ((Address("another", 0), False), (_below(seat), True)):
        seat.settled = False
        core.receive(Envelope(seat.address, sender, own), net.now)
        assert seat.settled == is_settled


def _below(seat: Seat) -> Address:
    return next(one for one in seat.groups[1].members if one != seat.address)
