"""Handover and change of plan while messages come twice, late, never or in any order."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.support.handover_nodes import (
    EAST,
    NAMES,
    SPACE,
    TIMING,
    WEST,
    halves,
)
from tests.support.locality_node import (
    Acknowledged,
    DeliverToClient,
    LocalityActor,
    Move,
    SimPublish,
    SimSubscribe,
    SimUnsubscribe,
    UsePlan,
)

from nearcast.locality import Rect
from nearcast.locality.registration.messages import (
    EventId,
    PlacedEvent,
)
from nearcast.simulator.world import Send


class AnyOrder(RuleBasedStateMachine):
    """Three nodes; messages come twice, late or never, in any order; nodes crash anywhere."""

    @initialize()
    def start(self) -> None:
        self.now = 0
        self.newest = halves()
        self.nodes = {name: LocalityActor(name, NAMES, self.newest, TIMING) for name in NAMES}
        self.bag: list[Send] = []
        self.history: dict[str, list[tuple[int, Rect | None]]] = {}
        self.events: list[PlacedEvent] = []
        self.got: list[tuple[str, EventId]] = []

    def take(self, outputs: list[Any]) -> None:
        self.bag += [output for output in outputs if isinstance(output, Send)]
        for output in outputs:
            if isinstance(output, DeliverToClient):
                self.got.append((output.subscription, output.event.event_id))
            elif isinstance(output, Acknowledged):
                self.events.append(output.event)

    def act(self, node: str, request: Any) -> None:
        """Make a client of a node do something, at an instant of its own."""
        self.now += 1
        self.take(self.nodes[node].receive(request, self.now))

    def is_active(self, name: str) -> bool:
        return name in self.history and self.history[name][-1][1] is not None

    @rule(node=st.sampled_from(NAMES), area=st.sampled_from([WEST, EAST, SPACE]))
    def subscribe_or_move(self, node: str, area: Rect) -> None:
        name = f"s of {node}"
        self.act(node, (Move if self.is_active(name) else SimSubscribe)(name, area))
        self.history.setdefault(name, []).append((self.now, area))

    @rule(node=st.sampled_from(NAMES))
    def unsubscribe(self, node: str) -> None:
        name = f"s of {node}"
        if self.is_active(name):
            self.act(node, SimUnsubscribe(name))
            self.history[name].append((self.now, None))

    @rule(
        node=st.sampled_from(NAMES),
        place=st.sampled_from([Rect.at(1.5, 1.5), Rect.at(6.5, 1.5), Rect(1, 1, 7, 2)]),
    )
    def publish(self, node: str, place: Rect) -> None:
        self.act(node, SimPublish(place, qos=1, lifetime_ms=10_000))

    @precondition(lambda self: self.bag)
    @rule(which=st.integers(0, 99), keep=st.booleans())
    def deliver(self, which: int, keep: bool) -> None:
        place = which % len(self.bag)
        message = self.bag[place] if keep else self.bag.pop(place)
        self.take(self.nodes[str(message.to)].receive(message.message, self.now))

    @precondition(lambda self: self.bag)
    @rule(which=st.integers(0, 99))
    def drop(self, which: int) -> None:
        self.bag.pop(which % len(self.bag))

    @rule(ms=st.sampled_from([1, 60, 250, 700]))
    def wait(self, ms: int) -> None:
        self.now += ms
        for node in self.nodes.values():
            self.take(node.advance(self.now))

    @rule(node=st.sampled_from(NAMES))
    def crash(self, node: str) -> None:
        self.now += 1
        self.take(self.nodes[node].restart(self.now))

    @rule()
    def new_plan(self) -> None:
        version = self.newest.version + 1
        if version < 5:
            self.newest = halves(version, swapped=version % 2 == 0)
            self.bag += [Send(name, UsePlan(self.newest)) for name in NAMES]

    def teardown(self) -> None:
        """Heal: deliver everything for a while, then judge by the definition."""
        if not hasattr(self, "nodes"):
            return
        self.bag += [Send(name, UsePlan(self.newest)) for name in NAMES]
        for _ in range(40):
            self.now += 50
            for node in self.nodes.values():
                self.take(node.advance(self.now))
            for _ in range(8):
                bag, self.bag = self.bag, []
                for message in bag:
                    self.take(self.nodes[str(message.to)].receive(message.message, self.now))
        used = {node.locality.plans.versions for node in self.nodes.values()}
        assert used == {(self.newest.version, 0)}
        assert sorted(self.got) == sorted(self.due())

    def due(self) -> list[tuple[str, EventId]]:
        pairs = []
        for event in self.events:
            for name, history in self.history.items():
                areas = [area for since, area in history if since <= event.published_at]
                alive = self.now < event.deadline
                was_delivered = (name, event.event_id) in self.got
                if (
                    areas
                    and areas[-1]
                    and areas[-1].intersects(event.area)
                    and (alive or was_delivered)
                ):
                    pairs.append((name, event.event_id))
        return pairs


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(stateful_step_count=40)
