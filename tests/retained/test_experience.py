"""Experience of new subscribers: what it learns, and which policy it follows."""

import math
from collections import defaultdict
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearcast.model.errors import FileFormatError, OutOfRangeError
from nearcast.papers.learned_retained.experiment import (
    attainable_per_newcomer,
    experience_point,
    reward_point,
)
from nearcast.retained import Caps, Experience, Follows, Policies, Timeliness, TopicSetting, Weights
from nearcast.retained.experience import (
    ALPHA_LEAST,
    DOUBT,
    DOUBT_LEAST,
    FADING,
    MARGIN,
    PROOF,
    PROOF_LEAST,
    VISITS_LEAST,
)
from nearcast.retained.experience_file import experience_from_text, experience_to_text
from nearcast.retained.groups import ObservedNewcomer, TopicGroups, group_name

CAPS = Caps(3, 6)
WEIGHTS = Weights(0.6, 4.0)
SEND = 0.4 * 4.0
THETA = 0.9
SLICE = 8  # all instants below are multiples of an eighth of a step


class Definition:
    """What `Experience` should be, in lists and loops, slice by slice of time."""

    def __init__(self) -> None:
        self.q: dict[tuple[int, int], float] = defaultdict(float)
        self.visits: dict[int, int] = defaultdict(int)
        self.gains: list[tuple[float, float]] = []
        self.follows = Follows.MODEL

    def waits(self, d: int, t: int) -> bool:
        allowed = d < CAPS.hold_max and t < CAPS.age_max
        known = self.visits[t] >= VISITS_LEAST
        return allowed and known and self.q[d, t] > -SEND + MARGIN * SEND

    def cost(
        self, wait: float, age: int, after: float, served: bool, limit: float, keep: float
    ) -> float:
        """Walk through time until the copy is sent or a publish comes."""
        now, paid = 0, 0.0
        while True:
            at = now / SLICE
            if at >= after and at <= min(wait, limit):
                return paid if served else paid + float(keep**at) * SEND
            if at >= min(wait, limit):
                return paid + float(keep**at) * SEND
            value = Timeliness().value(min(age + int(at), CAPS.age_max))
            paid += keep ** int(at) * WEIGHTS.omega * value / SLICE
            now += 1

    def take(
        self, age: int, after: float, served: bool, limit: float, stay: float, model_wait: int
    ) -> None:
        keep = THETA * stay
        own_wait = 0
        while self.waits(own_wait, age + own_wait):
            own_wait += 1
        self.gains.append(
            (
                SEND - self.cost(model_wait, age, after, served, limit, keep),
                SEND - self.cost(own_wait, age, after, served, limit, keep),
            )
        )
        self.learn(age, after, served, limit, keep)
        self.favour()

    def learn(self, age: int, after: float, served: bool, limit: float, keep: float) -> None:
        end = min(after, limit, CAPS.hold_max)
        steps = [k for k in range(CAPS.hold_max) if k < end and age + k < CAPS.age_max]
        for k in reversed(steps):
            t = age + k
            self.visits[t] += 1
            alpha = max(ALPHA_LEAST, 1.0 / self.visits[t])
            reward = -WEIGHTS.omega * Timeliness().value(t) * min(1.0, end - k)
            for d in range(CAPS.hold_max):
                later = -SEND
                if end <= k + 1:
                    later = 0.0 if served and after <= end else -SEND
                elif (
                    d + 1 < CAPS.hold_max
                    and t + 1 < CAPS.age_max
                    and self.visits[t + 1] >= VISITS_LEAST
                ):
                    later = max(later, self.q[d + 1, t + 1])
                self.q[d, t] += alpha * (reward + keep * later - self.q[d, t])

    def favour(self) -> None:
        ages = range(len(self.gains) - 1, -1, -1)
        weights = np.array([FADING**age for age in ages])
        count = weights.sum()
        if count < (PROOF_LEAST if self.follows is Follows.PLAIN else DOUBT_LEAST):
            return
        table = np.array([(0.0, model, own) for model, own in self.gains])
        mean = weights @ table / count

        def error(one: int, other: int) -> float:
            apart = table[:, one] - table[:, other]
            spread = weights @ apart**2 / count - (weights @ apart / count) ** 2
            return math.sqrt(max(0.0, spread) / count)

        now = int(self.follows)
        if self.follows is Follows.PLAIN:
            if max(mean[one] - PROOF * error(one, 0) for one in (1, 2)) > 0.0:
                self.follows = Follows.MODEL if mean[1] >= mean[2] else Follows.EXPERIENCE
            return
        beaten_by_plain = -mean[now] > DOUBT * error(now, 0)
        other = 3 - now
        if mean[other] - mean[now] > DOUBT * error(now, other) and (
            mean[other] > 0.0 or not beaten_by_plain
        ):
            self.follows = Follows(other)
        elif beaten_by_plain:
            self.follows = Follows.PLAIN


