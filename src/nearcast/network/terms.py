"""On what terms nodes work together: a version, spaces and clocks that fit."""

from __future__ import annotations

from dataclasses import dataclass

from nearcast.network.links import Link
from nearcast.network.messages import SPEAKS, Greeting

MOST_CLOCK_MS = 10_000
"""A node whose clock is certainly further off than this is refused: places, lifetimes and the
order of retained messages are told by the clock."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What this node asks of others: a digest of the spaces, and how far clocks may be apart.

    `skew_ms` is 0 where no space is in causal order: then nobody needs it.
    """

    spaces: str
    skew_ms: int = 0

    def greeting(
        self, name: str, generation: str, now_ms: int, *, wants_retained: bool = False
    ) -> Greeting:
        """Return how this node introduces itself."""
        return Greeting(
            name, *SPEAKS, self.spaces, generation, now_ms, self.skew_ms, wants_retained
        )

    def objection(self, name: str, greeting: Greeting) -> str:
        """Say why this node cannot work with another; empty if it can."""
        oldest, newest = SPEAKS
        if greeting.oldest > newest or greeting.newest < oldest:
            return (
                f"{name} speaks versions {greeting.oldest} to {greeting.newest} of the "
                f"messages between nodes, this node {oldest} to {newest}: upgrade the older one"
            )
        if greeting.spaces != self.spaces:
            return f"{name} has other spaces in its configuration: make them the same"
        if greeting.skew_ms and greeting.skew_ms != self.skew_ms:
            return (
                f"{name} lets clocks be {greeting.skew_ms} ms apart, this node {self.skew_ms} ms: "
                "give both the same `skew` in [network]"
            )
        return ""

    @staticmethod
    def version_with(greeting: Greeting) -> int:
        """Return the version to speak with a node that there is no objection to."""
        return min(SPEAKS[1], greeting.newest)


def clock_objection(name: str, link: Link) -> str:
    """Say that a clock is too far off, if that is certain whatever the way of the beats was."""
    certain_ms = abs(link.skew_ms) - link.delay_ms / 2
    if certain_ms <= MOST_CLOCK_MS:
        return ""
    way = "ahead of" if link.skew_ms > 0 else "behind"
    return f"the clock of {name} is {abs(link.skew_ms) / 1000:.1f} s {way} ours: set both clocks"
