"""Whatever a few clients do, they receive what a plain model of MQTT says they must.

The model knows nothing of outboxes, routes, windows or runs: it is sections 3.3, 3.8 and 4 as
lists and loops. Clients answer everything at once, so that the model needs no flow control.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.topic_rules import fits

from nearcast.mqtt import Disconnect, Properties, ProtocolVersion, Publish

NAMES = ("ann", "bob", "cyd")
TOPICS = ("a", "a/b", "b", "$x/a")
FILTERS = ("a", "a/b", "a/+", "a/#", "#", "+", "$x/#")
WEIGHTS = (10, 5, 1, 3, 0.5)
versions = st.sampled_from([ProtocolVersion.V311, ProtocolVersion.V5])


Seen = tuple[str, bytes, int, bool, tuple[int, ...]]


@dataclass
class ModelSubscription:
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0


@dataclass
class ModelSession:
    version: int
    expiry_s: int
    is_connected: bool = True
    subscriptions: dict[str, ModelSubscription] = field(default_factory=dict)
    inbox: list[Seen] = field(default_factory=list)

    def get(self, seen: Seen) -> None:
        """Receive now, or later if it is worth keeping."""
        if self.is_connected or (seen[2] and self.expiry_s):
            self.inbox.append(seen)

    def expected(self) -> list[Seen]:
        """Return what arrives: identifiers only where the connection of now has them."""
        return [one if self.version == 5 else (*one[:4], ()) for one in self.inbox]


class Model:
    """MQTT as the specification tells it, for clients that answer at once."""

    def __init__(self) -> None:
        self.sessions: dict[str, ModelSession] = {}
        self.retained: dict[str, tuple[bytes, int]] = {}

    def connect(self, name: str, version: int, clean: bool, expiry_s: int) -> bool:
        old = self.sessions.get(name)
        if old is None or clean or not old.expiry_s:  # without expiry it ends when taken over
            self.sessions[name] = ModelSession(version, expiry_s)
            return False
        old.version, old.expiry_s, old.is_connected = version, expiry_s, True
        return True

    def leave(self, name: str) -> None:
        session = self.sessions[name]
        session.is_connected = False
        if not session.expiry_s:
            del self.sessions[name]

    def subscribe(
        self, name: str, topic_filter: str, wanted: ModelSubscription, handling: int
    ) -> None:
        session = self.sessions[name]
        is_new = topic_filter not in session.subscriptions
        session.subscriptions[topic_filter] = wanted
        if handling == 2 or (handling == 1 and not is_new):
            return
        for topic, (payload, qos) in self.retained.items():
            if fits(topic_filter, topic):
                ids = (wanted.identifier,) if wanted.identifier else ()
                session.get((topic, payload, min(qos, wanted.qos), True, ids))

    def publish(self, name: str, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        if retain and payload:
            self.retained[topic] = (payload, qos)
        elif retain:
            self.retained.pop(topic, None)
        for receiver, session in self.sessions.items():
            matching = [
                one
                for topic_filter, one in session.subscriptions.items()
                if fits(topic_filter, topic) and not (one.no_local and receiver == name)
            ]
            if matching:
                session.get(
                    (
                        topic,
                        payload,
                        min(qos, max(one.qos for one in matching)),
                        retain and any(one.retain_as_published for one in matching),
                        tuple(sorted(one.identifier for one in matching if one.identifier)),
                    )
                )


class NodeAgreesWithModel(RuleBasedStateMachine):
    make_world: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.world = self.make_world(with_journal=True)
        self.model = Model()
        self.clients: dict[str, Any] = {}
        self.count = 0

    @initialize()
    def begin(self) -> None:
        self.connect("ann", ProtocolVersion.V5, True, 60)
        self.connect("bob", ProtocolVersion.V311, False, 60)
        self.subscribe("bob", "#", 2, False, False, 0, 0)  # it has something to lose

    @rule(
        name=st.sampled_from(NAMES),
        version=versions,
        clean=st.booleans(),
        expiry_s=st.sampled_from([0, 60]),
    )
    def connect(self, name: str, version: ProtocolVersion, clean: bool, expiry_s: int) -> None:
        if version < 5:
            expiry_s = 0 if clean else self.world.settings.session_expiry_s
        present = self.model.connect(name, version, clean, expiry_s)
        props = {"session_expiry_interval": expiry_s} if version == 5 else {}
        client = self.world.client(name, version, clean_start=clean, props=props)
        answer = client.packets.pop(0)
        assert (answer.reason, answer.session_present) == (0, present)
        self.clients[name] = client

    def online(self, name: str) -> bool:
        session = self.model.sessions.get(name)
        return session is not None and session.is_connected

    @rule(name=st.sampled_from(NAMES), politely=st.booleans())
    def leave(self, name: str, politely: bool) -> None:
        if not self.online(name):
            return
        self.compare(name)
        if politely:
            self.clients[name].send(Disconnect())
        else:
            self.clients[name].lose()
        self.model.leave(name)

    @rule(
        name=st.sampled_from(NAMES),
        topic_filter=st.sampled_from(FILTERS),
        qos=st.integers(0, 2),
        no_local=st.booleans(),
        keep=st.booleans(),
        handling=st.integers(0, 2),
        identifier=st.integers(0, 3),
    )
    def subscribe(
        self,
        name: str,
        topic_filter: str,
        qos: int,
        no_local: bool,
        keep: bool,
        handling: int,
        identifier: int,
    ) -> None:
        if not self.online(name):
            return
        wanted = ModelSubscription(qos, no_local, keep, identifier)
        if self.clients[name].version < 5:
            wanted, handling = ModelSubscription(qos), 0
        self.model.subscribe(name, topic_filter, wanted, handling)
        self.clients[name].subscribe(
            topic_filter,
            qos,
            no_local=wanted.no_local,
            retain_as_published=wanted.retain_as_published,
            retain_handling=handling,
            identifier=wanted.identifier,
        )

    @rule(name=st.sampled_from(NAMES), topic_filter=st.sampled_from(FILTERS))
    def unsubscribe(self, name: str, topic_filter: str) -> None:
        if self.online(name):
            self.model.sessions[name].subscriptions.pop(topic_filter, None)
            self.clients[name].unsubscribe(topic_filter)

    @rule(
        name=st.sampled_from(NAMES),
        topic=st.sampled_from(TOPICS),
        qos=st.integers(0, 2),
        retain=st.booleans(),
        is_empty=st.booleans(),
        times=st.integers(1, 3),
    )
    def publish(
        self, name: str, topic: str, qos: int, retain: bool, is_empty: bool, times: int
    ) -> None:
        """Publish a run of packets in one read."""
        if not self.online(name):
            return
        packets = []
        for _ in range(times):
            self.count += 1
            payload = b"" if is_empty and retain else b"%05d" % self.count
            self.model.publish(name, topic, payload, qos, retain)
            packet_id = self.clients[name].next_id() if qos else 0
            is_odd = self.count % 3 == 0 and self.clients[name].version == 5
            properties = Properties(user_properties=(("n", "v"),) if is_odd else ())
            packets.append(Publish(topic, payload, qos, retain, False, packet_id, properties))
        self.clients[name].send(*packets)

    @precondition(lambda self: self.count)
    @rule()
    def crash(self) -> None:
        """Kill the node: connected sessions of expiry 0 end, the others wait."""
        for name in NAMES:
            if self.online(name):
                self.compare(name)
                self.model.leave(name)
        self.world.crash_and_restart()
        assert self.world.set_aside == []

    def compare(self, name: str) -> None:
        session = self.model.sessions[name]
        received = [
            (
                one.topic,
                one.payload,
                one.qos,
                one.retain,
                tuple(sorted(one.properties.subscription_identifiers)),
            )
            for one in self.clients[name].publications()
        ]
        assert Counter(received) == Counter(session.expected())
        for topic in TOPICS:
            live = [one[1] for one in received if one[0] == topic and not one[3] and one[1]]
            assert live == sorted(live), "a topic's messages out of order"
        session.inbox.clear()

    @invariant()
    def everybody_has_received_what_the_model_says(self) -> None:
        for name in NAMES:
            if self.online(name):
                self.compare(name)


def do_something(machine: NodeAgreesWithModel, rng: Random) -> None:
    """Let one client do what clients do, often with a client that has something to lose."""
    name, qos = rng.choice(NAMES), rng.randrange(3)
    if not machine.online(name):
        if rng.random() < 0.3:  # meanwhile others publish
            clean, expiry_s = rng.random() < 0.2, rng.choice((0, 60, 60))
            machine.connect(name, rng.choice(tuple(ProtocolVersion)), clean, expiry_s)
        return
    action = rng.choices(("publish", "subscribe", "unsubscribe", "leave", "crash"), WEIGHTS)[0]
    if action == "publish":
        retain, is_empty = rng.random() < 0.3, rng.random() < 0.2
        machine.publish(name, rng.choice(TOPICS), qos, retain, is_empty, rng.randint(1, 3))
    elif action == "subscribe":
        flags = rng.random() < 0.2, rng.random() < 0.3
        machine.subscribe(
            name, rng.choice(FILTERS), qos, *flags, rng.randrange(3), rng.randrange(4)
        )
    elif action == "unsubscribe":
        machine.unsubscribe(name, rng.choice(FILTERS))
    elif action == "leave":
        machine.leave(name, rng.random() < 0.5)
    else:
        machine.crash()


@pytest.mark.parametrize("seed", range(12))
def test_node_agrees_with_the_model(make_world: Any, seed: int) -> None:
    """Long histories: most of what is to be seen needs a session, a queue and somebody else."""

    class Machine(NodeAgreesWithModel):
        pass

    Machine.make_world = staticmethod(make_world)
    machine, rng = Machine(), Random(seed)
    machine.begin()
    for _ in range(300):
        do_something(machine, rng)
        machine.everybody_has_received_what_the_model_says()


def test_node_agrees_with_the_model_in_any_short_history(make_world: Any) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    class Machine(NodeAgreesWithModel):
        pass

    Machine.make_world = staticmethod(make_world)
    run_state_machine_as_test(Machine, settings=settings(stateful_step_count=30))
