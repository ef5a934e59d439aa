"""Whatever happens in whatever order: nothing older after something newer, and nothing is lost.

The model is plain MQTT as lists and loops, but for one thing: a retained copy that a SUBSCRIBE asks
for is a debt. It is paid by the copy, or by a newer retained message of no lower QoS; before any
other message of its topic arrives, and in time. The model does not know when the node decides to
wait, only what must be true whenever it does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.support.invariants import check_retained_delivery

from nearcast.broker import RetainedSettings
from nearcast.index.topic_filters import topic_matches
from nearcast.mqtt import (
    Disconnect,
    FilterRequest,
    Properties,
    ProtocolVersion,
    Publish,
    Subscribe,
)
from nearcast.retained import (
    DecisionProcess,
    Policies,
    Rates,
    TopicPolicy,
    Weights,
    shipped_policy,
)

HOLD_MS = 1_000
SETTINGS = (
    RetainedSettings(topics="q/#", mode="learned", hold_max_s=1.0, omega=0.2),
    RetainedSettings(topics="w/#", mode="wait", hold_max_s=1.0),
)
NAMES = ("ann", "bob", "cyd")
TOPICS = ("q/a", "q/b", "w/a", "p")
FILTERS = ("q/a", "q/+", "w/a", "+/a", "#")  # all but the first with their place as identifier
TABLES = {
    waits: Policies(topics={"q/a": TopicPolicy(table(DecisionProcess()), Rates(), Weights())})
    for waits, table in ((True, DecisionProcess.always_wait), (False, DecisionProcess.plain))
}
POLICIES = (Policies(), Policies(general=shipped_policy()), TABLES[True], TABLES[False])
names, topics, qualities = st.sampled_from(NAMES), st.sampled_from(TOPICS), st.integers(0, 2)


@dataclass
class Debt:
    payload: bytes
    qos: int
    due_ms: int
    is_queued: bool = False  # the session has it: only the copy itself will do


@dataclass
class Wanted:
    qos: int
    no_local: bool


@dataclass
class Live:
    topic: str
    payload: bytes
    qos: int
    pays: int  # debts up to this QoS; -1 for a message that is not retained


@dataclass
class Person:
    expiry_s: int
    client: Any
    wants: dict[str, Wanted] = field(default_factory=dict)
    debts: dict[tuple[str, str], Debt] = field(default_factory=dict)
    expected: list[Live] = field(default_factory=list)

    @property
    def is_here(self) -> bool:
        return self.client is not None

    def leave(self) -> None:
        """Go; what is owed at QoS 1 and 2 is in the queue of a session that stays."""
        self.client = None
        kept = {key: debt for key, debt in self.debts.items() if debt.qos}
        self.debts = kept
        for debt in kept.values():
            debt.is_queued = True


class NothingIsLost(RuleBasedStateMachine):
    make_world: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.world = self.make_world(with_journal=True, retained=SETTINGS)
        self.people: dict[str, Person] = {}
        self.retained: dict[str, tuple[bytes, int]] = {}
        self.count = 0

    # --- what happens ---------------------------------------------------------------------

    @initialize(every_ms=st.sampled_from([50, 200, 600]))
    def begin(self, every_ms: int) -> None:
        for name in NAMES:
            self.connect(name, True, 60)
        for _ in range(12):
            self.publish("cyd", "q/a", 1, True, 1)
            self.pause(every_ms)

    @rule(name=names, clean=st.booleans(), expiry_s=st.sampled_from([0, 60]))
    def connect(self, name: str, clean: bool, expiry_s: int) -> None:
        person = self.people.get(name)
        if person is not None and person.is_here and person.expiry_s == 0 and not clean:
            clean = True  # whether such a session survives a takeover is another test's business
        if person is not None and person.is_here:
            person.leave()
        client = self.world.client(
            name,
            ProtocolVersion.V5,
            clean_start=clean,
            props={"session_expiry_interval": expiry_s},
        )
        client.packets.pop(0)
        if person is None or clean:
            person = self.people[name] = Person(expiry_s, client)
        person.client, person.expiry_s = client, expiry_s
        self.look()
        assert not any(debt.is_queued for debt in person.debts.values()), "lost with the connection"

    @rule(name=names, says_goodbye=st.booleans())
    def disconnect(self, name: str, says_goodbye: bool) -> None:
        person = self.people.get(name)
        if person is None or not person.is_here:
            return
        client = person.client
        person.leave()
        if not person.expiry_s:
            del self.people[name]
        if says_goodbye:
            client.send(Disconnect(0))
        else:
            client.lose()
        assert client.publications() == []

    @rule(
        name=names,
        topic_filter=st.sampled_from(FILTERS),
        qos=qualities,
        handling=st.sampled_from([0, 0, 0, 1, 2]),
        now=st.sampled_from([False, False, True]),
        no_local=st.booleans(),
    )
    def subscribe(
        self, name: str, topic_filter: str, qos: int, handling: int, now: bool, no_local: bool
    ) -> None:
        person = self.people.get(name)
        if person is None or not person.is_here:
            return
        is_new = topic_filter not in person.wants
        person.wants[topic_filter] = Wanted(qos, no_local)
        for (text, topic), debt in person.debts.items():
            if text == topic_filter:  # the copy still comes, at the QoS that is granted now
                debt.qos = min(qos, self.retained[topic][1])
        if handling == 0 or (handling == 1 and is_new):
            for topic, (payload, stored_qos) in self.retained.items():
                if topic_matches(topic_filter, topic):
                    at_once = now or handling or topic[0] not in "qw"
                    self.owe(person, topic_filter, topic, payload, min(qos, stored_qos), at_once)
        request = FilterRequest(topic_filter, qos, no_local, False, handling)
        place = FILTERS.index(topic_filter)
        properties = Properties(
            user_properties=(("$retained", "now"),) if now else (),
            subscription_identifiers=(place,) if place else (),
        )
        person.client.send(Subscribe(person.client.next_id(), (request,), properties))
        self.look()

    def owe(
        self, person: Person, text: str, topic: str, payload: bytes, qos: int, at_once: object
    ) -> None:
        due_ms = self.world.now_ms + (0 if at_once else HOLD_MS)
        known = person.debts.get((text, topic))
        if known is not None:  # it waits already, and does not wait longer for asking again
            due_ms = min(due_ms, known.due_ms)
        person.debts[text, topic] = Debt(payload, qos, due_ms)

    @rule(name=names, topic_filter=st.sampled_from(FILTERS))
    def unsubscribe(self, name: str, topic_filter: str) -> None:
        person = self.people.get(name)
        if person is None or not person.is_here:
            return
        person.wants.pop(topic_filter, None)
        person.debts = {key: one for key, one in person.debts.items() if key[0] != topic_filter}
        person.client.unsubscribe(topic_filter)
        self.look()

    @rule(name=names, topic=topics, qos=qualities, retain=st.booleans(), run=st.integers(1, 3))
    def publish(self, name: str, topic: str, qos: int, retain: bool, run: int) -> None:
        """Publish one message, or a run of them in one read."""
        person = self.people.get(name)
        if person is None or not person.is_here:
            return
        packets = []
        for _ in range(run):
            self.count += 1
            payload = b"%06d" % self.count
            packet_id = person.client.next_id() if qos else 0
            packets.append(Publish(topic, payload, qos, retain, packet_id=packet_id))
            self.expect(name, topic, payload, qos, retain)
        person.client.send(*packets)
        self.look()

    @rule(name=names, topic=topics)
    def delete(self, name: str, topic: str) -> None:
        person = self.people.get(name)
        if person is not None and person.is_here:
            self.expect(name, topic, b"", 0, True)
            person.client.publish(topic, b"", retain=True)
            self.look()

    @rule(ms=st.sampled_from([1, 100, 400, 999, 1_000, 5_000]))
    def pause(self, ms: int) -> None:
        self.world.wait(ms)
        self.look()

    @rule(number=st.integers(0, len(POLICIES) - 1))
    def reload(self, number: int) -> None:
        self.world.node.load_policies(POLICIES[number], self.world.now_ms)
        self.world.settle()
        self.look()

    @rule()
    def crash(self) -> None:
        self.world.crash_and_restart()
        for name, person in list(self.people.items()):
            if person.is_here:
                person.leave()
            if not person.expiry_s:
                del self.people[name]

    # --- what must be true ----------------------------------------------------------------

    def expect(self, name: str, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        if retain and payload:
            self.retained[topic] = (payload, qos)
        elif retain:
            self.retained.pop(topic, None)
        for receiver, person in self.people.items():
            matching = [
                one.qos
                for text, one in person.wants.items()
                if topic_matches(text, topic) and not (one.no_local and receiver == name)
            ]
            if matching and (person.is_here or min(qos, max(matching))):
                live = Live(topic, payload, min(qos, max(matching)), qos if retain else -1)
                person.expected.append(live)

    def look(self) -> None:
        """Compare what has arrived with what is owed."""
        for person in self.people.values():
            if person.is_here:
                for packet in person.client.publications():
                    if packet.retain:
                        self.take_copy(person, packet)
                    else:
                        self.take_live(person, packet)
                assert person.expected == []

    def take_copy(self, person: Person, packet: Publish) -> None:
        (place,) = packet.properties.subscription_identifiers or (0,)
        debt = person.debts.pop((FILTERS[place], packet.topic))
        assert (debt.payload, debt.qos) == (packet.payload, packet.qos)

    def take_live(self, person: Person, packet: Publish) -> None:
        live = person.expected.pop(0)
        assert (live.topic, live.payload, live.qos) == (packet.topic, packet.payload, packet.qos)
        for key, debt in list(person.debts.items()):
            if key[1] == packet.topic:
                assert not debt.is_queued, "the queue held something older"
                assert debt.qos <= live.pays, "the copy would come after a message that is newer"
                del person.debts[key]

    @invariant()
    def nobody_waits_too_long(self) -> None:
        for person in self.people.values():
            if person.is_here:
                for debt in person.debts.values():
                    assert self.world.now_ms < debt.due_ms, "it should be here by now"

    @invariant()
    def the_node_is_in_order(self) -> None:
        holding = self.world.node.deferred_retained
        check_retained_delivery(holding._core)
        held = {topic for topic in TOPICS if holding._core.holds(topic)}
        assert holding._router.held == held
        owed = sum(not d.is_queued for p in self.people.values() for d in p.debts.values())
        assert holding.waiting == owed
        sure = [d for p in self.people.values() for d in p.debts.values() if d.qos and p.expiry_s]
        assert len(self.world.node.state.notes) == sum(not debt.is_queued for debt in sure)


def test_nothing_is_lost_and_nothing_older_follows(make_world: Any) -> None:
    NothingIsLost.make_world = staticmethod(make_world)
    run_state_machine_as_test(NothingIsLost, settings=settings(stateful_step_count=25))
