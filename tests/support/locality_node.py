"""A thin simulated broker node: gateway, spool, holder and plan view of `nearcast.locality`.

It stands in for the real `node` until that exists: it has no MQTT, no sessions and no matching of
attributes; clients' wishes come as values. What survives a crash is what a real node keeps on disk:
the gateway's subscriptions and deliveries, the spool, the plan view, the coordinator's rollout, and
the number of starts. The holder's tables are lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nearcast.locality.layout.plan import Plan
from nearcast.locality.layout.rect import Rect
from nearcast.locality.registration.gateway import Gateway
from nearcast.locality.registration.holder import Holder
from nearcast.locality.registration.messages import (
    Commit,
    DeliverToClient,
    EventOffer,
    HolderMatch,
    Instant,
    Known,
    MatchTaken,
    NodeId,
    Outgoing,
    PlacedEvent,
    PlanStatus,
    Prepare,
    Probe,
    Register,
    Timing,
)
from nearcast.locality.registration.outbox import EventOutbox
from nearcast.locality.registration.retry import RetryUntilAcked
from nearcast.locality.registration.rollout import Phase, Rollout
from nearcast.locality.registration.view import PlanView
from nearcast.simulator.world import Send


@dataclass(frozen=True, slots=True)
class SimSubscribe:
    """A client's wish."""

    subscription: str
    area: Rect


@dataclass(frozen=True, slots=True)
class Move:
    """A client is elsewhere now."""

    subscription: str
    area: Rect


@dataclass(frozen=True, slots=True)
class SimUnsubscribe:
    """A client has enough."""

    subscription: str


@dataclass(frozen=True, slots=True)
class SimPublish:
    """A publisher's event."""

    area: Rect
    qos: int
    lifetime_ms: int


@dataclass(frozen=True, slots=True)
class Propose:
    """An operator's (or the pipeline's) new plan; only the coordinator takes it."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """To the publisher: the event is the network's to deliver now."""

    event: PlacedEvent


@dataclass(frozen=True, slots=True)
class Followed:
    """To whoever keeps the truth: from now on this subscription's area is this (None: ended)."""

    subscription: str
    area: Rect | None


class LocalityNode:
    """One simulated node; an `Actor` of the world."""

    def __init__(
        self, node: NodeId, plan: Plan, timing: Timing, nodes: Iterable[NodeId] = ()
    ) -> None:
        self.node = node
        self.timing = timing
        self.starts = 1
        self.view = PlanView(plan)
        self.pursuit = RetryUntilAcked(node, timing, probes=True)
        self.gateway = Gateway(node, self.view, self.pursuit, timing)
        self.spool = EventOutbox(node, self.view, self.pursuit, timing)
        self.holder = Holder(node, self.starts, timing)
        self.rollout = Rollout(node, nodes, timing)

    def restart(self, now: Instant) -> list[Any]:
        """Come back after a crash: what was in memory only is gone."""
        self.starts += 1
        self.holder = Holder(self.node, self.starts, self.timing)
        self.pursuit = RetryUntilAcked(self.node, self.timing, probes=True)
        out = self.gateway.restarted(self.pursuit, now) + self.spool.restarted(self.pursuit, now)
        return _sends(out)

    def receive(self, message: Any, now: Instant) -> list[Any]:
        """Take in a message from another node, or a client's wish."""
        return _sends(_HANDLERS[type(message)](self, message, now))

    def advance(self, now: Instant) -> list[Any]:
        """Do what is due."""
        parts = (self.gateway, self.spool, self.holder, self.pursuit, self.rollout)
        return _sends([output for part in parts for output in part.advance(now)])

    def wake_at(self) -> Instant | None:
        """Say when something is due."""
        parts = (self.gateway, self.spool, self.holder, self.pursuit, self.rollout)
        times = [at for part in parts if (at := part.wake_at()) is not None]
        return min(times, default=None)

    def _to_holder(self, message: Any, now: Instant) -> list[Any]:
        return list(self.holder.receive(message, now))

    def _known(self, message: Known, now: Instant) -> list[Any]:
        out = self.pursuit.heard(message.holder, message.table, now)
        if message.key is not None and self.pursuit.is_known_table(message.holder, message.table):
            self.pursuit.acknowledged(message.holder, message.key, message.revision)
        return list(out)

    def _match(self, message: HolderMatch, now: Instant) -> list[Any]:
        return list(self.gateway.matched(message, now))

    def _plan(self, message: Prepare | Commit, now: Instant) -> list[Any]:
        changed, answer = self.view.receive(message, self.node)
        out: list[Any] = [answer]
        if changed:
            out += self.gateway.plans_changed(now) + self.spool.plans_changed(now)
        return out

    def _plan_status(self, message: PlanStatus, now: Instant) -> list[Any]:
        return list(self.rollout.receive(message, now))

    def _propose(self, message: Propose, now: Instant) -> list[Any]:
        busy = self.rollout.phase is not Phase.IDLE
        if busy or message.plan.version != self.view.current.version + 1:
            return []  # the operator tries again later
        return list(self.rollout.propose(message.plan, now))

    def _subscribe(self, message: SimSubscribe, now: Instant) -> list[Any]:
        out = self.gateway.subscribe(message.subscription, message.area, now)
        return [Followed(message.subscription, message.area), *out]

    def _move(self, message: Move, now: Instant) -> list[Any]:
        out = self.gateway.move(message.subscription, message.area, now)
        return [Followed(message.subscription, message.area), *out]

    def _unsubscribe(self, message: SimUnsubscribe, now: Instant) -> list[Any]:
        out = self.gateway.unsubscribe(message.subscription, now)
        return [Followed(message.subscription, None), *out]

    def _publish(self, message: SimPublish, now: Instant) -> list[Any]:
        event, out = self.spool.publish(
            message.area, now, qos=message.qos, lifetime_ms=message.lifetime_ms
        )
        return [Acknowledged(event), *out]


_HANDLERS: dict[type, Any] = {
    Register: LocalityNode._to_holder,
    EventOffer: LocalityNode._to_holder,
    Probe: LocalityNode._to_holder,
    MatchTaken: LocalityNode._to_holder,
    Known: LocalityNode._known,
    HolderMatch: LocalityNode._match,
    Prepare: LocalityNode._plan,
    Commit: LocalityNode._plan,
    PlanStatus: LocalityNode._plan_status,
    Propose: LocalityNode._propose,
    SimSubscribe: LocalityNode._subscribe,
    Move: LocalityNode._move,
    SimUnsubscribe: LocalityNode._unsubscribe,
    SimPublish: LocalityNode._publish,
}


def _sends(outputs: Iterable[Any]) -> list[Any]:
    """Turn the cores' wishes into the world's; deliveries and acknowledgements pass through."""
    return [Send(*output) if type(output) is Outgoing else output for output in outputs]


__all__ = [
    "Acknowledged",
    "DeliverToClient",
    "Followed",
    "LocalityNode",
    "Move",
    "Propose",
    "SimPublish",
]
__all__ += ["SimSubscribe", "SimUnsubscribe"]
