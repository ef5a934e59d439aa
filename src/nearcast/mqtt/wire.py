"""The data types of section 1.5: integers, strings, binary data, pairs.

Every `read_…` function gets the bytes, a start and a stop, and returns the value and the position
behind it. Reading past the stop is a malformed packet. All run in O(length read).
"""

from __future__ import annotations

from typing import Final

from nearcast.model.errors import LimitError
from nearcast.mqtt.errors import MalformedPacketError

MAX_VARIABLE_INTEGER: Final = 268_435_455
MAX_LENGTH: Final = 65_535

ONE_BYTE: Final[tuple[bytes, ...]] = tuple(n.to_bytes(1, "big") for n in range(256))
# The two bytes of every 16-bit number, built once: every delivery at QoS 1 or 2 looks one up.
TWO_BYTES: Final[tuple[bytes, ...]] = tuple(n.to_bytes(2, "big") for n in range(65_536))


def encode_variable_integer(value: int) -> bytes:
    """Return `value` in one to four bytes, the shortest form [MQTT-1.5.5-1].

    >>> encode_variable_integer(321).hex()
    'c102'
    """
    if 0 <= value < 128:
        return ONE_BYTE[value]
    if not 0 <= value <= MAX_VARIABLE_INTEGER:
        raise LimitError(str(value), where="variable byte integer", expected="0 … 268,435,455")
    encoded = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        if not value:
            encoded.append(low)
            return bytes(encoded)
        encoded.append(low | 0x80)


def read_variable_integer(data: bytes, position: int, stop: int) -> tuple[int, int]:
    """Return the number and the position behind it.

    >>> read_variable_integer(bytes([0xC1, 0x02]), 0, 2)
    (321, 2)
    """
    value = shift = 0
    for at in range(position, min(position + 4, stop)):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and at > position:  # [MQTT-1.5.5-1]
                raise MalformedPacketError(
                    "a length with superfluous bytes", where="variable byte integer"
                )
            return value, at + 1
        shift += 7
    raise MalformedPacketError("no end within its bytes", where="variable byte integer")


def read_byte(data: bytes, position: int, stop: int) -> tuple[int, int]:
    """Return one byte and the position behind it."""
    if position >= stop:
        raise _cut_short("a byte")
    return data[position], position + 1


def read_two_bytes(data: bytes, position: int, stop: int) -> tuple[int, int]:
    """Return a 16-bit number and the position behind it."""
    if position + 2 > stop:
        raise _cut_short("a two-byte integer")
    return data[position] << 8 | data[position + 1], position + 2


def read_four_bytes(data: bytes, position: int, stop: int) -> tuple[int, int]:
    """Return a 32-bit number and the position behind it."""
    if position + 4 > stop:
        raise _cut_short("a four-byte integer")
    return int.from_bytes(data[position : position + 4], "big"), position + 4


def read_binary(data: bytes, position: int, stop: int) -> tuple[bytes, int]:
    """Return length-prefixed bytes and the position behind them."""
    length, start = read_two_bytes(data, position, stop)
    if start + length > stop:
        raise _cut_short(f"{length} bytes of data")
    return data[start : start + length], start + length


def read_string(data: bytes, position: int, stop: int) -> tuple[str, int]:
    """Return a UTF-8 string and the position behind it; refuses U+0000 and surrogates."""
    raw, behind = read_binary(data, position, stop)
    return decode_text(raw), behind


def read_pair(data: bytes, position: int, stop: int) -> tuple[tuple[str, str], int]:
    """Return a string pair and the position behind it."""
    name, position = read_string(data, position, stop)
    value, position = read_string(data, position, stop)
    return (name, value), position


def decode_text(raw: bytes) -> str:
    """Return `raw` as text; refuses bad UTF-8 [MQTT-1.5.4-1] and U+0000 [MQTT-1.5.4-2]."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as problem:
        raise MalformedPacketError(
            f"{problem.reason} at byte {problem.start}", where="string", expected="UTF-8"
        ) from None
    if "\0" in text:
        raise MalformedPacketError("U+0000", where="string", expected="text without it")
    return text


def encode_binary(value: bytes) -> bytes:
    """Return `value` with its two-byte length in front."""
    if len(value) > MAX_LENGTH:
        raise LimitError(f"{len(value)} bytes", where="string or data", expected="at most 65,535")
    return TWO_BYTES[len(value)] + value


def encode_string(value: str) -> bytes:
    """Return `value` as UTF-8 with its two-byte length in front.

    >>> encode_string("MQTT").hex()
    '00044d515454'
    """
    try:
        raw = value.encode()
    except UnicodeEncodeError:
        raise LimitError("a lone surrogate", where="string", expected="Unicode text") from None
    if b"\0" in raw:
        raise LimitError("U+0000", where="string", expected="text without it")
    return encode_binary(raw)


def _cut_short(wanted: str) -> MalformedPacketError:
    return MalformedPacketError("the end of the packet", expected=wanted)
