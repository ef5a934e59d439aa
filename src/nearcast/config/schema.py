"""Every section and key of `nearcast.toml`: the cluster, spaces, retained messages, and the whole.

The sections about one node are in `node_sections.py`; `declaration.py` says what a key declares.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from nearcast.config.declaration import Section, setting
from nearcast.config.feed_section import FeedSection, checked_feed_topics
from nearcast.config.http_section import HttpSection
from nearcast.config.node_sections import (
    AuthSection,
    DurabilitySection,
    LimitsSection,
    ListenerSection,
    LogSection,
    NodeSection,
    PositionSection,
)
from nearcast.config.peer_section import PeerSection
from nearcast.config.security_sections import AuditSection, RatesSection
from nearcast.config.values import (
    NETWORK_NAME,
    SPACE_NAME,
    Bytes,
    FilePath,
    NatsAddresses,
    Seconds,
    is_loopback_host,
    split_address,
)
from nearcast.index.topic_filters import filters_overlap
from nearcast.model import Attribute, Space
from nearcast.model.ranks import parse_rank, rank_text
from nearcast.model.requests import LONGEST_LIFETIME_S


class NetworkSection(Section):
    """The cluster: other nodes, over NATS; without `join` this node is alone.

    With `tls://`, an `authority` or a `certificate` the connection to NATS is encrypted or not made
    at all.
    """

    join: NatsAddresses = setting(
        [], 'addresses of NATS, such as ["nats://10.0.0.1:4222"]; tls:// encrypts'
    )
    name: str = setting(
        "nearcast", "clusters with other names on the same NATS are apart", pattern=NETWORK_NAME
    )
    user: str | None = setting(None, "user name at NATS", example='"node"')
    password: str | None = setting(None, "password of `user`", example='"secret"')
    token: str | None = setting(None, "token, instead of `user`", example='"…"')
    credentials: FilePath | None = setting(
        None, "file of credentials, instead of `user`", example='"node.creds"'
    )
    authority: FilePath | None = setting(
        None, "trust servers signed by this certificate", example='"nats.pem"'
    )
    certificate: FilePath | None = setting(
        None, "certificate that the node presents to NATS", example='"node.pem"'
    )
    key: FilePath | None = setting(None, "private key of `certificate`", example='"node.key"')
    insecure: bool = setting(
        False, "true: NATS and nodes on other machines without credentials and encryption"
    )
    node_key: FilePath | None = setting(
        None, "this node's private key: nearcast keys new", example='"berlin.key"'
    )
    node_keys: FilePath | None = setting(
        None, "public keys of all nodes and operators; strangers are refused", example='"keys.txt"'
    )
    leave: bool = setting(
        False, "true: leaves for good when it stops; otherwise peers queue messages for it"
    )
    looseness: float = setting(
        0.25,
        "how much larger a box for peers may be than the $where boxes in it; 0: not at all",
        ge=0,
        le=1_000,
        allow_inf_nan=False,
    )
    histograms: FilePath | None = setting(
        None,
        "directory of 'nearcast pipeline histogram': events count in boxes, not volume",
        example='"city"',
    )
    replicas: int = setting(
        1, "servers of a NATS cluster that keep the key-value store", ge=1, le=5
    )
    skew: Annotated[Seconds, Field(ge=0.001, le=10)] = setting(
        0.1, "how far clocks may be apart for causal order; the same at all nodes"
    )
    feed: list[str] = setting(
        [], 'topics copied into a JetStream stream, such as ["city/#"]; for live streams'
    )
    feed_size: Bytes = setting(1 << 30, "what the stream keeps at most")
    feed_age: Seconds = setting(7 * 86_400.0, "how long the stream keeps it")
    direct: str | None = setting(
        None,
        "HOST:PORT where other nodes connect to this one, without NATS; encrypted with keys",
        example='"10.0.0.7:7400"',
    )

    adapt: bool = setting(
        False, "whether the nodes adapt the plan: leaves of a busy node move or are split"
    )
    redirect: Literal["off", "offer"] = setting(
        "off", "offer: MQTT 5 clients that are far are sent to the node that holds their place"
    )
    redirect_crossings: float = setting(
        6.0,
        "messages a minute between nodes because of a client, for an offer",
        gt=0,
        allow_inf_nan=False,
    )
    redirect_after: Seconds = setting(
        300.0, "how long one node has held the place of a client, for an offer"
    )
    redirect_rate: int = setting(10, "offers a minute of this node, to all clients", ge=1)
    client_address: str | None = setting(
        None,
        "HOST:PORT that clients are sent to; otherwise that of the first listener with a host",
        example='"berlin.example.org:1883"',
    )

    @field_validator("direct", "client_address")
    @classmethod
    def _address_has_a_port(cls, value: str | None) -> str | None:
        if value is not None:
            split_address(value, "'10.0.0.7:7400' or '[::1]:7400'")
        return value

    @field_validator("feed")
    @classmethod
    def _feed_has_topic_filters(cls, value: list[str]) -> list[str]:
        return checked_feed_topics(value)

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
        if (self.node_key is None) != (self.node_keys is None):
            msg = "'node_key' and 'node_keys' come together"
            raise ValueError(msg)
        if self.direct is not None and self.is_encrypted and self.node_key is None:
            msg = "'direct' connections are not encrypted without 'node_key', and NATS is here"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _strangers_are_kept_out(self) -> Self:
        """Refuse a network that anybody could join, unless only this machine can reach it."""
        if self.insecure or self.is_local or not self.join:
            return self
        is_known = bool(self.user or self.token or self.credentials or self.certificate)
        far = [urlsplit(one).hostname for one in self.join if not _is_local(one)]
        if far and not (is_known and self.is_encrypted):
            msg = (
                f"{far[0]} without credentials and TLS: any stranger there would be a node; give "
                "both, or say insecure = true"
            )
            raise ValueError(msg)
        if self.node_key is None and self.direct is not None:
            msg = "'direct' on another address than loopback needs 'node_key', or insecure = true"
            raise ValueError(msg)
        return self

    @property
    def is_local(self) -> bool:
        """Return whether only this machine reaches NATS and the node."""
        is_direct_local = self.direct is None or is_loopback_host(
            split_address(self.direct, "HOST:PORT")[0]
        )
        return is_direct_local and all(_is_local(one) for one in self.join)

    @property
    def is_encrypted(self) -> bool:
        """Return whether the connection must be encrypted."""
        return bool(self.authority or self.certificate) or any(
            one.startswith("tls://") for one in self.join
        )


def _is_local(address: str) -> bool:
    return is_loopback_host(urlsplit(address).hostname or "")


class AttributeSection(Section):
    """An attribute: either a number from `low` to `high`, or one of `categories`."""

    low: float | None = setting(None, "the least value", allow_inf_nan=False)
    high: float | None = setting(None, "the greatest value", allow_inf_nan=False)
    categories: list[str] | None = setting(None, "the values of an attribute that is no number")
    path: str | None = setting(None, "the field of the payload, where its name differs")

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


def _rank(text: str) -> str:
    return rank_text(parse_rank(text))


class SpaceSection(Section):
    """A space: topics whose events carry attributes that subscriptions put conditions on.

    For example `price < 100 and kind in (food, tools)`. `top`, `rank`, `lifetime` and `order` are
    defaults for publications without their own, `retained` for subscriptions.
    """

    name: str = setting(
        ..., "name of the space", example='"shops"', min_length=1, pattern=SPACE_NAME
    )
    topics: str = setting(..., "its topics, as a filter", example='"shops/#"', min_length=1)
    values: Literal["json", "properties"] = setting(
        "json",
        "where an event's values are: json (payload fields) or properties (MQTT 5)",
        fills="values",
    )
    missing: Literal["all", "none"] = setting(
        "none", "an event without a value: none (fits no condition on it) or all (fits any)"
    )
    longitude: str | None = setting(
        None, "attribute that is the longitude, in degrees", example='"lon"', is_active=True
    )
    latitude: str | None = setting(
        None, "attribute that is the latitude, in degrees", example='"lat"', is_active=True
    )
    required: list[str] = setting(
        [], "attributes that every event must have; none named: the coordinates"
    )
    top: int | None = setting(
        None, "publications go to this many best subscribers only", ge=1, fills="top", example="3"
    )
    rank: Annotated[str, AfterValidator(_rank)] = setting(
        "narrowest",
        "what is best for $top: narrowest, nearest, centre, weight, or a blend",
        fills="rank",
    )
    lifetime: Annotated[Seconds, Field(le=LONGEST_LIFETIME_S)] | None = setting(
        None, "what is not delivered by then is discarded", fills="lifetime_ms", example='"30s"'
    )
    order: Literal["causal"] | None = setting(
        None, "causal: no message before those it depends on", fills="order", example='"causal"'
    )
    retained: Literal["now"] | None = setting(
        None, "now: retained messages are never deferred", fills="retained", example='"now"'
    )
    offline: Literal["counts", "skipped"] = setting(
        "counts",
        "a subscriber that is not connected counts among the best, or is skipped",
        fills="offline",
    )
    hysteresis: float = setting(
        0.1,
        "share of a $near radius to go beyond it before a return counts",
        ge=0,
        le=10,
        allow_inf_nan=False,
        fills="hysteresis",
    )
    positions: Literal["private", "publishers", "public"] = setting(
        "private",
        "who may learn where a client is: nobody, its publishers, or all ($position/<client>)",
        fills="positions",
    )
    attributes: dict[str, AttributeSection] = setting(
        ...,
        "the attributes by name",
        example="""\
