"""Nodes that do not fit are refused by name, with what to do; the rest go on."""

from random import Random

import pytest

from nearcast.cluster import peer_handshake
from nearcast.cluster.links import Link, LinkTiming
from nearcast.cluster.messages import SPEAKS, Greeting, decode_greeting, encode
from nearcast.cluster.peer_handshake import MOST_CLOCK_MS, PeerTerms, clock_objection

MINE = PeerTerms("digest", 100)


def greeting(oldest: int = 1, newest: int = 1, spaces: str = "digest", skew_ms: int = 100):
    return Greeting("b", oldest, newest, spaces, "g", 0, skew_ms)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (greeting(), ""),
        (greeting(newest=2), ""),
        (greeting(skew_ms=0), ""),  # no causal group, or a node that does not say
        (
            greeting(9, 10),
            "b speaks versions 9 to 10 of the messages between nodes, this node 1 to",
        ),
        (greeting(0, 0), "b speaks versions 0 to 0"),
        (greeting(spaces="else"), "b has other spaces in its configuration"),
        (greeting(skew_ms=250), "b lets clocks be 250 ms apart, this node 100 ms"),
    ],
)
def test_an_objection_names_the_node_and_what_differs(other: Greeting, expected: str):
    said = MINE.objection("b", other)

    assert said.startswith(expected)
    assert bool(said) == bool(expected)


def test_two_nodes_speak_the_newest_version_that_both_know(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peer_handshake, "SPEAKS", (1, 3))

    assert [PeerTerms.version_with(greeting(1, newest)) for newest in (1, 2, 3, 4)] == [1, 2, 3, 3]


def test_versions_that_overlap_fit_and_others_do_not(monkeypatch: pytest.MonkeyPatch):
    for mine in ((1, 1), (1, 2), (2, 2), (2, 3)):
        monkeypatch.setattr(peer_handshake, "SPEAKS", mine)
        for theirs in ((1, 1), (1, 2), (2, 2), (2, 3), (4, 5)):
            common = set(range(mine[0], mine[1] + 1)) & set(range(theirs[0], theirs[1] + 1))
            assert bool(MINE.objection("b", greeting(*theirs))) == (not common)
            if common:
                assert PeerTerms.version_with(greeting(*theirs)) == max(common)


def test_a_greeting_says_it_all_and_one_of_the_version_before_is_read_too():
    mine = MINE.greeting("a", "g", 7)

    assert decode_greeting(encode(mine)) == mine
    assert (mine.oldest, mine.newest) == SPEAKS
    older = decode_greeting(b"\x96\xa1b\x01\x01\xa6digest\xa1g\x00")
    assert (older.skew_ms, older.wants_retained) == (0, False)


@pytest.mark.parametrize(
    ("skew_ms", "delay_ms", "expected"),
    [
        (0.0, 1.0, ""),
        (MOST_CLOCK_MS + 0.5, 1.0, ""),  # it may be the way of the beats
        (MOST_CLOCK_MS + 1.0, 1.0, "the clock of b is 10.0 s ahead of ours: set both clocks"),
        (60_000.0, 4.0, "the clock of b is 60.0 s ahead of ours: set both clocks"),
        (-60_000.0, 4.0, "the clock of b is 60.0 s behind ours: set both clocks"),
        (-60_000.0, float("inf"), ""),  # not measured
    ],
)
def test_a_clock_is_too_far_off_only_if_that_is_certain(
    skew_ms: float, delay_ms: float, expected: str
):
    link = Link(LinkTiming(), Random(1))
    link.skew_ms, link.delay_ms = skew_ms, delay_ms

    assert clock_objection("b", link) == expected
