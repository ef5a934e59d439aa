"""Messages that say something else than they were sent with: a plain writer of accounts."""

from dataclasses import replace
from typing import Any

from nearcast.ordering import CausalMessage
from nearcast.papers.delta_causal import Account, account_of
from nearcast.papers.delta_causal.account import numbers_in


def retold(message: CausalMessage, **changes: Any) -> CausalMessage:
    """Return the message with another account of the past."""
    data = written(replace(account_of(message), **changes), len(message.payload))
    return CausalMessage(data, len(data), message.payload, message.names)


def written(account: Account, payload: int) -> bytes:
    """Return the control information of a message with a payload of so many bytes."""
    entries = [(k, at_us) for k in sorted(account.rows) for at_us, _ in account.rows[k]]
    places = sum(1 << entries.index(wait) for wait in set(account.waits) if wait in entries)
    rest = [wait for wait in account.waits if wait not in entries]
    parts = [
        bytes([account.width << 4 | (4 if account.lifetime_us else 0)]),
        varint(account.sender),
        account.sent_us.to_bytes(7, "little"),
        varint(account.lifetime_us) if account.lifetime_us else b"",
        set_of(account.destinations),
        varint(account.to),
        set_of(sum(1 << k for k in account.rows)),
        *(row(account.rows[k], account.width) for k in sorted(account.rows)),
        set_of(places),
        varint(len(rest)),
        *(varint(k) + time(at_us, account.width) for k, at_us in rest),
        varint(payload),
    ]
    return b"".join(parts)


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def time(at_us: int, width: int) -> bytes:
    return (at_us % (1 << 8 * width)).to_bytes(width, "little")


def set_of(bits: int) -> bytes:
    """Return a set in its smaller form."""
    numbers = numbers_in(bits)
    gaps = b"".join(varint(b - a - 1) for a, b in zip([-1, *numbers], numbers, strict=False))
    as_bits = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    if len(numbers) <= 1 or len(gaps) < len(as_bits):
        return length_of(len(numbers), 0) + gaps
    return length_of(len(as_bits), 0x40) + as_bits


def length_of(length: int, form: int) -> bytes:
    return bytes([form | length]) if length < 0x3F else bytes([form | 0x3F]) + varint(length - 0x3F)


def row(entries: tuple[tuple[int, int], ...], width: int) -> bytes:
    out = bytearray()
    for place, (at_us, bits) in enumerate(entries):
        more = 0x80 if place < len(entries) - 1 else 0
        first, *others = set_of(bits)
        out += time(at_us, width) + bytes([first | more, *others])
    return bytes(out)
