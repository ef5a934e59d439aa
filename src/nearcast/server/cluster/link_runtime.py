"""What every runtime of a cluster does, however frames travel: batches, ticks, the log of links.

Read next: `runtime.py` (over NATS), `nearcast/server/workers/runtime.py` (between processes).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nearcast.cluster.cluster import Cluster
from nearcast.server.loop_batches import LoopBatches

if TYPE_CHECKING:
    from nearcast.server.feed.sender import FeedSender

log = logging.getLogger("nearcast.network")

MOST_SKEW_MS = 1_000
"""Clock skew to warn of where no causal group sets a bound."""
_TICK_MS = 100


class LinkRuntime:
    """The cluster side of a server; a subclass transports frames, and knows who is there."""

    feed: FeedSender | None = None  # None without `[network] feed`

    def __init__(self, mesh: Cluster, turns: LoopBatches) -> None:
        self.mesh = mesh
        self.problem = ""  # why the node is not joined; empty if it is
        self._turns = turns
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        self._told_of: dict[str, tuple[bool, str, bool]] = {}  # link states that are logged

    # --- what a subclass does ---------------------------------------------------------------

    def drain(self) -> None:
        """Inform the peers that this node is about to end."""

    async def stop(self, *, leave: bool) -> None:
        """Part from the peers; with `leave`, for good."""
        raise NotImplementedError

    @property
    def frames_dropped(self) -> int:
        """Frames that were dropped because nothing could carry them."""
        return 0

    # --- frames -----------------------------------------------------------------------------

    def _received(self, sender: str, data: bytes) -> None:
        self._turns.schedule()
        try:
            self._turns.now_ms = self._turns.clock.now_ms()
            self.mesh.receive(sender, data, self._turns.now_ms)
        except Exception as error:  # noqa: BLE001 - a mistake of ours: what the frame held must come again
            self.mesh.node.failures.take(f"taking a frame of node {sender}", error)
            self.mesh.neighbours.begin_anew(sender, "a frame was not taken")

    def settle(self) -> None:
        """Queue the batch's messages for peers; the batch is not stored yet."""
        self.mesh.now_ms = max(self.mesh.now_ms, self._turns.now_ms)
        self.mesh.settle()

    # --- links ------------------------------------------------------------------------------

    def _tell_of_links(self) -> None:
        most_ms = self.mesh.most_skew_ms or MOST_SKEW_MS
        for name, peer in self.mesh.peers.items():
            is_skewed = peer.link.is_up and abs(peer.link.skew_ms) > most_ms
            state = (peer.link.is_up, peer.problem, is_skewed)
            if self._told_of.get(name, (False, "", False)) == state:
                continue
            self._told_of[name] = state
            if peer.problem:
                log.warning("node %s is refused: %s", name, peer.problem)
                continue
            log.info("the link to node %s is %s", name, "up" if state[0] else "down")
            if is_skewed:
                skew_s = peer.link.skew_ms / 1000
                log.warning("the clock of node %s is %.3f s off ours: set both", name, skew_s)

    # --- time -------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Run due work of links. A link that went down is due sooner than it said before."""
        now_ms = self._turns.clock.now_ms()
        wake_at = self.mesh.wake_at()
        if wake_at is not None and wake_at <= now_ms:
            self.mesh.advance(now_ms)
            self._turns.schedule()
            self._advanced()
        self._set_alarm(now_ms)

    def _set_alarm(self, now_ms: int) -> None:
        """Wake at the next tick, or exactly when a message in causal order must be released.

        Such a message may have only a moment of its lifetime left.
        """
        if self._alarm is not None:
            self._alarm.cancel()
        due_ms = self.mesh.ordered_at()
        self._alarm_ms = now_ms + _TICK_MS
        if due_ms is not None:
            self._alarm_ms = min(self._alarm_ms, due_ms)
        wait_s = max(0, self._alarm_ms - now_ms) / 1000
        self._alarm = asyncio.get_running_loop().call_later(wait_s, self._tick)

    def _advanced(self) -> None:
        """Handle that the work of links that was due is done."""

    def _look_at_order(self) -> None:
        """Wake earlier if a message in causal order must be released before the next tick."""
        due_ms = self.mesh.ordered_at()
        if due_ms is not None and due_ms < self._alarm_ms:
            self._set_alarm(self._turns.clock.now_ms())

    def _end_ticks(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
