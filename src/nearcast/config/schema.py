"""Every section and key of `nearcast.toml`, with its meaning and default.

Lengths of time are written `"250ms"`, `"30s"`, `"2h"`; sizes `"256KiB"`, `"1MiB"` or plain bytes.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from nearcast.index.topic_filters import filters_overlap
from nearcast.model import Attribute, Space, parse_duration
from nearcast.model.requests import LONGEST_LIFETIME_S

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


_NODE_NAME = r"^[A-Za-z0-9._-]+$"
_NETWORK_NAME = r"^[A-Za-z0-9_-]+$"
_NATS_ADDRESS = r"^(nats|tls)://[^\s/,]+$"
_SPACE_NAME = r"^[A-Za-z][A-Za-z0-9_-]*$"
FORMS = {
    _NODE_NAME: "letters, digits, '.', '_' and '-' only",
    _NETWORK_NAME: "letters, digits, '_' and '-' only",
    _NATS_ADDRESS: "an address such as nats://10.0.0.1:4222 or tls://10.0.0.1:4222",
    _SPACE_NAME: "a letter, then letters, digits, '_' and '-' only",
}
"""Description of the expected form of a text, for error messages."""


def _seconds(value: object) -> object:
    if isinstance(value, str):
        return parse_duration(value)
    return value


def _bytes(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if not match:
        msg = "expected a size such as '256KiB', '1MiB' or a whole number of bytes"
        raise ValueError(msg)
    return int(match[1]) * _UNITS[match[2] or "B"]


LARGEST_PACKET = 268_000_000
"""MQTT's limit is 268,435,455 bytes; the rest is for properties that a broker adds."""

Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0, allow_inf_nan=False)]
Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=1)]


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