INSTANTS = st.one_of(st.integers(1, 40).map(lambda n: n / SLICE), st.just(math.inf))
LIVES = st.tuples(
    st.integers(1, CAPS.age_max - 1),
    INSTANTS,
    st.sampled_from([True, True, True, False]),
    INSTANTS,
    st.sampled_from([1.0, 0.9]),
    st.integers(0, CAPS.hold_max),
)


@given(st.lists(LIVES, max_size=120), st.sampled_from(list(Follows)))
@settings(deadline=None)
def test_experience_is_what_its_definition_says(
    lives: list[tuple[int, float, bool, float, float, int]], begin: Follows
) -> None:
    ours, definition = Experience(WEIGHTS, CAPS, Timeliness(), THETA), Definition()
    ours.follows = definition.follows = begin
    for age, after, served, limit, stay, model_wait in lives:
        ours.take(age, after, served=served, limit=limit, stay=stay, model_wait=model_wait)
        definition.take(age, after, served, limit, stay, model_wait)

    faded = [FADING**age for age in range(len(lives) - 1, -1, -1)]
    for place in (0, 1):
        total = sum(w * one[place] for w, one in zip(faded, definition.gains, strict=True))
        assert ours.evidence[1 + place] == pytest.approx(total, abs=1e-9)
    for d in range(CAPS.hold_max):
        for t in range(1, CAPS.age_max):
            assert ours.quality[d, t] == pytest.approx(definition.q[d, t], abs=1e-9)
            assert ours.waits(d, t) == definition.waits(d, t) == bool(ours.table()[d, t])
    assert ours.follows is definition.follows


def test_waiting_that_costs_more_than_it_saves_falls_back_to_plain_mqtt() -> None:
    group = Experience(Weights(), Caps(), Timeliness(), 0.95)
    for _ in range(9):
        group.take(2, math.inf, model_wait=5)  # the model waits for what never comes

    assert group.follows is Follows.PLAIN
    assert group.gains[0] < 0.0


def test_where_waiting_pays_experience_learns_it_without_a_model() -> None:
    group = Experience(Weights(), Caps(), Timeliness(), 0.95)
    for number in range(200):
        group.take(1 + number % 3, 0.5, model_wait=0)

    assert group.follows is Follows.EXPERIENCE
    assert group.waits(0, 1)
    assert not group.waits(0, 15)  # nobody came to a message so old


def test_where_the_live_message_does_not_replace_the_copy_waiting_saves_nothing() -> None:
    group = Experience(Weights(), Caps(), Timeliness(), 0.95)
    for _ in range(100):
        group.take(1, 0.5, served=False, model_wait=10)

    assert group.follows is Follows.PLAIN
    assert not group.waits(0, 1)


def test_when_a_topic_changes_the_last_evidence_counts() -> None:
    group = Experience(Weights(), Caps(), Timeliness(), 0.95)
    for _ in range(400):
        group.take(2, 1.0, model_wait=10)
    assert group.waits(0, 2)
    for _ in range(400):
        group.take(2, math.inf, model_wait=10)

    assert group.follows is Follows.PLAIN or not group.waits(0, 2)


@pytest.mark.parametrize("age", [0, 20, -1])
def test_an_age_that_is_no_decision_is_refused(age: int) -> None:
    group = Experience(Weights(), Caps(), Timeliness(), 0.95)
    with pytest.raises(OutOfRangeError):
        group.take(age, 1.0, model_wait=0)
    assert group.count == 0.0


