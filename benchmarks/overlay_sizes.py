"""The overlay beside one-hop summaries, as a network of brokers would use them.

Nodes have clients with the paper's subscriptions. What other nodes need to know of them is a few
boxes (`overlay.Cover`). In the tree each box has a seat; with one hop each change of a box is told
to every other node. Both are real code: the tree in the simulated world, the boxes as nodes make
them. Messages between nodes are counted, with 8 bytes for each number or name, and for an event
`PAYLOAD` bytes more. What the tree sends at rest (beats) is measured and left out of what a change
costs; one hop has none of its own, since the links between brokers are there anyway.

`q*`: the tree costs less if fewer events than that are published for each change that is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

from nearcast.overlay import Bounds, Cover, Method, OverlayEvent
from nearcast.overlay.bounds import covers
from nearcast.papers.content_overlay.experiment import (
    Parameters,
    event_points,
    settings_of,
    subscriptions,
)
from nearcast.papers.content_overlay.world import SimulatedOverlay
from nearcast.simulator import SimulatedLink, constant

LINK_MS = 5
PAYLOAD = 100
LOOSENESS = 0.25
_WORD = 8
_IDLE_MS = 10_000
Row = dict[str, Any]


class Brokers:
    """Nodes with clients, and the tree of their boxes."""

    def __init__(self, nodes: int, clients: int, seed: int) -> None:
        self.random = Random(f"{seed}/brokers")
        self.names = [f"p{number}" for number in range(nodes)]
        spare = Parameters(peers=nodes * clients + 2_000, subscription_sigma=300.0)
        lows, highs = subscriptions(spare, seed)
        self._boxes = iter(
            (tuple(low), tuple(high))
            for low, high in zip(lows.tolist(), highs.tolist(), strict=True)
        )
        parameters = Parameters(peers=nodes, method=Method.EXACT, beat_ms=1_000, coalesce_ms=0)
        settings = settings_of(parameters, seed)
        self.covers = {
            name: Cover(settings.extent, looseness=LOOSENESS, most=1_024) for name in self.names
        }
        self.clients: dict[str, list[Bounds]] = {name: [] for name in self.names}
        link = SimulatedLink(constant(LINK_MS), reordering=1.0)
        self.net = SimulatedOverlay(settings, seed, link, weigh=True)
        self._keys: dict[str, dict[Bounds, list[int]]] = {name: {} for name in self.names}
        self._next = 0
        for place, name in enumerate(self.names):
            self.net.add(name, [self.names[self.random.randrange(place)]] if place else [])
            for _ in range(clients):
                self.arrive(name)
        self.net.rest()

    def arrive(self, name: str) -> Counter[Bounds]:
        """Let a client subscribe; return how its node's boxes change."""
        box = next(self._boxes)
        self.clients[name].append(box)
        self.covers[name].add(box)
        return self._follow(name, 60)

    def replace(self, name: str) -> Counter[Bounds]:
        """Let a client subscribe to something else."""
        held = self.clients[name]
        self.covers[name].remove(held.pop(self.random.randrange(len(held))))
        box = next(self._boxes)
        held.append(box)
        self.covers[name].add(box)
        return self._follow(name, 200)

    def _follow(self, name: str, pause_ms: int) -> Counter[Bounds]:
        """Let the tree follow a node's boxes."""
        changes = Counter(self.covers[name].take_changes())
        peer, keys, now = self.net.peers[name], self._keys[name], self.net.world.now
        for box, change in sorted(changes.items(), key=lambda pair: -pair[1]):
            held = keys.setdefault(box, [])
            for _ in range(change):
                self._next += 1
                held.append(self._next)
                self.net.perform(name, peer.subscribe(self._next, *box, now))
            for _ in range(-change):
                self.net.perform(name, peer.unsubscribe(held.pop(), now))
        self.net.run(pause_ms)
        return changes

    def meant(self, values: list[float], publisher: str) -> set[str]:
        """Return which other nodes have a box with the event in it."""
        point = (tuple(values), tuple(values))
        return {
            name
            for name, cover in self.covers.items()
            if name != publisher and any(covers(box, point) for box in cover.boxes)
        }


