"""Messages between gateways, holders and publishing nodes.

All are immutable values. Every message that states something carries *the whole state with a
revision*, so that loss, duplication and reordering do no harm: the highest revision wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from nearcast.locality.layout.rect import Rect

NodeId: TypeAlias = int | str
Instant: TypeAlias = int
"""Milliseconds."""
SubscriptionId: TypeAlias = str
EventId: TypeAlias = tuple[NodeId, int]
"""The publishing node and its running number."""
TableId: TypeAlias = tuple[int, int]
"""A holder's incarnation and a running number in it. Another id means: the holder forgot all."""


class Outgoing(NamedTuple):
    """A message to be sent to a node."""

    to: NodeId
    message: Any


@dataclass(frozen=True, slots=True)
class PlacedEvent:
    """An event for all subscribers in an area at `published_at`; it expires at `deadline`."""

    event_id: EventId
    area: Rect
    published_at: Instant
    deadline: Instant
    qos: int
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class CoverSpan:
    """A stretch of time in which a subscription was inside `cover`, at these leaves of a holder.

    Events published from `since` to before `until` belong to it; `until` None: it has not ended.
    """

    leaves: tuple[str, ...]
    cover: Rect
    since: Instant
    until: Instant | None


@dataclass(frozen=True, slots=True)
class Register:
    """Gateway to holder: the whole registration of this subscription at this holder.

    `life` grows each time the gateway restarts without its state; 0: it never has.
    """

    gateway: NodeId
    subscription: SubscriptionId
    revision: int
    spans: tuple[CoverSpan, ...]
    life: int = 0


@dataclass(frozen=True, slots=True)
class EventOffer:
    """Publishing node to holder: an event for these leaves of the holder."""

    publisher: NodeId
    event: PlacedEvent
    revision: int
    leaves: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """Authority to holder: ask for the id of this authority's table; `life` is the authority's."""

    authority: NodeId
    life: int = 0


@dataclass(frozen=True, slots=True)
class Known:
    """Holder to authority: the id of its table; acknowledges one item if `key` is set."""

    holder: NodeId
    table: TableId
    key: Any = None
    revision: int = 0


@dataclass(frozen=True, slots=True)
class HolderMatch:
    """Holder to gateway: an event that matches these subscriptions of the gateway."""

    holder: NodeId
    event: PlacedEvent
    revision: int
    subscriptions: tuple[SubscriptionId, ...]


@dataclass(frozen=True, slots=True)
class MatchTaken:
    """Gateway to holder: acknowledge a match; the gateway is responsible for it from here on."""

    gateway: NodeId
    event_id: EventId
    revision: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Timeouts and intervals in milliseconds, and the slack of registrations.

    `horizon_ms` is the longest time for which delivery of an event is retried, whatever its
    lifetime; the state of an event or a registration is kept no longer. `lease_ms` is how long a
    holder keeps the items of a silent authority. `slack` widens a registered area on each side, as
    a share of its longer side, so that small moves need no message (`slack.py`: mostly
    ahead for a client that goes straight on).
    """

    retry_ms: int = 200
    most_retry_ms: int = 1_600
    probe_ms: int = 1_000
    lease_ms: int = 10_000
    horizon_ms: int = 60_000
    slack: float = 0.0
