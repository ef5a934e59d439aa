"""Simulated worlds: a digest of all that happened, for fixed seeds.

The digest is of values, not of `repr`: a renamed class or field does not change it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, replace
from typing import Any
from unittest import mock

import numpy as np
from tests.golden import frames
from tests.golden.golden import Maker, plain
from tests.support.handover_runs import HandoverRun
from tests.support.simulated_city import SimulatedCity
from tests.support.town import run_town

from nearcast.locality import CellCounts, Plan, Rect
from nearcast.locality.registration.plan_assignment import NamedPlan
from nearcast.mqtt import Publish
from nearcast.papers.content_overlay.experiment import Parameters, event_points, grown, publish_all
from nearcast.papers.delta_causal.experiment import CausalPoint, run_point
from nearcast.papers.qr_network.layouts import FollowingLayout, LayoutRun, PlannedLayout
from nearcast.papers.qr_network.subscriber_tree import SubscriberTree
from nearcast.simulator import SimulatedLink, World, constant, uniform
from nearcast.simulator.movers import mixed_crowd


class Digest:
    """Takes note of all that actors of worlds are handed."""

    def __init__(self) -> None:
        self.count = 0
        self._hash = hashlib.blake2b(digest_size=16)

    def note(self, at: int, actor: Any, message: Any) -> None:
        """Add what an actor is handed at an instant."""
        self.count += 1
        self.add((at, actor, message))

    def add(self, value: Any) -> None:
        """Add a value."""
        self._hash.update(repr(plain(value)).encode())

    def line(self, name: str) -> str:
        """Return what has been noted, in a line."""
        return f"{name}: {self.count} steps, {self._hash.hexdigest()}"


@contextmanager
def watched() -> Iterator[Digest]:
    """Take note of what happens in all worlds of the body."""
    digest = Digest()

    def note(_world: World, at: int, actor: Any, message: Any) -> None:
        plan = getattr(message, "plan", None)
        digest.note(at, actor, plan.to_bytes() if isinstance(plan, NamedPlan) else message)

    with mock.patch.object(World, World._note.__name__, note):
        yield digest


def handovers(seed: int) -> str:
    """Run brokers with faults during handovers and changes of plan."""
    with watched() as digest:
        report = HandoverRun(seed).execute()
    digest.add(sorted(report.counts.items()))
    problems = len(report.problems)
    return digest.line(f"handovers, seed {seed}, {report.nodes} nodes, {problems} problems")


def town(seed: int) -> str:
    """Run a town on real nodes with faults."""
    with watched() as digest:
        report = run_town(seed, most_nodes=4)
    told = f"{report.due} due, {report.crashes} crashes, plan {report.plan_version}"
    return digest.line(f"town, seed {seed}, {told}, {len(report.problems)} problems")


def causal(seed: int) -> str:
    """Let three nodes talk in causal order over ways of different length, with loss."""
    with watched() as digest:
        link = SimulatedLink(delay=uniform(1, 20), loss=0.05, duplication=0.1)
        city = SimulatedCity(3, seed, link, spaces=frames.SPACES)
        clients = [city.client(f"c{name}", name, "talk/#") for name in city.names]
        city.run(3_000)
        city.world.network.set_link("n0", "n2", SimulatedLink(delay=constant(150)))
        for number in range(12):
            client = clients[number % 3]
            client.publish(Publish("talk/x", b'{"x": %d}' % (number % 9), number % 3))
            city.turn(client)
            city.run(40)
        city.run(2_000)
    digest.add([[one.payload for one in client.received] for client in clients])
    return digest.line(f"causal, seed {seed}, {[len(one.received) for one in clients]} received")


def overlay(seed: int) -> str:
    """Let peers of the overlay join, publish, crash and leave."""
    few = replace(Parameters(), peers=24, events=40, beat_ms=5_000)
    with watched() as digest:
        net = grown(few, seed)
        publish_all(net, event_points(few, 100.0, seed), "first", 4_000)
        net.crash("p3")
        net.leave("p5")
        net.run(40_000)
        publish_all(net, event_points(few, 30.0, seed), "second", 4_000)
    digest.add(sorted(net.hops.items()))
    return digest.line(f"overlay, seed {seed}, {net.deliveries} deliveries")


def layouts(seed: int) -> Iterator[str]:
    """Move a crowd through each layout; yield what that cost."""
    space, regions = Rect(0, 0, 64, 64), [Rect(4, 4, 16, 20), Rect(30, 30, 44, 40)]
    for way in ("q", "qr", "r", "following"):
        random = np.random.default_rng(seed)
        crowd = mixed_crowd(space, regions, 200, random, slow_speed=0.5)
        xs, ys = crowd.xs.copy(), crowd.ys.copy()
        layout: Any
        if way == "following":
            layout = FollowingLayout(SubscriberTree(space, xs, ys, capacity=12, fanout=8))
        else:
            counts = CellCounts.from_positions(space, regions, xs, ys, depth=6)
            plan = Plan.build(space, regions, counts, layout=way, capacity=12)  # type: ignore[arg-type]
            layout = PlannedLayout(plan)
        run = LayoutRun(layout, xs, ys)
        for _ in range(8):
            crowd.step(1.0)
            corners = random.random((5, 2)) * 60
            events = [Rect(x, y, x + 4, y + 4) for x, y in corners.tolist()]
            run.round(crowd.xs.copy(), crowd.ys.copy(), events)
        yield f"layout {way}, seed {seed}: {layout.brokers()} brokers, {astuple(run.costs)}"


def ordering(algorithm: str) -> str:
    """Run one algorithm of causal order on its own traffic."""
    row = run_point(CausalPoint(algorithm, 8, warm_up=100, sends=400), clock=lambda: 0.0)
    names = ("sends", "copies", "delivered", "discarded", "held", "control_bytes")
    told = tuple(row[name] for name in names)
    return f"ordering {algorithm}: {told}, {row['transit_ms']:.6f} ms"


def _together(*parts: Callable[[], str]) -> Maker:
    return lambda: "\n".join(part() for part in parts) + "\n"


FILES: dict[str, Maker] = {
    "worlds/handovers.txt": _together(*(lambda n=n: handovers(n) for n in (1, 2, 3))),
    "worlds/town.txt": _together(*(lambda n=n: town(n) for n in (3, 4))),
    "worlds/causal.txt": _together(*(lambda n=n: causal(n) for n in (1, 2))),
    "worlds/overlay.txt": _together(*(lambda n=n: overlay(n) for n in (1, 2))),
    "worlds/layouts.txt": lambda: "\n".join(layouts(1)) + "\n",
    "worlds/ordering.txt": _together(
        *(lambda one=one: ordering(one) for one in ("ours", "KS", "PRS", "RST"))
    ),
}
