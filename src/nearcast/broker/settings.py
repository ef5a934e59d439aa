"""The settings of one broker.

The server fills them from `nearcast.toml`: a key of `nearcast/config` says which field it fills and
what it means. A test compares the defaults here with those of the keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

HELD_NOTE = b"held\0"  # key prefix of the journal's notes about deferred retained copies


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedSettings:
    """How retained messages of some topics are delivered to new subscriptions.

    `immediate` is plain MQTT, `learned` asks a policy, `wait` defers wherever that is allowed; no
    subscriber waits longer than `hold_max_s`. `omega` weighs timeliness against traffic, and
    `message_cost` is the cost of one message (paper 4). `created` names the user property with a
    message's creation time. For up to `tables` topics the broker may learn a table for the topic
    alone.
    """

    topics: str
    mode: Literal["immediate", "learned", "wait"] = "learned"
    hold_max_s: float = 10.0
    omega: float = 0.7
    message_cost: float = 5.0
    created: str = "$created"
    tables: int = 0


def _internal(default: int) -> Any:
    """Return a field that no key fills: tests and simulations set it."""
    return field(default=default, metadata={"internal": True})


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Limits of one broker. The bytes of a session include payloads shared with others."""

    max_connections: int = 10_000
    max_open_connections: int = 11_000  # including those before CONNECT
    max_packet_bytes: int = 1 << 20
    max_connect_bytes: int = 1 << 18
    max_inflight: int = 65_535
    receive_maximum: int = 65_535
    max_topic_levels: int = 128
    session_queue_bytes: int = 16 << 20
    total_queue_bytes: int = 1 << 30
    session_expiry_s: int = 7 * 86_400
    connect_timeout_ms: int = 10_000
    keep_alive_s: int = 3_600
    max_keep_alive_s: int = 0  # 0: any
    max_message_bytes: int = 0  # 0: as much as fits into a packet
    maximum_qos: int = 2
    retain_available: bool = True
    printable_topics: bool = False
    max_sessions: int = 100_000
    max_subscriptions: int = 5_000_000
    max_client_subscriptions: int = 200_000
    max_client_near: int = 200
    max_filters: int = 20_000
    max_where_bytes: int = 1 << 14
    max_retained: int = 1_000_000
    max_retained_bytes: int = 1 << 30
    max_answer_bytes: int = 1 << 18
    position_on_connect: bool = True
    position_on_publish: bool = False
    position_grid_m: float = 0.0  # 0: as they are
    position_probes: int = 600  # a minute; 0: any number
    position_publications: int = 0  # the same, of plain events
    username_is_client_id: bool = False
    same_identifier: Literal["refused", "apart"] = "refused"
    newcomer_bytes: int = _internal(16 << 10)  # buffered bytes of one connection before its login
    newcomers_bytes: int = _internal(
        16 << 20
    )  # of all these together, beyond `newcomer_bytes` each
    topic_alias_maximum: int = _internal(64)
    outbox_window_bytes: int = _internal(1 << 18)
    route_cache_topics: int = _internal(100_000)
    position_journal_ms: int = _internal(
        10_000
    )  # greatest age of a connected client's stored position
