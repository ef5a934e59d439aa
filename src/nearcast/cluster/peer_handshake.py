"""The handshake between nodes: compatible versions, equal spaces, clocks close together."""

from __future__ import annotations

from dataclasses import dataclass

from nearcast.cluster.links import Link
from nearcast.cluster.messages import SPEAKS, Greeting

MOST_CLOCK_MS = 10_000
"""A peer whose clock is certainly further off is refused: positions, lifetimes and the order of
retained messages depend on the clock."""


@dataclass(frozen=True, slots=True)
class PeerTerms:
    """What this node requires of its peers."""

    spaces: str
    """A digest of the configuration's spaces."""
    skew_ms: int = 0
    """How far clocks may be apart; 0 where no space is in causal order."""
    client_address: str = ""
    """Where this node's clients connect; empty: unknown."""

    def greeting(
        self, name: str, generation: str, now_ms: int, *, wants_retained: bool = False
    ) -> Greeting:
        """Return this node's greeting."""
        return Greeting(
            name,
            *SPEAKS,
            self.spaces,
            generation,
            now_ms,
            self.skew_ms,
            wants_retained,
            self.client_address,
        )

    def objection(self, name: str, greeting: Greeting) -> str:
        """Return why this node cannot work with a peer; empty if it can."""
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
        """Return the message version to use with a peer that `objection` accepts."""
        return min(SPEAKS[1], greeting.newest)


def clock_objection(name: str, link: Link) -> str:
    """Return the objection to a clock that is certainly too far off; empty if there is none.

    Certain means: however the round trip of the heartbeats divides into its two directions.
    """
    certain_ms = abs(link.skew_ms) - link.delay_ms / 2
    if certain_ms <= MOST_CLOCK_MS:
        return ""
    way = "ahead of" if link.skew_ms > 0 else "behind"
    return f"the clock of {name} is {abs(link.skew_ms) / 1000:.1f} s {way} ours: set both clocks"
