"""A node's metrics: `$SYS` topics under Mosquitto's names, and Prometheus text."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

import nearcast
from nearcast.broker import Broker
from nearcast.broker.state import BrokerState

if TYPE_CHECKING:
    from nearcast.cluster.cluster import Cluster


def sys_topics(node: Broker, *, uptime_s: int) -> Iterator[tuple[str, str]]:
    """Yield the topic, relative to `$SYS/broker`, and value of each `$SYS` message."""
    state, counters = node.state, node.counters
    connected, total = state.connected, _clients(state)
    yield "version", f"nearcast version {nearcast.__version__}"
    yield "uptime", f"{uptime_s} seconds"
    yield "clients/total", str(total)
    yield "clients/connected", str(connected)
    yield "clients/active", str(connected)
    yield "clients/disconnected", str(total - connected)
    yield "clients/inactive", str(total - connected)
    yield "clients/expired", str(counters.sessions_expired)
    yield "subscriptions/count", str(state.router.subscription_count)
    yield "shared_subscriptions/count", str(state.router.shared_count)
    yield "retained messages/count", str(state.retained.count)
    yield "messages/stored", str(state.retained.count)
    yield "store/messages/count", str(state.retained.count)
    yield "store/messages/bytes", str(state.retained.bytes)
    yield "messages/received", str(counters.messages_received)
    yield "messages/sent", str(counters.messages_sent)
    yield "bytes/received", str(counters.bytes_received)
    yield "bytes/sent", str(counters.bytes_sent)
    yield "publish/messages/received", str(counters.publish_received)
    yield "publish/messages/sent", str(counters.publish_sent)
    yield "publish/messages/dropped", str(counters.publish_dropped)
    yield "publish/bytes/received", str(counters.publish_bytes_received)
    yield "publish/bytes/sent", str(counters.publish_bytes_sent)
    mesh = _mesh_of(state)
    if mesh is not None:
        causal = mesh.causal
        yield "causal/messages/sent", str(causal.sent)
        yield "causal/messages/delivered", str(causal.delivered)
        yield "causal/messages/held", str(causal.held)
        yield "causal/messages/discarded", str(sum(causal.discarded.values()))
        yield "causal/skew/violations", str(causal.skew_violations)
        yield "network/messages/unwanted", str(counters.unwanted)
        for name, (_, value) in _network_totals(mesh).items():
            yield f"network/{name.replace('_', '/')}", str(value)


def _clients(state: BrokerState) -> int:
    """Return the number of clients with a session; peers have sessions, too. O(sessions)."""
    peers: int = sum(map(attrgetter("is_peer"), state.sessions.values()))
    return len(state.sessions) - peers


_DROPS = ("slow", "quota", "expired", "too_large", "forbidden", "ended", "no_member", "invalid")
_TOTALS = (
    ("bytes_received", "Bytes that clients have sent"),
    ("bytes_sent", "Bytes sent to clients"),
    ("messages_received", "MQTT packets received"),
    ("messages_sent", "MQTT packets sent"),
    ("publish_received", "PUBLISH packets received"),
    ("publish_sent", "PUBLISH packets sent"),
    ("connects", "Clients welcomed"),
    ("connects_refused", "Clients refused"),
    ("protocol_errors", "Connections closed for a breach of the protocol"),
    ("sessions_expired", "Sessions that expired"),
    ("positions", "Positions of clients taken"),
    ("positions_refused", "Positions that made no sense"),
    ("unplaced", "Publications that could not be placed in their space"),
    ("unwanted", "Publications of other nodes that nobody here wanted"),
    ("crossings", "Retained messages that clients have come near"),
    ("retained_held", "Retained messages held back from newcomers"),
    ("retained_released", "Retained messages held back and then sent"),
    ("retained_replaced", "Retained messages held back and never sent: a live one served"),
    ("tables_learned", "Tables for retained messages that the broker learned on its own"),
    ("journal_records_set_aside", "Records of the journal that could not be applied at the start"),
    ("journal_damages", "Damaged places found in the journal at the start"),
    ("journal_compactions_failed", "Compactions of the journal that failed and are tried again"),
    ("refused_sessions", "Clients refused because there are too many sessions"),
    ("refused_subscriptions", "Subscriptions refused because of a limit"),
    ("refused_retained", "Publications delivered, but not retained because of a limit"),
    ("unread", "Times that a client was not read from because it did not read its answers"),
    ("near_without_position", "Subscriptions near a client whose place is unknown"),
)


def prometheus_text(node: Broker, *, uptime_s: float) -> str:
    """Return all metrics in Prometheus' text format."""
    state = node.state
    lines: list[str] = []
    for name, help_text in _TOTALS:
        lines += _metric(f"{name}_total", "counter", help_text, getattr(node.counters, name))
    lines += _metric(
        "internal_errors_total",
        "counter",
        "Exceptions that the broker did not foresee; the log has each kind once",
        state.failures.count,
    )
    lines += [
        "# HELP nearcast_dropped_total Deliveries that did not happen, by reason",
        "# TYPE nearcast_dropped_total counter",
    ]
    lines += [
        f'nearcast_dropped_total{{reason="{reason}"}} {getattr(node.counters, f"dropped_{reason}")}'
        for reason in _DROPS
    ]
    gauges = (
        ("connections", "Clients connected", state.connected),
        ("sessions", "Sessions of clients, connected or not", _clients(state)),
        ("subscriptions", "Subscriptions", state.router.subscription_count),
        ("shared_subscriptions", "Memberships in share groups", state.router.shared_count),
        ("retained_messages", "Retained messages", state.retained.count),
        ("retained_bytes", "Bytes of retained messages", state.retained.bytes),
        ("timers", "Timers that are set", len(state.timers)),
        (
            "backlog",
            "Connections and pieces of work that wait for a slice",
            len(state.slices.backlog),
        ),
        ("held_bytes", "Bytes queued or in flight", state.held_bytes),
        ("uptime_seconds", "Seconds since the start", uptime_s),
    )
    for name, help_text, value in gauges:
        lines += _metric(name, "gauge", help_text, value)
    mesh = _mesh_of(state)
    if mesh is not None:
        for name, (help_text, value) in _network_totals(mesh).items():
            lines += _metric(f"network_{name}_total", "counter", help_text, value)
        lines += _causal_metrics(mesh)
    return "\n".join(lines) + "\n"


