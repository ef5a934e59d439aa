"""Which web pages may open a WebSocket (RFC 6454, RFC 6455, 10.2), and by which names.

A browser sends the page's origin and the host that it connects to; a page cannot change them. So a
page of another origin, or one whose name was made to point here (DNS rebinding), is found out.
Other clients send no origin, and are judged by their login alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from nearcast.config import ListenerSection, is_loopback_host

_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_OF_PROXIES = ("forwarded", "via", "x-forwarded-for", "x-real-ip", "x-forwarded-host")


@dataclass(frozen=True, slots=True)
class OriginRule:
    """The origins and hosts of one listener. Without origins, only its own is welcome."""

    origins: Sequence[str] = ()
    hosts: Sequence[str] = ()
    is_loopback: bool = False

    @classmethod
    def of(cls, section: ListenerSection) -> OriginRule:
        """Return the rule of a listener."""
        origins = [_normal(one) for one in section.origins]
        return cls(origins, [one.lower() for one in section.hosts], section.is_loopback)

    def objection(self, headers: dict[str, str]) -> str:
        """Return why a request is refused; "" if it is not."""
        host, origin = headers.get("host", ""), headers.get("origin")
        name = _name(host)
        if self.hosts:
            if name not in self.hosts and host.lower() not in self.hosts:
                return f"host {host[:80]!r} is none of its names"
        elif origin is not None and self.is_loopback and not _names_this_machine(name, headers):
            return f"host {host[:80]!r} is no name of this machine"
        if origin is None or "*" in self.origins:
            return ""
        is_welcome = _normal(origin) in self.origins if self.origins else _is_same(origin, host)
        return "" if is_welcome else f"origin {origin[:80]!r} is not allowed"


def is_proxied(headers: dict[str, str]) -> bool:
    """Return whether a proxy has forwarded a request."""
    return any(name in headers for name in _OF_PROXIES)


def _names_this_machine(name: str, headers: dict[str, str]) -> bool:
    return is_loopback_host(name) or is_proxied(headers)


def _name(host: str) -> str:
    """Return the name in a Host header, without its port.

    >>> _name("a.org:8083"), _name("[::1]:8083"), _name("127.0.0.1")
    ('a.org', '::1', '127.0.0.1')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _normal(origin: str) -> str:
    """Return an origin in lower case, without the port that its scheme has anyway."""
    if origin == "*":
        return origin
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return origin
    if port is None or port == _PORTS.get(parts.scheme):
        return f"{parts.scheme}://{_bracketed(parts.hostname or '')}".lower()
    return f"{parts.scheme}://{_bracketed(parts.hostname or '')}:{port}".lower()


def _bracketed(host: str) -> str:
    try:
        return f"[{host}]" if ip_address(host).version == 6 else host
    except ValueError:
        return host


def _is_same(origin: str, host: str) -> bool:
    """Return whether a page's host and port are those that it connects to."""
    try:
        parts = urlsplit(origin)
        port = parts.port or _PORTS[parts.scheme]
        target = urlsplit(f"//{host}")
        return (parts.hostname, port) == (target.hostname, target.port or _PORTS[parts.scheme])
    except (ValueError, KeyError):
        return False
