"""Which clients would be better served by the node that holds their place (the near broker).

A gateway counts, per client, the messages that it exchanges with each holder because of that
client: registrations and events that it sends, matches that it receives. The counts fade with a
time constant of a minute, so that a count is a smoothed rate per minute. Messages to the gateway's
own holder count as well: they would cross if the client left.

      far ──rate, share and place name one node──► settled there ──for `dwell_ms`──► ready
       ▲                                               │
       └──half the rate, half of all, or another place ┘

Read next: `nearcast/cluster/redirects.py`, which makes the offers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp

from nearcast.locality.registration.messages import Instant, NodeId

SMOOTHING_MS = 60_000
"""The time constant of the counts."""
MOST, STILL_MOST = 0.6, 0.5
"""The share of a client's messages that one node must have at first, and later."""
STILL_OFTEN = 0.5
"""The share of `crossings_per_min` that must remain."""
_FORGOTTEN = 0.01
_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class RedirectRules:
    """When a client is offered another node."""

    crossings_per_min: float = 6.0
    """Messages a minute between this node and the other one because of the client, at least."""
    dwell_ms: int = 300_000
    """For how long the same node has had most of them, and has held the client's place."""
    offers_per_min: int = 10
    """Offers of this node to all clients together."""
    pause_ms: int = 3_600_000
    """The time between two offers to the same client."""
    listeners: frozenset[str] | None = None
    """The listeners whose clients may be sent to another node's address; None: all."""


@dataclass(slots=True)
class _Client:
    at: Instant
    """The instant of the counts."""
    counts: dict[NodeId, float] = field(default_factory=dict)
    near: NodeId | None = None
    """The node that has most of its messages and holds its place; None: no other node does."""
    since: Instant = 0
    """Since when `near` is so."""

    def fade(self, now: Instant) -> None:
        factor = exp((self.at - now) / SMOOTHING_MS)
        self.at = now
        for node in self.counts:
            self.counts[node] *= factor

    def has(self, node: NodeId, least: float, share: float) -> bool:
        count = self.counts.get(node, 0.0)
        return count >= least and count >= share * sum(self.counts.values())


class RedirectPolicy:
    """Counts the messages of clients between nodes, and names the clients to be redirected.

    Contract: `now` never decreases. `watch` is called at regular intervals; only the instants of
    these calls count for `dwell_ms`.

    Complexity: O(nodes of the client) per message; `watch` and `ready` O(clients with messages).
    """

    def __init__(self, node: NodeId, rules: RedirectRules) -> None:
        self.rules = rules
        self._node = node
        self._clients: dict[str, _Client] = {}
        self._asked: dict[str, Instant] = {}
        self._offers: deque[Instant] = deque()

    def __len__(self) -> int:
        return len(self._clients)

    def crossed(self, client: str, node: NodeId, now: Instant) -> None:
        """Count a message to or from a holder because of a client."""
        known = self._clients.get(client)
        if known is None:
            known = self._clients[client] = _Client(now)
        known.fade(now)
        known.counts[node] = known.counts.get(node, 0.0) + 1.0

    def watch(self, place_of: Callable[[str], NodeId | None], now: Instant) -> None:
        """Update which node is near each client; `place_of` returns the holder of its place.

        None as the place means that the client has not told where it is: its messages decide.
        """
        for client, known in list(self._clients.items()):
            known.fade(now)
            if max(known.counts.values()) < _FORGOTTEN:
                del self._clients[client]
            else:
                self._update(known, place_of(client), now)
        for client, at in list(self._asked.items()):
            if at + self.rules.pause_ms <= now:
                del self._asked[client]

    def _update(self, known: _Client, place: NodeId | None, now: Instant) -> None:
        least, near = self.rules.crossings_per_min, known.near
        if near is not None and not (
            place in (near, None) and known.has(near, STILL_OFTEN * least, STILL_MOST)
        ):
            known.near = near = None
        if near is None:
            node = max(known.counts, key=lambda one: known.counts[one])
            if node != self._node and place in (node, None) and known.has(node, least, MOST):
                known.near, known.since = node, now

    def ready(self, now: Instant) -> list[tuple[str, NodeId, Instant]]:
        """Return the clients to be offered a node, with it, since when; the longest wait first."""
        dwell_ms, pause_ms = self.rules.dwell_ms, self.rules.pause_ms
        found = [
            (client, known.near, known.since + dwell_ms)
            for client, known in self._clients.items()
            if known.near is not None
            and known.since + dwell_ms <= now
            and self._asked.get(client, now - pause_ms) + pause_ms <= now
        ]
        return sorted(found, key=lambda one: (one[2], one[0]))

    def has_room(self, now: Instant) -> bool:
        """Return whether this node may make another offer now."""
        while self._offers and self._offers[0] + _MINUTE_MS <= now:
            self._offers.popleft()
        return len(self._offers) < self.rules.offers_per_min

    def offered(self, client: str, now: Instant) -> None:
        """Record that this node has made an offer to a client."""
        self._offers.append(now)
        self.asked(client, now)

    def asked(self, client: str, at: Instant) -> None:
        """Record that a client was made an offer, here or at the node that it came from."""
        self._asked[client] = at

    def forget(self, client: str) -> None:
        """Drop the counts of a client that is no longer served here."""
        self._clients.pop(client, None)
