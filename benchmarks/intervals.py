"""The interval skip list beside its peers and the box index: stabbing, ranking, changing.

    python benchmarks/intervals.py [--quick]

One core. Every row alternates ours and the peers within one run and compares medians of CPU time;
all answer the same values over the same intervals. Peers: superintervals (static), ncls (static,
bulk), intervaltree (dynamic), sortedcontainers (end points in order, dynamic; it answers nothing).
One by one is compared with one by one, bulk with bulk. A row says what was asked for, and whether
it holds. Rates are per second.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
from intervaltree import IntervalTree
from ncls import NCLS
from numpy.typing import NDArray
from sortedcontainers import SortedKeyList
from superintervals import IntervalMap

from nearcast.index import BoxIndex, IntervalSkipList
from nearcast.kernels import load

SPAN = 1_000_000_000  # whole numbers below 2**31: superintervals knows no others
EXTENT = (0.0, 2.0 * SPAN)
ROUNDS = 5
Row = dict[str, Any]
Floats = NDArray[np.float64]


class Workload:
    """Intervals that start anywhere, so wide that a value has about `matches` of them."""

    def __init__(self, count: int, matches: int, extra: int = 0) -> None:
        rng = np.random.default_rng(7)
        mean = SPAN * matches / count
        lows = rng.integers(0, SPAN, count + extra)
        highs = lows + rng.integers(1, max(2, round(2 * mean)), count + extra)
        self.count = count
        self.matches = matches
        self.keys = np.arange(count + extra)
        self.lows = lows.astype(np.float64)
        self.highs = highs.astype(np.float64)
        asked = max(50, min(20_000, 5_000_000 // matches // 10))
        self.values = rng.integers(0, SPAN, asked).astype(np.float64)

    def ours(self) -> IntervalSkipList:
        n = self.count
        return IntervalSkipList.from_arrays(
            self.keys[:n], self.lows[:n], self.highs[:n], extent=EXTENT
        )

    def superintervals(self) -> Any:
        n = self.count
        lows, highs = self.lows[:n].astype(np.int32), self.highs[:n].astype(np.int32)
        return IntervalMap.from_arrays(lows, highs, list(range(n)))

    def ncls(self) -> Any:
        n = self.count
        starts, ends = self.lows[:n].astype(np.int64), self.highs[:n].astype(np.int64) + 1
        return NCLS(starts, ends, self.keys[:n].astype(np.int64))


def seconds_each(actions: dict[str, Callable[[], object]], times: int) -> dict[str, float]:
    """Return the median CPU time of each action, divided by `times`; they take turns."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(ROUNDS):
        for name, action in actions.items():
            start = time.process_time()
            action()
            taken[name].append((time.process_time() - start) / times)
    return {name: statistics.median(each) for name, each in taken.items()}


def each(function: Callable[..., object], values: list[Any]) -> Callable[[], None]:
    def run() -> None:
        for value in values:
            function(value)

    return run


def row(name: str, ours: float, peers: dict[str, float], target: str, holds: bool | None) -> Row:
    """Return a line of the table; rates are per second, `ratio` is to the fastest peer."""
    best = max(peers.values(), default=None)
    return {
        "name": name,
        "ours": ours,
        "peers": peers,
        "ratio": None if best is None else ours / best,
        "target": target,
        "holds": holds,
    }


def rates(seconds: dict[str, float]) -> dict[str, float]:
    return {name: 1 / taken for name, taken in seconds.items()}


def stabbing(work: Workload) -> list[Row]:
    ours, theirs, bulk = work.ours(), work.superintervals(), work.ncls()
    values = work.values
    singles = values.tolist()
    whole = values.astype(np.int64)
    whole32 = values.astype(np.int32)
    wholes = whole.tolist()
    order = np.arange(len(values))
    got = rates(
        seconds_each(
            {
                "stab": each(ours.stab, singles),
                "stab_many": lambda: ours.stab_many(values),
                "superintervals one by one": each(lambda x: theirs.search_values(x, x), wholes),
                "superintervals in bulk": lambda: theirs.search_values_batch(whole32, whole32),
                "ncls in bulk": lambda: bulk.all_overlaps_both(whole, whole + 1, order),
            },
            len(values),
        )
    )
    pairs = {
        "stab": ("superintervals one by one",),
        "stab_many": ("superintervals in bulk", "ncls in bulk"),
    }
    return [
        row(
            f"{name}, {work.matches:,} matches",
            got[name],
            {peer: got[peer] for peer in peers},
            ">= superintervals",
            got[name] >= got[peers[0]],
        )
        for name, peers in pairs.items()
    ]


def after_changes(work: Workload, extra: int) -> Row:
    """Stab after additions that have not been merged with the rest, beside the fresh list."""
    fresh, aged = work.ours(), work.ours()
    for key in range(work.count, work.count + extra):
        aged.add(key, work.lows[key], work.highs[key], age=key)
    singles = work.values[:5000].tolist()
    got = rates(
        seconds_each({"aged": each(aged.stab, singles), "fresh": each(fresh.stab, singles)}, 5000)
    )
    name = f"stab after {extra:,} adds, {work.matches:,} matches"
    return row(name, got["aged"], {"fresh list": got["fresh"]}, "(none)", None)