# -- topics in bursts ------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "publish"), [("very bursty", 0.2), ("very bursty", 0.3)])
def test_bursts_that_the_model_loses_on_are_learned(kind: str, publish: float) -> None:
    row = reward_point(seed=2, publish=publish, kind=kind)

    assert row["share_general"] < -0.2  # the model: worse than plain MQTT
    assert row["share_experience"] > 0.5


@pytest.mark.parametrize("omega", [0.3, 0.7])
@pytest.mark.parametrize("kind", ["bursty", "very bursty", "steady"])
def test_experience_is_never_worse_than_plain_mqtt_beyond_noise(kind: str, omega: float) -> None:
    for publish in (0.1, 0.2, 0.6):
        row = reward_point(seed=3, publish=publish, omega=omega, kind=kind)
        assert row["share_experience"] is None or row["share_experience"] >= -0.02


def test_on_poisson_topics_experience_does_not_give_up_the_gain() -> None:
    for publish, omega in ((0.1, 0.5), (0.3, 0.7), (0.6, 0.7), (1.0, 0.3)):
        row = reward_point(seed=1, publish=publish, omega=omega)
        assert row["share_experience"] >= 0.9


@pytest.mark.parametrize("publish", [0.2, 0.3, 0.6])
def test_the_core_reaches_nine_tenths_of_the_gain_on_poisson_topics(publish: float) -> None:
    """In the mean; less while a silence of four mean intervals, as one newcomer in eleven
    finds it, counted as a topic gone quiet, and while waiting was charged whole steps."""
    rows = [experience_point(seed=s, kind="poisson", publish=publish) for s in range(1, 9)]

    assert fmean(row["share"] for row in rows) >= 0.9


@pytest.mark.parametrize("publish", [0.1, 0.2, 0.4, 1.0])
def test_what_can_be_gained_is_what_continuous_time_says(publish: float) -> None:
    """Oracle: who comes at age t waits until Dmax or until the message is too old, or not."""
    going, fading, longest = publish - math.log(0.95), 0.2, 10.0

    def gain(age: float) -> float:
        wait = min(longest, 20.0 - age)
        lost = 0.25 * -math.expm1(-going * wait) / going
        lost += (
            0.75
            * math.exp(-fading * age)
            * -math.expm1(-(going + fading) * wait)
            / (going + fading)
        )
        return max(0.0, -math.expm1(-going * wait) * 0.3 * 5.0 - 0.7 * lost)

    ages = (np.arange(4_000) + 0.5) / 200
    expected = sum(gain(age) * publish * math.exp(-publish * age) / 200 for age in ages)
    found = attainable_per_newcomer(publish, "poisson", 0.7, 5.0)

    assert found == pytest.approx(expected, rel=0.04)


def test_the_core_learns_bursts_while_it_serves() -> None:
    before = experience_point(seed=1, kind="very bursty", observed_most=0)
    after = experience_point(seed=1, kind="very bursty")

    assert before["share"] == pytest.approx(0.0, abs=0.02)  # bursts: plain MQTT until proven
    assert after["share"] > 0.3


@pytest.mark.parametrize(
    ("kind", "publish", "least"),
    [("bursty", 0.1, -0.02), ("bursty", 0.2, -0.02), ("long bursts", 0.2, 0.3)],
)
def test_the_core_loses_nothing_on_bursts(kind: str, publish: float, least: float) -> None:
    """Its learning included, and from the first newcomer on; it lost 9 % at a publish in ten s."""
    rows = [experience_point(seed=seed, kind=kind, publish=publish) for seed in range(1, 9)]

    assert fmean(row["share"] for row in rows) >= least
    assert min(row["gained"] / row["plain"] for row in rows) >= -0.01


# -- groups ----------------------------------------------------------------------------------------

SETTING = TopicSetting(filter="plant/#")
SEEN = 1e4  # publishes: the spread is known well


def newcomer(topic: str = "t", since: float = 0.0, publish: float = 1.0) -> ObservedNewcomer:
    name = group_name(SETTING, publish, 1.0, SEEN)
    return ObservedNewcomer(topic, name, 0, since, 1.0, 1, 1.0, math.inf, 3)


