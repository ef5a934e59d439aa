"""The broker beside Mosquitto and other brokers: the same load on all, by turns, in one run.

Figures are messages delivered per second of broker CPU (from `/proc/<pid>`), so that a busy
machine and the load generator's own cost do not count. Both brokers run at the same time and get
the load in slices by turns, so that both meet the same machine; the ratio is that of all slices
together, and the spread is over slices.

    python -m benchmarks.broker --quick

The first rows are what fleets send, one small packet a read; then come senders in bulk.
`broker_processes.py` starts the brokers, `peers.py` has those that are not ours,
`broker_paced.py` and `broker_load.py` talk to them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import broker_idle, broker_latency, peers
from benchmarks.broker_load import (
    CROWD,
    FAN_IN,
    FAN_OUT,
    MIXED,
    PAIRS,
    PAYLOAD,
    Clients,
    Load,
    framed,
    link,
    read_exactly,
    read_packet,
    string,
)
from benchmarks.broker_paced import DURABLE_LOADS, LOADS, connects, measured
from benchmarks.broker_processes import (
    AMQTT,
    DURABLE,
    LOGGED,
    OURS,
    POWER,
    SAVING,
    TICKS,
    Broker,
    running,
)
from benchmarks.sections import by_hand, rows_of

from nearcast import compiled_core

Row = dict[str, Any]
SLICES = 10
PEER = peers.newest("mosquitto")
BULK = (OURS, PEER, *peers.of("flashmq"))


# --- tasks: what is measured at one broker ---------------------------------------------------


def retained(broker: Broker, version: int, topics: int, newcomers: int) -> float:
    """Return retained messages per second of broker CPU."""
    sock = link(broker.port, version, "keeper")
    properties = b"\0" if version == 5 else b""
    for number in range(topics):
        body = string(f"r/{number:05d}") + properties + b"x" * PAYLOAD
        sock.sendall(framed(0x31, body))
    sock.sendall(b"\xc0\0")
    read_packet(sock)
    size = len(framed(0x31, string("r/00000") + properties + b"x" * PAYLOAD))
    clients = [link(broker.port, version, f"n{number}") for number in range(newcomers)]
    before = broker.cpu_s()
    request = framed(0x82, b"\0\1" + properties + string("#") + b"\0")
    for client in clients:
        client.sendall(request)
    for client in clients:
        read_exactly(client, 5 + len(properties))
        wanted = size * topics
        while wanted:
            wanted -= len(client.recv(min(wanted, 1 << 18)))
    used_s = broker.cpu_s() - before
    for client in [sock, *clients]:
        client.close()
    return topics * newcomers / used_s


def wall_rate(broker: Broker, messages: int) -> float:
    """Return deliveries per second of wall clock, for loads that wait for the disk."""
    clients = Clients(broker.port, FAN_IN, 4, 1, durable=True)
    started = time.perf_counter()
    delivered = clients.run(messages)
    rate = delivered / (time.perf_counter() - started)
    clients.close()
    return rate


# --- comparisons -------------------------------------------------------------------------------


def compared(
    name: str,
    figures: dict[str, list[float]],
    target: float,
    *,
    lower_is_better: bool = False,
    means: dict[str, float] | None = None,
) -> Row:
    """Return a row: the first kind beside all others; the ratio is that to the second."""
    means = means or {kind: statistics.median(all_) for kind, all_ in figures.items() if all_}
    ours, peer, *more = means.values()
    ratio = ours / peer
    return {
        "name": name,
        "ours": ours,
        "peer": peer,
        **({"peers": dict(list(means.items())[1:])} if more else {}),
        "ratio": ratio,
        "target": f"{'≤' if lower_is_better else '≥'} {target:g} ×",
        "holds": ratio <= target if lower_is_better else ratio >= target,
        "spread": {kind: [min(all_), max(all_)] for kind, all_ in figures.items()},
    }


def versus(
    name: str,
    kinds: tuple[str, str],
    task: Callable[[Broker], float],
    target: float,
    rounds: int,
) -> Row:
    """Run a task on a fresh broker of each kind, alternating; compare the medians."""
    figures: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            with running(kind) as broker:
                figures[kind].append(task(broker))
    return compared(name, figures, target)


def side_by_side(
    name: str,
    kinds: tuple[str, ...],
    load: Load,
    version: int,
    qos: int,
    messages: int,
    target: float,
    *,
    durable: bool = False,
    with_family: bool = False,
) -> Row:
    """Put a load on brokers in slices, by turns; compare deliveries per second of CPU."""
    figures: dict[str, list[float]] = {kind: [] for kind in kinds}
    delivered, used_s = dict.fromkeys(kinds, 0), dict.fromkeys(kinds, 0.0)
    with contextlib.ExitStack() as stack:
        sides = []
        for kind in kinds:
            broker = stack.enter_context(running(kind))
            clients = Clients(broker.port, load, version, qos, durable=durable)
            stack.callback(clients.close)
            clients.run(messages // SLICES)  # a warm-up
            sides.append((kind, broker, clients))
        for _ in range(SLICES):
            for kind, broker, clients in sides:
                used = broker.family_cpu_s if with_family else broker.cpu_s
                before_s = used()
                count = clients.run(messages // SLICES)
                spent_s = used() - before_s
                delivered[kind] += count
                used_s[kind] += spent_s
                figures[kind].append(count / max(spent_s, 1 / TICKS))
    means = {kind: delivered[kind] / used_s[kind] for kind in kinds}
    return compared(name, figures, target, means=means)


# --- rows --------------------------------------------------------------------------------------


def protocol(version: int) -> str:
    return "MQTT 3.1.1" if version == 4 else "MQTT 5"


def paced_kinds() -> list[str]:
    """Return ours, the Mosquitto that ratios are to, and all other peers."""
    return list(dict.fromkeys([OURS, PEER, *peers.quick()]))


def paced_rows(quick: bool) -> Iterator[Row]:
    """Yield what fleets send: one small packet a read; and CONNECTs."""
    rounds, seconds = (3, 0.7) if quick else (5, 3.0)
    kinds = paced_kinds()
    for load in LOADS:
        yield compared(load.name, measured(load, kinds, rounds, seconds), 1)
    for load in DURABLE_LOADS:
        figures = measured(load, (DURABLE, OURS), rounds, seconds)
        yield compared(f"{load.name}, durability process beside off", figures, 0.9)
    figures = connects(kinds, rounds, 300 if quick else 3_000)
    yield compared("CONNECT and DISCONNECT, one after the other", figures, 1)


def throughput_rows(quick: bool) -> Iterator[Row]:
    """Yield fan-in, fan-out and pairs at every QoS, each version, durability off and process."""
    sizes = {0: 500_000, 1: 120_000, 2: 40_000}
    for load in (FAN_IN, FAN_OUT, PAIRS):
        for qos in (0, 1, 2):
            messages = sizes[qos] // load.copies * (2 if load.copies > 1 else 1)
            if quick:
                messages //= 4
            for version in (4, 5):
                title = f"{load.name}, QoS {qos}, {protocol(version)}"
                yield side_by_side(title, BULK, load, version, qos, messages, 3)
                if qos:
                    title += ", durability process"
                    kinds = (DURABLE, PEER)
                    yield side_by_side(title, kinds, load, version, qos, messages, 1, durable=True)


def mixed_rows(quick: bool) -> Iterator[Row]:
    """Yield rows in which packets do not repeat themselves, and the crowd."""
    messages = 100_000 if quick else 400_000
    for version in (4, 5):
        title = f"fan-in, QoS 0, {protocol(version)}, topics and sizes change with every packet"
        yield side_by_side(title, (OURS, PEER), MIXED, version, 0, messages, 3)
    title = "crowd: 1,000 publishers, one packet a read, 100 subscribers, QoS 0"
    for version in (4, 5):
        name = f"{title}, {protocol(version)}"
        yield side_by_side(name, (OURS, PEER), CROWD, version, 0, 50_000 if quick else 200_000, 1)


def retained_rows(quick: bool) -> Iterator[Row]:
    """Yield how fast newcomers get what is retained."""
    for version in (4, 5):
        yield versus(
            f"retained to 20 newcomers on #, 5,000 topics, {protocol(version)}",
            (OURS, PEER),
            lambda broker, version=version: retained(broker, version, 5_000, 20),  # type: ignore[misc]
            3,
            1 if quick else 3,
        )


def latency_rows(quick: bool) -> Iterator[Row]:
    """Yield p50 and p99 of pairs at two rates."""
    rounds, seconds = (1, 1.0) if quick else (5, 3.0)
    for name, figures in broker_latency.rows(paced_kinds(), rounds, seconds):
        yield compared(name, figures, 1.0 if "p50" in name else 1.2, lower_is_better=True)


def resource_rows(quick: bool) -> Iterator[Row]:
    """Yield memory and pings of idle connections, and the time to start."""
    idle = broker_idle.measured((OURS, PEER), *((1_000, 3.0) if quick else (50_000, 20.0)))
    for place, what, most in ((1, "bytes each", 5_000), (2, "% of a core for their pings", 2)):
        figures = {kind: [float(one[place])] for kind, one in idle.items()}
        row = compared(f"{idle[OURS].connections:,} idle connections: {what}", figures, 1)
        yield {**row, "target": f"≤ {most:,}", "holds": figures[OURS][0] <= most}
    starts: dict[str, list[float]] = {OURS: [], PEER: []}
    for _ in range(1 if quick else 5):
        for kind, found in starts.items():
            with running(kind) as broker:
                found.append(broker.start_s)
    row = compared("start of the process to first accepted connection, s (wall)", starts, 1)
    yield {**row, "target": "< 2 s", "holds": max(starts[OURS]) < 2}


def cost_rows(quick: bool) -> Iterator[Row]:
    """Yield what the event log and durability `power` cost."""
    messages = 600_000 if quick else 4_000_000
    title = "fan-in, QoS 0, event log full, beside ours without"
    kinds = (LOGGED, OURS)
    yield side_by_side(title, kinds, FAN_IN, 4, 0, messages, 0.75)
    title += ", its writing process counted"
    row = side_by_side(title, kinds, FAN_IN, 4, 0, messages, 0.75, with_family=True)
    yield {**row, "target": "report", "holds": None}
    few = 5_000 if quick else 20_000
    row = versus(
        "fan-in, QoS 1, durability power; peer saves on every change (wall clock)",
        (POWER, SAVING),
        lambda broker: wall_rate(broker, few),
        0,
        1 if quick else 3,
    )
    yield {**row, "target": "report", "holds": None}


def amqtt_rows(quick: bool) -> Iterator[Row]:
    """Compare bulk loads with amqtt too, where it is installed; they have to be small."""
    if importlib.util.find_spec("amqtt") is None:
        yield {"name": "beside amqtt: not installed (pip install amqtt)", "holds": None}
        return
    messages = 2_000 if quick else 6_000
    for load in (FAN_IN, FAN_OUT, PAIRS):
        small = Load(load.name, load.publishers, load.filters, load.copies, 10)
        for qos in (0, 1, 2):
            title = f"{load.name}, QoS {qos}, MQTT 3.1.1, beside amqtt"
            yield side_by_side(title, (OURS, AMQTT), small, 4, qos, messages // load.copies, 1)


def run(quick: bool = False, only: str = "") -> dict[str, Any]:
    """Return the rows of all comparisons; `only` keeps those whose section starts so."""
    if not peers.of("mosquitto"):
        return {"rows": [], "skipped": "mosquitto is not installed"}
    sections = {
        "paced": paced_rows,
        "throughput": throughput_rows,
        "mixed": mixed_rows,
        "retained": retained_rows,
        "latency": latency_rows,
        "resources": resource_rows,
        "cost": cost_rows,
        "amqtt": amqtt_rows,
    }
    core = compiled_core.described()
    rows = rows_of(sections, quick, only)
    return {"rows": rows, "peer": PEER, "missing": peers.missing(), "core": core}


if __name__ == "__main__":
    by_hand(__doc__, run)
