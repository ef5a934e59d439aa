"""The header of the PROXY protocol, versions 1 and 2: the address of a client behind a proxy.

https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from nearcast.model.errors import PeerProtocolError

_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_LONGEST_V1 = 107  # with its line end
_LONGEST_V2 = 16 + 4_096  # more than any field that proxies send
_HEAD = 16
_ADDRESS_BYTES = {1: 4, 2: 16}  # by family: AF_INET, AF_INET6
UNKNOWN = "unknown:0"
"""The address of a client that the proxy does not know: it is not of this machine."""


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """A whole header: its size, and the client's `HOST:PORT`; None: the proxy itself connects."""

    size: int
    address: str | None


def _refused(found: str) -> PeerProtocolError:
    return PeerProtocolError(found, where="PROXY header", expected="version 1 or 2")


def read_header(data: bytes) -> ProxyHeader | None:
    r"""Return the header at the begin of a connection; None if more bytes are needed.

    Raises PeerProtocolError if these bytes cannot begin one. O(size of the header).

    >>> read_header(b"PROXY TCP4 192.0.2.7 192.0.2.1 51234 1883\r\n").address
    '192.0.2.7:51234'
    """
    if data[:12] == _SIGNATURE[: len(data)]:
        return _read_v2(data)
    if data[:6] == b"PROXY "[: len(data)]:
        return _read_v1(data)
    raise _refused(repr(data[:16]))


def wanted_bytes(data: bytes) -> int:
    """Return how many bytes are wanted at least, if these are not a whole header yet."""
    if data[:1] != b"\r":
        return len(data) + 1
    if len(data) < _HEAD:
        return _HEAD
    return _HEAD + int.from_bytes(data[14:16], "big")


def _read_v1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, _LONGEST_V1)
    if end < 0:
        if len(data) >= _LONGEST_V1:
            raise _refused("a line without an end")
        return None
    words = data[:end].decode("latin-1").split(" ")
    if words[1] == "UNKNOWN":
        return ProxyHeader(end + 2, UNKNOWN)
    kinds: dict[str, type[IPv4Address] | type[IPv6Address]]
    kinds = {"TCP4": IPv4Address, "TCP6": IPv6Address}
    if len(words) != 6 or words[1] not in kinds:
        raise _refused(repr(data[:end]))
    try:
        source, target = (kinds[words[1]](word) for word in words[2:4])
    except ValueError:
        raise _refused(repr(data[:end])) from None
    del target  # it is checked, and then of no use
    return ProxyHeader(end + 2, _address(source, *(_port(word) for word in words[4:6])))


def _port(word: str) -> int:
    is_number = word.isascii() and word.isdecimal() and len(word) <= 5
    if not is_number or int(word) > 65_535 or (word[0] == "0" and word != "0"):
        raise _refused(f"port {word!r}")
    return int(word)


def _read_v2(data: bytes) -> ProxyHeader | None:
    if len(data) < _HEAD:
        return None
    version, command, family = data[12] >> 4, data[12] & 0x0F, data[13] >> 4
    size = _HEAD + int.from_bytes(data[14:16], "big")
    if version != 2 or command > 1 or family > 3 or data[13] & 0x0F > 2:
        raise _refused(f"version and command {data[12]:#04x}, family {data[13]:#04x}")
    if size > _LONGEST_V2:
        raise _refused(f"{size} bytes")
    if len(data) < size:
        return None
    if command == 0:
        return ProxyHeader(size, None)  # LOCAL: a health check of the proxy
    width = _ADDRESS_BYTES.get(family)
    if width is None or data[13] & 0x0F != 1:
        return ProxyHeader(size, UNKNOWN)
    if size < _HEAD + 2 * width + 4:
        raise _refused(f"{size - _HEAD} bytes of addresses")
    kind = IPv4Address if family == 1 else IPv6Address
    at = _HEAD + 2 * width
    return ProxyHeader(
        size, _address(kind(data[_HEAD : _HEAD + width]), int.from_bytes(data[at : at + 2], "big"))
    )


def _address(source: IPv4Address | IPv6Address, port: int, _target_port: int = 0) -> str:
    mapped = getattr(source, "ipv4_mapped", None)
    return f"{source if mapped is None else mapped}:{port}"
