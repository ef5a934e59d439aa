"""Topics in Δ-causal order over several nodes (paper 2).

A space with `order = "causal"` is a causal group: its processes are the nodes, its `lifetime` is Δ.
The node where a message is published determines which peers subscribe to it, because the receivers
are part of the causal history that the message carries. A message that arrives waits until its
causal predecessors have been delivered or have expired. A message of QoS 1 or 2 is sent again after
a link broke, within its lifetime.

A client that connects to another node takes its causal past along (trap T2.8). The past is a
message without payload, from the node that it was connected to, in the answer to the claim of its
session; it waits for its causal predecessors as any other message, and the client is served when
it is delivered. So whatever the client has heard was delivered at the new node, or has expired,
before the client publishes there; and what it publishes comes after it everywhere.

A node that restarts has lost its causal history, which its peers rely on. So it sends nothing until
that history has expired, one lifetime plus skew after its start; and it drops QoS 2 messages that
were sent before its start, since it may have delivered them already.

Read next: `nearcast/ordering/delta_causal.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import isinf
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from nearcast.broker import Broker
from nearcast.broker.counters import counter
from nearcast.broker.persistence.journal import decode_message, encode_message
from nearcast.broker.publish.message import Message
from nearcast.broker.publish.routes import Route
from nearcast.broker.session.session import PeerSession, Session
from nearcast.cluster.messages import Ordered, PeerVersion, Settled
from nearcast.cluster.part import ClusterPart, handles
from nearcast.cluster.peer import PeerNode
from nearcast.cluster.peer_registry import PeerRegistry
from nearcast.index.topic_filters import filters_overlap
from nearcast.model.errors import PeerProtocolError

if TYPE_CHECKING:  # the kernels are loaded only where there is a causal group
    from nearcast.ordering import CausalMessage, DeltaCausal, Output

_SENT, _DELIVERED, _HELD, _DISCARDED, _KEPT = range(5)  # eventlog.records.CausalStep
DEFAULT_LIFETIME_MS = 1_000
"""Δ of a causal space whose configuration states no lifetime."""
_UNSURE = "unsure"  # reason for a discard: it may have been delivered before a crash
_EXPIRED = ("late", "waited_too_long")

Past: TypeAlias = tuple[str, bytes]
"""The causal past of a client in one group: the group's name, and a message without payload."""


@dataclass(frozen=True, slots=True)
class _Publication:
    """A message for peers; it waits if it was published too soon after the start."""

    group: str
    names: frozenset[str]
    """The peers that subscribe to it."""
    message: Message
    at_ms: int
    number: int
    """Its number in the event log; 0 if it is not logged."""


@dataclass(slots=True)
class _Arrival:
    """A client that waits for its causal past."""

    open: int
    """How many messages of it are not delivered yet."""
    then: Callable[[], None]


@dataclass(slots=True)
class GroupCounts:
    """Counters of one causal group."""

    waited: int = counter("Messages that waited for a causal predecessor")
    expired: int = counter(
        "Messages not delivered because their lifetime was over, on the way or while they waited"
    )
    discarded: int = counter(
        "Messages not delivered for another reason: a duplicate, a wrong clock, damage"
    )
    skew_violations: int = counter(
        "Clocks measured further apart than configured, and messages with a stamp in the future"
    )


class CausalGroupState(NamedTuple):
    """One causal group at this node, for people."""

    name: str
    topics: str
    lifetime_s: float
    waiting: int
    counts: GroupCounts


@dataclass(slots=True)
class CausalCounts:
    """Counters of a node's causal groups together."""

    sent: int = counter("Messages sent in causal order", "causal/messages/sent")
    delivered: int = counter(
        "Messages of peers delivered in causal order", "causal/messages/delivered"
    )
    held: int = counter(
        "Messages that waited for their causal predecessors", "causal/messages/held"
    )
    discarded: dict[str, int] = field(default_factory=dict)
    """By reason: too late, clock skew, and so on."""
    skew_violations: int = counter(
        "Clocks measured further apart than configured, and messages with a stamp in the future",
        "causal/skew/violations",
    )
    moved_clients: int = counter(
        "Clients that came from another node with their causal past", "causal/clients/moved"
    )
    groups: dict[str, GroupCounts] = field(default_factory=dict)
    """By the name of the group, which is that of its space."""


