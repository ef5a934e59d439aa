"""Bytes: what goes in comes out, and nothing else gets in."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model.errors import PeerProtocolError
from nearcast.ordering import (
    CausalProcess,
    DeltaCausal,
    KshemkalyaniSinghal,
    Message,
    PrakashRaynalSinghal,
    RaynalSchiperToueg,
)
from nearcast.ordering.wire import HIGHEST_NUMBER, Reader, Row, numbers_in, set_bytes, varint

KINDS: list[type[CausalProcess]] = [
    DeltaCausal,
    KshemkalyaniSinghal,
    PrakashRaynalSinghal,
    RaynalSchiperToueg,
]
number_sets = st.frozensets(st.one_of(st.integers(0, 20), st.integers(0, HIGHEST_NUMBER)))


def bits_of(numbers: frozenset[int]) -> int:
    return sum(1 << number for number in numbers)


def a_rich_message(kind: type[CausalProcess], names: bool = False) -> Message:
    ids: list[int | str] = ["ada", "bob", "cy", "dot"] if names else [0, 1, 2, 300]
    a, b, c, _ = (kind(process=i, lifetime=0.25) for i in ids)
    first = a.send({ids[1], ids[2], ids[3]}, b"one", 5.0)
    b.receive(first[ids[1]], 5.01)
    second = b.send({ids[2], ids[3]}, b"two", 5.02)
    c.receive(first[ids[2]], 5.03)
    c.receive(second[ids[2]], 5.03)
    third = c.send({ids[0], ids[3]}, b"three", 5.04, lifetime=0.1)
    return third[ids[3]]


@given(number_sets)
def test_a_set_comes_back_and_takes_the_smaller_form(numbers: frozenset[int]) -> None:
    bits = bits_of(numbers)
    data = set_bytes(bits)
    assert Reader(data).set() == bits
    assert numbers_in(bits) == sorted(numbers)
    assert len(data) <= 1 + 2 + (bits.bit_length() + 7) // 8


@given(st.integers(0, 2**64 - 1))
def test_a_varint_comes_back(value: int) -> None:
    assert Reader(varint(value)).varint() == value


@given(st.dictionaries(st.integers(0, 2**24 - 2), number_sets, min_size=1, max_size=5))
def test_a_row_comes_back_with_whole_times(ages: dict[int, frozenset[int]]) -> None:
    sent_us = 1_790_000_000_000_000
    entries = tuple(sorted((sent_us - 1 - age, bits_of(ids)) for age, ids in ages.items()))
    row = Row(entries)
    assert Reader(row.wire(3)).row(3, sent_us) == row


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [False, True])
def test_a_message_comes_back_whole(kind: type[CausalProcess], names: bool) -> None:
    message = a_rich_message(kind, names)
    data = message.encode()
    again = Message.decode(data)
    assert again.cast == message.cast
    assert (again.to, again.body) == (message.to, message.body)
    assert set(again.waits) == set(message.waits)
    assert again.encode() == data
    assert again.sender == message.sender
    assert again.destinations == message.destinations


@pytest.mark.parametrize("kind", KINDS)
def test_control_bytes_is_what_the_payload_does_not_take(kind: type[CausalProcess]) -> None:
    message = a_rich_message(kind)
    assert message.control_bytes == len(message.encode()) - len(message.payload)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [False, True])
def test_every_truncated_prefix_is_refused(kind: type[CausalProcess], names: bool) -> None:
    data = a_rich_message(kind, names).encode()
    for length in range(len(data)):
        with pytest.raises(PeerProtocolError):
            Message.decode(data[:length])
    with pytest.raises(PeerProtocolError):
        Message.decode(data + b"x")


@given(st.data())
def test_damaged_bytes_raise_nothing_but_a_protocol_error(data: st.DataObject) -> None:
    kind = KINDS[data.draw(st.integers(0, 3))]
    good = bytearray(a_rich_message(kind, data.draw(st.booleans())).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    receiver = DeltaCausal(process=300, lifetime=0.25)
    try:
        message = Message.decode(bytes(good))
    except PeerProtocolError:
        return
    outputs = receiver.receive(message, 5.05)
    assert len(outputs) <= 1


@given(st.binary(max_size=60))
def test_random_bytes_raise_nothing_but_a_protocol_error(data: bytes) -> None:
    with contextlib.suppress(PeerProtocolError):
        Message.decode(data)


def test_names_stay_out_of_the_bytes_where_all_know_the_roster() -> None:
    roster = ("ada", "bob")
    ada, bob = (DeltaCausal(process=p, lifetime=1, processes=roster) for p in roster)
    message = ada.send({"bob"}, b"hello", 1.0)["bob"]
    short = message.encode(roster=True)
    assert b"ada" not in short
    assert len(short) < len(message.encode())
    assert bob.receive(Message.decode(short, roster=roster), 1.1)[0].message.sender == "ada"
