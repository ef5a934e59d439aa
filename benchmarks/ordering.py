"""Δ-causal order beside the three algorithms of the paper, in one run.

    python benchmarks/ordering.py [--quick | --long]

One trace of sends and arrivals is made for each size and pattern, and every algorithm replays
it; replays alternate, and the quickest counts, chunk by chunk. Computation is time of send
and receive alone ("in memory"), and from and to bytes ("on the wire"). "In batches": every process
takes what has arrived within 5 ms at once, at ten times the traffic. A message is one multicast
send; an operation is one send or one receive, which is what a single node does for a message.

`--long` follows the memory of 8 processes over 10 million messages, and nothing else.
The whole experiment of the paper is `nearcast reproduce --paper 2`.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nearcast.ordering import CausalMessage, CausalProcess, DeltaCausal
from nearcast.papers.delta_causal.experiment import (
    ALGORITHMS,
    PAYLOAD,
    CausalPoint,
    Traffic,
)
from nearcast.papers.delta_causal.oracle import unordered_row

CHUNK = 200
Step = tuple[bool, float, int, Any]
"""(is a send, time, sender or number of the send, destinations or destination)."""


def trace(point: CausalPoint) -> list[Step]:
    traffic, number = Traffic(point), 0
    steps: list[Step] = []
    for now_s, what in traffic.events():
        if isinstance(what, int):
            wanted = traffic.choose(what)
            steps.append((True, now_s, what, wanted))
            for to in sorted(wanted):
                traffic.travels(to, number, b"", now_s)
            number += 1
        else:
            steps.append((False, now_s, what.number, what.to))
    return steps


def replay(
    kind: type[CausalProcess], point: CausalPoint, steps: list[Step], wire: bool
) -> list[float]:
    """Seconds of one replay, for every `CHUNK` steps."""
    processes = [kind(process=p, lifetime=point.lifetime_s) for p in range(point.processes)]
    copies: list[dict[Any, Any]] = []
    took = []
    for begin in range(0, len(steps), CHUNK):
        start = time.perf_counter()
        for is_send, now_s, one, other in steps[begin : begin + CHUNK]:
            if is_send:
                sent: dict[Any, Any] = processes[one].send(other, PAYLOAD, now_s)
                copies.append({to: m.encode() for to, m in sent.items()} if wire else sent)
            else:
                processes[other].receive(copies[one].pop(other), now_s)
        took.append(time.perf_counter() - start)
    return took


def replay_batches(
    kind: type[CausalProcess], point: CausalPoint, steps: list[Step], turn_s: float
) -> list[float]:
    """Seconds of one replay in which processes take arrivals in turns, `CHUNK` steps each."""
    processes = [kind(process=p, lifetime=point.lifetime_s) for p in range(point.processes)]
    copies: list[dict[Any, bytes]] = []
    inboxes: list[list[bytes]] = [[] for _ in processes]
    took, end_s = [], turn_s
    for begin in range(0, len(steps), CHUNK):
        start = time.perf_counter()
        for is_send, now_s, one, other in steps[begin : begin + CHUNK]:
            if now_s >= end_s:
                for process, inbox in zip(processes, inboxes, strict=True):
                    for data in inbox:
                        process.receive(data, now_s)
                    inbox.clear()
                end_s = now_s + turn_s
            if is_send:
                sent: dict[Any, CausalMessage] = processes[one].send(other, PAYLOAD, now_s)
                copies.append({to: m.encode() for to, m in sent.items()})
            else:
                inboxes[other].append(copies[one].pop(other))
        took.append(time.perf_counter() - start)
    return took


def control_bytes(kind: type[CausalProcess], point: CausalPoint, steps: list[Step]) -> float:
    """Mean bytes of a copy, the first third thrown away."""
    processes = [kind(process=p, lifetime=point.lifetime_s) for p in range(point.processes)]
    copies: list[dict[Any, CausalMessage]] = []
    total = count = 0
    skip = sum(step[0] for step in steps) // 3
    for is_send, now_s, one, other in steps:
        if is_send:
            sent: dict[Any, CausalMessage] = processes[one].send(other, PAYLOAD, now_s)
            copies.append(sent)
            if len(copies) > skip:
                total += sum(len(one.encode()) - len(PAYLOAD) for one in sent.values())
                count += len(sent)
        else:
            processes[other].receive(copies[one].pop(other), now_s)
    return total / count


def timed(point: CausalPoint, how: str, rounds: int) -> tuple[dict[str, float], int, int]:
    """Undisturbed µs per operation by algorithm, how many operations, how many sends.

    The first third is thrown away.

    Every round does the same, so the quickest of all rounds counts, chunk by chunk: a chunk
    is shorter than the turn that a busy machine gives to somebody else. Wall time, then: to ask
    for CPU time takes up to 0.1 ms on some machines, and would be measured along.
    """
    steps = trace(point)
    best: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, kind in ALGORITHMS.items():
            if how == "in batches":
                took = replay_batches(kind, point, steps, 0.005)
            else:
                took = replay(kind, point, steps, how == "on the wire")
            best[name] = list(map(min, best.get(name, took), took))
    skip = len(steps) // CHUNK // 3  # processes that still find room for their tables
    steps = steps[skip * CHUNK :]
    sends = sum(step[0] for step in steps)
    return {name: 1e6 * sum(t[skip:]) / len(steps) for name, t in best.items()}, len(steps), sends


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def memory(messages: int) -> Iterator[tuple[int, int, int, int]]:
    """(messages, tables in bytes, entries, resident bytes) at ten moments of one long run."""
    processes = [DeltaCausal(process=p, lifetime=0.25) for p in range(8)]
    for step in range(1, messages + 1):
        now = 1.0 + step * 0.002
        sender = step * 5 % 8
        for to, copy in (
            processes[sender].send({(sender + 1) % 8, (sender + 3) % 8}, b"", now).items()
        ):
            if (step + int(to)) % 50:
                processes[int(to)].receive(copy, now + 0.001)
        if step % (messages // 10) == 0:
            tables = sum(p.size_bytes for p in processes)
            kept = sum(p.footprint for p in processes)
            yield step, tables, kept, resident_bytes()


def row(
    name: str, ours: float, peers: dict[str, float], ratio: float, target: str, holds: bool
) -> dict[str, Any]:
    return {
        "name": name,
        "ours": ours,
        "peers": peers,
        "ratio": ratio,
        "target": target,
        "holds": holds,
    }


def rows_of_bytes(quick: bool) -> list[dict[str, Any]]:
    rows, sends = [], 600 if quick else 4_000
    for pattern, lifetime_s in (("subsets", 0.25), ("groups", 0.25), ("groups", 2.0)):
        size = {}
        for n in (20, 50):
            warm = int(n * 3 * lifetime_s / 0.1)
            point = CausalPoint(
                processes=n, pattern=pattern, lifetime_s=lifetime_s, warm_up=0, sends=sends + warm
            )
            steps = trace(point)
            size[n] = {name: control_bytes(kind, point, steps) for name, kind in ALGORITHMS.items()}
        ours, peers = size[50]["ours"], {k: v for k, v in size[50].items() if k != "ours"}
        label = f"control bytes per copy, n = 50, {pattern}, lifetime {lifetime_s} s"
        rows.append(
            row(
                f"{label}: against KS",
                ours,
                peers,
                ours / peers["KS"],
                "≤ 1.1",
                ours <= 1.1 * peers["KS"],
            )
        )
        rows += [
            row(
                f"{label}: against {peer}",
                ours,
                peers,
                ours / peers[peer],
                "≤ 0.5",
                2 * ours <= peers[peer],
            )
            for peer in ("PRS", "RST")
        ]
        growth = ours / size[20]["ours"]
        rows.append(
            row(
                f"control bytes, n = 50 over n = 20, {pattern}, {lifetime_s} s",
                growth,
                {},
                growth,
                "≤ 2.75 (linear: 2.5)",
                growth <= 2.75,
            )
        )
    return rows


def rows_of_time(quick: bool) -> list[dict[str, Any]]:
    rows, rounds = [], 3 if quick else 7
    for pattern in ("subsets", "groups"):
        for how in ("in memory", "on the wire"):
            sends = (250 if pattern == "subsets" else 800) * (1 if quick else 4)
            took, _, _ = timed(
                CausalPoint(processes=50, pattern=pattern, warm_up=0, sends=sends), how, rounds
            )
            ours, peers = took["ours"], {k: v for k, v in took.items() if k != "ours"}
            for peer, times in (("KS", 3), ("RST", 1), ("PRS", 1)):
                rows.append(
                    row(
                        f"µs per operation, n = 50, {pattern}, {how}: against {peer}",
                        ours,
                        peers,
                        peers[peer] / ours,
                        f"≥ {times}",
                        peers[peer] >= times * ours,
                    )
                )
    for how in ("in memory", "on the wire", "in batches"):
        rows += rows_of_rate(how, 800 if quick else 5_000, rounds)
    return rows


def rows_of_rate(how: str, sends: int, rounds: int) -> list[dict[str, Any]]:
    """What one core does at n = 20: sends and receives, and whole multicasts."""
    gap_s = 0.01 if how == "in batches" else 0.1
    point = CausalPoint(processes=20, pattern="groups", warm_up=0, sends=sends, mean_gap_s=gap_s)
    took, steps, sends = timed(point, how, rounds)
    rate = 1e6 / took["ours"]
    whole = {name: sends / steps * 1e6 / us for name, us in took.items()}
    peers = {name: value for name, value in whole.items() if name != "ours"}
    label = f"multicasts/s with all {steps / sends - 1:.1f} receives, n = 20, {how}"
    return [
        row(
            f"sends and receives/s on one core, n = 20, groups, {how}",
            rate,
            {},
            rate / 50_000,
            "≥ 50,000",
            rate >= 50_000,
        ),
        row(
            label,
            whole["ours"],
            peers,
            whole["ours"] / 50_000,
            "≥ 50,000",
            whole["ours"] >= 50_000,
        ),
    ]


def rows_of_memory(quick: bool) -> list[dict[str, Any]]:
    seen = list(memory(20_000 if quick else 500_000))
    (_, first, kept, _), (last_step, last, kept_last, _) = seen[0], seen[-1]
    label = f"bytes of all tables after {last_step:,} messages ({kept_last} entries; was {kept})"
    return [
        row(label, last, {"after a tenth": first}, last / first, "≤ 1.0", last <= first),
    ]


def rows_without_order(quick: bool) -> list[dict[str, Any]]:
    rows = []
    for pattern in ("subsets", "groups"):
        point = CausalPoint(
            processes=20, pattern=pattern, warm_up=0, sends=1_000 if quick else 10_000
        )
        bare = unordered_row(point)
        share = bare["wrong"] / bare["delivered"]
        label = f"deliveries in the wrong order without ordering, n = 20, {pattern}"
        delivered = {"delivered": bare["delivered"]}
        rows.append(row(label, bare["wrong"], delivered, share, "> 0", share > 0))
    return rows


def long_run(messages: int) -> None:
    for step, tables, kept, resident in memory(messages):
        print(f"{step:>12,} messages  tables {tables:,} B  entries {kept}  resident {resident:,} B")


def run(quick: bool) -> dict[str, Any]:
    rows = rows_of_bytes(quick) + rows_of_time(quick) + rows_of_memory(quick)
    rows += rows_without_order(quick)
    return {
        "name": "ordering",
        "python": platform.python_version(),
        "machine": platform.machine(),
        "rows": rows,
    }


def main() -> None:
    if "--long" in sys.argv:
        long_run(10_000_000)
        return
    for entry in run("--quick" in sys.argv)["rows"]:
        peers = ", ".join(f"{name} {value:,.1f}" for name, value in entry["peers"].items())
        verdict = "holds" if entry["holds"] else "FALLS SHORT"
        left = f"{entry['name']:<78} {entry['ours']:>12,.1f}  ratio {entry['ratio']:5.2f}"
        print(f"{left}  {entry['target']:<10} {verdict}  [{peers}]", flush=True)


if __name__ == "__main__":
    main()
