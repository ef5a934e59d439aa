"""Paper 3: content-based publish/subscribe on a peer-to-peer R-tree.

Every point of a sweep is a function of its parameters and a seed that returns rows (plain dicts),
so that Spark can run one point per task: `overhead_rows`, `cache_rows`, `churn_rows`,
`growth_rows`, `onehop_rows`. `claims.py` lists the points, turns rows into verdicts on C3.1–C3.6,
and draws figures 7 and 8.

The peers are those of `nearcast.overlay`, in the simulated world. Events enter at the root
(`Climb.DIRECT`), so that overhead is what the paper's formula covers: the way down. R = F = 1.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from random import Random
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from nearcast.overlay import (
    Bounds,
    Climb,
    Costs,
    Extent,
    GridDensity,
    MarginalDensity,
    Method,
    OverlayEvent,
    Settings,
    Split,
    violations,
)
from nearcast.papers.content_overlay.event_walk import EventWalk
from nearcast.papers.content_overlay.onehop import OneHopPeer
from nearcast.papers.content_overlay.world import OverlayActor, SimulatedOverlay
from nearcast.papers.form import Row
from nearcast.simulator import SimulatedLink, World, constant

Floats: TypeAlias = NDArray[np.float64]

SIZES = (100.0, 50.0, 30.0, 10.0)
SHARES = (0.1, 0.2, 0.3, 0.4)
EVENT_SIGMAS = (10, 30, 60, 100, 120, 150, 200, 300, 500)


@dataclass(frozen=True, slots=True)
class Parameters:
    """The paper's table 1, and the parameters that it leaves open."""

    peers: int = 3000
    events: int = 3000
    subscription_sigma: float = 100.0
    event_sigmas: tuple[float, ...] = (100.0,)
    dimensions: int = 2
    method: Method = Method.CHEAPEST
    split: Split = Split.RSTAR
    climb: Climb = Climb.DIRECT
    density: str = "volume"
    least: int = 3
    most: int = 6
    cache_size: int = 0
    join_gap_ms: int = 60
    beat_ms: int = 30_000
    coalesce_ms: int = 500
    """How long events to the same peer are batched; changes messages, not overhead."""
    forward_cost: float = 1.0
    """F, where R is 1."""


# --- the workload ------------------------------------------------------------------------------


def subscriptions(parameters: Parameters, seed: int) -> tuple[Floats, Floats]:
    """Return lows and highs: normal centres, sides from the four classes, all clipped."""
    random = np.random.default_rng([seed, 1])
    shape = (parameters.peers, parameters.dimensions)
    centres = np.clip(random.normal(500.0, parameters.subscription_sigma, shape), 0.0, 1000.0)
    means = random.choice(SIZES, p=SHARES, size=(parameters.peers, 1))
    sides = np.clip(random.normal(means, 10.0, shape), 0.0, 120.0)
    return np.clip(centres - sides / 2, 0.0, 1000.0), np.clip(centres + sides / 2, 0.0, 1000.0)


def event_points(parameters: Parameters, sigma: float, seed: int) -> Floats:
    """Return one row of values per event: normal, clipped."""
    random = np.random.default_rng([seed, 2, int(sigma)])
    shape = (parameters.events, parameters.dimensions)
    return np.clip(random.normal(500.0, sigma, shape), 0.0, 1000.0)


def extent_of(parameters: Parameters) -> Extent:
    """Return the space: every attribute from 0 to 1000."""
    return Extent((0.0,) * parameters.dimensions, (1000.0,) * parameters.dimensions)


def settings_of(parameters: Parameters, seed: int) -> Settings:
    """Return the peers' settings; a histogram is built from events of the first event σ."""
    extent = extent_of(parameters)
    density = None
    if parameters.density == "histogram":
        points = event_points(
            replace(parameters, events=20_000), parameters.event_sigmas[0], -seed % 997
        )
        few = parameters.dimensions <= 2
        density = (
            GridDensity.of_events(extent, points, 40) if few else MarginalDensity(extent, points)
        )
    return Settings(
        extent,
        least=parameters.least,
        most=parameters.most,
        method=parameters.method,
        split=parameters.split,
        climb=parameters.climb,
        density=density,
        costs=Costs(1.0, parameters.forward_cost),
        cache_size=parameters.cache_size,
        beat_ms=parameters.beat_ms,
        patience_ms=int(parameters.beat_ms * 3.5),
        probe_ms=parameters.beat_ms * 10,
        coalesce_ms=0 if parameters.cache_size else parameters.coalesce_ms,
        memory_ms=600_000,
    )


