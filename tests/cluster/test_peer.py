"""What is to travel to another node, as frames."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.cluster import peer as peers
from nearcast.cluster.links import Link, LinkTiming
from nearcast.cluster.peer import PeerNode


@given(st.lists(st.binary(min_size=1, max_size=9)), st.integers(1, 30))
def test_frames_have_whole_parts_in_order_and_are_as_few_as_their_size_allows(
    parts: list[bytes], most: int
):
    peer = PeerNode("b", Link(LinkTiming(), Random(1)))
    peer.parts = list(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers, "_FRAME_BYTES", most)
        frames = list(peer.take_parts())
    assert b"".join(frames) == b"".join(parts)
    assert all(len(one) >= most for one in frames[:-1])
    assert all(len(one) < most + max(map(len, parts)) for one in frames)
    ends = [sum(map(len, parts[:count])) for count in range(len(parts) + 1)]
    assert all(sum(map(len, frames[:count])) in ends for count in range(len(frames)))
    assert peer.parts == []
