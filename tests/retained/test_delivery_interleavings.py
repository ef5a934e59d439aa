"""Retained delivery: whatever happens in whatever order, each newcomer is served in time."""

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support.invariants import check_retained_delivery
from tests.support.retained_samples import THRIFTY

from nearcast.retained import (
    SEND_NOTHING,
    Caps,
    DecisionProcess,
    Evidence,
    Handling,
    Mode,
    Policies,
    Rates,
    Release,
    RetainedCopy,
    RetainedDelivery,
    TopicPolicy,
    TopicSetting,
    Wait,
    Weights,
    shipped_policy,
)


@dataclass
class Owed:
    """A copy that a newcomer has a right to."""

    sequence: int
    qos: int
    since: float
    hold_max_s: float


@dataclass
class Inbox:
    """What one subscriber of one topic got since it subscribed."""

    last: int = -1
    owed: Owed | None = None


@dataclass
class Stored:
    """A topic's retained message."""

    sequence: int
    qos: int
    made_at: float


@dataclass
class NodeAround:
    """The rest of a node: time, the clock that shows it, retained messages, inboxes."""

    time: float = 0.0
    clock_ahead_s: float = 0.0
    sequence: int = 0
    stored: dict[str, Stored] = field(default_factory=dict)
    inboxes: dict[tuple[str, int], Inbox] = field(default_factory=dict)


TOPICS = st.sampled_from(["a", "b"])
SUBSCRIBERS = st.integers(0, 3)
QOS = st.integers(0, 2)
TABLE = TopicPolicy(DecisionProcess(caps=Caps(4, 8)).always_wait(), Rates(), Weights())
RELOADS = [
    Policies(Caps(4, 8), topics={"a": TABLE, "b": TABLE}),
    Policies(general=shipped_policy()),
    Policies(),
]


