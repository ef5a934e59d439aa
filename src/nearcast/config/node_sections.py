"""The sections about one node: listeners, access, limits, storage, logs, positions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from nearcast.config.declaration import Section, setting
from nearcast.config.security_sections import (
    CertificateSection,
    EdgeSettings,
    HttpHookSection,
    JwtSection,
)
from nearcast.config.values import (
    NODE_NAME,
    Bytes,
    Count,
    FilePath,
    Length,
    PacketBytes,
    Seconds,
    is_loopback_host,
    split_address,
)
from nearcast.model.errors import MisuseError

MOST_WORKERS = 64
"""The most processes of one broker."""


class NodeSection(Section):
    """The node itself."""

    name: str = setting(
        "nearcast", "name of this node in logs and tables", min_length=1, pattern=NODE_NAME
    )
    data: FilePath = setting(
        Path("nearcast-data"), "directory of sessions, retained messages and the event log"
    )
    workers: int | str = setting(
        1, "processes that serve clients at the same addresses; auto: one per processor"
    )

    @field_validator("workers")
    @classmethod
    def _workers_can_be_started(cls, value: int | str) -> int | str:
        if value == "auto" or (isinstance(value, int) and 1 <= value <= MOST_WORKERS):
            return value
        raise MisuseError(repr(value), expected=f"a number from 1 to {MOST_WORKERS}, or 'auto'")


class ListenerSection(EdgeSettings):
    """A listener for clients; repeat the section for another one.

    Without any there is one: TCP on 127.0.0.1:1883, for this machine only.
    """

    kind: Literal["tcp", "tls", "ws", "wss"] = setting("tcp", "tcp, tls, ws or wss (WebSocket)")
    host: str = setting("127.0.0.1", "address; 0.0.0.0 accepts other machines", min_length=1)
    port: int = setting(1883, "port; 0 takes a free one", ge=0, le=65535)
    path: str = setting("/mqtt", "path of a WebSocket listener")
    certificate: FilePath | None = setting(
        None, "the listener's certificate, for tls and wss", example='"server.pem"'
    )
    key: FilePath | None = setting(None, "its private key", example='"server.key"')
    client_ca: FilePath | None = setting(
        None, "clients must present a certificate signed by this one", example='"clients.pem"'
    )

    @model_validator(mode="after")
    def _encrypted_listeners_have_a_certificate(self) -> Self:
        encrypted = self.kind in {"tls", "wss"}
        if encrypted and not (self.certificate and self.key):
            msg = f"a listener of kind '{self.kind}' needs both 'certificate' and 'key'"
            raise ValueError(msg)
        if not encrypted and (self.certificate or self.key or self.client_ca or self.crl):
            msg = f"a listener of kind '{self.kind}' is not encrypted; use 'tls' or 'wss'"
            raise ValueError(msg)
        if self.crl is not None and self.client_ca is None:
            msg = "'crl' without 'client_ca': no client shows a certificate"
            raise ValueError(msg)
        return self

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can reach it."""
        return is_loopback_host(self.host)


class RuleSection(Section):
    """One access rule: the first rule that matches decides; without rules everything is allowed.

    With rules, a request that no rule matches is refused, except a publication to `$position`. A
    rule that allows a named user `#` covers `$SYS/#` (nearcast status) and `$nearcast/#` (nearcast
    explain) as well; otherwise `#` covers no topic that begins with `$`. A rule on these topics
    comes first, as any: topic = "$position", allow = false
    """

    user: str = setting("*", "name of the user; * is any", example='"alice"')
    client: str = setting("*", "client identifier; * is any")
    action: Literal["publish", "subscribe", "both"] = setting("both", "publish, subscribe or both")
    topic: str = setting(
        "#",
        "topic filter; %u is the user's name, %c the client identifier",
        example='"fleet/%u/#"',
        min_length=1,
    )
    allow: bool = setting(True, "false: what matches is refused")


class AuthSection(Section):
    """Which clients may connect, and what they may publish and subscribe to."""

    anonymous: Literal["loopback", "always", "never"] = setting(
        "loopback",
        "clients without a name: loopback (this machine only), always, never",
        reload=True,
    )
    users: FilePath | None = setting(
        None,
        "names and passwords: nearcast passwd users.txt alice",
        reload=True,
        example='"users.txt"',
    )
    same_identifier: Literal["refused", "apart"] = setting(
        "refused",
        "another user with the client identifier of a session: refused, or apart (its own session)",
        fills="same_identifier",
    )
    use_username_as_clientid: bool = setting(
        False,
        "true: the user name is the client identifier, whatever CONNECT says",
        fills="username_is_client_id",
    )
    rules: list[RuleSection] = setting([], "access rules", reload=True)
    plugin: str | None = setting(
        None, "login plugin: its name among the entry points nearcast.auth", example='"ldap"'
    )
    jwt: JwtSection = setting(JwtSection(), "tokens", reload=True)
    http: HttpHookSection = setting(HttpHookSection(), "a hook", reload=True)
    certificates: list[CertificateSection] = setting([], "client certificates", reload=True)


def _limit(
    default: Any, help_text: str, *fills: str, reload: bool = True, example: str = ""
) -> Any:
    return setting(default, help_text, reload=reload, fills=fills, example=example)