def test_topics_of_a_block_that_behave_alike_are_one_group() -> None:
    assert group_name(SETTING, 0.6, 1.1, SEEN) == group_name(SETTING, 0.9, 0.8, SEEN)
    assert group_name(SETTING, 0.6, 1.1, SEEN) != group_name(SETTING, 1.1, 1.1, SEEN)
    assert group_name(SETTING, 0.6, 1.1, SEEN) != group_name(SETTING, 0.6, 3.0, SEEN)
    assert group_name(SETTING, 0.6, 1.1, SEEN) != group_name(SETTING, 0.6, 0.1, SEEN)
    other = TopicSetting(filter="plant/#", hold_max_s=3.0)
    assert group_name(SETTING, 0.6, 1.1, SEEN) != group_name(other, 0.6, 1.1, SEEN)
    many = {group_name(SETTING, 2.0**n, s, SEEN) for n in range(-40, 40) for s in (-1.0, 1.0, 9.0)}
    assert len(many) == 24  # bounded, however topics behave


def test_a_few_publishes_do_not_show_that_there_are_no_bursts() -> None:
    """At first a topic counts as one in bursts, which begins with plain MQTT."""
    few, many = (group_name(SETTING, 0.6, 1.0, seen) for seen in (8.0, 200.0))
    assert few.begins_with is Follows.PLAIN
    assert many.begins_with is Follows.MODEL
    assert group_name(SETTING, 0.6, 0.1, 8.0).publishes == "at steady intervals"
    assert group_name(SETTING, 0.6, 1.0, 0.0).begins_with is Follows.PLAIN


def test_a_storm_is_one_experience() -> None:
    groups = TopicGroups(100)
    for number in range(50):
        if not groups.is_observed("t", number / 100):
            groups.observe(newcomer(since=number / 100), SETTING, Policies())
    groups.published("t", 1.0, qos=0, replaces=True)

    assert groups.taken == 1


def test_without_a_publish_the_wait_is_judged_at_dmax() -> None:
    groups = TopicGroups(100)
    groups.observe(newcomer("a"), SETTING, Policies())
    groups.observe(newcomer("b", since=9.9), SETTING, Policies())
    assert groups.taken == 0
    groups.observe(newcomer("c", since=10.0), SETTING, Policies())

    assert groups.taken == 1
    ((_, group),) = groups.all()
    assert group.gains[0] < 0.0  # it waited three steps and got the copy


def test_observations_are_bounded_and_a_deleted_topic_teaches_nothing() -> None:
    groups = TopicGroups(2)
    groups.observe(newcomer("a"), SETTING, Policies())
    assert not groups.is_observed("b", 0.0)
    groups.observe(newcomer("b"), SETTING, Policies())
    assert groups.is_observed("c", 0.0)  # no room
    groups.forget("a")
    assert not groups.is_observed("c", 0.0)
    groups.published("a", 1.0, qos=0, replaces=True)

    assert groups.taken == 0


# -- the file --------------------------------------------------------------------------------------


def learned() -> TopicGroups:
    groups = TopicGroups(100)
    for number in range(60):
        groups.observe(newcomer(since=20.0 * number, publish=2.0), SETTING, Policies())
        groups.published("t", 20.0 * number + 0.5 + number % 3, qos=0, replaces=True)
    return groups


def test_experience_survives_a_restart() -> None:
    groups = learned()
    ((name, one),) = groups.all()
    ((name_again, again),) = experience_from_text(
        experience_to_text(groups, Policies()), Policies()
    )

    assert (name_again, again.follows) == (name, one.follows)
    for part in ("quality", "visits", "evidence"):
        assert (getattr(again, part) == getattr(one, part)).all()


def test_experience_with_another_model_of_time_is_not_used() -> None:
    text = experience_to_text(learned(), Policies())

    assert experience_from_text(text, Policies(Caps(5, 9))) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"version": 1', '"version": 2'),
        ('"evidence": [', '"evidence": [1, '),
        ('"visits": [0', '"visits": [-1'),
        ('"follows": "', '"follows": "no'),
        ('"manner": 1', '"manner": 7'),
        ('"quality": [[0.0', '"quality": [[NaN'),
        ('"omega": 0.7', '"omega": 7'),
        ("}]}", ""),
    ],
)
def test_a_damaged_file_is_refused_as_a_whole(old: str, new: str) -> None:
    text = experience_to_text(learned(), Policies())
    assert old in text
    with pytest.raises(FileFormatError):
        experience_from_text(text.replace(old, new, 1), Policies(), "file")
