"""A node's metrics as text: `$SYS` topics under Mosquitto's names, and Prometheus' format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from nearcast.broker import Broker
from nearcast.server.metrics.declared import (
    PROCESS_METRICS,
    Metric,
    MetricSource,
    Value,
    broker_metrics,
    cluster_metrics,
    feed_metrics,
    peer_metrics,
)
from nearcast.server.metrics.measurements import LatencyHistogram

_WITHOUT_TRAFFIC = ("version", "uptime", "clients/", "subscriptions/", "shared_subscriptions/")


def sys_topics(node: Broker, *, uptime_s: float) -> Iterator[tuple[str, str]]:
    """Yield the topic, relative to `$SYS/broker`, and value of each `$SYS` message.

    Counts of traffic are left out where they would tell who is near (`Broker.hides_traffic`).
    """
    source, hides = MetricSource(node, uptime_s), node.hides_traffic
    for metric in _metrics_of(source):
        topics = [one for one in metric.topics if not hides or one.startswith(_WITHOUT_TRAFFIC)]
        if topics:
            value = metric.read(source)
            total = sum(value.values()) if isinstance(value, Mapping) else value
            for topic in topics:
                yield topic, str(total)


def prometheus_text(node: Broker, *, uptime_s: float) -> str:
    """Return the metrics of a node in Prometheus' text format."""
    source = MetricSource(node, uptime_s)
    return _page(source, _metrics_of(source))


def server_text(source: MetricSource) -> str:
    """Return the metrics of a server in Prometheus' text format: its node's and its process's."""
    return _page(source, [*_metrics_of(source), *PROCESS_METRICS])


def _metrics_of(source: MetricSource) -> tuple[Metric, ...]:
    """Return the metrics that a node has; the modules of the cluster are loaded only in one."""
    more: tuple[Metric, ...] = () if source.feed is None else feed_metrics()
    if source.cluster is not None:
        more = cluster_metrics()
    return broker_metrics() + more + (() if source.peer is None else peer_metrics())


def _page(source: MetricSource, metrics: Iterable[Metric]) -> str:
    lines: list[str] = []
    for metric in metrics:
        value = metric.read(source) if metric.name else None
        if value is not None:
            lines += [
                f"# HELP {metric.name} {metric.help.replace('`', '')}",
                f"# TYPE {metric.name} {metric.kind}",
                *_series(metric, value),
            ]
    return "\n".join(lines) + "\n"


def _series(metric: Metric, value: Value) -> Iterator[str]:
    if isinstance(value, LatencyHistogram):
        yield from value.lines(metric.name)
    elif isinstance(value, Mapping):
        for label, each in value.items():
            yield f'{metric.name}{{{metric.label}="{label}"}} {each}'
    else:
        yield f"{metric.name} {value}"
