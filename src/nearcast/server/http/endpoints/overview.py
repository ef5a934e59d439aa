"""The figures of this node, and the nodes of its network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

import nearcast
from nearcast.broker import Counters
from nearcast.broker.counters import DROPS
from nearcast.server.http.endpoint import Call, endpoint
from nearcast.server.http.endpoints.slices import in_slices
from nearcast.server.http.gathering import Asker, added, merged, worst

if TYPE_CHECKING:
    from nearcast.server.cluster.link_runtime import LinkRuntime
    from nearcast.server.http.site import Site


class Percentiles(msgspec.Struct, frozen=True):
    """Upper bounds in milliseconds, None while nothing was measured."""

    p50: float | None
    p99: float | None


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """Totals since the start and the state of this moment; rates are differences of two answers."""

    t: int
    name: str
    version: str
    uptime_s: float
    clients: int
    connected: int
    connections: int
    subscriptions: int
    retained: int
    queued: int
    held_bytes: int
    cpu_seconds: float
    rss_bytes: int | None
    received: int
    sent: int
    bytes_received: int
    bytes_sent: int
    dropped: dict[str, int]
    counters: dict[str, int]
    latency_ms: Percentiles
    loop_delay_ms: Percentiles


class LinkView(msgspec.Struct, frozen=True, kw_only=True):
    """The link of a node to another one."""

    to: str
    up: bool
    skew_ms: float
    delay_ms: float | None
    restarts: int
    direct: bool
    problem: str


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the network, as far as this one knows it; only this node knows its own figures."""

    name: str
    here: bool
    state: str
    address: str | None = None
    plan: int | None = None
    sessions: int | None = None
    connected: int | None = None
    handovers: int | None = None
    load: float | None = None
    messages_sent: int | None = None
    links: list[LinkView] = []


class NodeFigures(msgspec.Struct, frozen=True):
    """What a node tells pages at any node about itself."""

    figures: Overview
    node: NodeView


class NodeList(msgspec.Struct, frozen=True):
    """This node first, then the others by name."""

    network: str | None
    problem: str
    nodes: list[NodeView]


_SUMS = (
    *("clients", "connected", "connections", "subscriptions", "queued", "held_bytes"),
    *("cpu_seconds", "rss_bytes", "received", "sent", "bytes_received", "bytes_sent"),
    *("dropped", "counters"),
)
_OF_ALL = merged(**dict.fromkeys(_SUMS, added), latency_ms=worst, loop_delay_ms=worst)


async def _one_node(call: Call, ask: Asker) -> NodeList:
    """Return the broker as one node: its workers are no nodes of a network."""
    found = [one.nodes[0] for one in await ask.all()]
    whole = NodeView(
        name=call.site.sources.configuration().node.name,
        here=True,
        state="serves",
        sessions=added([one.sessions for one in found]),
        connected=added([one.connected for one in found]),
    )
    return NodeList(None, "", [whole])


@endpoint("GET", "/api/overview", gather=_OF_ALL)
async def overview(call: Call) -> Overview:
    """Return the totals of this node since its start, and its state."""
    return await _overview(call.site)


async def figures_of(site: Site) -> NodeFigures:
    """Return what a node tells pages at any node about itself."""
    return NodeFigures(await _overview(site), _own(site))


async def _overview(site: Site) -> Overview:
    node = site.node
    site.sources.metrics.measure_loop()
    figures = site.sources.metrics.process_figures()
    counters, inspection = site.sources.metrics.counters(), node.inspection
    sessions, queued = node.client_sessions(), 0
    async for one in in_slices(sessions):
        queued += len(one.queue)
    names = [name for name in Counters.__dataclass_fields__ if name not in DROPS.values()]
    return Overview(
        t=site.now_ms,
        name=site.sources.configuration().node.name,
        version=nearcast.__version__,
        uptime_s=figures.uptime_s,
        clients=len(sessions),
        connected=node.connected_clients,
        connections=node.connection_count,
        subscriptions=inspection.subscription_count,
        retained=inspection.retained_count,
        queued=queued,
        held_bytes=inspection.held_bytes,
        cpu_seconds=figures.cpu_s,
        rss_bytes=figures.rss_bytes,
        received=counters.publish_received,
        sent=counters.publish_sent,
        bytes_received=counters.bytes_received,
        bytes_sent=counters.bytes_sent,
        dropped={reason: getattr(counters, name) for reason, name in DROPS.items()},
        counters={name: getattr(counters, name) for name in names},
        latency_ms=Percentiles(figures.latency.quantile_ms(0.5), figures.latency.quantile_ms(0.99)),
        loop_delay_ms=Percentiles(
            figures.loop_delay.quantile_ms(0.5), figures.loop_delay.quantile_ms(0.99)
        ),
    )


@endpoint("GET", "/api/nodes", gather=_one_node)
def nodes(call: Call) -> NodeList:
    """Return this node, the other nodes of its network, and the links to them."""
    network, own = _cluster_of(call.site), _own(call.site)
    if network is None:
        return NodeList(None, "", [own])
    others = [
        NodeView(name=one.to, here=False, state="connected" if one.up else "not connected")
        for one in own.links
    ]
    name = call.site.sources.configuration().network.name
    return NodeList(name, network.problem, [own, *others])


def _cluster_of(site: Site) -> LinkRuntime | None:
    """Return the links to other nodes; the processes of one broker are no nodes."""
    network = site.sources.network()
    return network if network is not None and network.mesh.is_network else None


def _own(site: Site) -> NodeView:
    network = _cluster_of(site)
    return NodeView(
        name=site.sources.configuration().node.name,
        here=True,
        state="serves",
        sessions=len(site.node.client_sessions()),
        connected=site.node.connected_clients,
        **({} if network is None else _of_cluster(network)),
    )


def _of_cluster(network: Any) -> dict[str, Any]:
    cluster = network.mesh
    links = [
        LinkView(
            to=name,
            up=one.is_up,
            skew_ms=one.skew_ms,
            delay_ms=one.delay_ms,
            restarts=one.restarts,
            direct=one.is_direct,
            problem=one.problem,
        )
        for name, one in sorted(network.link_states().items())
    ]
    return {
        "links": links,
        "plan": cluster.plans[0],
        "handovers": cluster.handovers,
        "load": cluster.load,
        "messages_sent": cluster.counts.messages_sent,
    }