def _mesh_of(state: BrokerState) -> Cluster | None:
    """Return the cluster of a node that has one; its modules are loaded only then."""
    if state.network is None:
        return None
    from nearcast.cluster.cluster import Cluster

    return state.network if isinstance(state.network, Cluster) else None


def _network_totals(mesh: Cluster) -> dict[str, tuple[str, int]]:
    """Return the counters of the links by name: help text and value."""
    counts = mesh.counts
    return {
        "messages_sent": ("Messages to other nodes", counts.messages_sent),
        "frames_sent": ("Frames to other nodes", counts.frames_sent),
        "frames_received": ("Frames of other nodes", counts.frames_received),
        "bytes_sent": ("Bytes to other nodes", counts.bytes_sent),
        "bytes_received": ("Bytes of other nodes", counts.bytes_received),
        "frames_refused": ("Frames of other nodes that made no sense", counts.refused),
        "handovers": ("Registrations that went to another holder", mesh.handovers),
    }


_CAUSAL = (
    ("sent", "Messages sent in causal order"),
    ("delivered", "Messages of other nodes delivered in causal order"),
    ("held", "Messages that waited for what they depend on"),
    ("skew_violations", "Clocks measured further apart than allowed, messages from the future"),
)


def _causal_metrics(mesh: Cluster) -> list[str]:
    lines: list[str] = []
    for name, help_text in _CAUSAL:
        value = getattr(mesh.causal, name)
        lines += _metric(f"causal_{name}_total", "counter", help_text, value)
    lines += [
        "# HELP nearcast_causal_discarded_total Messages of causal groups discarded, by reason",
        "# TYPE nearcast_causal_discarded_total counter",
    ]
    lines += [
        f'nearcast_causal_discarded_total{{reason="{reason}"}} {count}'
        for reason, count in {"late": 0, **mesh.causal.discarded}.items()
    ]
    lines += [
        "# HELP nearcast_clock_ahead_seconds How far the clock of another node is ahead of ours",
        "# TYPE nearcast_clock_ahead_seconds gauge",
    ]
    lines += [
        f'nearcast_clock_ahead_seconds{{node="{name}"}} {peer.link.skew_ms / 1000}'
        for name, peer in mesh.peers.items()
        if peer.link.is_up
    ]
    return lines


def _metric(name: str, kind: str, help_text: str, value: float) -> list[str]:
    full = f"nearcast_{name}"
    return [f"# HELP {full} {help_text}", f"# TYPE {full} {kind}", f"{full} {value}"]
