"""What a configuration leaves open: not wrong, but to be known before others reach the broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_network

from nearcast.config import Configuration, ListenerSection, RuleSection, is_loopback_host
from nearcast.config.values import split_address
from nearcast.server.file_modes import todo_for, wide_files


@dataclass(frozen=True, slots=True)
class OpenPoint:
    """A key whose value leaves something open: what that is, and what closes it."""

    key: str
    found: str
    todo: str

    def __str__(self) -> str:
        """Return one line for people."""
        return f"{self.key}: {self.found}. {self.todo}"


def open_points(configuration: Configuration) -> list[OpenPoint]:
    """Return all that is open, in the order of the configuration file."""
    return [
        *_of_listeners(configuration),
        *_of_access(configuration),
        *_of_rates(configuration),
        *_of_pages_of_operators(configuration),
        *_of_positions(configuration),
        *_of_network(configuration),
        *_of_files(configuration),
    ]


def _of_listeners(configuration: Configuration) -> Iterator[OpenPoint]:
    for number, one in enumerate(configuration.listener):
        key = f"listener[{number}]"
        if one.proxy_protocol and any(ip_network(proxy).prefixlen == 0 for proxy in one.proxies):
            yield OpenPoint(
                f"{key}.proxies", "anybody may say which address it has", "Name your proxies"
            )
        if one.is_loopback:
            continue
        if one.kind in ("tcp", "ws"):
            yield OpenPoint(
                f"{key}.kind",
                f"{one.kind} on {one.host} is not encrypted: passwords and messages can be read",
                "Use tls or wss, or keep it on loopback behind a proxy that encrypts",
            )
        elif one.tls_minimum == "1.2":
            yield OpenPoint(
                f"{key}.tls_minimum", "TLS 1.2 is accepted", 'Set "1.3" if all clients can'
            )
        yield from _of_pages(key, one)


def _of_pages(key: str, one: ListenerSection) -> Iterator[OpenPoint]:
    if "*" in one.origins:
        yield OpenPoint(
            f"{key}.origins",
            "any web page may connect with the reader's browser",
            "Name the origins of your pages",
        )
    if one.kind in ("ws", "wss") and not one.hosts:
        yield OpenPoint(f"{key}.hosts", "any Host header is accepted", "Name the listener's names")
    if one.client_ca is not None and one.crl is None:
        yield OpenPoint(
            f"{key}.crl", "a client certificate cannot be revoked", "Give a list, renewed on SIGHUP"
        )


def _of_access(configuration: Configuration) -> Iterator[OpenPoint]:
    auth = configuration.auth
    is_public = any(not one.is_loopback for one in configuration.listener)
    if auth.anonymous == "always":
        yield OpenPoint(
            "auth.anonymous", "everybody may connect without a name", 'Set "never" or "loopback"'
        )
    if auth.anonymous == "loopback" and any(one.is_loopback for one in configuration.listener):
        yield OpenPoint(
            "auth.anonymous",
            "any program of this machine, a proxy too, connects without a name",
            'Set "never", or make the proxy send the PROXY protocol',
        )
    has_rules = bool(auth.rules or auth.jwt.keys or auth.http.url or auth.plugin)
    if not has_rules or any(_allows_everybody_everything(one) for one in auth.rules):
        yield OpenPoint(
            "auth.rules",
            "every client may publish and subscribe to everything",
            "Write rules: what none allows is refused",
        )
    for key, url in (("auth.jwt.keys", auth.jwt.keys), ("auth.http.url", auth.http.url)):
        if url is not None and url.startswith("http://") and not is_loopback_host(_host(url)):
            yield OpenPoint(key, "who is on the way decides who may log in", "Use https://")
    if auth.jwt.keys is not None and (auth.jwt.audience is None or auth.jwt.issuer is None):
        yield OpenPoint(
            "auth.jwt",
            "tokens that were made for other services are accepted",
            "Set issuer and audience",
        )
    if is_public and configuration.audit.file is None:
        yield OpenPoint("audit.file", "nobody can tell later who logged in", "Give a file")


def _allows_everybody_everything(rule: RuleSection) -> bool:
    return rule.allow and (rule.user, rule.client, rule.topic) == ("*", "*", "#")


def _host(url: str) -> str:
    from urllib.parse import urlsplit

    return urlsplit(url).hostname or ""


def _of_rates(configuration: Configuration) -> Iterator[OpenPoint]:
    rates = configuration.rates
    if not rates.guesses:
        yield OpenPoint("rates.guesses", "passwords may be guessed at any rate", "Set 5")
    if all(one.is_loopback for one in configuration.listener):
        return
    if rates.connections_address is None:
        yield OpenPoint(
            "rates.connections_address",
            "an address may connect at any rate",
            'Set "20/s burst 100"',
        )
    if rates.messages_client is None and rates.messages_user is None:
        yield OpenPoint("rates.messages_client", "a client may publish at any rate", 'Set "1000/s"')
    port = configuration.log.metrics_port
    if port is not None and not is_loopback_host(configuration.log.metrics_address()[0]):
        yield OpenPoint(
            "log.metrics_port", "other machines read the metrics without a login", "Use loopback"
        )


def _of_pages_of_operators(configuration: Configuration) -> Iterator[OpenPoint]:
    http = configuration.http
    if not (http.is_off or http.is_loopback) and http.certificate is None:
        yield OpenPoint(
            "http.certificate",
            f"operators log in at {http.address} without encryption",
            "Give certificate and key, or use loopback behind a proxy that encrypts",
        )


def _of_positions(configuration: Configuration) -> Iterator[OpenPoint]:
    for number, one in enumerate(configuration.space):
        if one.positions == "publishers":
            yield OpenPoint(
                f"space[{number}].positions",
                "whoever may publish to the space finds out where clients are",
                'Leave it "private"',
            )
        elif one.positions == "public":
            yield OpenPoint(
                f"space[{number}].positions",
                "positions of clients are published to whoever may read $position/#",
                'Leave it "private"',
            )
    if configuration.space and not configuration.position.probes:
        yield OpenPoint(
            "position.probes", "questions about one place are not limited", "Leave it out"
        )


def _of_network(configuration: Configuration) -> Iterator[OpenPoint]:
    network = configuration.network
    yield from _of_others(configuration)
    if network.join and network.insecure:
        yield OpenPoint(
            "network.insecure",
            "whoever reaches NATS or a node reads and writes everything",
            "Leave it out, and give credentials and TLS",
        )
    if network.join and network.node_key is None:
        yield OpenPoint(
            "network.node_key",
            "whoever may use NATS may be any node",
            "Give keys: nearcast keys new",
        )


def _of_others(configuration: Configuration) -> Iterator[OpenPoint]:
    """Yield what is open towards Kafka, and towards peers of an overlay."""
    peer, feed = configuration.peer, configuration.feed
    listens = split_address(peer.listen, "HOST:PORT")[0]
    if not is_loopback_host(listens) and peer.key is None and peer.certificate is None:
        yield OpenPoint(
            "peer.key",
            "whoever reaches this peer is a peer of the overlay",
            "Give a key, and certificates on networks of others",
        )
    if feed.kafka is not None and feed.kafka.startswith("kafka://"):
        host = _host(feed.kafka.split(",")[0])
        if not is_loopback_host(host):
            yield OpenPoint("feed.kafka", "what is published is sent unencrypted", "Use kafkas://")


def _of_files(configuration: Configuration) -> Iterator[OpenPoint]:
    for path, mode, why in wide_files(configuration):
        yield OpenPoint(str(path), f"mode {mode:03o}, and {why}", todo_for(path, why))