price = { low = 0, high = 10000 }
kind = { categories = ["food", "tools", "books"] }
lon = { low = -180, high = 180 }
lat = { low = -90, high = 90 }
# lon = { low = -180, high = 180, path = "place.lon" }   # a nested field of the payload""",
        min_length=1,
    )

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

    Without such a section they come at once, as in plain MQTT. On topics that change quickly the
    next message may serve a new subscriber better: see docs/retained-policy.md
    """

    topics: str = setting(..., "topic filter", fills="topics", example='"plant/#"', min_length=1)
    mode: Literal["immediate", "learned", "wait"] = setting(
        "learned",
        "immediate, learned (a policy decides), wait (deferred wherever that is allowed)",
        fills="mode",
    )
    hold: Annotated[Seconds, Field(ge=0.01, le=3_600)] = setting(
        10.0, "no subscriber waits longer than this", fills="hold_max_s"
    )
    omega: float = setting(
        0.7,
        "1: timeliness alone counts, 0: traffic alone",
        ge=0,
        le=1,
        allow_inf_nan=False,
        fills="omega",
    )
    cost: float = setting(
        5.0, "cost of one message", ge=0, allow_inf_nan=False, fills="message_cost"
    )
    created: str = setting(
        "$created",
        "user property with the creation time of a message, in seconds since 1970",
        min_length=1,
        fills="created",
    )
    learn: int = setting(
        0,
        "topics for which the broker learns a table itself, where policies.json has none",
        ge=0,
        le=100_000,
        fills="tables",
    )

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
    listener: list[ListenerSection] = Field([ListenerSection()])
    auth: AuthSection = AuthSection()
    limits: LimitsSection = LimitsSection()
    rates: RatesSection = RatesSection()
    durability: DurabilitySection = DurabilitySection()
    log: LogSection = LogSection()
    audit: AuditSection = AuditSection()
    http: HttpSection = HttpSection()
    position: PositionSection = PositionSection()
    network: NetworkSection = NetworkSection()
    feed: FeedSection = FeedSection()
    peer: PeerSection = PeerSection()
    space: list[SpaceSection] = Field([])
    retained: list[RetainedSection] = Field([])

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [space.name for space in self.space]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            msg = f"two spaces are called '{twice[0]}'"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _one_feed(self) -> Self:
        if self.feed.kafka is not None and self.network.feed:
            msg = "'feed' in [network] and 'kafka' in [feed] exclude each other: one feed a node"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _workers_are_one_broker(self) -> Self:
        if self.node.workers == 1:
            return self
        if self.network.join:
            msg = (
                "'workers' in [node] and 'join' in [network] exclude each other: "
                "in a network start a node for each processor"
            )
            raise ValueError(msg)
        if self.feed.kafka is not None:
            msg = "'workers' in [node] and 'kafka' in [feed] exclude each other: one feed a node"
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