class Section(BaseModel):
    """One section: unknown keys are errors, and nothing is converted silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class NodeSection(Section):
    """The node itself."""

    name: str = Field("nearcast", min_length=1, pattern=_NODE_NAME)
    data: Annotated[Path, Field(strict=False)] = Path("nearcast-data")


class ListenerSection(Section):
    """A listener for clients; with `client_ca` they must present a certificate signed by it."""

    kind: Literal["tcp", "tls", "ws", "wss"] = "tcp"
    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(1883, ge=0, le=65535)
    path: str = "/mqtt"
    certificate: Annotated[Path | None, Field(strict=False)] = None
    key: Annotated[Path | None, Field(strict=False)] = None
    client_ca: Annotated[Path | None, Field(strict=False)] = None

    @model_validator(mode="after")
    def _encrypted_listeners_have_a_certificate(self) -> Self:
        encrypted = self.kind in {"tls", "wss"}
        if encrypted and not (self.certificate and self.key):
            msg = f"a listener of kind '{self.kind}' needs both 'certificate' and 'key'"
            raise ValueError(msg)
        if not encrypted and (self.certificate or self.key or self.client_ca):
            msg = f"a listener of kind '{self.kind}' is not encrypted; use 'tls' or 'wss'"
            raise ValueError(msg)
        return self

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


class RuleSection(Section):
    """One access rule: the first rule that matches decides; without rules everything is allowed.

    With rules, a request that no rule matches is refused, except a publication to `$position`. A
    rule that allows a named user `#` covers `$SYS/#` and `$nearcast/#` as well.

    In `topic`, `%u` is the user's name and `%c` the client identifier.
    """

    user: str = "*"
    client: str = "*"
    action: Literal["publish", "subscribe", "both"] = "both"
    topic: str = Field("#", min_length=1)
    allow: bool = True


class AuthSection(Section):
    """Who may connect. `users` is a file that `nearcast passwd` writes."""

    anonymous: Literal["loopback", "always", "never"] = "loopback"
    users: Annotated[Path | None, Field(strict=False)] = None
    rules: list[RuleSection] = []


class LimitsSection(Section):
    """Limits for one client, and for all together.

    `keep_alive`: the longest keep-alive of MQTT 5 clients, sent in CONNACK. 3.1.1 clients cannot be
    told: with `max_keep_alive`, those that request a longer one, or none, are refused.
    `message_size_limit`: the largest payload. `printable_topics`: topics with control characters
    are refused.

    Requests beyond `sessions`, `subscriptions`, `client_subscriptions`, `client_near`, `filters`
    (of one SUBSCRIBE), `where` (its conditions as text), `retained` or `retained_bytes` are refused
    with 0x97, quota exceeded. The broker stops reading from a client that leaves more than
    `answers` bytes unread, until it has read them.
    """

    connections: int = Field(10_000, ge=1)
    packet: Annotated[Bytes, Field(le=LARGEST_PACKET)] = 1 << 20
    connect_packet: Annotated[Bytes, Field(le=LARGEST_PACKET)] = 1 << 18
    inflight: int = Field(65_535, ge=1, le=65_535)
    topic_levels: int = Field(128, ge=1)
    queue: Bytes = 16 << 20
    total_queue: Bytes = 1 << 30
    session_expiry: Seconds = 7 * 86_400.0
    connect_timeout: Seconds = 10.0
    keep_alive: Seconds = 3_600.0
    max_keep_alive: Seconds | None = None
    message_size_limit: Bytes | None = None
    maximum_qos: int = Field(2, ge=0, le=2)
    retain_available: bool = True
    printable_topics: bool = False
    sessions: int = Field(100_000, ge=1)
    subscriptions: int = Field(5_000_000, ge=1)
    client_subscriptions: int = Field(200_000, ge=1)
    client_near: int = Field(200, ge=1)
    filters: int = Field(20_000, ge=1)
    where: Bytes = 1 << 14
    retained: int = Field(1_000_000, ge=1)
    retained_bytes: Bytes = 1 << 30
    answers: Bytes = 1 << 18


class DurabilitySection(Section):
    """What survives: nothing (`off`), `kill -9` (`process`), loss of power (`power`)."""

    mode: Literal["off", "process", "power"] = "process"


class LogSection(Section):
    """The event log for the pipeline, and the log for people."""

    events: Literal["off", "sampled", "full"] = "off"
    sample: float = Field(0.01, gt=0, le=1)
    segment: Seconds = 300.0
    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"
    metrics_port: int | str | None = None

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


def _addresses(value: object) -> object:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


NatsAddress = Annotated[str, Field(pattern=_NATS_ADDRESS)]


class NetworkSection(Section):
    """The cluster: other nodes, over NATS; without `join` this node is alone.

    `looseness`: nodes send each other boxes around their `$where` subscriptions; by how much such a
    box may be larger than the boxes in it. 0: not at all, so that no event crosses in vain; the
    higher, the fewer boxes. `histograms`: a directory of `nearcast pipeline histogram`, so that
    events count there instead of volume.

    `name` keeps clusters on one NATS apart. With `tls://`, an `authority` or a `certificate` the
    connection is encrypted or not made at all. `leave`: whether the node leaves the cluster for
    good when it is stopped; if not, the others queue for it the messages that it must not miss.
    `replicas`: on how many servers of a NATS cluster its key-value store is kept. `skew`: how far
    the clocks of nodes may be apart for causal order; the same at all nodes. `feed`: topics whose
    publications go into a JetStream stream, for `nearcast pipeline stream`; the stream keeps as
    much as `feed_size` and `feed_age` allow. `direct`: HOST:PORT where other nodes may connect to
    this one, so that messages between them need not pass through NATS; not encrypted.
    """

    join: Annotated[list[NatsAddress], BeforeValidator(_addresses)] = []
    name: str = Field("nearcast", pattern=_NETWORK_NAME)
    user: str | None = None
    password: str | None = None
    token: str | None = None
    credentials: Annotated[Path | None, Field(strict=False)] = None
    authority: Annotated[Path | None, Field(strict=False)] = None
    certificate: Annotated[Path | None, Field(strict=False)] = None
    key: Annotated[Path | None, Field(strict=False)] = None
    leave: bool = False
    looseness: float = Field(0.25, ge=0, le=1_000, allow_inf_nan=False)
    histograms: Annotated[Path | None, Field(strict=False)] = None
    replicas: int = Field(1, ge=1, le=5)
    skew: Annotated[Seconds, Field(ge=0.001, le=10)] = 0.1
    feed: list[str] = []
    feed_size: Bytes = 1 << 30
    feed_age: Seconds = 7 * 86_400.0
    direct: str | None = None

    @field_validator("direct")
    @classmethod
    def _direct_has_a_port(cls, value: str | None) -> str | None:
        if value is not None:
            split_address(value, "'10.0.0.7:7400' or '[::1]:7400'")
        return value

    @field_validator("feed")
    @classmethod
    def _feed_has_topic_filters(cls, value: list[str]) -> list[str]:
        for one in value:
            levels = one.split("/")
            is_bad = "#" in levels[:-1] or any(
                sign in level and level != sign for level in levels for sign in "#+"
            )
            if not one or is_bad or one.startswith("$"):
                msg = f"'{one}' is no topic filter such as 'city/#'"
                raise ValueError(msg)
        return value

    @model_validator(mode="after")
    def _one_way_to_introduce_itself(self) -> Self:
        ways = {"user": self.user, "token": self.token, "credentials": self.credentials}
        given = [name for name, value in ways.items() if value is not None]
        if len(given) > 1:
            msg = f"'{given[0]}' and '{given[1]}' exclude each other"
            raise ValueError(msg)
        if (self.user is None) != (self.password is None):
            msg = "'user' and 'password' come together"
            raise ValueError(msg)
        if (self.certificate is None) != (self.key is None):
            msg = "'certificate' and 'key' come together"
            raise ValueError(msg)
        if self.direct is not None and self.is_encrypted:
            msg = "'direct' connections are not encrypted: leave it out where NATS is"
            raise ValueError(msg)
        return self

    @property
    def is_encrypted(self) -> bool:
        """Return whether the connection must be encrypted."""
        return bool(self.authority or self.certificate) or any(
            one.startswith("tls://") for one in self.join
        )


class AttributeSection(Section):
    """An attribute: either a number from `low` to `high`, or one of `categories`."""

    low: float | None = Field(None, allow_inf_nan=False)
    high: float | None = Field(None, allow_inf_nan=False)
    categories: list[str] | None = None
    path: str | None = None

    @model_validator(mode="after")
    def _number_or_category(self) -> Self:
        is_number = self.low is not None and self.high is not None
        if (self.categories is None) != is_number:
            msg = "an attribute has either 'low' and 'high', or 'categories'"
            raise ValueError(msg)
        if self.low is not None and self.high is not None and not self.low < self.high:
            msg = f"'low' ({self.low:g}) must lie below 'high' ({self.high:g})"
            raise ValueError(msg)
        if self.categories is not None:
            _check_categories(self.categories)
        if self.path is not None and not all(self.path.split(".")):
            msg = f"'path' ({self.path}) must be names with a dot between them, as in place.lon"
            raise ValueError(msg)
        return self

    def to_attribute(self, name: str) -> Attribute:
        """Return the attribute as the matcher uses it."""
        if self.categories is not None:
            return Attribute.category(name, self.categories)
        assert self.low is not None
        assert self.high is not None
        return Attribute.number(name, self.low, self.high)


def _check_categories(names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not names:
        msg = f"categories stand twice: {', '.join(twice)}" if twice else "no categories given"
        raise ValueError(msg)


class PositionSection(Section):
    """Whether user properties (`lon`, `lat`) set a client's position; `$position` always does."""

    connect: bool = True
    publish: bool = False