def spent(net: SimulatedOverlay) -> tuple[int, int]:
    """Return how many messages and bytes the tree has sent."""
    assert net.bytes_sent is not None
    return sum(net.sent.values()), sum(net.bytes_sent.values())


def told_bytes(changes: Iterable[Bounds]) -> int:
    """Return about how many bytes one other node is told: a number, and each box."""
    return 2 * _WORD + sum(_WORD + 2 * len(low) * _WORD for low, _ in changes)


def sizes_row(nodes: int, clients: int, seed: int, *, changes: int, events: int) -> Row:
    """Measure one size: what a change costs, and an event."""
    brokers = Brokers(nodes, clients, seed)
    net = brokers.net
    idle = spent(net)
    net.run(_IDLE_MS)
    at_rest = [(after - before) / _IDLE_MS for before, after in zip(idle, spent(net), strict=True)]
    start, began = spent(net), net.world.now
    told = hop_bytes = 0
    for _ in range(changes):
        change = brokers.replace(brokers.random.choice(brokers.names))
        told += bool(change)
        hop_bytes += told_bytes(change) if change else 0
    net.run(2_000)
    taken_ms = net.world.now - began
    tree_messages, tree_bytes = (
        max(0.0, after - before - rate * taken_ms)
        for before, after, rate in zip(start, spent(net), at_rest, strict=True)
    )
    net.rest()
    net.reset()
    meant: dict[int, set[str]] = {}
    copies_before = net.sent["Events"]
    points = event_points(Parameters(events=events), 300.0, seed)
    for number, values in enumerate(points.tolist()):
        publisher = brokers.random.choice(brokers.names)
        meant[number] = brokers.meant(values, publisher)
        net.publish(publisher, [OverlayEvent.point(number, values)])
        net.run(60)
    net.run(1_000)
    direct = sum(map(len, meant.values()))
    reached = {number: set(names) for number, names in net.delivered.items()}
    missed = sum(len(some - reached.get(number, set())) for number, some in meant.items())
    copies = (net.sent["Events"] - copies_before) / events
    seats = [seat for peer in net.peers.values() for seat in peer.seats.values()]
    per_node = [
        sum(
            sum(len(group.members) for group in seat.groups) + len(seat.siblings) + len(seat.path)
            for seat in peer.seats.values()
        )
        for peer in net.peers.values()
    ]
    hops = sum(count * times for count, times in net.hops.items()) / max(1, net.deliveries)
    boxes = sum(len(list(cover.boxes)) for cover in brokers.covers.values())
    event_bytes = _WORD + 2 * _WORD + PAYLOAD
    tree_change, hop_change = tree_messages / changes, (nodes - 1) * told / changes
    tree_change_bytes, hop_change_bytes = (
        tree_bytes / changes,
        (nodes - 1) * hop_bytes / changes,
    )
    extra = copies - direct / events
    return {
        "nodes": nodes,
        "clients": clients,
        "boxes_per_node": boxes / nodes,
        "seats": len(seats),
        "missed_per_event": missed / events,
        "tree_messages_at_rest_per_s": 1_000 * at_rest[0] / nodes,
        "tree_messages_per_change": tree_change,
        "hop_messages_per_change": hop_change,
        "tree_bytes_per_change": tree_change_bytes,
        "hop_bytes_per_change": hop_change_bytes,
        "tree_copies_per_event": copies,
        "hop_copies_per_event": direct / events,
        "tree_event_bytes": copies * event_bytes,
        "hop_event_bytes": direct / events * event_bytes,
        "tree_hops_mean": hops,
        "tree_hops_most": max(net.hops, default=0),
        "tree_latency_ms": hops * LINK_MS,
        "hop_latency_ms": float(LINK_MS),
        "tree_table_mean": sum(per_node) / nodes,
        "tree_table_most": max(per_node),
        "hop_table": boxes,
        "q_messages": _break_even(hop_change - tree_change, extra),
        "q_bytes": _break_even(hop_change_bytes - tree_change_bytes, extra * event_bytes),
    }


def _break_even(saved: float, extra: float) -> float:
    """Return how many events a change the tree may cost more for; below 0: it never wins."""
    if extra <= 0:
        return float("inf") if saved > 0 else 0.0
    return saved / extra
