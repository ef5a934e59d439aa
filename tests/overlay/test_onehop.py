"""The alternative to the tree in which everybody knows everybody."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model.errors import OutOfRangeError
from nearcast.overlay import EventDelivery, Extent, OverlayEvent
from nearcast.overlay.bounds import covers
from nearcast.papers.content_overlay.onehop import OneHopPeer

SQUARE = Extent((0.0, 0.0), (20.0, 20.0))
edges = st.integers(0, 19)
boxes = st.tuples(edges, edges, st.integers(1, 5), st.integers(1, 5)).map(
    lambda b: (
        (float(b[0]), float(b[1])),
        (float(min(b[0] + b[2], 20)), float(min(b[1] + b[3], 20))),
    )
)


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
