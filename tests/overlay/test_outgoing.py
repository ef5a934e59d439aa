"""What leaves in one turn: few messages, and for each peer the same in the same order."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.support.overlay_net import SQUARE, OverlayNet

from nearcast.overlay import Settings
from nearcast.overlay.events import EventBatch, OverlayEvent
from nearcast.overlay.live.acknowledged import EventAck, make_id
from nearcast.overlay.live.codec import MOST_EVENTS, encode_envelope
from nearcast.overlay.live.gap_news import GapReport
from nearcast.overlay.live.member import NewEvent, OverlayMember
from nearcast.overlay.live.outgoing import MOST_BYTES, GapReports, PeerAnswers, TurnMessages
from nearcast.overlay.messages import Address, Envelope, Events, MemberLeft, Unknown

POINT = (1.0, 1.0), (1.0, 1.0)


def _events(random: Random, first: int) -> Events:
    events = [
        OverlayEvent(make_id(bytes(8), first + n, sure=True), *POINT, bytes(random.randrange(9)))
        for n in range(random.randint(1, 3))
    ]
    return Events(EventBatch.of(events, 2), random.random() < 0.5, random.choice([None, None, 3]))


def _drawn(random: Random, number: int) -> tuple[str, Any]:
    peer = random.choice("ab")
    to, sender = Address(peer, random.randrange(2)), Address("me", random.randrange(2))
    match random.randrange(6):
        case 0:
            return peer, PeerAnswers([EventAck(make_id(bytes(8), number, sure=True), 0, True)])
        case 1:
            return peer, GapReports([GapReport(bytes(8), POINT, number)])
        case 2:
            return peer, Envelope(to, sender, MemberLeft(number))
        case _:
            return peer, Envelope(to, sender, _events(random, 10 * number))


def _stream(messages: list[tuple[str, Any]], peer: str) -> list[object]:
    """Return all that a peer gets, event by event and answer by answer: the oracle."""
    found: list[object] = []
    for to, content in messages:
        if to != peer:
            continue
        if isinstance(content, PeerAnswers):
            found += content.acks
        elif isinstance(content, GapReports) or not isinstance(content.body, Events):
            found.append(content)
        else:
            body = content.body
            way = content.to, content.sender, body.rising, body.asks
            found += [(way, one) for one in body.batch.events()]
    return found


@pytest.mark.parametrize("seed", range(50))
def test_each_peer_gets_the_same_in_the_same_order_in_as_few_messages_as_possible(seed):
    random = Random(seed)
    given = [_drawn(random, number) for number in range(random.randrange(40))]
    outgoing = TurnMessages()
    for peer, content in given:
        outgoing.add(peer, content)
    sent = outgoing.take()
    for peer in "ab":
        assert _stream(sent, peer) == _stream(given, peer)
        mine = [content for to, content in sent if to == peer]
        for one, two in pairwise(mine):
            assert not (isinstance(one, PeerAnswers) and isinstance(two, PeerAnswers))
            assert _way(one) is None or _way(one) != _way(two)
    assert outgoing.take() == []


def _way(content: Any) -> object:
    if isinstance(content, Envelope) and isinstance(content.body, Events):
        return content.to, content.sender, content.body.rising, content.body.asks
    return None


def test_answers_that_are_added_later_do_not_change_those_that_were_given():
    outgoing = TurnMessages()
    given: Any = PeerAnswers([EventAck(bytes(19), 0, True)])
    outgoing.add("a", given)
    outgoing.add("a", PeerAnswers([EventAck(bytes(19), 1, True)]))
    [(_, sent)] = outgoing.take()
    assert (len(given.acks), isinstance(sent, PeerAnswers) and len(sent.acks)) == (1, 2)


def test_a_message_does_not_grow_beyond_what_a_frame_may_hold():
    outgoing = TurnMessages()
    for number in range(40):
        event = OverlayEvent(make_id(bytes(8), number, sure=True), *POINT, bytes(10_000))
        to = Address("a", 0)
        outgoing.add("a", Envelope(to, to, Events(EventBatch.of([event], 2), rising=False)))
    sent: list[tuple[str, Any]] = list(outgoing.take())
    assert len(sent) == 14
    assert all(len(encode_envelope(0, one)) < MOST_BYTES + 1_000 for _, one in sent)
    for _ in range(2):
        ids = tuple(make_id(bytes(8), number, sure=True) for number in range(3_000))
        zeros = np.zeros((3_000, 2))
        batch = EventBatch(ids, zeros, zeros, (b"",) * 3_000, np.zeros(3_000, dtype=np.int64))
        outgoing.add("a", Envelope(to, to, Events(batch, rising=False)))
    sent = list(outgoing.take())
    assert [len(one.body.batch) for _, one in sent] == [3_000, 3_000]
    for _ in range(3):
        outgoing.add("a", PeerAnswers([EventAck(bytes(19), 0, True)] * 400))
    sent = list(outgoing.take())
    assert [len(one.acks) for _, one in sent] == [800, 400]


def test_a_peer_publishes_no_more_at_once_than_a_frame_may_hold():
    net = OverlayNet(1)
    net.add("a", [((0.0, 0.0), (9.0, 9.0))])
    net.add("b", [((0.0, 0.0), (50.0, 50.0))], ["a"])
    net.run(5_000)
    member: OverlayMember = net.peers["a"]
    for sizes in ([100_000] * 40, [5, 3 * MOST_BYTES, 5], [0] * (MOST_EVENTS + 1), []):
        accepted = member.publish([NewEvent(POINT, bytes(size)) for size in sizes], net.now)
        batches = [
            one.body.batch
            for _, one in member.take_out()
            if isinstance(one, Envelope) and isinstance(one.body, Events)
        ]
        assert len(accepted) == sum(map(len, batches)) == len(sizes)
        for batch in batches:
            assert len(batch) <= MOST_EVENTS
            assert len(batch) == 1 or sum(map(len, batch.payloads)) <= MOST_BYTES


def test_events_take_another_way_while_the_root_cannot_be_reached():
    """The connection to the root breaks: whoever published through it knows at once."""
    net = OverlayNet(1, settings=Settings(SQUARE))
    for number in range(12):
        low = 100.0 / 12 * number
        net.add(f"p{number}", [((low, 0.0), (low + 8, 100.0))], ["p0"] if number else [])
        net.run(300)
    net.run(15_000)
    seats = {name: peer.core.seats[0] for name, peer in net.peers.items()}
    root = next(name for name, seat in seats.items() if seat.parent is None)
    publisher = next(name for name, seat in seats.items() if len(seat.path) > 1)
    net.publish(publisher, (50.0, 50.0), b"before", sure=False)  # so there is a connection
    net.run(20)
    net.kill(root)
    net.run(100)
    entrance = seats[publisher].entrance(net.now)
    assert entrance.peer not in (root, publisher)
    for number in range(12):
        net.publish(publisher, (100.0 / 12 * (number + 0.5), 50.0), b"%d" % number, sure=False)
    net.run(100)
    missed = [n for n in range(12) if f"p{n}" in net.peers and b"%d" % n not in net.got[f"p{n}"]]
    assert [f"p{number}" for number in missed] == [publisher]
    net.run(SETTLED_MS)
    now_root = next(n for n in net.peers if net.peers[n].core.seats[0].parent is None)
    assert seats[publisher].entrance(net.now).peer in (now_root, publisher)


SETTLED_MS = 15_000


def test_a_connection_that_was_closed_for_idleness_is_used_again():
    net = OverlayNet(1)
    for number in range(12):
        low = 100.0 / 12 * number
        net.add(f"p{number}", [((low, 0.0), (low + 8, 100.0))], ["p0"] if number else [])
        net.run(300)
    net.run(15_000)
    member = next(one for one in net.peers.values() if len(one.core.seats[0].path) > 1)
    seat = member.core.seats[0]
    root = seat.path[0]
    member.lost(root.peer, net.now)
    assert seat.entrance(net.now) == seat.path[1]
    assert seat.entrance(net.now + net.settings.probe_ms) == root
    member.lost(root.peer, net.now)
    member.receive(Envelope(seat.address, root, Unknown(9)), net.now, root.peer)
    assert seat.entrance(net.now) == root
