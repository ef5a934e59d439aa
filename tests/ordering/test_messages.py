"""Bytes: what goes in comes out, and nothing else gets in."""

import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model.errors import PeerProtocolError
from nearcast.ordering import (
    Account,
    CausalProcess,
    DeltaCausal,
    KshemkalyaniSinghal,
    Message,
    PrakashRaynalSinghal,
    RaynalSchiperToueg,
)
from nearcast.ordering.account import write_account
from nearcast.ordering.layout import HIGHEST_NUMBER, numbers_in

KINDS: list[type[CausalProcess]] = [
    DeltaCausal,
    KshemkalyaniSinghal,
    PrakashRaynalSinghal,
    RaynalSchiperToueg,
]
NOW_US = 1_790_000_000_000_000
numbers = st.one_of(st.integers(0, 20), st.integers(0, HIGHEST_NUMBER))
number_sets = st.frozensets(numbers, max_size=30)


def bits_of(members: frozenset[int]) -> int:
    return sum(1 << number for number in members)


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


@st.composite
def accounts(draw: st.DrawFn) -> Account:
    algorithm = draw(st.integers(0, 3))
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
        algorithm=algorithm,
        width=3,
        sender=sender,
        sent_us=NOW_US,
        lifetime_us=draw(st.integers(0, 2**40)),
        destinations=bits_of(frozenset(destinations)),
        to=draw(st.sampled_from(sorted(destinations))),
        rows=rows,
        waits=tuple(waits) if algorithm == 0 else (),
    )


class Plain:
    """A reader written from the description in codec.py and message.py alone."""

    def __init__(self, data: bytes) -> None:
        self.left = iter(data)

    def fixed(self, width: int) -> int:
        return sum(next(self.left) << 8 * i for i in range(width))

    def varint(self) -> int:
        value = shift = 0
        for byte in self.left:
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        return value

    def set(self) -> tuple[int, bool]:
        first = next(self.left)
        length = first & 0x3F
        length += self.varint() if length == 0x3F else 0
        if first & 0x40:
            return self.fixed(length), first >= 0x80
        bits, last = 0, -1
        for _ in range(length):
            last += self.varint() + 1
            bits |= 1 << last
        return bits, first >= 0x80

    def time(self, width: int, sent_us: int) -> int:
        return sent_us - (sent_us - self.fixed(width)) % (1 << 8 * width)

    def row(self, width: int, sent_us: int) -> Iterator[tuple[int, int]]:
        more = True
        while more:
            at_us = self.time(width, sent_us)
            bits, more = self.set()
            yield at_us, bits

    def account(self) -> Account:
        flags = next(self.left)
        width, sender, sent_us = flags >> 4, self.varint(), self.fixed(7)
        own_us = self.varint() if flags & 4 else 0
        destinations, to = self.set()[0], self.varint()
        rows = {k: tuple(self.row(width, sent_us)) for k in numbers_in(self.set()[0])}
        waits: list[tuple[int, int]] = []
        if flags & 3 == 0:
            entries = [(k, at_us) for k, row in rows.items() for at_us, _ in row]
            waits = [entries[place] for place in numbers_in(self.set()[0])]
            waits += [(self.varint(), self.time(width, sent_us)) for _ in range(self.varint())]
        return Account(
            flags & 3, width, sender, sent_us, own_us, destinations, to, rows, tuple(waits)
        )


@given(accounts(), st.binary(max_size=200))
def test_an_account_comes_back_as_a_plain_reader_reads_it(account: Account, payload: bytes) -> None:
    data = write_account(account, len(payload)) + payload
    message = Message.decode(data)
    again = message.account()
    assert again == Plain(data).account()
    assert message.payload == payload
    assert message.sent_us == account.sent_us
    assert message.sender == account.sender
    assert (again.rows, again.destinations) == (account.rows, account.destinations)
    assert set(again.waits) == set(account.waits)
    assert (again.to, again.lifetime_us) == (account.to, account.lifetime_us)


@given(number_sets.filter(bool))
def test_a_set_takes_the_smaller_form(members: frozenset[int]) -> None:
    sender = next(k for k in range(HIGHEST_NUMBER) if k not in members)
    to = min(members)
    sizes = [
        len(write_account(Account(3, 3, sender, NOW_US, 0, bits_of(some), to, {}, ()), 0))
        for some in (members, frozenset({to}))
    ]
    as_bits = max(members) // 8 + 1
    as_bits += as_bits >= 0x3F
    gaps = [b - a - 1 for a, b in zip([-1, *sorted(members)], sorted(members), strict=False)]
    as_gaps = sum(1 + (gap >= 0x80) for gap in gaps)
    alone = 1 + (to >= 0x80)
    assert sizes[0] - sizes[1] == min(as_bits, as_gaps) - alone


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [False, True])
def test_a_message_comes_back_whole(kind: type[CausalProcess], names: bool) -> None:
    message = a_rich_message(kind, names)
    data = message.encode()
    again = Message.decode(data)
    assert again.account() == message.account()
    assert again.encode() == data
    assert again.sender == message.sender == ("cy" if names else 2)
    assert again.destination == ("dot" if names else 300)
    assert again.destinations == message.destinations
    assert again.lifetime == 0.1
    assert again.waits == message.waits


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [False, True])
def test_control_bytes_is_what_the_payload_does_not_take(
    kind: type[CausalProcess], names: bool
) -> None:
    message = a_rich_message(kind, names)
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


@given(accounts(), st.data())
def test_every_truncated_account_is_refused(account: Account, data: st.DataObject) -> None:
    whole = write_account(account, 0)
    with pytest.raises(PeerProtocolError):
        Message.decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(st.data())
def test_damaged_bytes_raise_nothing_but_a_protocol_error(data: st.DataObject) -> None:
    kind = KINDS[data.draw(st.integers(0, 3))]
    good = bytearray(a_rich_message(kind, data.draw(st.booleans())).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    receiver = kind(process=300, lifetime=0.25)
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
    with pytest.raises(PeerProtocolError):
        Message.decode(short, roster=("ada",))
