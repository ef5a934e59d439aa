"""Faults of the links between actors: delay, loss, reordering, duplication, partition.

The network decides, when a message is sent, at which instants its copies arrive. It has no clock
and no queue (see `world.py`), and draws from the random source that is passed in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from nearcast.model.errors import MisuseError, OutOfRangeError

ActorId: TypeAlias = str | int
Instant: TypeAlias = int
"""A point of virtual time. The unit is the actors' own (Nearcast's cores use milliseconds)."""

Delay: TypeAlias = Callable[[Random], int]
"""Draws how long one message is in flight, ≥ 0, in units of the clock."""


def constant(duration: int) -> Delay:
    """Return a constant delay; it draws nothing from the random source."""
    _check_duration(duration, "constant delay")
    return lambda _random: duration


def uniform(least: int, most: int) -> Delay:
    """Return a uniform delay over the whole numbers from `least` to `most`, both included."""
    _check_duration(least, "least delay")
    _check_duration(most - least, "most delay less least delay")
    span = most - least + 1
    return lambda random: least + int(random.random() * span)


def exponential(mean: float, *, least: int = 0, most: int | None = None) -> Delay:
    """Return a delay of `least` plus an exponential tail with the given mean, cut off at `most`."""
    if not (mean > 0 and math.isfinite(mean)):
        raise OutOfRangeError(repr(mean), where="mean delay", expected="a finite number above 0")
    _check_duration(least, "least delay")
    rate = 1.0 / mean

    def draw(random: Random) -> int:
        duration = least + int(random.expovariate(rate))
        return duration if most is None or duration <= most else most

    return draw


def _check_duration(duration: int, where: str) -> None:
    if duration < 0:
        raise OutOfRangeError(repr(duration), where=where, expected="a whole number from 0")


@dataclass(frozen=True, slots=True)
class SimulatedLink:
    """The behaviour of one direction between two actors.

    `loss` and `duplication` are the probabilities that a message is dropped, and that a second copy
    follows. `reordering` is the share of messages that ignore the order of sending; the others
    never arrive before an earlier one of the same direction. With `reordering=1.0` only the delays
    decide (the fastest setting: the network keeps no state per direction).
    """

    delay: Delay = field(default=constant(1))
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0

    def __post_init__(self) -> None:
        for name in ("loss", "duplication", "reordering"):
            share = getattr(self, name)
            if not 0.0 <= share <= 1.0:
                raise OutOfRangeError(
                    repr(share), where=f"Link.{name}", expected="a probability from 0 to 1"
                )


class SimulatedNetwork:
    """The links between actors, and the partitions and cuts between them.

    Contract: `arrivals` returns the instants at which copies of a message arrive, earliest first;
    an empty tuple when it is lost. `connected` is also checked when a message *arrives*: a message
    in flight when a partition begins is lost.

    Complexity: O(1) per message; memory O(directions used) unless `reordering=1.0`.
    """

    def __init__(self, link: SimulatedLink | None = None) -> None:
        self.link = link if link is not None else SimulatedLink()
        self.counts: Counter[str] = Counter()  # cut off, lost, duplicated
        self._links: dict[tuple[ActorId, ActorId], SimulatedLink] = {}
        self._last_arrival: dict[tuple[ActorId, ActorId], Instant] = {}
        self._side: dict[ActorId, int] = {}  # of the partition; 0 for actors not listed
        self._cuts: set[tuple[ActorId, ActorId]] = set()  # (sender, receiver)

    def set_link(self, sender: ActorId, receiver: ActorId, link: SimulatedLink | None) -> None:
        """Set the link of one direction; None restores the default."""
        if link is None:
            self._links.pop((sender, receiver), None)
        else:
            self._links[sender, receiver] = link

    def partition(self, sides: Iterable[Iterable[ActorId]]) -> None:
        """Split the actors into sides that cannot reach each other.

        All actors that are not listed form one side together. Replaces an earlier partition.
        """
        assigned: dict[ActorId, int] = {}
        for number, side in enumerate(sides, start=1):
            for actor_id in side:
                if actor_id in assigned:
                    raise MisuseError(
                        f"actor {actor_id!r} on two sides",
                        where="Network.partition",
                        expected="each actor on one side at most",
                    )
                assigned[actor_id] = number
        self._side = assigned

    def heal(self) -> None:
        """End all partitions and cuts."""
        self._side = {}
        self._cuts = set()

    def cut(self, sender: ActorId, receiver: ActorId) -> None:
        """Drop all messages in one direction until `mend` or `heal`."""
        self._cuts.add((sender, receiver))

    def mend(self, sender: ActorId, receiver: ActorId) -> None:
        """End a cut; no effect if there is none."""
        self._cuts.discard((sender, receiver))

    def connected(self, sender: ActorId, receiver: ActorId) -> bool:
        """Return whether a message can pass in this direction now."""
        side = self._side
        if side and side.get(sender, 0) != side.get(receiver, 0):
            return False
        return not (self._cuts and (sender, receiver) in self._cuts)

    def arrivals(
        self, sender: ActorId, receiver: ActorId, now: Instant, random: Random
    ) -> tuple[Instant, ...]:
        """Draw the arrival instants of one message that is sent now."""
        if sender == receiver:
            return (now,)  # a message to the sender itself uses no network
        if (self._side or self._cuts) and not self.connected(sender, receiver):
            self.counts["cut off"] += 1
            return ()
        link = self._links.get((sender, receiver), self.link) if self._links else self.link
        if link.loss and random.random() < link.loss:
            self.counts["lost"] += 1
            return ()
        first = self._in_order(link, sender, receiver, now + link.delay(random), random)
        if link.duplication and random.random() < link.duplication:
            self.counts["duplicated"] += 1
            second = self._in_order(link, sender, receiver, now + link.delay(random), random)
            return (first, second) if first <= second else (second, first)
        return (first,)

    def _in_order(
        self, link: SimulatedLink, sender: ActorId, receiver: ActorId, at: Instant, random: Random
    ) -> Instant:
        share = link.reordering
        if share >= 1.0:
            return at
        if share and random.random() < share:
            return at
        direction = (sender, receiver)
        at = max(at, self._last_arrival.get(direction, at))
        self._last_arrival[direction] = at
        return at
