"""Every metric of a node, declared once: `$SYS`, `/metrics` and the reference page come from here.

Counters are declared with their fields (`nearcast/broker/counters.py`); whatever is computed, in
the tables below.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import nearcast
from nearcast.broker import Broker, Counters
from nearcast.broker.counters import DROPS
from nearcast.compiled_core import is_in_use
from nearcast.server.metrics.measurements import LatencyHistogram

if TYPE_CHECKING:
    from nearcast.cluster.cluster import Cluster
    from nearcast.server.cluster.link_runtime import LinkRuntime
    from nearcast.server.feed.session import FeedCounts
    from nearcast.server.overlay.runtime import OverlayRuntime


class MetricSource:
    """What the metrics of one moment are read from; a part that a node does not have is None."""

    def __init__(
        self,
        node: Broker,
        uptime_s: float,
        network: LinkRuntime | None = None,
        latency: LatencyHistogram | None = None,
        loop_delay: LatencyHistogram | None = None,
        feed: FeedCounts | None = None,
    ) -> None:
        self.node, self.state, self.counters = node, node.state, node.counters
        self.uptime_s = uptime_s
        self.network = network
        self.cluster: Any = _cluster_of(node)  # a `Cluster`
        self.overlay: Any = None  # a `LocalClients`; of a node of a network a `Bridge`
        if self.cluster is not None:
            self.overlay = self.cluster.bridging.carrier
        elif node.state.network.is_joined:
            self.overlay = node.state.network
        self.peer: OverlayRuntime | None = self.overlay and self.overlay.runtime
        self.feed = feed
        self.latency, self.loop_delay = latency, loop_delay
        # peers have sessions, too; O(sessions)
        peers: int = sum(map(attrgetter("is_peer"), node.state.sessions.values()))
        self.clients, self.connected = len(node.state.sessions) - peers, node.state.connected
        self.away = self.clients - self.connected
        self.timers, self.backlog = len(node.state.timers), len(node.state.slices.backlog)


_VERSION = f"nearcast version {nearcast.__version__}"
_CORE = "compiled" if is_in_use() else "plain"
Value = float | str | Mapping[str, float] | LatencyHistogram | None


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: its name for Prometheus, what it means, where it is read, its `$SYS` topics.

    Without a name it is published on `$SYS` only, without topics on `/metrics` only. With a
    `label` it has a value for each value of the label, and `$SYS` has the sum. A `read` that
    returns None leaves it out.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram", "text"]
    help: str
    read: Callable[[MetricSource], Value]
    topics: tuple[str, ...] = ()
    label: str = ""


def _cluster_of(node: Broker) -> Cluster | None:
    """Return the cluster of a node that has one; its modules are loaded only then."""
    if not node.state.network.is_joined:
        return None
    from nearcast.cluster.cluster import Cluster

    return node.state.network if isinstance(node.state.network, Cluster) else None


def _declared(counts: type[Any], prefix: str, part: str) -> Iterator[Metric]:
    """Yield the metrics of a class of counters, which are a part of the source, or None there."""
    of = attrgetter(part)
    for one in fields(counts):
        if one.metadata and one.name not in DROPS.values():
            name = f"nearcast_{prefix}{one.metadata['name'] or one.name}_total"
            topics = one.metadata["topics"]

            def read(source: MetricSource, name: str = one.name) -> Value:
                return getattr(of(source), name, None)

            yield Metric(name, "counter", one.metadata["help"], read, topics)


def _by_group() -> Iterator[Metric]:
    """Yield the counters of causal groups, which have a value for each group."""
    from nearcast.cluster.causal_groups import GroupCounts

    for one in fields(GroupCounts):

        def read(source: MetricSource, name: str = one.name) -> Value:
            groups = source.cluster.causal.groups
            return {group: getattr(counts, name) for group, counts in groups.items()}

        help_text = f"{one.metadata['help']}; by causal group"
        metric = f"nearcast_causal_group_{one.name}_total"
        yield Metric(metric, "counter", help_text, read, label="group")


def _gauge(name: str, help_text: str, path: str, *topics: str) -> Metric:
    """Return a gauge that is read at a path of the source."""
    return Metric(name and f"nearcast_{name}", "gauge", help_text, attrgetter(path), topics)


def _total(name: str, help_text: str, path: str, *topics: str) -> Metric:
    """Return a counter that is read at a path of the source."""
    return Metric(f"nearcast_{name}_total", "counter", help_text, attrgetter(path), topics)


def _groups(source: MetricSource) -> dict[str, int] | None:
    deferred = source.node.deferred_retained
    if deferred is None:
        return None
    return {policy.name.lower(): count for policy, count in deferred.groups.follows().items()}


def _experiences(source: MetricSource) -> int | None:
    deferred = source.node.deferred_retained
    return None if deferred is None else deferred.groups.taken


_BROKER = (
    Metric("", "text", "Version of the broker", lambda _: _VERSION, ("version",)),
    Metric("", "text", "How the broker's core runs: compiled or plain", lambda _: _CORE, ("core",)),
    Metric("", "text", "Time since the start", lambda s: f"{int(s.uptime_s)} seconds", ("uptime",)),
    _gauge("uptime_seconds", "Seconds since the start", "uptime_s"),
    _gauge("sessions", "Sessions of clients, connected or not", "clients", "clients/total"),
    _gauge("connections", "Clients connected", "connected", "clients/connected", "clients/active"),
    _gauge(
        "", "Sessions of clients that are away", "away", "clients/disconnected", "clients/inactive"
    ),
    _gauge(
        "subscriptions", "Subscriptions", "state.router.subscription_count", "subscriptions/count"
    ),
    _gauge(
        "shared_subscriptions",
        "Memberships in share groups",
        "state.router.shared_count",
        "shared_subscriptions/count",
    ),
    _gauge(
        "retained_messages",
        "Retained messages",
        "state.retained.count",
        *("retained messages/count", "messages/stored", "store/messages/count"),
    ),
    _gauge(
        "retained_bytes",
        "Bytes of retained messages",
        "state.retained.bytes",
        "store/messages/bytes",
    ),
    Metric(
        "nearcast_retained_groups",
        "gauge",
        "Topic groups with experience of new subscribers, by the policy that they follow",
        _groups,
        label="follows",
    ),
    Metric(
        "nearcast_retained_experiences_total",
        "counter",
        "New subscribers of which it became known what waiting costs and saves",
        _experiences,
    ),
    _gauge("timers", "Timers that are set", "timers"),
    _gauge("backlog", "Connections and pieces of work that wait for a slice", "backlog"),
    _gauge("held_bytes", "Bytes queued or in flight", "state.held_bytes"),
    _total(
        "messages_received",
        "MQTT packets received",
        "counters.messages_received",
        "messages/received",
    ),
    _total("messages_sent", "MQTT packets sent", "counters.messages_sent", "messages/sent"),
    Metric(
        "nearcast_dropped_total",
        "counter",
        "Deliveries that did not happen, by reason",
        lambda s: {reason: getattr(s.counters, name) for reason, name in DROPS.items()},
        ("publish/messages/dropped",),
        label="reason",
    ),
    _total(
        "internal_errors",
        "Exceptions that the broker did not foresee; the log has each kind once",
        "state.failures.count",
    ),
)
_CLUSTER = (
    _total(
        "network_handovers",
        "Registrations that went to another holder",
        "cluster.handovers",
        "network/handovers",
    ),
    Metric(
        "nearcast_network_frames_dropped_total",
        "counter",
        "Frames dropped because there was no connection to NATS",
        lambda s: None if s.network is None else s.network.frames_dropped,
    ),
    Metric(
        "nearcast_causal_discarded_total",
        "counter",
        "Messages of causal groups discarded, by reason",
        lambda s: {"late": 0, **s.cluster.causal.discarded},
        ("causal/messages/discarded",),
        label="reason",
    ),
    Metric(
        "nearcast_clock_ahead_seconds",
        "gauge",
        "How far the clock of another node is ahead of ours",
        lambda s: _clocks(s.cluster),
        label="node",
    ),
)


def _clocks(cluster: Cluster) -> dict[str, float]:
    links = {name: peer.link for name, peer in cluster.peers.items()}
    return {name: link.skew_ms / 1000 for name, link in links.items() if link.is_up}


def _of_peer(name: str, kind: Literal["counter", "gauge"], help_text: str, figure: str) -> Metric:
    """Return a metric that is a figure of all members of a peer."""
    return Metric(name, kind, help_text, lambda s: None if s.peer is None else s.peer.total(figure))


_PEER = (
    Metric(
        "nearcast_peer_links",
        "gauge",
        "Other peers that are connected",
        lambda s: None if s.peer is None else len(s.peer.links.peers),
    ),
    Metric(
        "nearcast_peer_boxes",
        "gauge",
        "Boxes of this peer in the trees",
        lambda s: None if s.peer is None else s.peer.box_count,
    ),
    _of_peer("nearcast_peer_kept", "gauge", "Events at QoS 1 that wait for answers", "kept"),
    _of_peer(
        "nearcast_peer_confirmed_total",
        "counter",
        "Events at QoS 1 that every branch has answered for",
        "confirmed",
    ),
    _of_peer("nearcast_peer_repeated_total", "counter", "Events sent again", "repeated"),
    _of_peer(
        "nearcast_peer_unconfirmed_total",
        "counter",
        "Events at QoS 1 given up, because not every branch has answered",
        "unconfirmed",
    ),
    _of_peer("nearcast_peer_repairs_total", "counter", "Neighbours lost without a word", "repairs"),
    _of_peer(
        "nearcast_peer_relayed_total",
        "counter",
        "Copies of events passed on to other peers",
        "forwarded",
    ),
    _of_peer(
        "nearcast_peer_overhead",
        "gauge",
        "What relaying has cost this peer: events received in vain and copies (paper 3)",
        "overhead",
    ),
)


PROCESS_METRICS = (
    Metric(
        "nearcast_delivery_latency_seconds",
        "histogram",
        "From reading a publication to writing its copies, a sample",
        lambda s: s.latency,
    ),
    Metric(
        "nearcast_loop_delay_seconds",
        "histogram",
        "How late the event loop runs what is due",
        lambda s: s.loop_delay,
    ),
    Metric("process_cpu_seconds_total", "counter", "CPU time in seconds", lambda _: cpu_s()),
    Metric(
        "process_max_fds",
        "gauge",
        "Descriptors allowed",
        lambda _: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    ),
    Metric("process_resident_memory_bytes", "gauge", "Memory in use", lambda _: memory(1)),
    Metric("process_virtual_memory_bytes", "gauge", "Memory reserved", lambda _: memory(0)),
    Metric("process_open_fds", "gauge", "Descriptors in use", lambda _: _open_descriptors()),
)
"""The metrics of a server's process, with the names of Prometheus' client libraries."""


def cpu_s() -> float:
    """Return the CPU time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return round(usage.ru_utime + usage.ru_stime, 3)


