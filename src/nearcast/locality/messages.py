"""What gateways, holders and publishing nodes say to each other, and what they say to their node.

All are values. Every message that states something is *whole state with a revision*, so that loss,
repetition and reordering can do no harm: the highest revision wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from nearcast.locality.plan import Plan
from nearcast.locality.rect import Rect

NodeId: TypeAlias = int | str
Instant: TypeAlias = int
"""Milliseconds."""
SubscriptionId: TypeAlias = str
EventId: TypeAlias = tuple[NodeId, int]
"""The publishing node and its running number."""
TableId: TypeAlias = tuple[int, int]
"""A holder's incarnation, and a running number within it. Another id means: all was forgotten."""


class Outgoing(NamedTuple):
    """A wish that a message travel to a node."""

    to: NodeId
    message: Any


@dataclass(frozen=True, slots=True)
class Event:
    """An event about an area; due to whom the area covers at `published_at`, until `deadline`."""

    event_id: EventId
    area: Rect
    published_at: Instant
    deadline: Instant
    qos: int
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in which a subscription was inside `cover`, at these leaves of a holder.

    Events published from `since` to before `until` belong to it; None: it has not ended.
    """

    leaves: tuple[str, ...]
    cover: Rect
    since: Instant
    until: Instant | None


@dataclass(frozen=True, slots=True)
class Register:
    """Gateway to holder: all that you should know about this subscription.

    `life` grows each time the gateway begins anew, and has forgotten what it told; 0: it never has.
    """

    gateway: NodeId
    subscription: SubscriptionId
    revision: int
    spans: tuple[Span, ...]
    life: int = 0


@dataclass(frozen=True, slots=True)
class Offer:
    """Publishing node to holder: an event for these leaves of yours."""

    publisher: NodeId
    event: Event
    revision: int
    leaves: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """Authority to holder: tell me which table you keep for me; this is my `life`."""

    authority: NodeId
    life: int = 0


@dataclass(frozen=True, slots=True)
class Known:
    """Holder to authority: this is the table that I keep for you; one item taken in, or none."""

    holder: NodeId
    table: TableId
    key: Any = None
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Match:
    """Holder to gateway: an event for these subscriptions of yours."""

    holder: NodeId
    event: Event
    revision: int
    subscriptions: tuple[SubscriptionId, ...]


@dataclass(frozen=True, slots=True)
class Matched:
    """Gateway to holder: I have that event for those subscriptions; the rest is mine."""

    gateway: NodeId
    event_id: EventId
    revision: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """Coordinator to node: use this plan beside the current one from now on."""

    coordinator: NodeId
    plan: Plan


@dataclass(frozen=True, slots=True)
class Commit:
    """Coordinator to node: all nodes use the plan of this version; leave the one before."""

    coordinator: NodeId
    version: int


@dataclass(frozen=True, slots=True)
class PlanStatus:
    """Node to coordinator: the versions that I use."""

    node: NodeId
    current: int
    upcoming: int | None


@dataclass(frozen=True, slots=True)
class Deliver:
    """Gateway to its node: hand this event to the client of a subscription."""

    subscription: SubscriptionId
    event: Event


@dataclass(frozen=True, slots=True)
class Timing:
    """How patient the nodes are, in milliseconds.

    `horizon_ms` is the longest that an event is pursued, whatever its lifetime; what an event or a
    registration costs is kept no longer. `lease_ms` is how long a holder keeps what a silent
    authority told it. `slack` widens a registered area on each side, as a share of its longer side,
    so that small moves need no message (`margin.py`: ahead, for who goes straight on).
    """

    retry_ms: int = 200
    most_retry_ms: int = 1_600
    probe_ms: int = 1_000
    lease_ms: int = 10_000
    horizon_ms: int = 60_000
    slack: float = 0.0
