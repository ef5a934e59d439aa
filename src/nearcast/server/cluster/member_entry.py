"""A node's entry in the member list."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import nearcast
from nearcast.cluster.messages import SPEAKS
from nearcast.config import Configuration, NetworkSection
from nearcast.locality.registration.redirect_policy import RedirectRules
from nearcast.server.broker_settings import describe_spaces
from nearcast.server.cluster.nats_members import MemberRecord

if TYPE_CHECKING:
    from nearcast.server.cluster.runtime import ClusterRuntime
    from nearcast.server.server import Server

_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - compared, not opened
_WITH_ADDRESS = ("tcp", "tls")  # kinds of listeners that host and port are enough for


def entry_of(server: Server) -> Callable[[ClusterRuntime], MemberRecord]:
    """Return a function that makes a server's entry, with its current metrics."""
    configuration, started_ms = server.configuration, server.clock.now_ms()
    me, spaces = identity(configuration), describe_spaces(configuration)

    def describe(network: ClusterRuntime) -> MemberRecord:
        counts = network.mesh.counts
        return MemberRecord(
            configuration.node.name,
            me,
            addresses=addresses(server.ports),
            speaks=SPEAKS,
            version=nearcast.__version__,
            started_ms=started_ms,
            spaces=spaces,
            clients=server.node.connected_clients,
            frames_sent=counts.frames_sent,
            frames_received=counts.frames_received,
            bytes_sent=counts.bytes_sent,
            refused=counts.refused,
            links=network.link_states(),
            messages_sent=counts.messages_sent,
            handovers=network.mesh.handovers,
            plan=network.mesh.plans[0],
            unwanted=server.node.counters.unwanted,
            direct=network.doors.address,
            redirects_offered=counts.redirects_offered,
            redirects_followed=counts.redirects_followed,
            load=round(network.mesh.load),
            plans_proposed=counts.plans_proposed,
        )

    return describe


def client_address(section: NetworkSection, ports: Iterable[tuple[str, str, int]]) -> str:
    """Return the address that clients are sent to; empty if there is none that others can use.

    >>> client_address(NetworkSection(), [("ws", "10.0.0.7", 80), ("tcp", "10.0.0.7", 1883)])
    '10.0.0.7:1883'
    >>> client_address(NetworkSection(), [("tcp", "0.0.0.0", 1883)])
    ''
    """
    found = (
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        for kind, host, port in ports
        if kind in _WITH_ADDRESS and host not in _EVERYWHERE
    )
    return section.client_address or next(found, "")


def redirect_rules(configuration: Configuration) -> RedirectRules | None:
    """Return when clients are offered another node; None: never."""
    section = configuration.network
    if section.redirect == "off":
        return None
    kinds = enumerate(one.kind for one in configuration.listener)
    return RedirectRules(
        section.redirect_crossings,
        round(section.redirect_after * 1000),
        section.redirect_rate,
        # an address is not enough to find a WebSocket
        listeners=frozenset(str(number) for number, kind in kinds if kind in _WITH_ADDRESS),
    )


def identity(configuration: Configuration) -> str:
    """Return the token that distinguishes this node from another one of the same name.

    It is stored with the node's data, if any: a node that was killed finds its own entry in the
    list after a restart, and may take it over.
    """
    if configuration.durability.mode == "off":
        return secrets.token_hex(8)
    path = configuration.node.data / "identity"
    with contextlib.suppress(OSError):
        known = path.read_text(encoding="utf-8").strip()
        if known:
            return known
    fresh = secrets.token_hex(8)
    path.write_text(fresh, encoding="utf-8")
    return fresh


def addresses(ports: Iterable[tuple[str, str, int]]) -> list[str]:
    """Return the addresses for clients; a wildcard address becomes the machine's host name.

    >>> addresses([("tcp", "10.0.0.7", 1883), ("http", "127.0.0.1", 9000)])
    ['mqtt://10.0.0.7:1883']
    """
    schemes = {"tcp": "mqtt", "tls": "mqtts", "ws": "ws", "wss": "wss"}
    return [
        f"{schemes[kind]}://{socket.gethostname() if host in _EVERYWHERE else host}:{port}"
        for kind, host, port in ports
        if kind in schemes
    ]