# --- a run ---------------------------------------------------------------------------------------


def joined(parameters: Parameters, seed: int, *, weigh: bool = False) -> SimulatedOverlay:
    """Return an overlay that all peers have joined, one after the other."""
    settings = settings_of(parameters, seed)
    net = SimulatedOverlay(settings, seed, SimulatedLink(constant(5), reordering=1.0), weigh=weigh)
    net.keep_names = False
    lows, highs = subscriptions(parameters, seed)
    random = Random(f"{seed}/contacts")
    for number in range(parameters.peers):
        contact = [f"p{random.randrange(number)}"] if number else []
        net.add(f"p{number}", contact)
        net.subscribe(f"p{number}", lows[number].tolist(), highs[number].tolist())
        net.run(parameters.join_gap_ms)
    return net


def grown(parameters: Parameters, seed: int) -> SimulatedOverlay:
    """Return an overlay that all peers have joined and that has settled."""
    net = joined(parameters, seed)
    net.rest()
    return net


def publish_all(net: SimulatedOverlay, points: Floats, name: str, spread_ms: int = 20_000) -> None:
    """Publish all points from the peers round-robin, in a random order."""
    order = Random(f"{net.world.seed}/{name}").sample(sorted(net.peers), len(net.peers))
    start, gap = net.world.now, spread_ms / max(len(points), 1)
    for number, values in enumerate(points.tolist()):
        at = start + int(number * gap)
        if at > net.world.now:
            net.world.run(at)
        net.publish(order[number % len(order)], [OverlayEvent.point((name, number), values)])
    net.run(15_000)


# --- measures ----------------------------------------------------------------------------------


def overheads(net: SimulatedOverlay) -> Floats:
    """Return each peer's overhead, with R and F from the settings."""
    per_peer = [sum(seat.overhead() for seat in p.seats.values()) for p in net.peers.values()]
    return np.array(per_peer, dtype=np.float64)


def gini(values: Floats) -> float:
    """Return the Gini coefficient: 0 when all peers have the same load, 1 when one has all.

    >>> gini(np.array([1.0, 1.0, 1.0])), round(gini(np.array([0.0, 0.0, 9.0])), 3)
    (0.0, 0.667)
    """
    ordered = np.sort(values)
    total = ordered.sum()
    if total == 0:
        return 0.0
    ranks = np.arange(1, len(ordered) + 1)
    return float(
        2.0 * (ranks * ordered).sum() / (len(ordered) * total) - (len(ordered) + 1) / len(ordered)
    )


def matches(lows: Floats, highs: Floats, points: Floats) -> int:
    """Return the number of matching (event, subscription) pairs: the oracle, a plain scan."""
    total = 0
    for start in range(0, len(points), 500):
        part = points[start : start + 500, None, :]
        total += int(((part >= lows) & (part <= highs)).all(axis=2).sum())
    return total