def memory(place: int) -> int | None:
    """Return the memory that is reserved (0) or in use (1); None where the system does not tell."""
    with contextlib.suppress(OSError, ValueError):
        pages = Path("/proc/self/statm").read_text("ascii").split()
        return int(pages[place]) * os.sysconf("SC_PAGE_SIZE")
    return None


def _open_descriptors() -> int | None:
    with contextlib.suppress(OSError):
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    return None


@cache
def broker_metrics() -> tuple[Metric, ...]:
    """Return the metrics of a broker, whether alone or in a cluster."""
    return (*_BROKER, *_declared(Counters, "", "counters"))


@cache
def cluster_metrics() -> tuple[Metric, ...]:
    """Return the metrics of a node in a cluster."""
    from nearcast.cluster.causal_groups import CausalCounts
    from nearcast.cluster.peer import ClusterCounts

    return (
        *_declared(ClusterCounts, "network_", "cluster.counts"),
        *_declared(CausalCounts, "causal_", "cluster.causal"),
        *_by_group(),
        *feed_metrics(),
        *_CLUSTER,
    )


@cache
def feed_metrics() -> tuple[Metric, ...]:
    """Return the metrics of a feed: into JetStream or Kafka."""
    from nearcast.server.feed.session import FeedCounts

    return tuple(_declared(FeedCounts, "feed_", "feed"))


@cache
def peer_metrics() -> tuple[Metric, ...]:
    """Return the metrics of a peer of an overlay, and of a bridge to one."""
    from nearcast.server.overlay.bridge import BridgeCounts
    from nearcast.server.overlay.links import LinkCounts
    from nearcast.server.overlay.local_clients import PeerCounts

    return (
        *_declared(LinkCounts, "peer_", "peer.links.counts"),
        *_declared(PeerCounts, "peer_", "overlay.counts"),
        *_declared(BridgeCounts, "peer_", "overlay.counts"),
        *_PEER,
    )