class SpaceSection(Section):
    """A space: topics whose events carry attributes that subscriptions put conditions on.

    `top`, `rank`, `lifetime`, `order` are defaults for publications without their own; `retained`
    for subscriptions. `offline`: whether an offline subscriber counts among the best of `$top` or
    is skipped. `hysteresis`: how far beyond its radius, as a share of it, a `$near` subscription
    must have gone before its return delivers a retained message again. `positions`: whether clients
    may subscribe to the positions of others (`$position/<client>`).
    """

    name: str = Field(min_length=1, pattern=_SPACE_NAME)
    topics: str = Field(min_length=1)
    values: Literal["json", "properties"] = "json"
    missing: Literal["all", "none"] = "none"
    longitude: str | None = None
    latitude: str | None = None
    required: list[str] = []
    top: int | None = Field(None, ge=1)
    rank: Literal["narrowest", "nearest", "centre", "weight"] = "narrowest"
    lifetime: Annotated[Seconds, Field(le=LONGEST_LIFETIME_S)] | None = None
    order: Literal["causal"] | None = None
    retained: Literal["now"] | None = None
    offline: Literal["counts", "skipped"] = "counts"
    hysteresis: float = Field(0.1, ge=0, le=10, allow_inf_nan=False)
    positions: Literal["private", "public"] = "private"
    attributes: dict[str, AttributeSection] = Field(min_length=1)

    @field_validator("attributes")
    @classmethod
    def _names_are_identifiers(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if not name.isidentifier():
                msg = f"'{name}' is no attribute name: letters, digits and _ only, no digit first"
                raise ValueError(msg)
        return value

    @model_validator(mode="after")
    def _coordinates_are_attributes(self) -> Self:
        if (self.longitude is None) != (self.latitude is None):
            msg = "'longitude' and 'latitude' come together"
            raise ValueError(msg)
        roles = [("longitude", self.longitude), ("latitude", self.latitude)]
        for role, name in [*roles, *(("required", name) for name in self.required)]:
            if name is not None and name not in self.attributes:
                known = ", ".join(self.attributes)
                msg = f"{role}: '{name}' is none of the attributes ({known})"
                raise ValueError(msg)
        self.to_space()  # the model's own checks: ranges of coordinates, names
        return self

    def to_space(self) -> Space:
        """Return the space as the matcher uses it."""
        return Space(
            name=self.name,
            topic_filter=self.topics,
            attributes=tuple(section.to_attribute(n) for n, section in self.attributes.items()),
            longitude=self.longitude,
            latitude=self.latitude,
            missing=self.missing,
            required=frozenset(self.required) if self.required else None,
        )

    def paths(self) -> dict[str, tuple[str, ...]]:
        """Return the path in the payload of each attribute that has one."""
        return {
            name: tuple(section.path.split("."))
            for name, section in self.attributes.items()
            if section.path is not None
        }


class RetainedSection(Section):
    """How retained messages of some topics reach new subscribers; the first match decides.

    `immediate`: at once, plain MQTT, as everywhere without such a section. `learned`: a policy may
    defer the copy, for at most `hold`, and let the next message serve the new subscriber. `wait`:
    defer wherever that is allowed. `omega` weighs timeliness (1) against traffic (0), and `cost` is
    the cost of one message. For up to `learn` topics the broker learns its own table from what it
    observes, where `policies.json` has none.
    """

    topics: str = Field(min_length=1)
    mode: Literal["immediate", "learned", "wait"] = "learned"
    hold: Annotated[Seconds, Field(ge=0.01, le=3_600)] = 10.0
    omega: float = Field(0.7, ge=0, le=1, allow_inf_nan=False)
    cost: float = Field(5.0, ge=0, allow_inf_nan=False)
    learn: int = Field(0, ge=0, le=100_000)

    @field_validator("topics")
    @classmethod
    def _is_a_filter(cls, value: str) -> str:
        levels = value.split("/")
        for place, level in enumerate(levels):
            if level in ("+", "#") and (level == "+" or place == len(levels) - 1):
                continue
            if "+" in level or "#" in level or "\0" in level:
                msg = f"'{value}' is no topic filter: + is a whole level, # the whole last one"
                raise ValueError(msg)
        return value


class Configuration(Section):
    """All of `nearcast.toml`."""

    node: NodeSection = NodeSection()
    listener: list[ListenerSection] = [ListenerSection()]
    auth: AuthSection = AuthSection()
    limits: LimitsSection = LimitsSection()
    durability: DurabilitySection = DurabilitySection()
    log: LogSection = LogSection()
    position: PositionSection = PositionSection()
    network: NetworkSection = NetworkSection()
    space: list[SpaceSection] = []
    retained: list[RetainedSection] = []

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [space.name for space in self.space]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            msg = f"two spaces are called '{twice[0]}'"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _spaces_share_no_topic(self) -> Self:
        for place, one in enumerate(self.space):
            for other in self.space[:place]:
                if filters_overlap(one.topics, other.topics):
                    msg = f"spaces '{other.name}' and '{one.name}' share topics; a topic has one"
                    raise ValueError(msg)
        return self
