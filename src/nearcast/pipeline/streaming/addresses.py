"""Addresses of live sources: `mqtt://user:password@host:port/FILTER`, `nats://host:port/NETWORK`."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from nearcast.model import MisuseError

_PORTS = {"mqtt": 1883, "mqtts": 8883, "nats": 4222, "tls": 4222}
MQTT = ("mqtt", "mqtts")
NATS = ("nats", "tls")


@dataclass(frozen=True, slots=True)
class LiveAddress:
    """The address of a source or sink.

    `path` is a topic filter, a topic prefix or a network name.
    """

    scheme: str
    host: str
    port: int
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    path: str = ""

    @property
    def place(self) -> str:
        """The address as readable text, without user and password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def is_mqtt(self) -> bool:
        """Whether it is the address of a broker, and not of NATS."""
        return self.scheme in MQTT


def parse_address(text: str, option: str, schemes: tuple[str, ...]) -> LiveAddress:
    """Parse an address, or raise MisuseError. The path is not decoded: it may contain # and +.

    >>> parse_address("mqtt://me:s%40fe@[::1]/shops/#", "--source", MQTT).path
    'shops/#'
    >>> parse_address("nats://10.0.0.1", "--source", NATS).place
    'nats://10.0.0.1:4222'
    """
    scheme, separator, rest = text.partition("://")
    authority, _, path = rest.partition("/")
    expected = " or ".join(f"{one}://host:port/…" for one in schemes)
    if not separator or scheme not in schemes:
        raise MisuseError(repr(_without_password(text)), where=option, expected=expected)
    try:
        parts = urlsplit(f"//{authority}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or any(one in authority for one in "?# "):
        raise MisuseError(repr(_without_password(text)), where=option, expected=expected)
    user, password = parts.username, parts.password
    return LiveAddress(
        scheme,
        host,
        _PORTS[scheme] if port is None else port,
        None if user is None else unquote(user),
        None if password is None else unquote(password),
        path,
    )


def _without_password(text: str) -> str:
    before, at, rest = text.rpartition("@")
    return f"{before.partition('://')[0]}://…@{rest}" if at else text
