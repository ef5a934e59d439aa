"""The decision for one new subscriber: guards, then the policy that the evidence favours.

1. Guards. The copy is sent at once where too little is known of the topic, or it has gone quiet.
2. The group of the topic says whom to follow (`experience.py`): the model, which is a table for the
   topic or the general policy; its own experience; or plain MQTT.

Read next: `delivery.py`, which carries decisions out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from nearcast.retained.answers import (
    Evidence,
    LearningBounds,
    Mode,
    ReleaseReason,
    TopicSetting,
)
from nearcast.retained.experience import Experience, Follows
from nearcast.retained.groups import (
    BEGINS_WITH,
    GroupName,
    ObservedNewcomer,
    TopicGroups,
    group_name,
    group_of,
    manner_of,
)
from nearcast.retained.policyfile import Policies, TopicPolicy
from nearcast.retained.process import DecisionProcess, Rates, mean_part
from nearcast.retained.rates import Estimate, RateEstimators

# Members of an Enum are slow to look up in Python 3.11, and these are used on the hot path.
_IMMEDIATE, _WAIT = Mode.IMMEDIATE, Mode.WAIT
_MODEL, _EXPERIENCE = Follows.MODEL, Follows.EXPERIENCE
_POLICY, _QUIET = ReleaseReason.POLICY, ReleaseReason.QUIET


@dataclass(frozen=True, slots=True)
class Outlook:
    """What would happen to a new subscriber of a topic now, and why."""

    waits: bool
    why: str  # the rule that decided
    setting: TopicSetting
    age_s: float  # of the retained message
    rates: Estimate | None = None
    spread: float = math.nan  # of the intervals; 1 for Poisson, more for bursts
    model: str = ""  # where the model's decision comes from
    model_waits: bool = False
    group: GroupName | None = None
    experience: Experience | None = None
    experience_waits: bool = False


class TopicDecisions:
    """Knows the topics' rates, the policies and the groups' experience, and decides.

    Instants are seconds that never decrease (`delivery.py` ensures that). Every call is O(1).
    """

    def __init__(
        self,
        setting_of: Callable[[str], TopicSetting],
        policies: Policies,
        evidence: Evidence,
        learning: LearningBounds,
    ) -> None:
        self.setting_of = setting_of
        self.policies = policies
        self.groups = TopicGroups(evidence.observed_most)
        self.estimators = RateEstimators(evidence.memory_s)
        self._evidence = evidence
        self._quiet = evidence.quiet_by_manner
        self._learning = learning
        self._slots: dict[str, int] = {}
        self._own: dict[str, tuple[float, TopicPolicy | None]] = {}
        self._candidates: dict[str, None] = {}  # topics with new subscribers, for their own tables

    # -- what is known of topics -------------------------------------------------------------------

    def slot(self, topic: str, instant: float) -> int:
        """Return the topic's place in the estimators, from now on."""
        slot = self._slots.get(topic)
        if slot is None:
            slot = self._slots[topic] = self.estimators.allot(instant)
        return slot

    def known_slot(self, topic: str) -> int | None:
        """Return the topic's place in the estimators; None for one that is not tracked."""
        return self._slots.get(topic)

    def forget(self, topic: str) -> None:
        """Forget a topic whose retained message is gone."""
        slot = self._slots.pop(topic, None)
        if slot is not None:
            self.estimators.release(slot)
        self._own.pop(topic, None)
        self.groups.forget(topic)

    def load(self, policies: Policies) -> None:
        """Replace the policies; experience stays if time and timeliness are cut as before."""
        old = self.policies
        self.policies = policies
        self._own.clear()
        self._candidates.clear()
        if (old.caps, old.timeliness, old.discount) != (
            policies.caps,
            policies.timeliness,
            policies.discount,
        ):
            self.groups.clear()

    def quiet_at(self, topic: str, instant: float) -> float:
        """Return the instant at which a topic counts as quiet unless it publishes before."""
        slot = self._slots.get(topic)
        if slot is None:
            return math.inf
        publish, _, seen, last, spread = self.estimators.what_matters(slot, instant)
        return last + self._quiet[manner_of(spread, seen)] / publish if publish else math.inf

    def step_s(self, setting: TopicSetting) -> float:
        """Return the length of a step of the decision process."""
        return setting.hold_max_s / self.policies.caps.hold_max

    # -- decisions ---------------------------------------------------------------------------------

    def verdict(
        self, topic: str, since: float, made_at: float, instant: float, setting: TopicSetting
    ) -> ReleaseReason | None:
        """Return why the copy is sent now, or None to wait; O(1), few calls deep for speed."""
        policies = self.policies
        steps_per_s = policies.caps.hold_max / setting.hold_max_s
        age = 1.0 + (instant - made_at) * steps_per_s + 1e-9
        if age >= policies.caps.age_max:
            return _QUIET
        slot = self._slots.get(topic)
        if setting.mode is _IMMEDIATE or slot is None:
            return _POLICY
        publish, leave, seen, last, spread = self.estimators.what_matters(slot, instant)
        name = group_of(setting.block, publish / steps_per_s, spread, seen)
        reason = self._guard(publish, seen, last, name[2], instant, setting)
        if reason is not None or setting.mode is _WAIT:
            return reason
        held = int((instant - since) * steps_per_s + 1e-9)
        group = self.groups.find(name)
        follows = BEGINS_WITH[name[2]] if group is None else group.follows
        if follows is _MODEL:
            rates = publish / steps_per_s, leave / steps_per_s
            waits = self._model_waits(topic, *rates, setting, held, int(age))
        else:
            waits = group is not None and follows is _EXPERIENCE and group.waits(held, int(age))
        return None if waits else _POLICY

    def _guard(
        self,
        publish: float,
        seen: float,
        last: float,
        manner: int,
        instant: float,
        setting: TopicSetting,
    ) -> ReleaseReason | None:
        """Return why no policy is asked; None if one is."""
        known = self._evidence
        if publish > 0.0 and instant >= last + self._quiet[manner] / publish:
            return _QUIET
        if setting.mode is _WAIT:
            return None
        if publish * setting.hold_max_s < known.publishes_per_hold_min:
            return _QUIET
        return _POLICY if seen < known.publishes_min else None

    def _table(self, topic: str) -> TopicPolicy | None:
        return self.policies.topics.get(topic) or self._own_table(topic)

    def _own_table(self, topic: str) -> TopicPolicy | None:
        return self._own[topic][1] if topic in self._own else None

    def _model_waits(
        self, topic: str, publish: float, leave: float, setting: TopicSetting, held: int, age: int
    ) -> bool:
        policies = self.policies
        table = policies.topics.get(topic) or (self._own_table(topic) if self._own else None)
        if table is not None:
            return table.flat[held * (policies.caps.age_max + 1) + age] == 1
        general = policies.general
        price = setting.price / mean_part(publish)
        return general is not None and general.waits(publish, leave, price, held, age)

    def _model_wait(
        self, topic: str, publish: float, leave: float, setting: TopicSetting, age: int
    ) -> int:
        """Return for how many steps the model would wait, without a publish."""
        policies, table = self.policies, self._table(topic)
        if table is None:
            general = policies.general
            price = setting.price / mean_part(publish)
            return 0 if general is None else general.steps_waited(publish, leave, price, age)
        width, held = policies.caps.age_max + 1, 0
        rows = len(table.flat) // width  # a table may say that waiting never ends
        while held < rows and table.flat[held * width + min(age + held, width - 1)] == 1:
            held += 1
        return held

    # -- experience --------------------------------------------------------------------------------

    def observe(
        self, topic: str, copy_qos: int, made_at: float, instant: float, setting: TopicSetting
    ) -> None:
        """Observe a new subscriber if no guard decides on it (see `groups.py`)."""
        slot = self._slots.get(topic)
        if slot is None or self.groups.is_observed(topic, instant):
            return
        step_s = self.step_s(setting)
        age = 1.0 + (instant - made_at) / step_s + 1e-9
        if age >= self.policies.caps.age_max:
            return
        publish, leave, seen, last, spread = self.estimators.what_matters(slot, instant)
        manner = manner_of(spread, seen)
        if not publish or self._guard(publish, seen, last, manner, instant, setting) is not None:
            return
        quiet_s = last + self._quiet[manner] / publish - instant
        model_wait = self._model_wait(topic, publish * step_s, leave * step_s, setting, int(age))
        one = ObservedNewcomer(
            topic,
            group_name(setting, publish * step_s, spread, seen),
            copy_qos,
            instant,
            step_s,
            int(age),
            stay=math.exp(-leave * step_s),
            limit=quiet_s / step_s,
            model_wait=model_wait,
        )
        self.groups.observe(one, setting, self.policies)

    def outlook(self, topic: str, made_at: float, instant: float, setting: TopicSetting) -> Outlook:
        """Return what would happen to a new subscriber now, and why; nothing changes."""
        age_s = instant - made_at
        slot = self._slots.get(topic)
        if setting.mode is _IMMEDIATE:
            return Outlook(False, "the topic is plain MQTT", setting, age_s)
        reason = self.verdict(topic, instant, made_at, instant, setting)
        if slot is None:
            return Outlook(False, "nothing was published here since the start", setting, age_s)
        publish, leave, seen, last, spread = self.estimators.what_matters(slot, instant)
        step_s = self.step_s(setting)
        age = int(1.0 + age_s / step_s + 1e-9) if math.isfinite(age_s) else 0
        rates = self.estimators.estimate(slot, instant)
        is_old = not 0 < age < self.policies.caps.age_max
        why = "the retained message is old" if is_old else ""
        why = why or self._guarded(publish, seen, last, manner_of(spread, seen), instant, setting)
        if why or setting.mode is _WAIT:
            why = why or "the mode is wait"
            return Outlook(reason is None, why, setting, age_s, rates, spread)
        name = group_name(setting, publish * step_s, spread, seen)
        group = self.groups.find(name)
        per_step = publish * step_s, leave * step_s
        return Outlook(
            reason is None,
            _FOLLOWED[name.begins_with if group is None else group.follows],
            setting,
            age_s,
            rates,
            spread,
            self._model_name(topic),
            self._model_waits(topic, *per_step, setting, 0, age),
            name,
            group,
            group is not None and group.waits(0, age),
        )

    def _guarded(
        self,
        publish: float,
        seen: float,
        last: float,
        manner: int,
        instant: float,
        setting: TopicSetting,
    ) -> str:
        """Return which guard sends the copy, in words; empty if none does."""
        known, quiet = self._evidence, self._quiet[manner]
        if self._guard(publish, seen, last, manner, instant, setting) is None:
            return ""
        if publish > 0.0 and instant >= last + quiet / publish:
            return f"no publish for {quiet:g} mean intervals: the topic is quiet"
        if publish * setting.hold_max_s < known.publishes_per_hold_min:
            return f"fewer than {known.publishes_per_hold_min:g} publishes within Dmax"
        return f"{seen:.1f} publishes in memory; {known.publishes_min:g} are needed"

    def _model_name(self, topic: str) -> str:
        if topic in self.policies.topics:
            return "a table of the policy file"
        if self._own_table(topic) is not None:
            return "a table that the broker learned"
        return "no policy" if self.policies.general is None else "the general policy"

    # -- learning tables ---------------------------------------------------------------------------

    def is_candidate(self, topic: str, setting: TopicSetting) -> None:
        """Record a topic with new subscribers, for a table of its own."""
        if setting.learns and len(self._candidates) < self._learning.tables_max:
            self._candidates[topic] = None

    def next_to_learn(self, instant: float) -> tuple[str, DecisionProcess] | None:
        """Return a topic with new subscribers that is to be learned, as `to_learn` does."""
        while self._candidates:
            topic = next(iter(self._candidates))
            del self._candidates[topic]
            process = self.to_learn(topic, instant)
            if process is not None:
                return topic, process
        return None

    def to_learn(self, topic: str, instant: float) -> DecisionProcess | None:
        """Return the process to learn a table from, or None where the bounds forbid it."""
        setting, slot = self.setting_of(topic), self._slots.get(topic)
        begun = self._own.get(topic)
        if setting.mode is not Mode.LEARNED or not setting.learns:
            return None
        if slot is None or topic in self.policies.topics:
            return None
        if begun is None and len(self._own) >= self._learning.tables_max:
            return None
        if begun is not None and instant < begun[0] + self._learning.pause_s:
            return None
        estimate = self.estimators.estimate(slot, instant)
        if estimate.publishes_seen < self._learning.publishes_min:
            return None
        self._own[topic] = (instant, begun[1] if begun else None)
        return self.policies.process(self._rates(estimate, setting), setting.weights)

    def adopt(self, topic: str, policy: TopicPolicy) -> bool:
        """Use a learned table; return False if the topic is not to be learned (any more)."""
        begun = self._own.get(topic)
        if begun is None or policy.actions.shape != self.policies.caps.table_shape:
            return False
        self._own[topic] = (begun[0], policy)
        return True

    def _rates(self, estimate: Estimate, setting: TopicSetting) -> Rates:
        step_s = self.step_s(setting)
        return Rates(
            estimate.publish_per_s * step_s,
            estimate.subscribe_per_s * step_s,
            estimate.leave_per_s * step_s,
        )


_FOLLOWED = {
    Follows.MODEL: "the model decides",
    Follows.EXPERIENCE: "experience decides: it did better than the model and plain MQTT",
    Follows.PLAIN: "plain MQTT: experience does not show that waiting pays",
}
