"""What a bridge learns of the others' wishes, compared with the boxes of all peers."""

from __future__ import annotations

from random import Random

import pytest
from tests.support.overlay_net import OverlayNet

from nearcast.overlay.bounds import Bounds, covers
from nearcast.overlay.messages import Address, Envelope, GroupBoxes


def _grown(seed: int, count: int) -> OverlayNet:
    net, random = OverlayNet(seed), Random(seed)
    for number in range(count):
        x, y = random.uniform(0, 90), random.uniform(0, 90)
        boxes = [((x, y), (x + random.uniform(1, 9), y + random.uniform(1, 9)))]
        if number % 5 == 4:
            boxes.append(((y, x), (y + 1, x + 1)))
        net.add(f"p{number}", boxes, [f"p{random.randrange(number)}"] if number else [])
        net.run(200)
    net.run(10_000)
    return net


def _outside(net: OverlayNet, name: str) -> list[tuple[tuple[float, ...], tuple[float, ...]]]:
    net.peers[name].ask_outside(net.now)
    net._carry(name)
    net.run(100)
    found = net.peers[name].core.boxes_outside()
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(3))
def test_every_peer_learns_boxes_around_what_all_others_want(seed):
    net = _grown(seed, 40)
    height = max(seat.top for peer in net.peers.values() for seat in peer.core.seats.values())
    for name in net.peers:
        found = _outside(net, name)
        for other, peer in net.peers.items():
            for seat in peer.core.seats.values():
                assert other == name or any(covers(box, seat.box) for box in found)
        assert len(found) <= 6 * (height + 1)


def _branches(net: OverlayNet) -> dict[tuple[Bounds, frozenset[str]], None]:
    """Return the box and the peers of each box and group of the tree, from all states at once."""
    seats = {seat.address: seat for peer in net.peers.values() for seat in peer.core.seats.values()}

    def below(address: Address, level: int) -> frozenset[str]:
        if level < 0:
            return frozenset([address.peer])
        members = seats[address].groups[level].members
        return frozenset().union(*(below(one, level - 1) for one in members))

    return {
        (seat.entry(level).box, below(address, level)): None
        for address, seat in seats.items()
        for level in range(-1, seat.top + 1)
    }


def test_branches_that_contain_the_peer_itself_are_left_out():
    net = OverlayNet(1)
    for number in range(30):
        low = 3.0 * number
        net.add(f"p{number}", [((low, 0.0), (low + 1, 1.0))], ["p0"] if number else [])
        net.run(300)
    net.run(10_000)
    branches = _branches(net)
    for name in net.peers:
        for found in _outside(net, name):
            assert any(box == found and name not in peers for box, peers in branches)


def test_a_stranger_is_not_believed():
    net = _grown(1, 8)
    member = net.peers["p3"]
    seat = next(iter(member.core.seats.values()))
    before = seat.tally.refused
    stranger = Address("stranger", 0)
    member.receive(Envelope(seat.address, stranger, GroupBoxes(())), net.now, "stranger")
    assert seat.tally.refused == before + 1
    assert "stranger" not in {host.peer for host in seat.outside}


def test_a_peer_that_has_not_asked_knows_nothing():
    net = _grown(1, 8)
    assert (
        sum(peer.core.boxes_outside() is None for peer in net.peers.values()) == 7
    )  # all but the root
