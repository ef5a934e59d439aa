"""Several nodes over NATS: what crossing costs, what crosses at all, how long it takes.

CPU is that of all nodes and NATS together, from `/proc/<pid>`; messages that stay and messages
that cross are sent through the same running network in slices, by turns.

    python -m benchmarks.network --quick

`network_nodes.py` starts the processes, `network_city.py` has the moving city.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks.broker_load import (
    Load,
    Publisher,
    Subscriber,
    drive,
    link,
    publish_packet,
    round_trips,
    subscribe,
)
from benchmarks.network_city import crossings
from benchmarks.network_handovers import SPACE, latencies, rate, takeover_s
from benchmarks.network_near_city import CITY, near_city
from benchmarks.network_nodes import Nodes, network_of
from benchmarks.sections import by_hand, rows_of

Row = dict[str, Any]
SLICES = 10
MOST_TIMES = 3.0
STAYS, CROSSES = "stays", "crosses"


class Pairs:
    """Publishers at one node, subscribers at another or the same."""

    def __init__(self, nodes: Nodes, load: Load, version: int, qos: int, where: str) -> None:
        self._load = load
        listening = nodes.ports[1] if where == CROSSES else nodes.ports[0]
        self._subscribers = []
        for number, name in enumerate(load.filters):
            topic = f"{where}/{name}"
            sock = link(listening, version, f"{where}s{number}")
            subscribe(sock, version, topic, qos)
            size = len(publish_packet(topic, version, qos, 1))
            self._subscribers.append(Subscriber(sock, size, 2 + 2 + len(topic), qos))
        self._publishers = [
            Publisher(
                link(nodes.ports[0], version, f"{where}p{n}"),
                f"{where}/{topic}",
                version,
                qos,
                load,
            )
            for n, topic in enumerate(load.publishers)
        ]

    def run(self, messages: int) -> int:
        return drive(self._publishers, self._subscribers, self._load, messages)

    def close(self) -> None:
        socks = [one.sock for one in self._publishers] + [one.sock for one in self._subscribers]
        for sock in socks:
            sock.close()


def pairs(count: int, batch: int) -> Load:
    names = [f"{number:02d}" for number in range(count)]
    return Load("pairs", names, names, 1, batch)


def crossing_cost(
    nodes: Nodes, title: str, load: Load, version: int, qos: int, messages: int
) -> Iterator[Row]:
    """Yield the CPU of a message that crosses beside that of one that stays."""
    both = {where: Pairs(nodes, load, version, qos, where) for where in (STAYS, CROSSES)}
    for one in both.values():
        one.run(messages // SLICES)
    used = {where: [0.0, 0.0] for where in both}
    counts = dict.fromkeys(both, 0)
    for _ in range(SLICES):
        for where, one in both.items():
            before = nodes.cpu_s()
            counts[where] += one.run(messages // SLICES)
            for place, now in enumerate(nodes.cpu_s()):
                used[where][place] += now - before[place]
    for one in both.values():
        one.close()
    cost = {where: [each / counts[where] * 1e6 for each in used[where]] for where in both}
    with_nats = {where: sum(each) for where, each in cost.items()}
    ratio = with_nats[CROSSES] / with_nats[STAYS]
    yield {
        "name": f"{title}: CPU per message, crossing beside staying, µs",
        "ours": with_nats[CROSSES],
        "peer": with_nats[STAYS],
        "ratio": ratio,
        "target": f"≤ {MOST_TIMES:g} ×",
        "holds": ratio <= MOST_TIMES,
        "without_nats": cost[CROSSES][0] / cost[STAYS][0],
    }


def cost_rows(quick: bool) -> Iterator[Row]:
    """Yield the cost of crossing, at every QoS and where nothing can be sent in one go."""
    share = 5 if quick else 1
    sizes = {0: 1_000_000, 1: 150_000, 2: 80_000}
    for durability, direct in (("off", False), ("off", True), ("process", False)):
        with network_of(4, durability, direct=direct) as nodes:
            how = ", direct" if direct else ""
            for qos, messages in sizes.items():
                if durability == "process" and not qos:
                    continue
                for version, name in ((4, "MQTT 3.1.1"), (5, "MQTT 5")):
                    title = f"10 pairs, {name}, QoS {qos}, durability {durability}{how}"
                    load = pairs(10, 200)
                    yield from crossing_cost(nodes, title, load, version, qos, messages // share)
            if durability == "off":
                for qos in (0, 1):
                    title = f"100 pairs, one packet at a time, QoS {qos}{how}"
                    yield from crossing_cost(nodes, title, pairs(100, 1), 4, qos, 100_000 // share)


def city_rows(quick: bool) -> Iterator[Row]:
    """Yield how many messages cross in a moving city, beside flooding."""
    for count in (2, 4) if quick else (2, 4, 8):
        with network_of(count) as nodes:
            found = crossings(nodes, 100 if quick else 300, 5 if quick else 20, 500)
        ratio = found["flooded"] / max(1, found["crossed"])
        yield {
            "name": f"moving city, {count} nodes: publications between nodes, beside flooding",
            "ours": found["crossed"],
            "peer": found["flooded"],
            "ratio": ratio,
            "target": "≥ 3 ×" if count == 4 else "grows",
            "holds": ratio >= 3 if count == 4 else None,
            **found,
        }


def near_rows(quick: bool) -> Iterator[Row]:
    """Yield what nodes say to each other where people have `$near` and nodes a plan.

    Flooding is counted as what it is at QoS 1: a publication to every other node, and an answer.
    """
    for count in (2, 4) if quick else (2, 4, 8):
        for share in (1.0, 0.2):
            with network_of(count, spaces=[CITY]) as nodes:
                found = near_city(nodes, 200, 5 if quick else 20, share)
            ratio = 2 * found["flooded"] / max(1, found["sent"])
            often = "each" if share == 1.0 else "one in five"
            yield {
                "name": f"`$near`, {count} nodes, {often} tells at every step: messages between"
                " nodes, registrations and answers included, beside flooding with answers",
                "ours": found["sent"],
                "peer": 2 * found["flooded"],
                "ratio": ratio,
                "target": "≥ 3 ×" if count == 4 else "grows",
                "holds": ratio >= 3 if count == 4 else None,
            }
            if count == 4 and share == 1.0:
                near = (found["hops"][0] + found["hops"][1]) / sum(found["hops"].values())
                yield {
                    "name": "`$near`, 4 nodes: deliveries that cost no more than one hop, %",
                    "ours": 100 * near,
                    "target": "≥ 80 %",
                    "holds": near >= 0.8,
                }


def latency_rows(quick: bool) -> Iterator[Row]:
    """Yield p50 and p99 of a message that crosses, beside one that stays."""
    for direct in (False, True):
        times: dict[str, list[float]] = {CROSSES: [], STAYS: []}
        with network_of(4, direct=direct) as nodes:
            for _ in range(2 if quick else 5):
                for where in times:
                    port = nodes.ports[where == CROSSES]
                    times[where] += round_trips(nodes.ports[0], port, 200, 1.5 if quick else 4)
        how = ", direct" if direct else ""
        for name, place in (("p50", 49), ("p99", 98)):
            ours, peer = (statistics.quantiles(one, n=100)[place] for one in times.values())
            yield {
                "name": f"latency {name} of a message that crosses beside one that stays{how}, µs",
                "ours": ours,
                "peer": peer,
                "ratio": ours / peer,
                "target": "report",
                "holds": None,
            }


def handover_rows(quick: bool) -> Iterator[Row]:
    """Yield how long a handover takes, and how many there can be."""
    with network_of(4, spaces=[SPACE]) as nodes:
        times = latencies(nodes, 100 if quick else 500)
    cuts = statistics.quantiles(times, n=100)
    for name, place in (("p50", 49), ("p99", 98)):
        yield {
            "name": f"handover {name}, position to first event through the new holder, ms",
            "ours": cuts[place],
            "target": "≤ 50 ms" if name == "p99" else "report",
            "holds": cuts[place] <= 50 if name == "p99" else None,
        }
    times = []
    for _ in range(1 if quick else 3):
        with network_of(4, spaces=[SPACE]) as nodes:
            times.append(takeover_s(nodes))
    yield {
        "name": "a holder is killed: until events of its places arrive again, s (longest)",
        "ours": max(times),
        "target": "≤ 5 s",
        "holds": max(times) <= 5,
    }
    rates = []
    for _ in range(1 if quick else 3):
        with network_of(4, spaces=[SPACE]) as nodes:
            found = rate(nodes, 200 if quick else 400, 20 if quick else 50)
        if found["wrong"]:
            message = f"{found['wrong']:g} clients got something else than they must"
            raise RuntimeError(message)
        rates.append(found["a_second"])
    yield {
        "name": "handovers a second, 4 nodes, everybody crosses as quickly as nodes take it",
        "ours": statistics.median(rates),
        "target": "≥ 2,000",
        "holds": statistics.median(rates) >= 2_000,
    }


def run(quick: bool = False, only: str = "") -> dict[str, Any]:
    """Return the rows; `only` keeps those whose section starts so."""
    sections = {
        "cost": cost_rows,
        "city": city_rows,
        "near": near_rows,
        "latency": latency_rows,
        "handover": handover_rows,
    }
    return {"rows": rows_of(sections, quick, only)}


if __name__ == "__main__":
    by_hand(__doc__, run)