class LimitsSection(Section):
    """Limits for one client, and for all together.

    A request beyond the limits of sessions, subscriptions, filters, conditions or retained messages
    is refused with 0x97, quota exceeded.
    """

    connections: Count = _limit(
        10_000, "connected clients", "max_connections", "max_open_connections"
    )
    packet: PacketBytes = _limit(
        1 << 20, "the largest packet that is accepted", "max_packet_bytes", reload=False
    )
    connect_packet: PacketBytes = _limit(
        1 << 18, "the largest CONNECT, with its will", "max_connect_bytes"
    )
    inflight: Annotated[Count, Field(le=65_535)] = _limit(
        65_535,
        "QoS 1 and 2 messages on their way to or from one client",
        *("max_inflight", "receive_maximum"),
        reload=False,
    )
    topic_levels: Count = _limit(
        128, "levels of a topic or a filter", "max_topic_levels", reload=False
    )
    queue: Bytes = _limit(16 << 20, "bytes queued for one session", "session_queue_bytes")
    total_queue: Bytes = _limit(1 << 30, "bytes queued for all sessions", "total_queue_bytes")
    session_expiry: Seconds = _limit(
        7 * 86_400.0, "the longest that a session is kept without its client", "session_expiry_s"
    )
    connect_timeout: Seconds = _limit(
        10.0,
        "from accepting a connection to its login: TLS, WebSocket, CONNECT, password",
        "connect_timeout_ms",
    )
    keep_alive: Seconds = _limit(3_600.0, "the longest keep-alive, sent in CONNACK", "keep_alive_s")
    max_keep_alive: Seconds | None = _limit(
        None,
        "3.1.1 clients that request a longer keep-alive, or none, are refused",
        "max_keep_alive_s",
        reload=False,
        example='"1h"',
    )
    message_size_limit: Bytes | None = _limit(
        None, "the largest payload", "max_message_bytes", reload=False, example='"256KiB"'
    )
    maximum_qos: Annotated[int, Field(ge=0, le=2)] = _limit(
        2, "the highest QoS: 0, 1 or 2", "maximum_qos", reload=False
    )
    retain_available: bool = _limit(
        True, "false: clients may not retain messages", "retain_available", reload=False
    )
    printable_topics: bool = _limit(
        False, "true: topics with control characters are refused", "printable_topics", reload=False
    )
    sessions: Count = _limit(100_000, "sessions, connected or not", "max_sessions")
    subscriptions: Count = _limit(5_000_000, "subscriptions of all clients", "max_subscriptions")
    client_subscriptions: Count = _limit(
        200_000, "subscriptions of one client", "max_client_subscriptions"
    )
    client_near: Count = _limit(
        200,
        "$near subscriptions of one client: a client that moves updates them all",
        "max_client_near",
    )
    filters: Count = _limit(20_000, "filters of one SUBSCRIBE", "max_filters")
    where: Bytes = _limit(1 << 14, "conditions of one SUBSCRIBE as text", "max_where_bytes")
    retained: Count = _limit(1_000_000, "retained messages of all topics", "max_retained")
    retained_bytes: Bytes = _limit(1 << 30, "bytes of all retained messages", "max_retained_bytes")
    answers: Bytes = _limit(
        1 << 18,
        "unread answers of one client; beyond, the broker stops reading from it",
        "max_answer_bytes",
    )


class DurabilitySection(Section):
    """What survives."""

    mode: Literal["off", "process", "power"] = setting(
        "process", "off, process (survives kill -9), power (survives loss of power)"
    )


class LogSection(Section):
    """The event log for the pipeline, the log for people, and the port for metrics."""

    events: Literal["off", "sampled", "full"] = setting(
        "off",
        "the event log that the pipeline learns from: off, sampled, full",
        reload="between sampled and full",
    )
    sample: float = setting(
        0.01, "share of events that a sampled log keeps", gt=0, le=1, reload=True
    )
    segment: Seconds = setting(300.0, "time until a Parquet file of the event log is complete")
    format: Literal["text", "json"] = setting("text", "the log for people: text or json")
    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "debug, info (clients come and go), warning (refusals, faults), error", reload=True
    )
    metrics_port: int | str | None = setting(
        None, 'Prometheus: /metrics, /healthz; for other machines "0.0.0.0:9100"', example="9100"
    )

    @field_validator("metrics_port")
    @classmethod
    def _metrics_have_an_address(cls, value: int | str | None) -> int | str | None:
        if value is not None:
            text = str(value)
            split_address(text if ":" in text else f"127.0.0.1:{text}", "'9100' or '0.0.0.0:9100'")
        return value

    def metrics_address(self) -> tuple[str, int]:
        """Return host and port of `/metrics`; only loopback where no host is given."""
        text = str(self.metrics_port)
        return split_address(text if ":" in text else f"127.0.0.1:{text}", "HOST:PORT")


class PositionSection(Section):
    """What sets a client's position, besides its publication of lon and lat to `$position`."""

    connect: bool = setting(
        True, "lon and lat in the user properties of CONNECT", fills="position_on_connect"
    )
    publish: bool = setting(
        False, "lon and lat in the user properties of any PUBLISH", fills="position_on_publish"
    )
    grid: Length | None = setting(
        None,
        "positions are rounded to the middle of a cell of this size as they arrive",
        fills="position_grid_m",
        reload=True,
        example='"500m"',
    )
    probes: int = setting(
        600,
        "$top and $reply a minute, of one publisher about one place, in private spaces; 0: any",
        ge=0,
        fills="position_probes",
        reload=True,
    )
    publications: int = setting(
        0,
        "other events a minute, of one publisher about one place, in private spaces; 0: any",
        ge=0,
        fills="position_publications",
        reload=True,
    )
