"""Retries: send items to peers until each peer has acknowledged them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from nearcast.locality.registration.messages import (
    Instant,
    Known,
    NodeId,
    Outgoing,
    Probe,
    TableId,
    Timing,
)


@dataclass(slots=True)
class _Item:
    """One message to one peer under one key."""

    message: Any
    revision: int
    give_up_at: Instant
    next_try: Instant | None  # None: acknowledged
    wait_ms: int


@dataclass(slots=True)
class _Peer:
    """All items of one peer; `table` is the id of the table that the peer last reported."""

    items: dict[Hashable, _Item]
    table: TableId | None = None
    probe_at: Instant | None = None
    heard_at: Instant = 0


class RetryUntilAcked:
    """The items that one node keeps in sync with its peers.

    Contract: each item is sent until the peer acknowledges its revision or `give_up_at` has passed.
    A peer that reports another table than before has forgotten everything: all its items are sent
    again. With `probes`, a peer that has acknowledged items is asked every `probe_ms` which table
    it keeps, so that lost state is noticed. `life` is this node's life, sent to its peers.

    Complexity: O(log n) per message for n items in flight; resending to a peer that forgot is O(its
    items). An item that is not acknowledged is sent at intervals that double up to `most_retry_ms`.
    """

    def __init__(self, node: NodeId, timing: Timing, *, probes: bool) -> None:
        self.life = 0
        self._node = node
        self._timing = timing
        self._probes = probes
        self._peers: dict[NodeId, _Peer] = {}
        self._due: list[tuple[Instant, int, NodeId, Hashable]] = []
        self._order = 0

    def send(
        self,
        peer: NodeId,
        key: Hashable,
        revision: int,
        message: Any,
        now: Instant,
        give_up_at: Instant,
    ) -> list[Outgoing]:
        """Send an item and retry it; it replaces an earlier one with the same key."""
        state = self._peers.setdefault(peer, _Peer({}))
        wait_ms = self._timing.retry_ms
        state.items[key] = _Item(message, revision, give_up_at, now + wait_ms, wait_ms)
        self._push(now + wait_ms, peer, key)
        return [Outgoing(peer, message)]

    def forget(self, peer: NodeId) -> None:
        """Drop all items of a peer that is gone for good."""
        self._peers.pop(peer, None)

    def drop(self, peer: NodeId, key: Hashable) -> None:
        """Drop an item; no effect if there is none."""
        if peer in self._peers:
            self._peers[peer].items.pop(key, None)

    def acknowledged(self, peer: NodeId, key: Hashable, revision: int) -> None:
        """Mark an item as acknowledged; an acknowledgement of an older revision is ignored."""
        state = self._peers.get(peer)
        item = state.items.get(key) if state else None
        if item is not None and item.revision == revision:
            item.next_try = None

    def known(self, answer: Known, now: Instant) -> list[Outgoing]:
        """Process a holder's answer: the table that it keeps, and perhaps an acknowledgement."""
        out = self.heard(answer.holder, answer.table, now)
        state = self._peers.get(answer.holder)
        if answer.key is not None and state is not None and state.table == answer.table:
            self.acknowledged(answer.holder, answer.key, answer.revision)
        return out

    def heard(self, peer: NodeId, table: TableId, now: Instant) -> list[Outgoing]:
        """Record which table a peer keeps; send all its items again if the table has changed.

        An older incarnation's late answer is ignored: table ids only increase.
        """
        state = self._peers.get(peer)
        if state is None or (state.table is not None and table < state.table):
            return []
        if self._probes and state.probe_at is None:
            state.probe_at = now + self._timing.probe_ms
            self._push(state.probe_at, peer, None)
        state.heard_at = now
        if state.table == table:
            return []
        first_contact = state.table is None
        state.table = table
        return [] if first_contact else self._send_some(peer, state, state.items, now)

    def again(self, peer: NodeId, now: Instant) -> list[Outgoing]:
        """Send all items that a peer has not acknowledged: messages in flight may be lost.

        With `probes`, also ask at once for the peer's table; the probe gives the peer this node's
        life.
        """
        out = [Outgoing(peer, Probe(self._node, self.life))] if self._probes else []
        state = self._peers.get(peer)
        if state is not None:
            unknown = [key for key, item in state.items.items() if item.next_try is not None]
            out += self._send_some(peer, state, unknown, now)
        return out

    def advance(self, now: Instant) -> list[Outgoing]:
        """Return the messages that are due to be sent again."""
        out: list[Outgoing] = []
        while self._due and self._due[0][0] <= now:
            at, _, peer, key = heappop(self._due)
            state = self._peers.get(peer)
            if state is None:
                continue
            if key is None:
                out += self._probe(peer, state, at, now)
            else:
                out += self._try_again(peer, state, key, at, now)
        return out

    def wake_at(self) -> Instant | None:
        """Return when `advance` has something to send; None: never."""
        while self._due and not self._is_wanted(*self._due[0]):
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def pending(self) -> int:
        """Return how many items wait for an acknowledgement."""
        return sum(1 for _ in self.pending_keys())

    def pending_keys(self) -> Iterator[Any]:
        """Yield the keys of items that wait for an acknowledgement, once for each peer."""
        for state in self._peers.values():
            for key, item in state.items.items():
                if item.next_try is not None:
                    yield key

    def __len__(self) -> int:
        return sum(len(peer.items) for peer in self._peers.values())

    def _is_wanted(self, at: Instant, _order: int, peer: NodeId, key: Hashable) -> bool:
        state = self._peers.get(peer)
        if state is None:
            return False
        if key is None:
            return state.probe_at == at
        item = state.items.get(key)
        return item is not None and item.next_try == at

    def _try_again(
        self, peer: NodeId, state: _Peer, key: Hashable, at: Instant, now: Instant
    ) -> list[Outgoing]:
        item = state.items.get(key)
        if item is None or item.next_try != at:
            return []
        if now >= item.give_up_at:
            del state.items[key]
            return []
        item.wait_ms = min(2 * item.wait_ms, self._timing.most_retry_ms)
        item.next_try = now + item.wait_ms
        self._push(item.next_try, peer, key)
        return [Outgoing(peer, item.message)]

    def _probe(self, peer: NodeId, state: _Peer, at: Instant, now: Instant) -> list[Outgoing]:
        if state.probe_at != at:
            return []
        if (again := state.heard_at + self._timing.probe_ms) > now:
            state.probe_at = again  # heard from since: no need to probe yet
            self._push(again, peer, None)
            return []
        state.items = {k: i for k, i in state.items.items() if i.give_up_at > now}
        if not state.items:
            state.probe_at = None
            return []
        state.probe_at = now + self._timing.probe_ms
        self._push(state.probe_at, peer, None)
        return [Outgoing(peer, Probe(self._node, self.life))]

    def _send_some(
        self, peer: NodeId, state: _Peer, keys: Iterable[Hashable], now: Instant
    ) -> list[Outgoing]:
        out = []
        for key in keys:
            item = state.items[key]
            if item.give_up_at > now:
                item.wait_ms = self._timing.retry_ms
                item.next_try = now + item.wait_ms
                self._push(item.next_try, peer, key)
                out.append(Outgoing(peer, item.message))
        return out

    def _push(self, at: Instant, peer: NodeId, key: Hashable) -> None:
        self._order += 1
        heappush(self._due, (at, self._order, peer, key))
