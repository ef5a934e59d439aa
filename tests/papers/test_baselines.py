"""The algorithms of the comparison keep the same promise, in the same bytes."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.causal_histories import run_history
from tests.support.history_counts import HISTORIES, SOAK

from nearcast.model.errors import MisuseError, PeerProtocolError
from nearcast.ordering import CausalMessage, DeltaCausal
from nearcast.papers.delta_causal import (
    Baseline,
    JangAsWritten,
    KshemkalyaniSinghal,
    PrakashRaynalSinghal,
    RaynalSchiperToueg,
)

KINDS: list[type[Baseline]] = [
    RaynalSchiperToueg,
    PrakashRaynalSinghal,
    KshemkalyaniSinghal,
    JangAsWritten,
]


@pytest.mark.timeout(7200 if SOAK else 300)
@pytest.mark.parametrize("kind", KINDS)
def test_the_compared_algorithms_keep_the_same_promise(kind: type[Baseline]) -> None:
    for seed in range(HISTORIES // 10):
        run_history(seed, kind, wire=bytes)


def a_rich_message(kind: type[Baseline]) -> CausalMessage:
    a, b, c = (kind(process=i, lifetime=0.25) for i in range(3))
    first = a.send({1, 2, 300}, b"one", 5.0)
    b.receive(first[1], 5.01)
    second = b.send({2, 300}, b"two", 5.02)
    c.receive(first[2], 5.03)
    c.receive(second[2], 5.03)
    return c.send({0, 300}, b"three", 5.04, lifetime=0.1)[300]


@pytest.mark.parametrize("kind", KINDS)
def test_every_truncated_prefix_is_refused(kind: type[Baseline]) -> None:
    receiver, data = kind(process=300, lifetime=0.25), a_rich_message(kind).encode()
    for wrong in (*(data[:length] for length in range(len(data))), data + b"x"):
        with pytest.raises(PeerProtocolError):
            receiver.receive(wrong, 5.05)
    assert receiver.receive(data, 5.05) == []
    assert [one.message.payload for one in receiver.advance(5.139)] == []


@given(st.sampled_from(KINDS), st.data())
def test_damaged_bytes_raise_nothing_but_a_protocol_error(
    kind: type[Baseline], data: st.DataObject
) -> None:
    good = bytearray(a_rich_message(kind).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    receiver = kind(process=300, lifetime=0.25)
    try:
        outputs = receiver.receive(bytes(good), 5.05)
    except PeerProtocolError:
        return
    assert len(outputs) <= 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_messages_and_their_bytes_are_received_alike(seed: int, kind: type[Baseline]) -> None:
    random = Random(seed)
    ids = random.choice([range(4), [0, 1, 63, 64, 200]])
    senders = {p: kind(process=p, lifetime=0.25) for p in ids}
    whole, bare = (kind(process=9, lifetime=0.25) for _ in range(2))
    for step in range(300):
        now, sender = 1.0 + step * 0.004, random.choice(list(ids))
        to = {*random.sample([p for p in ids if p != sender], 2), 9}
        for one, copy in senders[sender].send(to, b"p", now).items():
            if random.random() < 0.2:
                continue
            if one == 9:
                sent = [(o.message.sender, o.message.sent_us) for o in whole.receive(copy, now)]
                data = copy.encode()
                assert [
                    (o.message.sender, o.message.sent_us) for o in bare.receive(data, now)
                ] == sent
            else:
                senders[int(one)].receive(copy, now)
    assert whole.counters == bare.counters
    assert whole.counters.held > 10


def test_no_two_kinds_take_one_another_for_their_own() -> None:
    kinds = [*KINDS[:-1], DeltaCausal]  # the paper's own form is of ours: it only carries more
    for kind in kinds:
        for other in kinds:
            copy = kind(process=0, lifetime=0.25).send({1}, b"", 1.0)[1]
            receiver = other(process=1, lifetime=0.25)
            if kind is other:
                assert len(receiver.receive(copy, 1.0)) == 1
            else:
                with pytest.raises(PeerProtocolError):
                    receiver.receive(copy, 1.0)


def test_a_baseline_has_a_number() -> None:
    with pytest.raises(MisuseError):
        KshemkalyaniSinghal(process="ada", lifetime=0.25)