class CausalGroups(ClusterPart):
    """One node's processes: a causal group for each space that asks for causal order.

    Complexity: as `DeltaCausal`, per message of such a space.
    """

    def __init__(
        self, name: str, node: Broker, peers: PeerRegistry, skew_s: float, began_ms: int = 0
    ) -> None:
        self.counts = CausalCounts()
        self._name = name
        self._node = node
        self._peers = peers
        self._groups: dict[str, DeltaCausal] = {}
        self._filters: dict[str, str] = {}  # topic filter of each group
        # by peer and number: the deadline in ms and the message, not acknowledged
        self._unsettled: dict[str, dict[int, tuple[int, Ordered]]] = {}
        # by peer: the last measurement (ahead, error) in ms
        self._clocks: dict[str, tuple[float, float]] = {}
        self._number = 0  # of the last copy sent
        self._now_ms = 0
        self._out: list[tuple[str, Ordered]] = []  # to send, each with the name of its peer
        self._began_ms = began_ms
        self._skew_ms = round(skew_s * 1000)
        self._early: list[_Publication] = []  # published before this node may send
        self._left_ms: dict[str, int] = {}  # by client: when it disconnected, the latest last
        # by group, sender and stamp of a past that is not delivered yet: who waits for it
        self._arrivals: dict[tuple[str, str, int], _Arrival] = {}
        for one in node.spaces:
            if one.order == "causal":
                self._open(one.space.name, one.lifetime_ms or DEFAULT_LIFETIME_MS, skew_s)
                self._filters[one.space.name] = one.space.topic_filter

    def _open(self, group: str, lifetime_ms: int, skew_s: float) -> None:
        from nearcast.ordering import DeltaCausal

        self._groups[group] = DeltaCausal(self._name, lifetime_ms / 1000, skew=skew_s)
        self.counts.groups[group] = GroupCounts()

    @property
    def is_used(self) -> bool:
        """Whether any space asks for causal order."""
        return bool(self._groups)

    def states(self) -> list[CausalGroupState]:
        """Return the state of each group."""
        return [
            CausalGroupState(
                name, self._filters[name], one.lifetime, one.holding, self.counts.groups[name]
            )
            for name, one in self._groups.items()
        ]

    @property
    def memory_ms(self) -> int:
        """How long after its publication a message may still arrive out of order; 0: no groups."""
        lifetimes = [int(one.lifetime * 1000) + self._skew_ms for one in self._groups.values()]
        return max(lifetimes, default=0)

    def filters_of(self, topic_filter: str) -> list[str]:
        """Return the topic filters of the causal groups that a filter overlaps."""
        return [one for one in self._filters.values() if filters_overlap(one, topic_filter)]

    def published(self, route: Route, message: Message, meant: Collection[Session]) -> bool:
        """Send a message to subscribed peers; return whether its topic is in a causal group."""
        group = None if route.space is None else self._groups.get(route.space.space.name)
        if group is None or route.space is None:
            return False
        wanted = {*meant, *(one for one, _ in route.plain)}
        names = {one.node_name for one in wanted if isinstance(one, PeerSession)}
        if not names:
            return True
        now_ms = self._instant(self._node.now_ms)
        number = self._event_number()
        one = _Publication(route.space.space.name, frozenset(names), message, now_ms, number)
        self._send_early(now_ms)
        if now_ms < self._speaks_at(one.group):
            self._early.append(one)
            self._note(_KEPT, one.group, None, now_ms, number)
        else:
            self._send(one, now_ms)
        return True

    def _speaks_at(self, group: str) -> int:
        """Return the time from which this node may send after its start, in ms."""
        if not self._began_ms:
            return 0
        return self._began_ms + int(self._groups[group].lifetime * 1000) + self._skew_ms

    def _send_early(self, now_ms: int) -> None:
        """Send messages that waited for the old history to expire, unless they are too late."""
        due = [one for one in self._early if self._speaks_at(one.group) <= now_ms]
        if due:
            self._early = [one for one in self._early if self._speaks_at(one.group) > now_ms]
        for one in due:
            self._send(one, now_ms)

    def _send(self, one: _Publication, now_ms: int) -> None:
        group, message = self._groups[one.group], one.message
        deadline_ms = one.at_ms + int(group.lifetime * 1000)
        lifetime_s = None
        if one.at_ms < now_ms or 0 < message.expires_at_ms < deadline_ms:
            deadline_ms = min(deadline_ms, message.expires_at_ms or deadline_ms)
            lifetime_s = max(1, deadline_ms - now_ms) / 1000
        if deadline_ms <= now_ms and one.at_ms < now_ms:
            self._count_discarded(one.group, "late")
            return
        data = encode_message(message)
        copies = group.send(set(one.names), data, now_ms / 1000, lifetime=lifetime_s)
        self.counts.sent += 1
        first = next(iter(copies.values()))
        self._note(_SENT, one.group, first, now_ms, one.number, ",".join(sorted(one.names)))
        for to, copy in copies.items():
            self._number += 1
            ordered = Ordered(self._number, one.group, copy.encode())
            if message.head.qos:
                self._unsettled.setdefault(str(to), {})[self._number] = (deadline_ms, ordered)
            self._out.append((str(to), ordered))

    @handles(Ordered)
    def arrived(self, peer: PeerNode, message: Ordered) -> None:
        """Acknowledge a message of a peer, and handle it."""
        self._peers.tell(peer, Settled(message.number))
        self.receive(message.group, message.message, self._peers.now_ms)

    def receive(self, group_name: str, data: bytes, now_ms: int) -> None:
        """Handle a message of a peer: deliver it, hold it or discard it."""
        from nearcast.ordering import CausalMessage

        group = self._groups.get(group_name)
        if group is None:
            return
        now_ms = self._instant(now_ms)
        message = CausalMessage.decode(data)
        if message.sent_us < self._began_ms * 1000 and _is_once(message):
            self._count_discarded(group_name, _UNSURE)
            self._note_aside(_DISCARDED, group_name, message, now_ms, _UNSURE)
            return
        outputs = group.receive(message, now_ms / 1000)
        if not any(_is_same(one.message, message) for one in outputs):
            self.counts.held += 1
            in_group = self.counts.groups[group_name]
            in_group.waited += 1
            if self._node.recorder is not None:
                waits = ",".join(f"{name}@{at_us}" for name, at_us in sorted(message.waits))
                self._note_aside(_HELD, group_name, message, now_ms, waits)
        self._carry_out(group_name, outputs, now_ms)

    def _instant(self, now_ms: int) -> int:
        """Return the current time, never earlier than before.

        A batch's time may lie before the timer that woke the node during it.
        """
        self._now_ms = max(self._now_ms, now_ms)
        return self._now_ms

    @handles(Settled)
    def settled(self, peer: PeerNode, message: Settled) -> None:
        """Record that a peer has acknowledged a message."""
        self._unsettled.get(peer.name, {}).pop(message.number, None)

    def peer_up(self, peer: PeerNode) -> None:
        """Resend unacknowledged messages to a peer that is back, unless they are too late."""
        waiting = self._unsettled.get(peer.name, {})
        for number, (deadline_ms, message) in list(waiting.items()):
            if deadline_ms <= self._peers.now_ms:
                del waiting[number]
            else:
                self._out.append((peer.name, message))

    def frame_ends(self, peer: PeerNode) -> None:
        """Take the measurement of a peer's clock that its link has made."""
        self.clock(peer.name, peer.link.skew_ms, peer.link.delay_ms / 2)

    def clock(self, name: str, ahead_ms: float, error_ms: float) -> None:
        """Record how far a peer's clock is ahead, within `error_ms`.

        A certain violation of the bound is counted once per measurement (trap T2.6).
        """
        measured = (ahead_ms, error_ms)
        if isinf(error_ms) or self._clocks.get(name) == measured:
            return
        self._clocks[name] = measured
        is_violated = False
        for group_name, group in self._groups.items():
            if not group.observe_offset(name, ahead_ms / 1000, error=error_ms / 1000):
                is_violated = True
                in_group = self.counts.groups[group_name]
                in_group.skew_violations += 1
        self.counts.skew_violations += is_violated

    def peer_removed(self, name: str) -> None:
        """Forget a peer that has left the cluster."""
        self._clocks.pop(name, None)
        self._unsettled.pop(name, None)
        for group in self._groups.values():
            group.forget(name)

    def advance(self, now_ms: int) -> None:
        """Run everything that is due at `now_ms`."""
        now_ms = self._instant(now_ms)
        self._send_early(now_ms)
        for name, group in self._groups.items():
            self._carry_out(name, group.advance(now_ms / 1000), now_ms)

    def wake_at(self) -> int | None:
        """Return when `advance` is due next; None if nothing is scheduled."""
        times = [group.wake_at() for group in self._groups.values()]
        due_ms = [-int(-at * 1000 // 1) for at in times if at is not None]
        due_ms += [self._speaks_at(one.group) for one in self._early]
        return min(due_ms, default=None)

    def settle(self) -> None:
        """Queue the messages of the batch for their peers."""
        out, self._out = self._out, []
        for name, message in out:
            self._peers.tell_named(name, message)

    def _carry_out(self, group: str, outputs: list[Output], now_ms: int) -> None:
        from nearcast.ordering import Deliver

        for one in outputs:
            if not one.message.payload:
                self._past_settled(group, one)
            elif isinstance(one, Deliver):
                message = decode_message(one.message.payload)
                message.number = 0
                self.counts.delivered += 1
                self._node.arrive(message, now_ms)
                self._note(_DELIVERED, group, one.message, now_ms, self._event_number())
            else:
                reason = one.reason.name.lower()
                self._count_discarded(group, reason)
                self._note_aside(_DISCARDED, group, one.message, now_ms, reason)

    def _count_discarded(self, group: str, reason: str) -> None:
        self.counts.discarded[reason] = self.counts.discarded.get(reason, 0) + 1
        in_group = self.counts.groups[group]
        if reason in _EXPIRED:
            in_group.expired += 1
        else:
            in_group.discarded += 1
        if reason == "future":
            self.counts.skew_violations += 1
            in_group.skew_violations += 1

    # --- clients that go on at another node (trap T2.8) -------------------------------------

    def there(self, session: Session) -> None:
        """Record when a client disconnects: its causal past expires from then on."""
        if not self._groups or session.link is not None:
            return
        now_ms, left_ms = self._node.now_ms, self._left_ms
        left_ms.pop(session.client_id, None)
        left_ms[session.client_id] = now_ms
        oldest_ms = now_ms - self.memory_ms
        while (first := next(iter(left_ms))) != session.client_id and left_ms[first] < oldest_ms:
            del left_ms[first]

    def pasts_of(self, client_id: str, peer: PeerNode) -> list[Past]:
        """Return the causal past that a client takes from here to a peer; empty if it expired.

        A node that may not send yet, having just started, has no past to give.
        """
        left_ms, now_ms = self._left_ms.get(client_id), self._instant(self._peers.now_ms)
        if left_ms is None or peer.version < PeerVersion.CARRIES_PASTS:
            return []
        return [
            (name, group.send({peer.name}, b"", now_ms / 1000)[peer.name].encode())
            for name, group in self._groups.items()
            if now_ms <= left_ms + int(group.lifetime * 1000) + self._skew_ms
            and group.footprint
            and now_ms >= self._speaks_at(name)
        ]

    def adopt(
        self, pasts: Collection[tuple[str, Past]], then: Callable[[], None], now_ms: int
    ) -> None:
        """Take over a client's past from the peers named, and call `then` when it is delivered.

        A past that is damaged is counted and reported as a problem of its peer; the client is
        served without it.
        """
        arrival = _Arrival(1, then)
        for peer_name, past in pasts:
            try:
                self._adopt(peer_name, past, arrival, now_ms)
            except PeerProtocolError as problem:
                self._peers.peers[peer_name].problem = str(problem)
                self._peers.counts.refused += 1
        self.counts.moved_clients += bool(pasts)
        self._arrived(arrival)

    def _adopt(self, peer_name: str, past: Past, arrival: _Arrival, now_ms: int) -> None:
        from nearcast.ordering import CausalMessage

        group_name, data = past
        group = self._groups.get(group_name)
        if group is None:
            raise _bad_past(f"a past in the group {group_name}", "a causal group of this node")
        message = CausalMessage.decode(data)
        if message.payload or message.sender != peer_name:
            raise _bad_past(f"a message of {message.sender}", f"a past that {peer_name} has sent")
        arrival.open += 1
        self._arrivals[group_name, peer_name, message.sent_us] = arrival
        now_ms = self._instant(now_ms)
        self._carry_out(group_name, group.receive(message, now_ms / 1000), now_ms)

    def _past_settled(self, group: str, one: Output) -> None:
        """Continue with the client of a past that is delivered here, or has expired."""
        reason = getattr(one, "reason", None)
        if reason is not None and reason.name != "LATE":
            self._count_discarded(group, reason.name.lower())
        key = (group, str(one.message.sender), one.message.sent_us)
        arrival = self._arrivals.pop(key, None)
        if arrival is not None:
            self._arrived(arrival)

    def _arrived(self, arrival: _Arrival) -> None:
        arrival.open -= 1
        if not arrival.open:
            arrival.then()

    # --- the event log ----------------------------------------------------------------------

    def _event_number(self) -> int:
        """Return the event log's number of the last publication or delivery."""
        log = self._node.recorder
        return 0 if log is None else log.number(0)

    def _note_aside(
        self, step: int, group: str, message: CausalMessage, now_ms: int, detail: str
    ) -> None:
        """Log a step of a message that is not, or not yet, an event at this node."""
        log = self._node.recorder
        if log is not None:
            self._note(step, group, message, now_ms, log.next, detail)

    def _note(
        self,
        step: int,
        group: str,
        message: CausalMessage | None,
        now_ms: int,
        number: int,
        detail: str = "",
    ) -> None:
        """Log the facts that an audit needs: sender, time sent and lifetime.

        A message that is not sent yet (None) is stamped with the current time.
        """
        log = self._node.recorder
        if log is None:
            return
        from nearcast.eventlog.records import CausalNote, CausalStep

        lifetime_s, sender, stamp_us = self._groups[group].lifetime, self._name, now_ms * 1000
        if message is not None:
            lifetime_s = lifetime_s if message.lifetime is None else message.lifetime
            sender, stamp_us = str(message.sender), message.sent_us
        note = CausalNote(group, sender, stamp_us, int(lifetime_s * 1_000_000), detail)
        log.causal(CausalStep(step), note, now_ms, number)


def _bad_past(found: str, expected: str) -> PeerProtocolError:
    return PeerProtocolError(found, where="causal past of a client", expected=expected)


def _is_same(one: CausalMessage, other: CausalMessage) -> bool:
    return one.sent_us == other.sent_us and one.sender == other.sender


def _is_once(message: CausalMessage) -> bool:
    return decode_message(message.payload).head.qos == 2
