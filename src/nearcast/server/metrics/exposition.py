"""A node's metrics as text: `$SYS` topics under Mosquitto's names, and Prometheus' format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

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


Read = Callable[[Metric, MetricSource], Value]


def read_here(metric: Metric, source: MetricSource) -> Value:
    """Return the value of a metric of this process."""
    return metric.read(source)


def sys_topics(
    node: Broker, *, uptime_s: float, read: Read = read_here
) -> Iterator[tuple[str, str]]:
    """Yield the topic, relative to `$SYS/broker`, and value of each `$SYS` message.

    `read` returns the value of a metric where it is not that of this process alone. Counts of
    traffic are left out where they would tell who is near (`Broker.hides_traffic`).
    """
    source, hides = MetricSource(node, uptime_s), node.hides_traffic
    for metric in _of_node(source):
        if _is_between_workers(metric, source):
            continue
        topics = [one for one in metric.topics if not hides or one.startswith(_WITHOUT_TRAFFIC)]
        if topics:
            value = read(metric, source)
            total = sum(value.values()) if isinstance(value, Mapping) else value
            for topic in topics:
                yield topic, str(total)


def prometheus_text(node: Broker, *, uptime_s: float) -> str:
    """Return the metrics of a node in Prometheus' text format."""
    source = MetricSource(node, uptime_s)
    return _page(source, _of_node(source), read_here)


def server_text(source: MetricSource, read: Read = read_here) -> str:
    """Return the metrics of a server in Prometheus' text format: its node's and its process's."""
    return _page(source, metrics_of(source), read)


def metrics_of(source: MetricSource) -> tuple[Metric, ...]:
    """Return the metrics of a server: its node's and its process's."""
    return (*_of_node(source), *PROCESS_METRICS)


def _of_node(source: MetricSource) -> tuple[Metric, ...]:
    """Return the metrics that a node has; the modules of the cluster are loaded only in one."""
    more: tuple[Metric, ...] = () if source.feed is None else feed_metrics()
    if source.cluster is not None:
        more = cluster_metrics()
    return broker_metrics() + more + (() if source.peer is None else peer_metrics())


def _is_between_workers(metric: Metric, source: MetricSource) -> bool:
    """Return whether a metric is about links between processes of one broker, which is no node."""
    cluster = source.cluster
    if cluster is None or cluster.is_network:
        return False
    has_groups = bool(cluster.most_skew_ms)
    return metric in cluster_metrics() and not (has_groups and "_causal_" in metric.name)


def _page(source: MetricSource, metrics: Iterable[Metric], read: Read) -> str:
    lines: list[str] = []
    for metric in metrics:
        value = read(metric, source) if metric.name else None
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
