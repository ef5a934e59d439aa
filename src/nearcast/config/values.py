"""How values are written in `nearcast.toml`: durations, sizes, addresses, names.

Durations are written `"250ms"`, `"30s"`, `"2h"`; sizes `"256KiB"`, `"1MiB"` or plain bytes.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.fields import FieldInfo

from nearcast.model import parse_duration
from nearcast.model.quantities import parse_length

_SIZE = re.compile(r"(\d+)\s*(B|KiB|MiB|GiB|kB|MB|GB)?")
_UNITS = {
    "B": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}

NODE_NAME = r"^[A-Za-z0-9._-]+$"
NETWORK_NAME = r"^[A-Za-z0-9_-]+$"
NATS_ADDRESS = r"^(nats|tls)://[^\s/,]+$"
SPACE_NAME = r"^[A-Za-z][A-Za-z0-9_-]*$"
FORMS = {
    NODE_NAME: "letters, digits, '.', '_' and '-' only",
    NETWORK_NAME: "letters, digits, '_' and '-' only",
    NATS_ADDRESS: "an address such as nats://10.0.0.1:4222 or tls://10.0.0.1:4222",
    SPACE_NAME: "a letter, then letters, digits, '_' and '-' only",
}
"""Description of the expected form of a text, for error messages."""


def _seconds(value: object) -> object:
    if isinstance(value, str):
        return parse_duration(value)
    return value


def _metres(value: object) -> object:
    if isinstance(value, str):
        return parse_length(value)
    return value


def _bytes(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if not match:
        msg = "expected a size such as '256KiB', '1MiB' or a whole number of bytes"
        raise ValueError(msg)
    return int(match[1]) * _UNITS[match[2] or "B"]


def _addresses(value: object) -> object:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


_RATE = re.compile(r"(\d+)\s*/\s*(s|min|h)(?:\s+burst\s+(\d+))?")
_PERIODS_S = {"s": 1.0, "min": 60.0, "h": 3_600.0}


def parse_rate(text: str) -> tuple[float, float]:
    """Return the events a second of a rate, and how many may come at once.

    >>> parse_rate("10/s burst 50"), parse_rate("600/min")
    ((10.0, 50.0), (10.0, 10.0))
    """
    match = _RATE.fullmatch(text.strip())
    if not match or not int(match[1]) or match[3] == "0":
        msg = f"'{text}' is no rate such as '10/s', '600/min' or '10/s burst 50'"
        raise ValueError(msg)
    per_s = int(match[1]) / _PERIODS_S[match[2]]
    return per_s, float(match[3] or max(1.0, per_s))


def _checked_rate(text: str) -> str:
    parse_rate(text)
    return text


_LARGEST_PACKET = 268_000_000  # MQTT's limit is 268,435,455; a broker adds properties

Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0, allow_inf_nan=False)]
Length = Annotated[float, BeforeValidator(_metres), Field(gt=0, allow_inf_nan=False)]
Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=1)]
PacketBytes = Annotated[Bytes, Field(le=_LARGEST_PACKET)]
Count = Annotated[int, Field(ge=1)]
FilePath = Annotated[Path, Field(strict=False)]
RateText = Annotated[str, AfterValidator(_checked_rate)]
NatsAddresses = Annotated[
    list[Annotated[str, Field(pattern=NATS_ADDRESS)]], BeforeValidator(_addresses)
]


def split_address(text: str, example: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT; an IPv6 address is in brackets.

    >>> split_address("[::1]:9100", "'[::1]:9100'")
    ('::1', 9100)
    """
    host, _, port = text.rpartition(":")
    is_host = host.startswith("[") == host.endswith("]") == (":" in host) and host
    if not is_host or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        msg = f"'{text}' is no HOST:PORT such as {example}"
        raise ValueError(msg)
    return host.strip("[]"), int(port)


@lru_cache(maxsize=4_096)
def is_loopback_host(host: str) -> bool:
    """Return whether a host is this machine, and no other can reach it.

    >>> is_loopback_host("127.0.0.1"), is_loopback_host("::1"), is_loopback_host("10.0.0.7")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def written(value: Any, field: FieldInfo) -> str:
    """Return a value of a key as people write it in TOML.

    >>> written(16 << 20, FieldInfo.from_annotation(Bytes)), written(True, FieldInfo())
    ('"16MiB"', 'true')
    """
    readers = {one.func for one in field.metadata if isinstance(one, BeforeValidator)}
    if _bytes in readers:
        unit = next(name for name in ("GiB", "MiB", "KiB", "B") if not value % _UNITS[name])
        return f'"{value // _UNITS[unit]}{unit}"'
    if _metres in readers:
        return f'"{value:g}m"'
    if _seconds in readers:
        value_ms = round(value * 1000)
        units = (("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))
        name, unit_ms = next(one for one in units if not value_ms % one[1])
        return f'"{value_ms // unit_ms}{name}"'
    return json.dumps(str(value) if isinstance(value, Path) else value)
