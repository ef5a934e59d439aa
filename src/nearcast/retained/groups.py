"""Topic groups: topics that behave alike share their experience with new subscribers.

A group is the topics of one `[[retained]]` block that publish about equally often (within a factor
of two) and in the same manner: at steady intervals, irregularly, or in bursts. A block has at most
24 groups, so memory does not grow with topics, and a topic that is new profits from others.

A new subscriber is *observed* until the next publish on its topic, or until Dmax: then it is known
what waiting cost or would have cost it, and its group learns that (`experience.py`). The new
subscribers of one topic and one step are one experience: a storm has one outcome, not a thousand.

Read next: `decisions.py`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from nearcast.retained.answers import BlockKey, TopicSetting
from nearcast.retained.experience import Experience, Follows
from nearcast.retained.policyfile import Policies

_SLOWEST, _FASTEST = -4, 3  # octaves of publishes per step; topics beyond are in these groups
_STEADY, _BURSTS = 0.5, 1.5  # squared coefficient of variation of the intervals; 1 for Poisson
MANNERS = ("at steady intervals", "irregularly", "in bursts")
_IN_BURSTS = 2
BEGINS_WITH = (Follows.MODEL, Follows.MODEL, Follows.PLAIN)  # by manner
_frexp, _sqrt = math.frexp, math.sqrt


class GroupName(NamedTuple):
    """A block, log2 of the publishes per step (rounded down), and the manner."""

    block: BlockKey
    octave: int
    manner: int

    @property
    def publishes(self) -> str:
        """How topics of the group publish, in words."""
        return MANNERS[self.manner]

    @property
    def begins_with(self) -> Follows:
        """The policy before there is evidence: the model, unless publishes come in bursts.

        The model assumes that publishes are memoryless.
        """
        return BEGINS_WITH[self.manner]

    def __str__(self) -> str:
        """Return the name as operators read it."""
        low = 2.0**self.octave
        often = f"{low:g} to {2 * low:g} publishes a step, {self.publishes}"
        return f"{self.block.filter}: {often}" if self.block.filter else often


def manner_of(spread: float, seen: float) -> int:
    """Return the manner in which a topic publishes, by its place in `MANNERS`. O(1).

    `spread` is that of `RateEstimators.spread`, and `seen` the publishes that it was measured on.
    The spread counts as greater by its standard error, which is 2 / √n of it where publishes are
    memoryless: following the model on bursts that were not yet seen costs more than to begin with
    plain MQTT where there are none.
    """
    spread *= 1.0 + 2.0 / _sqrt(seen + 1.0)
    return 0 if spread < _STEADY else 1 if spread < _BURSTS else _IN_BURSTS


def group_of(
    block: BlockKey, publish_per_step: float, spread: float, seen: float
) -> tuple[BlockKey, int, int]:
    """Return the `GroupName` of a topic as a bare tuple, which is equal to it, for the hot path.

    For `spread` and `seen` see `manner_of`. O(1).
    """
    octave = _frexp(publish_per_step)[1] - 1
    if octave < _SLOWEST:
        octave = _SLOWEST
    elif octave > _FASTEST:
        octave = _FASTEST
    return (block, octave, manner_of(spread, seen))


def group_name(
    setting: TopicSetting, publish_per_step: float, spread: float, seen: float
) -> GroupName:
    """Return the group of a topic, as `group_of` does. O(1)."""
    return GroupName(*group_of(setting.block, publish_per_step, spread, seen))


@dataclass(slots=True, eq=False)
class ObservedNewcomer:
    """A new subscriber whose topic has not published since; for the numbers see `Experience`."""

    topic: str
    group: GroupName
    copy_qos: int
    since: float
    step_s: float
    age: int
    stay: float
    limit: float
    model_wait: float


class TopicGroups:
    """The experience of all groups, and the new subscribers that are observed now.

    Complexity: each call O(1), and O(Dmax² in steps) for each experience. Memory: 2 kB for each of
    at most 24 groups of a block, and `observed_most` observations; beyond, none is added.
    """

    def __init__(self, observed_most: int) -> None:
        self._most = observed_most
        self.taken = 0  # experiences in all
        self._groups: dict[GroupName, Experience] = {}
        self._observed: dict[str, list[ObservedNewcomer]] = {}  # by topic, the youngest last
        self._by_block: dict[BlockKey, OrderedDict[ObservedNewcomer, None]] = {}
        self._count = 0

    def find(self, name: tuple[BlockKey, int, int]) -> Experience | None:
        """Return a group's experience; None before there is any."""
        return self._groups.get(name)  # type: ignore[call-overload, no-any-return]

    def all(self) -> Iterator[tuple[GroupName, Experience]]:
        """Yield every group that has experience."""
        yield from self._groups.items()

    def restore(self, name: GroupName, experience: Experience) -> None:
        """Set a group's experience, as an earlier process left it."""
        self._groups[name] = experience

    def clear(self) -> None:
        """Forget all experience: the model of time or of timeliness is another one now."""
        self._groups.clear()
        self._observed.clear()
        self._by_block.clear()
        self._count = 0

    def follows(self) -> dict[Follows, int]:
        """Return how many groups follow each policy."""
        found = dict.fromkeys(Follows, 0)
        for experience in self._groups.values():
            found[experience.follows] += 1
        return found

    # -- observing ---------------------------------------------------------------------------------

    def is_observed(self, topic: str, instant: float) -> bool:
        """Return whether a new subscriber of this topic and step is observed, or none can be."""
        known = self._observed.get(topic)
        if known and instant < known[-1].since + known[-1].step_s:
            return True
        return self._count >= self._most

    def observe(self, one: ObservedNewcomer, setting: TopicSetting, policies: Policies) -> None:
        """Observe a new subscriber until its topic publishes, or until Dmax."""
        if one.group not in self._groups:
            model = policies.caps, policies.timeliness, policies.discount
            experience = self._groups[one.group] = Experience(setting.weights, *model)
            experience.follows = one.group.begins_with
        waiting = self._by_block.setdefault(one.group.block, OrderedDict())
        while waiting:
            oldest = next(iter(waiting))
            if one.since < oldest.since + setting.hold_max_s:
                break
            self._end(oldest, math.inf, served=False)
        waiting[one] = None
        self._observed.setdefault(one.topic, []).append(one)
        self._count += 1

    def published(self, topic: str, instant: float, *, qos: int, replaces: bool) -> None:
        """Learn from the observed subscribers of a topic that publishes now.

        `replaces`: the message replaces the retained one, and reaches those that wait.
        """
        for one in self._observed.get(topic, ())[:]:
            after = (instant - one.since) / one.step_s
            self._end(one, after, served=replaces and qos >= one.copy_qos)

    def forget(self, topic: str) -> None:
        """Stop observing a topic whose retained message is gone: nothing follows from that."""
        for one in self._observed.get(topic, ())[:]:
            self._remove(one)

    def _end(self, one: ObservedNewcomer, after: float, *, served: bool) -> None:
        self._remove(one)
        self.taken += 1
        self._groups[one.group].take(
            one.age,
            after,
            served=served,
            stay=one.stay,
            limit=one.limit,
            model_wait=one.model_wait,
        )

    def _remove(self, one: ObservedNewcomer) -> None:
        of_topic = self._observed[one.topic]
        of_topic.remove(one)
        if not of_topic:
            del self._observed[one.topic]
        del self._by_block[one.group.block][one]
        self._count -= 1
