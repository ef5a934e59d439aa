"""Publishes a server's metrics: `$SYS` topics every ten seconds, `/metrics` on request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from nearcast.broker import Broker, Counters
from nearcast.server.loop_batches import LoopBatches
from nearcast.server.metrics.declared import MetricSource, cpu_s, memory
from nearcast.server.metrics.exposition import Read, read_here, server_text, sys_topics
from nearcast.server.metrics.measurements import LatencyHistogram, LoopDelay

if TYPE_CHECKING:
    from nearcast.server.cluster.link_runtime import LinkRuntime
    from nearcast.server.feed.session import FeedCounts

SYS_INTERVAL_S = 10.0
"""How often the `$SYS` topics are published."""
_GREATEST_AGE_S = 0.1


class ProcessFigures(NamedTuple):
    """What is measured of a server's process."""

    uptime_s: float
    cpu_s: float
    rss_bytes: int | None
    latency: LatencyHistogram
    loop_delay: LatencyHistogram


class MetricsPublisher:
    """Publishes the metrics of one broker; `network` returns its cluster, if it is in one."""

    def __init__(
        self,
        node: Broker,
        turns: LoopBatches,
        started_s: float,
        *,
        network: Callable[[], LinkRuntime | None],
        feed: Callable[[], FeedCounts | None] = lambda: None,
        reader: Callable[[], Read] = lambda: read_here,
    ) -> None:
        self._reader = reader  # makes what reads a metric
        self.counters: Callable[[], Counters] = lambda: node.counters
        """Returns the counters of what clients send and get."""
        self._node, self._turns, self._network, self._feed = node, turns, network, feed
        self._started_s = started_s
        self._published_s = 0.0
        self._loop_delay = LoopDelay()
        self._alarm: asyncio.TimerHandle | None = None

    def start(self, *, measures_loop: bool) -> None:
        """Publish `$SYS` topics from now on; a new subscriber gets current values."""
        self._publish()
        self._node.refresh_metrics_with(self._refresh)
        if measures_loop:
            self._loop_delay.start()

    def stop(self) -> None:
        """Publish nothing more."""
        self._loop_delay.stop()
        if self._alarm is not None:
            self._alarm.cancel()

    def measure_loop(self) -> None:
        """Measure the event loop from now on: somebody looks."""
        self._loop_delay.start()

    def process_figures(self) -> ProcessFigures:
        """Return what is measured of the process."""
        uptime_s = round(time.monotonic() - self._started_s, 1)
        latency, delay = self._turns.latency, self._loop_delay.histogram
        return ProcessFigures(uptime_s, cpu_s(), memory(1), latency, delay)

    def page(self) -> tuple[str, str]:
        """Return the content type and the text of `/metrics`."""
        self.measure_loop()
        return "text/plain; version=0.0.4", server_text(self.source(), self._reader())

    def source(self) -> MetricSource:
        """Return what the metrics of this moment are read from."""
        uptime_s = round(time.monotonic() - self._started_s, 1)
        latency, delay = self._turns.latency, self._loop_delay.histogram
        return MetricSource(self._node, uptime_s, self._network(), latency, delay, self._feed())

    def _publish(self) -> None:
        self._publish_topics()
        self._turns.schedule()
        self._alarm = asyncio.get_running_loop().call_later(SYS_INTERVAL_S, self._publish)

    def _refresh(self) -> None:
        """Publish current values for a new subscriber, at most ten times a second."""
        if time.monotonic() - self._published_s >= _GREATEST_AGE_S:
            self._publish_topics()

    def _publish_topics(self) -> None:
        self._published_s = time.monotonic()
        now_ms = self._turns.clock.now_ms()
        uptime_s = self._published_s - self._started_s
        for topic, value in sys_topics(self._node, uptime_s=uptime_s, read=self._reader()):
            self._node.publish(f"$SYS/broker/{topic}", value.encode(), now_ms=now_ms, retain=True)