def loads(burden: Floats) -> Row:
    """Return how much overhead there is, and how it is spread over the peers."""
    ranked = np.sort(burden)[::-1]
    total, tenth = max(float(burden.sum()), 1.0), max(1, len(ranked) // 10)
    bearing = float((np.cumsum(ranked) < 0.95 * total).sum() + 1)
    return {
        "mean_overhead": float(burden.mean()),
        "gini": gini(burden),
        "bearing_share": float((burden > 0).mean()),
        "share_bearing_95_percent": bearing / len(ranked),
        "top_tenth_share": float(ranked[:tenth].sum()) / total,
        "groups_of_5_percent": [float(part.mean()) for part in np.array_split(ranked, 20)],
    }


def measured(net: SimulatedOverlay, points: Floats, expected: int) -> Row:
    """Return the costs of one set of events."""
    burden = overheads(net)
    total = max(float(burden.sum()), 1.0)
    tallies = [seat.tally for peer in net.peers.values() for seat in peer.seats.values()]
    hop_total = sum(hops * count for hops, count in net.hops.items())
    return {
        **loads(burden),
        "overhead_per_event": total / max(len(points), 1),
        "overhead_per_delivery": total / max(net.deliveries, 1),
        "unwanted": sum(t.unwanted for t in tallies),
        "forwarded": sum(t.forwarded for t in tallies),
        "in_vain": sum(t.barren for t in tallies),
        "spared": sum(t.spared for t in tallies),
        "acknowledged": sum(t.acknowledged for t in tallies),
        "deliveries": net.deliveries,
        "matching": expected,
        "hops_mean": hop_total / max(net.deliveries, 1),
        "hops_most": max(net.hops, default=0),
        "height": max(seat.top for p in net.peers.values() for seat in p.seats.values()),
    }


# --- points of the sweep: parameters and a seed in, rows out -----------------------------------


def overhead_rows(parameters: Parameters, seed: int) -> list[Row]:
    """Return one row per event σ, all on one tree (figures 7 and 8; C3.1–C3.4, C3.6)."""
    net = grown(parameters, seed)
    lows, highs = subscriptions(parameters, seed)
    rows = []
    for sigma in parameters.event_sigmas:
        if parameters.method is Method.MEASURED:
            publish_all(net, event_points(parameters, sigma, seed + 1000), f"warm{sigma}", 120_000)
            net.run(8 * parameters.beat_ms)
        net.reset()
        points = event_points(parameters, sigma, seed)
        publish_all(net, points, f"e{sigma}")
        row = _described(parameters, seed) | measured(net, points, matches(lows, highs, points))
        rows.append(row | {"event_sigma": sigma})
    return rows


def literal_rows(parameters: Parameters, seed: int) -> list[Row]:
    """Return one row per event σ where events climb as the paper's listing says (trap T3.6)."""
    net = grown(parameters, seed)
    walk = EventWalk(net, parameters.forward_cost)
    rows = []
    for sigma in parameters.event_sigmas:
        order = Random(f"{seed}/e{sigma}").sample(sorted(net.peers), len(net.peers))
        burden = dict.fromkeys(walk.seats, 0.0)
        for number, values in enumerate(event_points(parameters, sigma, seed).tolist()):
            walk.publish(order[number % len(order)], values, burden)
        row = _described(parameters, seed) | loads(np.array([*burden.values()]))
        rows.append(row | {"event_sigma": sigma})
    return rows


def cache_rows(parameters: Parameters, seed: int, repeats: int) -> list[Row]:
    """Return the cost and saving of a cache when each event is published `repeats` times (C3.5)."""
    rows = []
    for size in (0, 200):
        changed = replace(parameters, cache_size=size)
        net = grown(changed, seed)
        net.reset()
        points = event_points(parameters, parameters.event_sigmas[0], seed)
        distinct = points[: max(1, len(points) // repeats)]
        shuffled = np.random.default_rng(seed).permutation(np.repeat(distinct, repeats, axis=0))
        publish_all(net, shuffled, "cached", 60_000)
        lows, highs = subscriptions(parameters, seed)
        row = _described(changed, seed) | measured(net, shuffled, matches(lows, highs, shuffled))
        answers = 2.0 * row["acknowledged"]
        rows.append(
            row
            | {
                "repeats": repeats,
                "cache_size": size,
                "with_answers": row["overhead_per_event"] + answers / len(shuffled),
            }
        )
    return rows


def churn_rows(
    parameters: Parameters, seed: int, leaves_per_s: float, crash_share: float
) -> list[Row]:
    """Return the share of matching deliveries made while peers leave and others join."""
    net = grown(parameters, seed)
    net.reset()
    net.keep_names = True
    random, points = (
        Random(f"{seed}/churn"),
        event_points(parameters, parameters.event_sigmas[0], seed),
    )
    lows, highs = subscriptions(parameters, seed)
    boxes = {f"p{i}": (lows[i], highs[i]) for i in range(parameters.peers)}
    got = wanted = crashes = left = 0
    for number, values in enumerate(points):
        for _ in range(_poisson(random, leaves_per_s / 10.0)):
            gone = random.choice(sorted(boxes))
            box = boxes.pop(gone)
            crashed = random.random() < crash_share
            (net.crash if crashed else net.leave)(gone)
            crashes, left = crashes + crashed, left + 1
            name = f"n{left}"
            net.add(name, random.sample(sorted(boxes), 3))
            net.subscribe(name, box[0].tolist(), box[1].tolist())
            boxes[name] = box
        meant = {
            p
            for p, (low, high) in boxes.items()
            if (values >= low).all() and (values <= high).all()
        }
        net.publish(random.choice(sorted(boxes)), [OverlayEvent.point(number, values.tolist())])
        net.run(100)
        if number >= 20:  # judged two seconds later
            got, wanted = _judge(net, number - 20, got, wanted)
        net.delivered.setdefault(("meant", number), sorted(meant))
    net.rest(60)
    return [
        _described(parameters, seed)
        | {
            "leaves_per_s": leaves_per_s,
            "left": left,
            "crashed": crashes,
            "delivered_share": got / max(wanted, 1),
            "judged": wanted,
            "sound_after": not violations(net.peers.values()),
        }
    ]


def _judge(net: SimulatedOverlay, number: int, got: int, wanted: int) -> tuple[int, int]:
    """Add the peers that should have received an event and are still up, and those that did."""
    meant = [p for p in net.delivered.pop(("meant", number), []) if p in net.peers]
    reached = set(net.delivered.pop(number, []))
    return got + sum(p in reached for p in meant), wanted + len(meant)


def _poisson(random: Random, mean: float) -> int:
    limit, count, product = math.exp(-mean), 0, random.random()
    while product > limit:
        product *= random.random()
        count += 1
    return count


def growth_rows(parameters: Parameters, seed: int) -> list[Row]:
    """Return hops, heights, table sizes and the cost of joining at one number of peers.

    Heartbeats are made so rare that hardly any falls into the time of joining.
    """
    rare = 100 * parameters.peers * parameters.join_gap_ms
    net = joined(replace(parameters, beat_ms=max(parameters.beat_ms, rare)), seed, weigh=True)
    assert net.bytes_sent is not None
    messages, weight = sum(net.sent.values()), sum(net.bytes_sent.values())
    net.rest()
    net.reset()
    points = event_points(parameters, parameters.event_sigmas[0], seed)
    publish_all(net, points, "grow")
    lows, highs = subscriptions(parameters, seed)
    row = _described(parameters, seed) | measured(net, points, matches(lows, highs, points))
    seats = [seat for peer in net.peers.values() for seat in peer.seats.values()]
    tables = [
        sum(len(group.members) for group in seat.groups) + len(seat.siblings) + len(seat.path)
        for seat in seats
    ]
    return [
        row
        | {
            "messages_per_join": messages / parameters.peers,
            "bytes_per_join": weight / parameters.peers,
            "copies_per_event": row["forwarded"] / len(points) + 1.0,
            "table_entries_mean": float(np.mean(tables)),
            "table_entries_most": max(tables),
        }
    ]


def onehop_rows(parameters: Parameters, seed: int) -> list[Row]:
    """Return the same for the alternative in which every peer knows all others."""
    lows, highs = subscriptions(parameters, seed)
    sent: Counter[str] = Counter()
    seen = [0]
    world = World(
        seed,
        link=SimulatedLink(constant(5), reordering=1.0),
        keep_digest=False,
        observer=lambda _n, _a, out: seen.__setitem__(0, seen[0] + len(out.batch)),
    )
    random, extent = Random(f"{seed}/contacts"), extent_of(parameters)
    actors: list[OverlayActor[OneHopPeer]] = []
    for number in range(parameters.peers):
        contacts = [f"p{random.randrange(number)}"] if number else []
        actor = OverlayActor(OneHopPeer(f"p{number}", extent, contacts), sent)
        actors.append(world.add(f"p{number}", actor))
        box: Bounds = (tuple(lows[number].tolist()), tuple(highs[number].tolist()))
        world.perform(f"p{number}", actor.posted(actor.peer.announce([box], world.now)))
        world.perform(f"p{number}", actor.posted(actor.peer.join(world.now)))
        world.run(world.now + 60)
    joining = sum(sent.values())
    points = event_points(parameters, parameters.event_sigmas[0], seed)
    for number, values in enumerate(points.tolist()):
        actor = actors[number % len(actors)]
        outputs = actor.peer.publish([OverlayEvent.point(number, values)], world.now)
        world.perform(actor.peer.peer_id, actor.posted(outputs))
    world.run()
    return [
        _described(parameters, seed)
        | {
            "messages_per_join": joining / parameters.peers,
            "copies_per_event": sent["Direct"] / len(points),
            "deliveries": seen[0],
            "matching": matches(lows, highs, points),
            "table_entries_mean": float(np.mean([len(a.peer.known) for a in actors])),
            "hops_mean": 1.0,
        }
    ]


def _described(parameters: Parameters, seed: int) -> Row:
    return {
        "seed": seed,
        "method": parameters.method.value,
        "split": parameters.split.value,
        "climb": parameters.climb.value,
        "density": parameters.density,
        "peers": parameters.peers,
        "events": parameters.events,
        "dimensions": parameters.dimensions,
        "subscription_sigma": parameters.subscription_sigma,
        "event_sigma": parameters.event_sigmas[0],
        "forward_cost": parameters.forward_cost,
    }
