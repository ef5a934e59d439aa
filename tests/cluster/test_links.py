"""Two ends of a link over a network that loses, doubles and reorders."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.cluster.links import (
    Arrived,
    Down,
    Frame,
    FrameKind,
    Happening,
    Link,
    LinkTiming,
    Up,
    decode_frame,
    encode_frame,
)
from nearcast.model.errors import PeerProtocolError

TIMING = LinkTiming(hello_ms=20, beat_ms=50, silence_ms=300)


class End:
    """One end, and what it has seen: a list of contents for each beginning."""

    def __init__(self, name: str, seed: int, skew_ms: int = 0) -> None:
        self.link = Link(TIMING, Random(f"{seed}{name}"), name.encode())
        self.skew_ms = skew_ms
        self.sent: list[list[bytes]] = []
        self.instants: list[list[int]] = []
        self.began_ms = 0
        self.got: list[list[bytes]] = []
        self.greetings: list[bytes] = []

    def note(self, happenings: list[Happening], now_ms: int = 0) -> None:
        for one in happenings:
            if isinstance(one, Up):
                self.got.append([])
                self.sent.append([])
                self.instants.append([])
                self.began_ms = now_ms
                self.greetings.append(one.greeting)
            elif isinstance(one, Arrived):
                self.got[-1].append(one.content)
            else:
                assert isinstance(one, Down)


class Pair:
    """Both ends, a clock, and the air between them."""

    def __init__(self, seed: int, loss: float = 0.0, disorder: int = 1, skew_ms: int = 0) -> None:
        self.random = Random(seed)
        self.loss, self.disorder = loss, disorder
        self.ends = [End("a", seed), End("b", seed, skew_ms)]
        self.air: list[tuple[int, int, bytes]] = []
        self.now = 0
        for end in self.ends:
            end.link.open(end.skew_ms)

    def step(self) -> None:
        for number, end in enumerate(self.ends):
            for frame in end.link.take_frames():
                for _ in range(1 + (self.random.random() < self.loss / 2)):
                    if self.random.random() >= self.loss:
                        delay = self.random.randint(1, self.disorder)
                        self.air.append((self.now + delay, 1 - number, encode_frame(frame)))
        self.now += 1
        due = [one for one in self.air if one[0] <= self.now]
        self.air = [one for one in self.air if one[0] > self.now]
        for _, number, data in due:
            end = self.ends[number]
            now_ms = self.now + end.skew_ms
            end.note(end.link.receive(decode_frame(data), now_ms), now_ms)
        for end in self.ends:
            end.note(end.link.advance(self.now + end.skew_ms))

    def run(self, steps: int, traffic: float = 0.3) -> None:
        for _ in range(steps):
            for end in self.ends:
                if end.link.is_up and self.random.random() < traffic:
                    content = self.random.randbytes(3)
                    end.link.send(content)
                    end.sent[-1].append(content)
                    end.instants[-1].append(self.now + end.skew_ms)
            self.step()


def check_prefixes(pair: Pair) -> None:
    """Each beginning that one end saw is a prefix of one that the other end sent."""
    for end, other in (pair.ends, pair.ends[::-1]):
        for got in end.got:
            if got:
                assert any(sent[: len(got)] == got for sent in other.sent)


def test_two_ends_greet_and_talk():
    pair = Pair(1)
    pair.run(500)
    a, b = pair.ends
    assert a.greetings == [b"b"]
    assert b.greetings == [b"a"]
    pair.run(5, traffic=0)
    assert len(a.got[0]) > 50
    assert a.got == b.sent
    assert b.got == a.sent


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.05, 0.3]), st.sampled_from([1, 2, 20]))
def test_what_arrives_is_a_prefix_of_what_was_sent_and_the_link_comes_back(
    seed: int, loss: float, disorder: int
):
    pair = Pair(seed, loss, disorder)
    pair.run(600)
    check_prefixes(pair)
    pair.loss, pair.disorder = 0.0, 1
    pair.run(400, traffic=0)
    assert all(end.link.is_up for end in pair.ends)
    before = [len(end.got) for end in pair.ends]
    pair.run(200)
    pair.run(5, traffic=0)
    a, b = pair.ends
    assert [len(a.got), len(b.got)] == before
    assert a.got[-1] == b.sent[-1]
    assert b.got[-1] == a.sent[-1]


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.02, 0.2]), st.sampled_from([1, 3, 40]))
def test_all_that_was_sent_before_the_last_answered_beat_has_arrived(
    seed: int, loss: float, disorder: int
):
    pair = Pair(seed, loss, disorder, skew_ms=500)
    known = 0
    for _ in range(400):
        pair.run(1)
        for end, other in (pair.ends, pair.ends[::-1]):
            if end.sent and end.link.arrived_ms >= 0:
                known += 1
                assert end.link.arrived_ms >= end.began_ms
                got = {content for contents in other.got for content in contents}
                for content, at in zip(end.sent[-1], end.instants[-1], strict=True):
                    assert at >= end.link.arrived_ms or content in got
    assert known or loss or disorder > 1


def test_the_last_frame_is_missed_too():
    pair = Pair(2)
    pair.run(50, traffic=0)
    pair.ends[0].link.send(b"gone")
    pair.ends[0].link.take_frames()
    pair.run(200, traffic=0)
    assert pair.ends[1].link.restarts == 1
    assert all(end.link.is_up for end in pair.ends)


def test_an_end_that_starts_anew_is_noticed_at_once():
    pair = Pair(3)
    pair.run(50)
    pair.ends[1] = End("b", 99)
    pair.ends[1].link.open(pair.now)
    pair.run(10, traffic=0)
    assert all(end.link.is_up for end in pair.ends)
    assert len(pair.ends[0].greetings) == 2


def test_a_silent_end_is_given_up():
    pair = Pair(4)
    pair.run(50)
    pair.loss = 1.0
    pair.run(TIMING.silence_ms + 5)
    assert not any(end.link.is_up for end in pair.ends)


def test_frames_of_another_beginning_are_not_taken():
    pair = Pair(5)
    pair.run(50, traffic=0)
    a, b = pair.ends
    a.link.send(b"old")
    (old,) = [frame for frame in a.link.take_frames() if frame.kind is FrameKind.DATA]
    b.note(b.link.reset("on purpose", pair.now))
    pair.run(50, traffic=0)
    assert all(end.link.is_up for end in pair.ends)
    b.note(b.link.receive(old, pair.now))
    assert [b"old"] not in b.got


@pytest.mark.parametrize("skew_ms", [0, 400, -70_000])
def test_the_skew_of_the_clocks_is_measured(skew_ms: int):
    pair = Pair(6, disorder=1, skew_ms=skew_ms + 100_000)
    pair.ends[0].skew_ms = 100_000
    pair.run(500)
    assert abs(pair.ends[0].link.skew_ms - skew_ms) <= 2
    assert abs(pair.ends[1].link.skew_ms + skew_ms) <= 2


def test_frames_survive_their_encoding():
    frame = Frame(FrameKind.DATA, 2**63, 1, 7, b"content")
    assert decode_frame(encode_frame(frame)) == frame


@pytest.mark.parametrize("data", [b"", b"\1", b"\1\2abc", b"\1\x09" + bytes(24)])
def test_what_is_no_frame_is_refused(data: bytes):
    with pytest.raises(PeerProtocolError, match="no frame"):
        decode_frame(data)


def test_a_node_that_speaks_another_format_is_named():
    data = encode_frame(Frame(FrameKind.BEAT, 1, 1, 1))
    with pytest.raises(PeerProtocolError, match=r"format 9.*expected format 1.*Upgrade"):
        decode_frame(b"\x09" + data[1:])


def test_a_frame_is_early_if_others_of_its_beginning_were_sent_before_it():
    pair = Pair(8)
    pair.run(100, traffic=0)
    a, b = pair.ends
    for number in range(3):
        a.link.send(b"%d" % number)
    first, second, third = a.link.take_frames()

    def is_early(frame: Frame) -> bool:
        return b.link.is_early(encode_frame(frame))

    assert [is_early(one) for one in (first, second, third)] == [False, True, True]
    beat = Frame(FrameKind.BEAT, first.token, first.peer_token, 1, bytes(24))
    assert is_early(beat)
    assert not is_early(beat._replace(number=0))
    assert not is_early(second._replace(token=1))
    assert not is_early(second._replace(peer_token=1))
    assert not is_early(second._replace(kind=FrameKind.HELLO))
    assert not b.link.is_early(b"no frame")
    b.note(b.link.receive(first, pair.now))
    assert [is_early(one) for one in (first, second, third, beat)] == [False, False, True, False]
    b.note(b.link.reset("on purpose", pair.now))
    assert not is_early(third)
