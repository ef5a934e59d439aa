"""What one node allows; the server fills this from `nearcast.toml`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HELD_NOTE = b"held\0"  # what the journal's notes about copies held back begin with


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedSettings:
    """How the retained messages of some topics reach newcomers.

    `immediate` is MQTT's way, `learned` asks a policy, `wait` holds back wherever that is allowed;
    nobody waits longer than `hold_max_s`. `omega` weighs timeliness against traffic, and
    `message_cost` is what one message costs. For up to `tables` topics the node may learn a table
    of its own.
    """

    topics: str
    mode: Literal["immediate", "learned", "wait"] = "learned"
    hold_max_s: float = 10.0
    omega: float = 0.7
    message_cost: float = 5.0
    tables: int = 0


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Limits of one node. Bytes of a session count what it holds, shared payloads included."""

    max_connections: int = 10_000
    max_open_connections: int = 21_000  # with those that have not said CONNECT yet
    max_packet_bytes: int = 1 << 20
    max_connect_bytes: int = 1 << 18  # the largest CONNECT
    newcomer_bytes: int = 16 << 10  # what a connection may hold before it has logged in
    newcomers_bytes: int = 16 << 20  # what all these may hold together beyond that
    max_inflight: int = 65_535
    receive_maximum: int = 65_535
    max_topic_levels: int = 128
    session_queue_bytes: int = 16 << 20
    total_queue_bytes: int = 1 << 30
    session_expiry_s: int = 7 * 86_400
    connect_timeout_ms: int = 10_000
    keep_alive_s: int = 3_600
    max_keep_alive_s: int = 0  # of 3.1.1 clients, which cannot be told a shorter one; 0: any
    max_message_bytes: int = 0  # of a payload; 0: what fits into a packet
    maximum_qos: int = 2
    retain_available: bool = True
    printable_topics: bool = False  # control characters in topics and filters are refused
    topic_alias_maximum: int = 64
    outbox_window_bytes: int = 1 << 18
    route_cache_topics: int = 100_000
    max_sessions: int = 100_000
    max_subscriptions: int = 5_000_000  # of all clients
    max_client_subscriptions: int = 200_000
    max_client_near: int = 200  # a step of the client moves all of these
    max_filters: int = 20_000  # in one SUBSCRIBE
    max_where_bytes: int = 1 << 14  # of `$where` and the like
    max_retained: int = 1_000_000
    max_retained_bytes: int = 1 << 30
    max_answer_bytes: int = 1 << 18  # unread ones of one client, beside what its socket takes
    position_on_connect: bool = True  # lon, lat among the user properties of CONNECT count
    position_on_publish: bool = False  # and those of any PUBLISH
    position_journal_ms: int = 10_000  # how old a stored position may be, of those connected
