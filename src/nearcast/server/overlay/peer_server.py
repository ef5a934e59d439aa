"""A peer that serves MQTT clients: a broker whose network is the overlay (`nearcast peer`)."""

from __future__ import annotations

import ssl
from pathlib import Path

from nearcast.config import Configuration, PeerSection
from nearcast.config.values import split_address
from nearcast.model.errors import ConfigurationError, EnvironmentProblem
from nearcast.overlay.election import Method
from nearcast.overlay.live.codec import BESIDE_PAYLOAD
from nearcast.server.broker_settings import space_settings
from nearcast.server.overlay.links import LinkSettings
from nearcast.server.overlay.local_clients import LocalClients
from nearcast.server.overlay.runtime import OverlayRuntime, OverlaySpace, PeerSettings
from nearcast.server.overlay.spaces import TreeSettings, overlay_space
from nearcast.server.server import Server

_LEAST_KEY = 16


class PeerServer(Server):
    """A broker that is a peer; it joins the overlays of all its spaces before clients connect."""

    def __init__(self, configuration: Configuration) -> None:
        check_configuration(configuration)
        super().__init__(configuration)
        self.clients: LocalClients | None = None
        self.runtime: OverlayRuntime | None = None

    def _make_mesh(self) -> None:
        section = self.configuration.peer
        self.clients = LocalClients(
            self.node, most_boxes=section.boxes, looseness=section.looseness
        )

    def _kernel_parts(self) -> list[str]:
        return [*super()._kernel_parts(), "overlay"]

    async def _join_network(self) -> None:
        assert self.clients is not None
        assert self.turns is not None
        section = self.configuration.peer
        self.runtime = OverlayRuntime(
            peer_settings(section),
            overlay_spaces(self.configuration),
            self.clients.arrived_events,
            on_change=self.clients.release,
        )
        await self.runtime.start()
        self.clients.attach(self.runtime, self.turns)

    async def stop(self) -> None:
        """Leave the overlay, then stop as any broker."""
        if self.runtime is not None and self.clients is not None:
            self.clients.detach()
            await self.runtime.stop()
            self.runtime = None
        await super().stop()


def check_configuration(configuration: Configuration) -> None:
    """Raise ConfigurationError for settings that a peer cannot keep."""
    packet, message = configuration.limits.packet, configuration.peer.message
    if packet + BESIDE_PAYLOAD > message:
        raise ConfigurationError(
            f"message = {message}",
            where="peer",
            expected=f"at least {packet + BESIDE_PAYLOAD}: a client may publish {packet} bytes",
        )
    if not configuration.space:
        raise ConfigurationError(
            "no [[space]]", expected="at least one: its attributes are what peers subscribe to"
        )
    for place, space in enumerate(configuration.space):
        where = f"space[{place}] ({space.name})"
        if space.order is not None:
            raise ConfigurationError(
                'order = "causal"', where=where, expected="no order: peers keep none between them"
            )
        if space.top is not None and not configuration.network.join:
            raise ConfigurationError(
                f"top = {space.top}",
                where=where,
                expected="no top: no peer knows the subscribers of all others",
            )


def overlay_spaces(configuration: Configuration) -> list[OverlaySpace]:
    """Return the spaces with the settings of their trees, which all peers of an overlay share."""
    section = configuration.peer
    tree = TreeSettings(
        Method(section.method),
        beat_ms=round(section.beat * 1000),
        cache_size=section.cache,
        spread=section.spread,
    )
    return [
        overlay_space(space_settings(one), tree, _histogram_of(section, one.name))
        for one in configuration.space
    ]


def _histogram_of(section: PeerSection, space: str) -> Path | None:
    """Return the file with the counted events of a space, if there is one."""
    if section.histograms is None:
        return None
    path = section.histograms / f"histogram-{space}.json"
    return path if path.exists() else None


def peer_settings(section: PeerSection) -> PeerSettings:
    """Return the settings of a peer; an EnvironmentProblem says which file cannot be read."""
    host, port = split_address(section.listen, "HOST:PORT")
    return PeerSettings(
        host, port, section.contacts, advertised=section.address, links=link_settings(section)
    )


def link_settings(section: PeerSection) -> LinkSettings:
    """Return how the connections of a peer are protected."""
    listen_tls = dial_tls = None
    if section.certificate is not None:
        listen_tls = _tls(section, ssl.PROTOCOL_TLS_SERVER)
        dial_tls = _tls(section, ssl.PROTOCOL_TLS_CLIENT)
    return LinkSettings(
        b"" if section.key is None else _read_key(section.key),
        listen_tls,
        dial_tls,
        most_links=section.links,
        most_frame=section.message,
        queue_bytes=section.queue,
    )


def _tls(section: PeerSection, protocol: int) -> ssl.SSLContext:
    """Return a context in which both sides present a certificate of the authority."""
    context = ssl.SSLContext(protocol)
    context.check_hostname = False  # peers come and go under any address
    context.verify_mode = ssl.CERT_REQUIRED
    assert section.certificate is not None
    try:
        context.load_cert_chain(section.certificate, section.certificate_key)
        context.load_verify_locations(section.authority)
    except (OSError, ssl.SSLError) as problem:
        raise EnvironmentProblem(
            f"a certificate or key that cannot be read ({problem})",
            where="[peer]",
            expected="PEM files",
        ) from None
    return context


def _read_key(path: Path) -> bytes:
    try:
        key = path.read_bytes().strip()
    except OSError as problem:
        raise EnvironmentProblem(
            f"the key in {path} cannot be read ({problem.strerror})", where="peer.key"
        ) from None
    if len(key) < _LEAST_KEY:
        raise EnvironmentProblem(
            f"a key of {len(key)} bytes in {path}",
            where="peer.key",
            expected=f"at least {_LEAST_KEY}",
            todo="Make one: head -c 32 /dev/urandom | base64 > overlay.key",
        )
    return key
