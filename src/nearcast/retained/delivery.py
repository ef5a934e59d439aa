"""Retained delivery in the node: which subscribers get the copy at once, which wait, and how long.

Rules of this file:

1. Any publish on a topic ends all waiting there. A subscriber for which the live message does not
   replace the copy gets the copy first, then the live message. So never an older message after a
   newer one, and nothing is lost.
2. No subscriber waits beyond Dmax, and on a topic that has gone quiet none waits at all.
3. The subscriber's request takes precedence over the policy.

The node calls the `on_…` methods for events, `advance` at `wake_at()`, and sends the releases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from heapq import heappop, heappush

from nearcast.model.errors import OutOfRangeError
from nearcast.retained.answers import (
    SEND_NOTHING,
    SEND_NOW,
    Answer,
    Evidence,
    Handling,
    LearningBounds,
    Mode,
    Release,
    ReleaseReason,
    RetainedCopy,
    Subscriber,
    TopicSetting,
    Wait,
)
from nearcast.retained.decisions import Outlook, TopicDecisions
from nearcast.retained.groups import TopicGroups
from nearcast.retained.policyfile import Policies, TopicPolicy
from nearcast.retained.process import DecisionProcess
from nearcast.retained.rates import Estimate
from nearcast.retained.waiting import TopicHold, WaitingCohort

# Members of an Enum are slow to look up in Python 3.11, and these are used on the hot path.
_IMMEDIATE, _LEARNED = Mode.IMMEDIATE, Mode.LEARNED
_SEND_IF_NEW, _NEVER = Handling.SEND_IF_NEW, Handling.NEVER


class RetainedDelivery:
    """Decides for each new subscriber: the retained copy now, or wait for the next publish.

    Contract:
        - the node calls `on_publish` before it delivers the live message, and sends what that
          releases first;
        - it calls `advance` at `wake_at()`, or later: copies due then are released late;
        - instants are seconds on one clock. A clock set back is treated as if it had continued from
          where it was; one set forward releases early. Neither makes a subscriber wait beyond Dmax.

    Complexity: `on_publish`, `on_subscribe` O(1) and O(released); `advance` O(log holds) for each
    topic that is due, each with at most one cohort per step of Dmax. Memory: see `rates.py`; topics
    in `immediate` mode cost nothing.
    """

    def __init__(
        self,
        setting_of: Callable[[str], TopicSetting],
        *,
        policies: Policies | None = None,
        evidence: Evidence | None = None,
        learning: LearningBounds | None = None,
    ) -> None:
        self._setting_of = setting_of
        self._decisions = TopicDecisions(
            setting_of,
            policies or Policies(),
            evidence or Evidence(),
            learning or LearningBounds(),
        )
        self._estimators = self._decisions.estimators
        self._holds: dict[str, TopicHold] = {}
        self._topics_of: dict[Subscriber, set[str]] = {}
        self._alarms: list[tuple[float, int, str]] = []
        self._alarm_count = 0
        self._now = -math.inf
        self._set_back_s = 0.0  # total by which the caller's clock was set back

    # -- time ---------------------------------------------------------------------------------

    def _instant(self, now: float) -> float:
        """Return `now` on a clock that never runs backwards, and remember it."""
        if not math.isfinite(now):
            raise OutOfRangeError(repr(now), where="now", expected="a finite instant in seconds")
        instant = now + self._set_back_s
        if instant < self._now:
            self._set_back_s = self._now - now
            instant = self._now
        self._now = instant
        return instant

    def wake_at(self) -> float | None:
        """Return the instant at which `advance` has work; None while nobody waits."""
        while self._alarms:
            due, _, topic = self._alarms[0]
            hold = self._holds.get(topic)
            if hold is not None and hold.due == due:
                wake = due - self._set_back_s
                while wake + self._set_back_s < due:  # rounded: `advance` would find it too early
                    wake += max(math.ulp(wake), math.ulp(due))
                return wake
            heappop(self._alarms)
        return None

    # -- events ------------------------------------------------------------------------------------

    def on_publish(
        self,
        topic: str,
        now: float,
        *,
        retain: bool,
        qos: int = 0,
        missed: Collection[Subscriber] = (),
        counts: bool = True,
    ) -> list[Release]:
        """Process a publish; return copies of the old message to send before the live one.

        A live message replaces the copy if it replaces the retained message (`retain`), at no lower
        QoS, and reaches the subscriber (is not `missed`: a filter, No Local, a full queue). A
        publish with an empty payload, which deletes the retained message [MQTT-3.3.1-6], is like
        any other. `counts`: whether it is evidence; the node may receive one message in two ways.
        """
        instant = self._instant(now)
        if retain and counts and self._setting_of(topic).mode is not _IMMEDIATE:
            self._estimators.on_publish(self._decisions.slot(topic, instant), instant)
        hold = self._holds.pop(topic, None)
        if hold is None:
            self.groups.published(topic, instant, qos=qos, replaces=retain)
            return []
        first: list[Subscriber] = []
        count = 0
        for cohort in hold.cohorts:
            for subscriber, copy_qos in cohort.waiters.items():
                self._no_longer_waits(subscriber, topic)
                count += 1
                if not retain or qos < copy_qos or subscriber in missed:
                    first.append(subscriber)
        self.groups.published(topic, instant, qos=qos, replaces=retain and len(first) < count)
        return [Release(topic, tuple(first), ReleaseReason.BEFORE_LIVE)] if first else []

    def on_subscribe(
        self,
        topic: str,
        subscriber: Subscriber,
        now: float,
        *,
        copy: RetainedCopy | None,
        qos: int = 0,
        handling: Handling = Handling.SEND,
        existed: bool = False,
        wish_now: bool = False,
    ) -> Answer:
        """Return the answer to a SUBSCRIBE that matches a topic; `copy` None: nothing is retained.

        `existed`: the subscription existed before (handling 1 then sends nothing [MQTT-3.3.1-10]).
        `wish_now`: the subscriber requested `$retained = now`. A subscriber that waits already and
        subscribes again keeps its deadline, and gets its copy at the new QoS.
        """
        instant = self._instant(now)
        setting = self._setting_of(topic)
        if setting.mode is not _IMMEDIATE and not existed:
            self._estimators.on_subscribe(self._decisions.slot(topic, instant), instant)
        if copy is None:
            return SEND_NOTHING
        copy_qos = min(qos, copy.qos)
        if handling is _NEVER or (handling is _SEND_IF_NEW and existed):
            self._wait_on(topic, subscriber, copy_qos)
            return SEND_NOTHING
        if setting.mode is _IMMEDIATE or wish_now or handling is _SEND_IF_NEW:
            self._stop_waiting(topic, subscriber)
            return SEND_NOW
        self._decisions.is_candidate(topic, setting)
        return self._hold_back(topic, subscriber, instant, setting, copy, copy_qos)

    def on_unsubscribe(self, topic: str, subscriber: Subscriber, now: float) -> None:
        """Remove a subscriber of a topic; a copy deferred for it is not sent any more."""
        instant = self._instant(now)
        self._stop_waiting(topic, subscriber)
        slot = self._decisions.known_slot(topic)
        if slot is not None:
            self._estimators.on_leave(slot, instant)

    def on_disconnect(
        self, subscriber: Subscriber, now: float, *, session_kept: bool
    ) -> list[Release]:
        """End a subscriber's waiting. Copies of QoS 1 and 2 go to the queue of a kept session.

        For a session that ends, the node also calls `on_unsubscribe` for each of its topics.
        """
        self._instant(now)
        releases = []
        for topic in sorted(self._topics_of.get(subscriber, ())):
            copy_qos = self._stop_waiting(topic, subscriber)
            if session_kept and copy_qos is not None and copy_qos > 0:
                releases.append(Release(topic, (subscriber,), ReleaseReason.OFFLINE))
        return releases

    def on_topic_deleted(self, topic: str, now: float) -> list[Subscriber]:
        """Remove a topic whose retained message is gone without a publish (an operator's purge).

        There is nothing left to send: returns the subscribers that no longer wait.
        """
        self._instant(now)
        self._decisions.forget(topic)
        hold = self._holds.pop(topic, None)
        if hold is None:
            return []
        waited = [subscriber for cohort in hold.cohorts for subscriber in cohort.waiters]
        for subscriber in waited:
            self._no_longer_waits(subscriber, topic)
        return waited

    def advance(self, now: float) -> list[Release]:
        """Return the releases that are due: deadlines, topics gone quiet, changed decisions."""
        instant = self._instant(now)
        releases: list[Release] = []
        while self._alarms and self._alarms[0][0] <= instant:
            due, _, topic = heappop(self._alarms)
            hold = self._holds.get(topic)
            if hold is not None and hold.due == due:
                releases += self._review(topic, hold, instant)
        return releases

    def load(self, policies: Policies, now: float) -> list[Release]:
        """Replace the policies; return the subscribers that need not wait any longer.

        Settings are read again as well. Deadlines only ever move closer.
        """
        instant = self._instant(now)
        self._decisions.load(policies)
        releases: list[Release] = []
        for topic, hold in list(self._holds.items()):
            releases += self._review(topic, hold, instant)
        return releases

    # -- learning tables ---------------------------------------------------------------------------

    def next_to_learn(self, now: float) -> tuple[str, DecisionProcess] | None:
        """Return a topic with new subscribers that is to be learned, as `to_learn` does."""
        return self._decisions.next_to_learn(self._instant(now))

    def to_learn(self, topic: str, now: float) -> DecisionProcess | None:
        """Return the process to learn a table from, or None where the bounds forbid it.

        The runtime runs `learn` or `solve` on it wherever it likes, and passes the table to
        `adopt`.
        """
        return self._decisions.to_learn(topic, self._instant(now))

    def adopt(self, topic: str, policy: TopicPolicy) -> bool:
        """Use a learned table; return False if the topic is not to be learned (any more)."""
        return self._decisions.adopt(topic, policy)

    # -- deferring ---------------------------------------------------------------------------------

    def _hold_back(
        self,
        topic: str,
        subscriber: Subscriber,
        instant: float,
        setting: TopicSetting,
        copy: RetainedCopy,
        copy_qos: int,
    ) -> Answer:
        hold = self._holds.get(topic)
        since = instant
        cohort = None if hold is None else hold.cohort_of(subscriber)
        if cohort is not None:
            since = cohort.since
        made_at = instant - copy.age_s if copy.age_s >= 0.0 else instant  # NaN: as if new
        reason = self._decisions.verdict(topic, since, made_at, instant, setting)
        if not copy.expires_in_s > setting.hold_max_s:
            self._stop_waiting(topic, subscriber)
            return SEND_NOW
        if setting.mode is _LEARNED and cohort is None:
            self._decisions.observe(topic, copy_qos, made_at, instant, setting)
        if reason is not None:
            self._stop_waiting(topic, subscriber)
            return SEND_NOW
        if hold is None:
            hold = self._holds[topic] = TopicHold(made_at)
        if cohort is None:
            cohort = self._youngest(topic, hold, instant, setting)
            self._topics_of.setdefault(subscriber, set()).add(topic)
        cohort.waiters[subscriber] = copy_qos
        return Wait(cohort.until - self._set_back_s)

    def _youngest(
        self, topic: str, hold: TopicHold, instant: float, setting: TopicSetting
    ) -> WaitingCohort:
        """Return the cohort of this step; its first member has set its deadline and its timer."""
        if not hold.cohorts or instant >= hold.cohorts[-1].since + self._decisions.step_s(setting):
            hold.cohorts.append(WaitingCohort(instant, instant + setting.hold_max_s))
            self._schedule(topic, hold, instant, setting)
        return hold.cohorts[-1]

    def _schedule(self, topic: str, hold: TopicHold, instant: float, setting: TopicSetting) -> None:
        """Set the timer for the next moment at which the decision on a subscriber may change."""
        step_s = self._decisions.step_s(setting)
        asked_again = math.inf
        for cohort in hold.cohorts:
            steps = int((instant - cohort.since) / step_s + 1e-9) + 1
            asked_again = min(asked_again, cohort.since + steps * step_s)
        asked_again = min(asked_again, self._decisions.quiet_at(topic, instant))
        # Later than now, or rounding could repeat this forever; never later than the promised
        # deadline.
        asked_again = max(asked_again, instant + 1e-6 * step_s)
        due = min(asked_again, *(cohort.until for cohort in hold.cohorts))
        if due != hold.due:
            hold.due = due
            self._alarm_count += 1
            heappush(self._alarms, (due, self._alarm_count, topic))

    def _review(self, topic: str, hold: TopicHold, instant: float) -> list[Release]:
        setting = self._setting_of(topic)
        releases = []
        kept = []
        for cohort in hold.cohorts:
            cohort.until = min(cohort.until, cohort.since + setting.hold_max_s)
            reason: ReleaseReason | None = ReleaseReason.DEADLINE
            if instant < cohort.until:
                reason = self._decisions.verdict(
                    topic, cohort.since, hold.made_at, instant, setting
                )
            if reason is None:
                kept.append(cohort)
            else:
                releases.append(Release(topic, tuple(cohort.waiters), reason))
        hold.cohorts = kept
        for subscriber in (one for release in releases for one in release.subscribers):
            self._no_longer_waits(subscriber, topic)
        if kept:
            self._schedule(topic, hold, instant, setting)
        else:
            del self._holds[topic]
        return releases

    def _wait_on(self, topic: str, subscriber: Subscriber, copy_qos: int) -> None:
        """Keep a waiting subscriber waiting, for a copy at another QoS."""
        hold = self._holds.get(topic)
        cohort = None if hold is None else hold.cohort_of(subscriber)
        if cohort is not None:
            cohort.waiters[subscriber] = copy_qos

    def _stop_waiting(self, topic: str, subscriber: Subscriber) -> int | None:
        """End a subscriber's waiting; return its copy's QoS, None if it did not wait."""
        hold = self._holds.get(topic)
        cohort = None if hold is None else hold.cohort_of(subscriber)
        if hold is None or cohort is None:
            return None
        copy_qos = cohort.waiters.pop(subscriber)
        if not cohort.waiters:
            hold.cohorts.remove(cohort)
        if not hold.cohorts:
            del self._holds[topic]
        self._no_longer_waits(subscriber, topic)
        return copy_qos

    def _no_longer_waits(self, subscriber: Subscriber, topic: str) -> None:
        topics = self._topics_of[subscriber]
        topics.discard(topic)
        if not topics:
            del self._topics_of[subscriber]

    # -- for operators and tests -------------------------------------------------------------------

    def waiting(self, topic: str) -> int:
        """Return how many subscribers wait on a topic."""
        hold = self._holds.get(topic)
        return 0 if hold is None else sum(len(cohort.waiters) for cohort in hold.cohorts)

    def holds(self, topic: str) -> bool:
        """Return whether any subscriber waits on a topic."""
        return topic in self._holds

    def waiters(self, topic: str) -> list[Subscriber]:
        """Return the waiting subscribers of a topic, the oldest first."""
        hold = self._holds.get(topic)
        return [] if hold is None else [one for each in hold.cohorts for one in each.waiters]

    def topics_of(self, subscriber: Subscriber) -> list[str]:
        """Return the topics on which a subscriber waits, in order of name."""
        return sorted(self._topics_of.get(subscriber, ()))

    def age_s(self, topic: str, now: float) -> float:
        """Return how long ago the last counted publish was; infinite if none was seen."""
        slot = self._decisions.known_slot(topic)
        return math.inf if slot is None else now - self._estimators.published_at(slot)

    def estimate(self, topic: str, now: float) -> Estimate | None:
        """Return a topic's estimated rates; None for a topic that is not tracked."""
        instant = self._instant(now)
        slot = self._decisions.known_slot(topic)
        return None if slot is None else self._estimators.estimate(slot, instant)

    def outlook(self, topic: str, now: float, age_s: float) -> Outlook:
        """Return what would happen to a new subscriber of a topic now, and why."""
        instant = self._instant(now)
        return self._decisions.outlook(
            topic, instant - max(0.0, age_s), instant, self._setting_of(topic)
        )

    @property
    def policies(self) -> Policies:
        """The policies in force."""
        return self._decisions.policies

    @property
    def groups(self) -> TopicGroups:
        """The topic groups and their experience."""
        return self._decisions.groups