def growing(count: int, matches: int) -> Row:
    """Add all intervals one by one to an empty list, every merge included."""
    work = Workload(count, matches)
    rows = list(zip(range(count), work.lows.tolist(), work.highs.tolist(), strict=True))
    index = IntervalSkipList(EXTENT)
    start = time.process_time()
    for key, low, high in rows:
        index.add(key, low, high, age=key)
    rate = count / (time.process_time() - start)
    return row(f"add from nothing to {count:,}, {matches:,} matches", rate, {}, "(none)", None)


def ranking(count: int) -> list[Row]:
    few, many = Workload(count, 100), Workload(count, min(10_000, count // 10))
    few_index, many_index, theirs = few.ours(), many.ours(), many.superintervals()
    widths = many.highs - many.lows

    def collect_and_select(x: int) -> object:
        found = np.array(theirs.search_idxs(x, x))
        return found[np.argpartition(widths[found], 10)[:10]] if len(found) > 10 else found

    def collect_values_and_select(x: int) -> object:
        found = np.array(theirs.search_values(x, x))
        return found[np.argpartition(widths[found], 10)[:10]] if len(found) > 10 else found

    singles = many.values[:50].tolist()
    wholes = many.values[:50].astype(np.int64).tolist()
    slow = seconds_each(
        {
            "superintervals indexes + argpartition": each(collect_and_select, wholes),
            "superintervals values + argpartition": each(collect_values_and_select, wholes),
        },
        50,
    )
    more = np.random.default_rng(3).integers(0, SPAN, 5000).astype(np.float64).tolist()
    quick = seconds_each(
        {
            "many": each(lambda x: many_index.top(x, 10), more),
            "few": each(lambda x: few_index.top(x, 10), more),
        },
        len(more),
    )
    others = seconds_each(
        {
            rank: each(lambda x, rank=rank: many_index.top(x, 10, rank), singles)
            for rank in ("weight", "centre")
        },
        50,
    )
    peers = rates(slow)
    ratio = 1 / quick["many"] / max(peers.values())
    rows = [
        row(f"top 10 of {many.matches:,}", 1 / quick["many"], peers, ">= 50 x", ratio >= 50),
        row(
            "top 10 of 100, and its time against that",
            1 / quick["few"],
            {"top 10 of many": 1 / quick["many"]},
            "ratio <= 2",
            quick["many"] <= 2 * quick["few"],
        ),
    ]
    for rank, taken in others.items():
        rows.append(row(f"top 10 of {many.matches:,} by {rank}", 1 / taken, peers, "(none)", None))
    return rows


def changing(count: int, matches: int) -> list[Row]:
    """Measure `add` and `remove` at `count` intervals, in turns with peers that can change."""
    extra = max(2000, count // 20)
    few = max(200, extra // 25)
    work = Workload(count, matches, extra)
    n, lows, highs = count, work.lows.tolist(), work.highs.tolist()
    fresh = list(zip(range(n, n + extra), lows[n:], highs[n:], strict=True))
    shuffled = np.random.default_rng(5).permutation(np.arange(n, n + extra)).tolist()
    ours = work.ours()
    tree_size = count if matches == 10_000 else min(count, 100_000)  # it takes a minute to build
    tree = IntervalTree.from_tuples((lows[i], highs[i], i) for i in range(tree_size))
    sorted_list = SortedKeyList(range(n), key=lambda i: lows[i])

    def add_ours() -> None:
        for key, low, high in fresh:
            ours.add(key, low, high, age=key)

    def add_theirs() -> None:
        for key, low, high in fresh[:few]:
            tree.addi(low, high, key)

    def remove_theirs() -> None:
        for key, low, high in fresh[:few]:
            tree.removei(low, high, key)

    def add_sorted() -> None:
        for key in range(n, n + extra):
            sorted_list.add(key)

    got: dict[str, list[float]] = {}

    def note(name: str, action: Callable[[], object], times: int) -> None:
        start = time.process_time()
        action()
        got.setdefault(name, []).append(times / (time.process_time() - start))

    for _ in range(ROUNDS):
        note("add", add_ours, extra)
        note("tree add", add_theirs, few)
        note("sorted add", add_sorted, extra)
        note("remove", each(ours.remove, shuffled), extra)
        note("tree remove", remove_theirs, few)
        note("sorted remove", each(sorted_list.remove, shuffled), extra)
    rows = []
    for name in ("add", "remove"):
        rate = statistics.median(got[name])
        tree_rate = statistics.median(got[f"tree {name}"])
        peers = {f"intervaltree (at {tree_size:,})": tree_rate}
        holds = rate >= 200_000 and rate >= 20 * tree_rate
        line = row(f"{name}, {matches:,} matches", rate, peers, ">= 200 k/s, >= 20 x", holds)
        line["sortedcontainers, end points only"] = statistics.median(got[f"sorted {name}"])
        rows.append(line)
    return rows


def job_site(count: int) -> list[Row]:
    """Compare with a box index where a hundredth of the intervals match: the best five, adding."""
    work = Workload(count, count // 100, 5_000)
    n, lows, highs = count, work.lows, work.highs
    random = np.random.default_rng(2)
    weights = random.random(count + 5_000)
    ours = IntervalSkipList.from_arrays(
        work.keys[:n], lows[:n], highs[:n], weights=weights[:n], extent=EXTENT
    )
    boxes = BoxIndex.from_arrays(
        work.keys[:n], lows[:n, None], highs[:n, None],
        weights=weights[:n], extent=([EXTENT[0]], [EXTENT[1]]),
    )  # fmt: skip
    values = random.integers(0, SPAN, 1_000).astype(np.float64).tolist()
    points = [(value,) for value in values]
    rows = []
    ranks: tuple[Any, ...] = ("narrowest", "weight", "centre", {"narrowest": 0.7, "weight": 0.3})
    for rank in ranks:
        some = len(values) if rank == "narrowest" else 100
        got = rates(
            seconds_each(
                {
                    "ours": each(lambda x, rank=rank: ours.top(x, 5, rank), values[:some]),
                    "box index": each(lambda p, rank=rank: boxes.top(p, 5, rank), points[:some]),
                },
                some,
            )
        )
        rows.append(
            row(f"best 5 of {n // 100:,} by {rank}", got["ours"],
                {"box index": got["box index"]}, "(none)", None)
        )  # fmt: skip
    new = list(zip(range(n, n + 5_000), lows[n:].tolist(), highs[n:].tolist(), strict=True))

    def add_ours() -> None:
        for key, low, high in new:
            ours.add(key, low, high, age=key)
        for key, _, _ in new:
            ours.remove(key)

    def add_boxes() -> None:
        for key, low, high in new:
            boxes.add(key, (low,), (high,))
        for key, _, _ in new:
            boxes.remove(key)

    got = rates(seconds_each({"ours": add_ours, "box index": add_boxes}, len(new)))
    rows.append(
        row("added and removed again", got["ours"], {"box index": got["box index"]},
            ">= box index", got["ours"] >= got["box index"])
    )  # fmt: skip
    return rows


FIRST_ANSWER = """
from nearcast.index import IntervalSkipList
index = IntervalSkipList((0.0, 9.0))
index.add(1, 0.0, 2.0)
assert index.top(1.0, 1)[0][2] == 1
assert index.stab(1.0)[0] == 1
import time
print(time.process_time())
"""


def first_answer() -> Row:
    """Measure a fresh process from its start to its first answers; compiled code is on disk."""
    command = [sys.executable, "-c", FIRST_ANSWER]
    taken = [
        float(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(4)
    ]
    seconds = statistics.median(taken[1:])
    return row("first answer of a fresh process, processor s", seconds, {}, "< 1 s", seconds < 1)


def run(quick: bool) -> dict[str, Any]:
    """Measure everything; `quick` is for every day, with a tenth of the intervals."""
    load(["matching"])
    count = 100_000 if quick else 1_000_000
    rows: list[Row] = []
    for matches in (10, 100, 10_000):
        rows += stabbing(Workload(count, matches))
    rows.append(after_changes(Workload(count, 10, count // 20), count // 20))
    rows += ranking(count)
    rows += job_site(count)
    for matches in (10, 100, 10_000):
        rows += changing(count, matches)
    rows += [growing(count, 10), growing(count, 10_000)]
    rows.append(first_answer())
    start = time.process_time()
    built = Workload(count, 10).ours()
    build_s = time.process_time() - start
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return {
        "rows": rows,
        "intervals": count,
        "build_s": build_s,
        "bytes_per_interval": built.nbytes / count,
        "machine": machine,
        "versions": {
            name: version(name)
            for name in ("numba", "numpy", "superintervals", "ncls", "intervaltree")
        },
    }


def show(result: dict[str, Any]) -> None:
    print(f"{result['intervals']:,} intervals; {result['machine']}; {result['versions']}")
    for line in result["rows"]:
        verdict = {True: "holds", False: "FALLS SHORT", None: ""}[line["holds"]]
        peers = ", ".join(f"{name} {rate:,.0f}" for name, rate in line["peers"].items())
        ratio = "" if line["ratio"] is None else f"x{line['ratio']:.2f}"
        print(f"{line['name']:48} {line['ours']:>12,.1f}  {ratio:9}"
              f" {line['target']:22} {verdict:12} {peers}")  # fmt: skip
    print(f"build {result['build_s']:.2f} s, {result['bytes_per_interval']:.0f} bytes an interval")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    outcome = run(arguments.quick)
    show(outcome)
    if arguments.json:
        with open(arguments.json, "w") as target:  # noqa: PTH123
            json.dump(outcome, target, indent=1)
