"""The metrics of all workers as those of one broker.

Each worker writes its values to the board once a second, and reads the others' there when somebody
asks: counters, histograms and most gauges are added up. What all workers have alike, as the
retained messages, is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from nearcast.broker import Broker, Counters
from nearcast.server.metrics.declared import Metric, MetricSource, Value
from nearcast.server.metrics.exposition import metrics_of
from nearcast.server.metrics.measurements import LatencyHistogram
from nearcast.server.workers.board import Board

WRITE_S = 1.0
"""How often a worker writes its figures: those of the others are at most so old."""
_ALIKE = frozenset(
    (
        *("nearcast_uptime_seconds", "nearcast_retained_messages", "nearcast_retained_bytes"),
        *("process_max_fds", "nearcast_clock_ahead_seconds"),
    )
)
_OWN: dict[str, Callable[[Broker], int]] = {
    "nearcast_subscriptions": lambda node: node.own_subscriptions(is_shared=False),
    "nearcast_shared_subscriptions": lambda node: node.own_subscriptions(is_shared=True),
}


class SharedFigures:
    """The figures of one worker on the board, and those of all."""

    def __init__(
        self,
        board: Board,
        place: int,
        source: Callable[[], MetricSource],
        counters: Callable[[], Counters],
    ) -> None:
        """`counters` returns those of clients, without what workers send each other."""
        self._board, self._place, self._source, self._counters = board, place, source, counters
        self._alarm: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Write the figures from now on."""
        source = self._source()
        source.counters = self._counters()
        values = {key_of(one): _plain(_own(one, source)) for one in metrics_of(source)}
        self._board.write(self._place, msgspec.msgpack.encode(values))
        self._alarm = asyncio.get_running_loop().call_later(WRITE_S, self.start)

    def stop(self) -> None:
        """Write no more; what was written stays until the worker is started again."""
        if self._alarm is not None:
            self._alarm.cancel()

    def reader(self) -> Callable[[Metric, MetricSource], Value]:
        """Return what reads a metric of all workers: of this one now, of the others as written."""
        others = [
            msgspec.msgpack.decode(data)
            for place in range(self._board.count)
            if place != self._place and (data := self._board.read(place))
        ]

        counters = self._counters()

        def read(metric: Metric, source: MetricSource) -> Value:
            source.counters = counters
            found = [one[key_of(metric)] for one in others if one.get(key_of(metric)) is not None]
            return total(metric, _own(metric, source), found)

        return read


def key_of(metric: Metric) -> str:
    """Return what tells a metric from the others, whether it is on `/metrics` or on `$SYS` only."""
    return metric.name or metric.topics[0]


def total(metric: Metric, own: Value, others: Iterable[Any]) -> Value:
    """Return the value of a metric for all workers; `others` has values as they are written."""
    if own is None or metric.kind == "text" or metric.name in _ALIKE:
        return own
    if isinstance(own, LatencyHistogram):
        found = own.copy()
        for counts, seconds in others:
            found.include(counts, seconds)
        return found
    if isinstance(own, Mapping):
        labels = dict(own)
        for one in others:
            for label, value in one.items():
                labels[label] = labels.get(label, 0) + value
        return labels
    assert not isinstance(own, str)
    added = own + sum(others)
    return round(added, 3) if isinstance(added, float) else added


def _own(metric: Metric, source: MetricSource) -> Value:
    """Return this worker's value: subscriptions without those that stand for other workers."""
    if metric.name in _OWN:
        return _OWN[metric.name](source.node)
    return metric.read(source)


def _plain(value: Value) -> Any:
    if isinstance(value, LatencyHistogram):
        return value.counts, value.sum
    return dict(value) if isinstance(value, Mapping) else value
