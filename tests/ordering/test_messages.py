"""Bytes: what goes in comes out, and nothing else gets in."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.causal_accounts import Account, account_of, written

from nearcast.model.errors import PeerProtocolError
from nearcast.ordering import CausalMessage, DeltaCausal
from nearcast.ordering.layout import HIGHEST_NUMBER

NOW_US = 1_790_000_000_000_000
numbers = st.one_of(st.integers(0, 20), st.integers(0, HIGHEST_NUMBER))
number_sets = st.frozensets(numbers, max_size=30)


def bits_of(members: frozenset[int]) -> int:
    return sum(1 << number for number in members)


def a_rich_message(names: bool = False) -> CausalMessage:
    ids: list[int | str] = ["ada", "bob", "cy", "dot"] if names else [0, 1, 2, 300]
    a, b, c, _ = (DeltaCausal(process=i, lifetime=0.25) for i in ids)
    first = a.send({ids[1], ids[2], ids[3]}, b"one", 5.0)
    b.receive(first[ids[1]], 5.01)
    second = b.send({ids[2], ids[3]}, b"two", 5.02)
    c.receive(first[ids[2]], 5.03)
    c.receive(second[ids[2]], 5.03)
    third = c.send({ids[0], ids[3]}, b"three", 5.04, lifetime=0.1)
    return third[ids[3]]


@st.composite
def accounts(draw: st.DrawFn) -> Account:
    sender = draw(numbers)
    destinations = draw(number_sets) - {sender} or {0 if sender else 1}
    rows = {}
    for k in draw(st.frozensets(numbers, max_size=8)):
        ages = draw(st.frozensets(st.integers(1, 2**24 - 1), min_size=1, max_size=3))
        entries = [(NOW_US - age, bits_of(draw(number_sets) - {k})) for age in sorted(ages)[::-1]]
        rows[k] = tuple(entries)
    waits = [(k, at_us) for k, row in rows.items() for at_us, _ in row if draw(st.booleans())]
    waits += draw(st.lists(st.tuples(numbers, st.integers(NOW_US - 2**24 + 1, NOW_US - 1))))
    return Account(
        width=3,
        sender=sender,
        sent_us=NOW_US,
        lifetime_us=draw(st.integers(0, 2**40)),
        destinations=bits_of(frozenset(destinations)),
        to=draw(st.sampled_from(sorted(destinations))),
        rows=rows,
        waits=tuple(waits),
    )


@given(accounts(), st.binary(max_size=200))
def test_an_account_comes_back_as_a_plain_reader_reads_it(account: Account, payload: bytes) -> None:
    message = CausalMessage.decode(written(account, len(payload)) + payload)
    again = account_of(message)
    assert message.payload == payload
    assert (message.sent_us, message.sender) == (account.sent_us, account.sender)
    assert message.lifetime == (account.lifetime_us / 1e6 or None)
    assert message.waits == set(again.waits) == set(account.waits)
    assert (again.rows, again.destinations) == (account.rows, account.destinations)
    assert (again.to, again.lifetime_us) == (account.to, account.lifetime_us)


@given(number_sets.filter(bool))
def test_a_set_takes_the_smaller_form(members: frozenset[int]) -> None:
    sender = next(k for k in range(HIGHEST_NUMBER) if k not in members)
    to = min(members)
    sizes = [
        DeltaCausal(process=sender, lifetime=1).send(set(some), b"", 1.0)[to].end
        for some in (members, frozenset({to}))
    ]
    as_bits = max(members) // 8 + 1
    as_bits += as_bits >= 0x3F
    gaps = [b - a - 1 for a, b in zip([-1, *sorted(members)], sorted(members), strict=False)]
    as_gaps = sum(1 + (gap >= 0x80) for gap in gaps)
    alone = 1 + (to >= 0x80)
    assert sizes[0] - sizes[1] == min(as_bits, as_gaps) - alone


@given(st.data())
def test_what_is_sent_is_what_a_plain_writer_writes(data: st.DataObject) -> None:
    ids = data.draw(st.lists(numbers, min_size=3, max_size=6, unique=True))
    processes = {p: DeltaCausal(process=p, lifetime=0.25) for p in ids}
    for step in range(12):
        sender = data.draw(st.sampled_from(ids))
        others = [p for p in ids if p != sender]
        to = data.draw(st.sets(st.sampled_from(others), min_size=1))
        now = 1.0 + step / 100
        for one, copy in processes[sender].send(to, b"", now).items():
            assert written(account_of(copy), 0) == copy.data
            if data.draw(st.booleans()):
                processes[int(one)].receive(copy, now)


@pytest.mark.parametrize("names", [False, True])
def test_a_message_comes_back_whole(names: bool) -> None:
    message = a_rich_message(names)
    data = message.encode()
    again = CausalMessage.decode(data)
    assert account_of(again) == account_of(message)
    assert again.encode() == data
    assert again.sender == message.sender == ("cy" if names else 2)
    assert message.names == (("cy", "ada", "bob", "dot") if names else ())
    assert account_of(again).to == (3 if names else 300)
    assert again.lifetime == message.lifetime == 0.1
    assert again.waits == message.waits != frozenset()


@pytest.mark.parametrize("names", [False, True])
def test_every_truncated_prefix_is_refused(names: bool) -> None:
    data = a_rich_message(names).encode()
    for length in range(len(data)):
        with pytest.raises(PeerProtocolError):
            CausalMessage.decode(data[:length])
    with pytest.raises(PeerProtocolError):
        CausalMessage.decode(data + b"x")


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_control_information_of_another_kind_is_refused(kind: int) -> None:
    first, *rest = a_rich_message().encode()
    with pytest.raises(PeerProtocolError, match="another kind"):
        CausalMessage.decode(bytes([first | kind, *rest]))


@given(accounts(), st.data())
def test_every_truncated_account_is_refused(account: Account, data: st.DataObject) -> None:
    whole = written(account, 0)
    with pytest.raises(PeerProtocolError):
        CausalMessage.decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(st.data())
def test_damaged_bytes_raise_nothing_but_a_protocol_error(data: st.DataObject) -> None:
    names = data.draw(st.booleans())
    good = bytearray(a_rich_message(names).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    receiver = DeltaCausal(process="dot" if names else 300, lifetime=0.25)
    try:
        message = CausalMessage.decode(bytes(good))
    except PeerProtocolError:
        return
    outputs = receiver.receive(message, 5.05)
    assert len(outputs) <= 1


@given(st.binary(max_size=60))
def test_random_bytes_raise_nothing_but_a_protocol_error(data: bytes) -> None:
    with contextlib.suppress(PeerProtocolError):
        CausalMessage.decode(data)