class EveryNewcomerIsServedInOrderAndInTime(RuleBasedStateMachine):
    """Whatever happens: nothing old after new, nobody blind beyond Dmax, nothing lost."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = {topic: TopicSetting(Mode.LEARNED, THRIFTY, 4.0) for topic in "ab"}
        self.world = NodeAround()
        self.core = RetainedDelivery(
            self.settings.__getitem__,
            policies=RELOADS[0],
            evidence=Evidence(100.0, 1.0, 0.0, 6.0),
        )

    @property
    def now(self) -> float:
        return self.world.time + self.world.clock_ahead_s

    def get(self, topic: str, subscriber: int, sequence: int) -> None:
        inbox = self.world.inboxes[topic, subscriber]
        assert sequence >= inbox.last, "an older message after a newer one"
        inbox.last = sequence

    def copy_arrives(self, topic: str, subscriber: int) -> None:
        inbox = self.world.inboxes[topic, subscriber]
        assert inbox.owed is not None, "a copy that nobody is owed"
        assert self.world.stored[topic].sequence == inbox.owed.sequence, "another message"
        self.get(topic, subscriber, inbox.owed.sequence)
        inbox.owed = None

    def send(self, releases: list[Release]) -> None:
        for release in releases:
            for subscriber in release.subscribers:
                assert isinstance(subscriber, int)
                self.copy_arrives(release.topic, subscriber)

    def pass_time(self, seconds: float) -> None:
        """Let time pass in a runtime that wakes the core punctually."""
        end = self.world.time + seconds
        while (wake := self.core.wake_at()) is not None and wake - self.world.clock_ahead_s <= end:
            self.world.time = max(self.world.time, wake - self.world.clock_ahead_s)
            self.send(self.core.advance(max(wake, self.now)))
        self.world.time = end

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 3.0, 7.0]))
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(
        topic=TOPICS,
        retain=st.sampled_from([True, True, True, False]),
        qos=QOS,
        missed=st.sets(SUBSCRIBERS, max_size=1),
    )
    def publish(self, topic: str, retain: bool, qos: int, missed: set[int]) -> None:
        world = self.world
        self.send(self.core.on_publish(topic, self.now, retain=retain, qos=qos, missed=missed))
        world.sequence += 1
        for (where, subscriber), inbox in world.inboxes.items():
            if where != topic:
                continue
            reached = subscriber not in missed
            if inbox.owed is not None:
                assert retain, "the copy was lost: the live message does not replace it"
                assert reached, "the copy was lost: the live message did not get there"
                assert qos >= inbox.owed.qos, "the copy was lost: a live message of lower QoS"
                inbox.owed = None
            if reached:
                self.get(topic, subscriber, world.sequence)
        if retain:
            world.stored[topic] = Stored(world.sequence, qos, world.time)

    @rule(
        topic=TOPICS,
        subscriber=SUBSCRIBERS,
        qos=QOS,
        handling=st.sampled_from([Handling.SEND, Handling.SEND, *Handling]),
        wish_now=st.sampled_from([False, False, False, True]),
    )
    def subscribe(
        self, topic: str, subscriber: int, qos: int, handling: Handling, wish_now: bool
    ) -> None:
        world, stored = self.world, self.world.stored.get(topic)
        existed = (topic, subscriber) in world.inboxes
        inbox = world.inboxes.setdefault((topic, subscriber), Inbox())
        copy = RetainedCopy(stored.qos, world.time - stored.made_at) if stored else None
        answer = self.core.on_subscribe(
            topic,
            subscriber,
            self.now,
            copy=copy,
            qos=qos,
            handling=handling,
            existed=existed,
            wish_now=wish_now,
        )
        wanted = handling is Handling.SEND or (handling is Handling.SEND_IF_NEW and not existed)
        assert (answer == SEND_NOTHING) == (stored is None or not wanted)
        if answer == SEND_NOTHING or stored is None:
            return
        since, hold_max_s = world.time, self.settings[topic].hold_max_s
        if inbox.owed is not None:
            since, hold_max_s = inbox.owed.since, inbox.owed.hold_max_s
        else:
            inbox.last = -1
        inbox.owed = Owed(stored.sequence, min(qos, stored.qos), since, hold_max_s)
        if isinstance(answer, Wait):
            assert not wish_now
            assert handling is Handling.SEND
            assert answer.until - self.now <= since + hold_max_s - world.time + 1e-6
        else:
            self.copy_arrives(topic, subscriber)

    @rule(topic=TOPICS, subscriber=SUBSCRIBERS)
    def unsubscribe(self, topic: str, subscriber: int) -> None:
        self.core.on_unsubscribe(topic, subscriber, self.now)
        self.world.inboxes.pop((topic, subscriber), None)

    @rule(subscriber=SUBSCRIBERS, kept=st.booleans())
    def disconnect(self, subscriber: int, kept: bool) -> None:
        self.send(self.core.on_disconnect(subscriber, self.now, session_kept=kept))
        for topic in "ab":
            inbox = self.world.inboxes.get((topic, subscriber))
            if inbox is not None and kept and inbox.owed is not None:
                assert inbox.owed.qos == 0, "the copy was lost to a session that is kept"
                inbox.owed = None
            elif inbox is not None and not kept:
                del self.world.inboxes[topic, subscriber]

    @rule(
        policies=st.sampled_from(RELOADS),
        topic=TOPICS,
        mode=st.sampled_from(Mode),
        hold_max_s=st.sampled_from([1.0, 4.0, 9.0]),
    )
    def reload(self, policies: Policies, topic: str, mode: Mode, hold_max_s: float) -> None:
        self.settings[topic] = TopicSetting(mode, THRIFTY, hold_max_s)
        self.send(self.core.load(policies, self.now))

    @rule(topic=TOPICS)
    def delete(self, topic: str) -> None:
        waited = set(self.core.on_topic_deleted(topic, self.now))
        owed = {s for (t, s), inbox in self.world.inboxes.items() if t == topic and inbox.owed}
        assert waited == owed
        for subscriber in owed:
            self.world.inboxes[topic, subscriber].owed = None
        self.world.stored.pop(topic, None)

    @precondition(lambda self: abs(self.world.clock_ahead_s) < 1e5)
    @rule(seconds=st.sampled_from([-5000.0, -3.0, 3.0, 5000.0]))
    def set_the_clock(self, seconds: float) -> None:
        self.world.clock_ahead_s += seconds
        self.send(self.core.advance(self.now))  # a runtime notices within one turn of its loop

    @invariant()
    def nobody_is_blind_beyond_dmax(self) -> None:
        for inbox in self.world.inboxes.values():
            if inbox.owed is not None:
                assert self.world.time <= inbox.owed.since + inbox.owed.hold_max_s + 1e-6

    @invariant()
    def the_core_is_sound(self) -> None:
        check_retained_delivery(self.core)
        for topic in "ab":
            owed = [t for (t, _), inbox in self.world.inboxes.items() if t == topic and inbox.owed]
            assert self.core.waiting(topic) == len(owed)


TestEveryNewcomerIsServedInOrderAndInTime = EveryNewcomerIsServedInOrderAndInTime.TestCase
