"""`BoxIndex` beside its peers: shapely's STRtree, rtree, a NumPy scan. One core.

Ours and a peer take turns inside one run, and ratios are between medians, so a busy machine
slows both. Times are processor time of this process. `run(quick)` returns the rows.

    python benchmarks/boxes.py [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.workloads import Workload, workload

from nearcast.index import BoxIndex

EVENTS = {"U2": 100_000, "U4": 30_000, "S10": 8_000, "C4": 4_000, "Z": 30_000, "P3": 4_000,
          "A4": 30_000, "U8": 4_000, "H10": 8_000}  # fmt: skip

FULL = f"{1_000_000:.0e}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; figures are per second unless the name says otherwise."""

    name: str
    ours: float
    peer: str
    peer_figure: float
    ratio: float
    target: str
    holds: bool | None


def seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def taking_turns(
    ours: Callable[[], object], peer: Callable[[], object], rounds: int
) -> tuple[float, float]:
    """Median seconds of either, alternating, after one unmeasured round."""
    ours()
    peer()
    times = [(seconds(ours), seconds(peer)) for _ in range(rounds)]
    return statistics.median(t[0] for t in times), statistics.median(t[1] for t in times)


def index_of(w: Workload) -> BoxIndex:
    return BoxIndex.from_arrays(w.keys, w.lows, w.highs)


def str_tree(w: Workload) -> Any:
    import shapely

    return shapely.STRtree(shapely.box(w.lows[:, 0], w.lows[:, 1], w.highs[:, 0], w.highs[:, 1]))


def r_tree(w: Workload) -> Any:
    from rtree import index

    dims = w.lows.shape[1]
    settings = index.Property(dimension=dims)
    rows = np.hstack([w.lows, w.highs])
    return index.Index(((k, row, None) for k, row in enumerate(rows.tolist())), properties=settings)


def scan_columns(
    lows: np.ndarray[Any, Any], highs: np.ndarray[Any, Any], points: np.ndarray[Any, Any]
) -> list[np.ndarray[Any, Any]]:
    """Compare each point with all boxes, attribute after attribute."""
    found = []
    for point in points:
        alive = (lows[0] <= point[0]) & (point[0] <= highs[0])
        for i in range(1, len(lows)):
            alive &= lows[i] <= point[i]
            alive &= point[i] <= highs[i]
        found.append(np.flatnonzero(alive))
    return found


def _rate_row(
    name: str, ours: float, peer: str, theirs: float, target: float, per: tuple[int, int]
) -> Row:
    """Compare rates; the targets are about 10^6 boxes."""
    mine, other = per[0] / ours, per[1] / theirs
    full = FULL in name
    holds = mine / other >= target if full else None
    return Row(name, mine, peer, other, mine / other, f">= {target:g} x" if full else "", holds)


def bulk_beside_shapely(w: Workload, size: str, rounds: int) -> Row:
    import shapely

    index, tree = index_of(w), str_tree(w)
    some = w.points[: len(w.points) // 4]
    points = shapely.points(some)
    offsets, _ = index.match_many(some)
    assert int(offsets[-1]) == len(tree.query(points, predicate="intersects")[0])
    ours, theirs = taking_turns(
        lambda: index.match_many(w.points), lambda: tree.query(points), rounds
    )
    per = len(w.points), len(some)
    return _rate_row(f"U2 match_many, {size}", ours, "shapely STRtree in bulk", theirs, 3, per)


def singly_beside_shapely(w: Workload, size: str, rounds: int) -> list[Row]:
    import shapely

    index, tree = index_of(w), str_tree(w)
    points = [tuple(p) for p in w.points[:4000].tolist()]
    shapes = shapely.points(w.points[:4000])
    ours, theirs = taking_turns(
        lambda: [index.match(p) for p in points], lambda: [tree.query(s) for s in shapes], rounds
    )
    latencies = sorted(seconds_of_wall(lambda p=p: index.match(p)) for p in points)  # type: ignore[misc]
    p50 = latencies[len(latencies) // 2] * 1e6
    per = len(points), len(points)
    return [
        _rate_row(f"U2 match, one by one, {size}", ours, "shapely one by one", theirs, 2, per),
        Row(f"U2 match p50, us, {size}", p50, "", 0.0, 0.0, "< 5 us", p50 < 5),
    ]


def singly_beside_rtree(w: Workload, tree: Any, size: str, rounds: int) -> Row:
    index = index_of(w)
    points = [tuple(p) for p in w.points[:4000].tolist()]
    few = [p + p for p in points[:1000]]
    ours, theirs = taking_turns(
        lambda: [index.match(p) for p in points],
        lambda: [list(tree.intersection(p)) for p in few],
        rounds,
    )
    per = len(points), len(few)
    return _rate_row(f"U2 match, one by one, {size}", ours, "rtree", theirs, 10, per)


def seconds_of_wall(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def bulk_beside_rtree(w: Workload, size: str, rounds: int) -> Row:
    index, tree = index_of(w), r_tree(w)
    few = np.hstack([w.points[:300], w.points[:300]]).tolist()
    ours, theirs = taking_turns(
        lambda: index.match_many(w.points),
        lambda: [list(tree.intersection(p)) for p in few],
        rounds,
    )
    return _rate_row(
        f"{w.name} match_many, {size}", ours, "rtree", theirs, 60, (len(w.points), len(few))
    )


def bulk_beside_scan(w: Workload, size: str, rounds: int, target: float) -> Row:
    index = index_of(w)
    lows, highs = np.ascontiguousarray(w.lows.T), np.ascontiguousarray(w.highs.T)
    few = w.points[: max(10, 20_000_000 // len(w.lows) // 2)][:200]
    offsets, keys = index.match_many(few)
    for e, found in enumerate(scan_columns(lows, highs, few)):
        assert np.array_equal(np.sort(keys[offsets[e] : offsets[e + 1]]), found)
    ours, theirs = taking_turns(
        lambda: index.match_many(w.points), lambda: scan_columns(lows, highs, few), rounds
    )
    return _rate_row(
        f"{w.name} match_many, {size}",
        ours,
        "NumPy scan",
        theirs,
        target,
        (len(w.points), len(few)),
    )


def moves_beside_rtree(w: Workload, tree: Any, size: str, rounds: int, long_life: int) -> list[Row]:
    """Move and match in turn; then many moves, and match again. Boxes jump anywhere."""
    rng = np.random.default_rng(1)
    index = index_of(w)
    half = (w.highs - w.lows) / 2
    where: dict[int, tuple[Any, Any]] = {}
    points = w.points[:2000].tolist()

    def jumps(count: int) -> list[tuple[int, list[float], list[float]]]:
        keys = rng.integers(0, len(w.lows), count)
        centres = rng.random((count, 2))
        lows, highs = centres - half[keys], centres + half[keys]
        return list(zip(keys.tolist(), lows.tolist(), highs.tolist(), strict=True))

    def ours(batch: list[tuple[int, list[float], list[float]]]) -> None:
        for (key, low, high), point in zip(batch, points, strict=False):
            index.move(key, low, high)
            index.match(point)

    def theirs(batch: list[tuple[int, list[float], list[float]]]) -> None:
        for (key, low, high), point in zip(batch, points, strict=False):
            old = where.get(key, (w.lows[key], w.highs[key]))
            tree.delete(key, (*old[0], *old[1]))
            tree.insert(key, (*low, *high))
            where[key] = np.array(low), np.array(high)
            list(tree.intersection((*point, *point)))

    mine, other = taking_turns(lambda: ours(jumps(2000)), lambda: theirs(jumps(300)), rounds)
    rows = [
        _rate_row(
            f"U2 move : match 1:1, {size}",
            mine,
            "rtree delete + insert + query",
            other,
            10,
            (2000, 300),
        )
    ]
    fresh = index_of(w)
    for _ in range(long_life // 100_000):
        for key, low, high in jumps(100_000):
            index.move(key, low, high)
    aged, new = taking_turns(
        lambda: [index.match(p) for p in points], lambda: [fresh.match(p) for p in points], 9
    )
    aged_bulk, new_bulk = taking_turns(
        lambda: index.match_many(w.points), lambda: fresh.match_many(w.points), 5
    )
    label = f"after {long_life:.0e} moves, {size}"
    for name, one, two in (("match", aged, new), ("match_many", aged_bulk, new_bulk)):
        rows.append(
            Row(
                f"U2 {name} time {label}",
                one,
                "fresh",
                two,
                one / two,
                "<= 1.3 x",
                one / two <= 1.3,
            )
        )
    size_row = index.nbytes / len(index)
    rows.append(Row(f"bytes a 2-d box {label}", size_row, "", 0.0, 0.0, "< 100", size_row < 100))
    return rows


def top_beside_collecting(w: Workload, size: str, rounds: int, target: float) -> list[Row]:
    """`top` against `match` and a selection of the narrowest by NumPy; also in bulk."""
    index = index_of(w)
    with np.errstate(divide="ignore"):
        narrow = np.log2(w.highs - w.lows).sum(axis=1)

    def select(keys: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        scores = narrow[keys]
        if len(keys) > 10:
            best = np.argpartition(scores, 10)[:10]
            keys, scores = keys[best], scores[best]
        return keys[np.argsort(scores)]

    def collect() -> None:
        offsets, keys = index.match_many(w.points)
        for e in range(len(w.points)):
            select(keys[offsets[e] : offsets[e + 1]])

    few = [tuple(p) for p in w.points[:1000].tolist()]
    ours, theirs = taking_turns(
        lambda: [index.top(p, 10) for p in few],
        lambda: [select(index.match(p)) for p in few],
        rounds,
    )
    bulk, collected = taking_turns(lambda: index.top_many(w.points, 10), collect, rounds)
    once, per = (len(few), len(few)), (len(w.points), len(w.points))
    name, peer = f"{w.name} top k=10, {size}", "our match + argpartition"
    many, peers = f"{w.name} top_many k=10, {size}", "our match_many + argpartition"
    return [
        _rate_row(name, ours, peer, theirs, target, once),
        replace(_rate_row(many, bulk, peers, collected, target, per), target="", holds=None),
    ]


def figures_of_build(w: Workload, size: str, rounds: int) -> list[Row]:
    index_of(w)
    built = statistics.median(seconds(lambda: index_of(w)) for _ in range(rounds))
    index = index_of(w)
    small = len(w.lows) < 1e6
    return [
        Row(
            f"{w.name} build, s, {size}", built, "", 0.0, 0.0, "< 1 s", None if small else built < 1
        ),
        Row(
            f"bytes a 2-d box, fresh, {size}",
            index.nbytes / len(index),
            "",
            0.0,
            0.0,
            "< 100",
            index.nbytes / len(index) < 100,
        ),
    ]


def seconds_per_event(w: Workload, rounds: int) -> float:
    index = index_of(w)
    index.match_many(w.points)
    times = [seconds(lambda: index.match_many(w.points)) for _ in range(rounds)]
    return statistics.median(times) / len(w.points)


def growth(name: str, sizes: list[int], rounds: int) -> Row:
    """How the time per event grows at equal matches per event."""
    times = [seconds_per_event(workload(name, size, EVENTS[name]), rounds) for size in sizes]
    ratio = times[-1] / times[0]
    label = f"{name} us an event, {sizes[-1]:.0e} beside {sizes[0]:.0e}"
    return Row(label, times[-1] * 1e6, f"ours at {sizes[0]:.0e}", times[0] * 1e6, ratio, "< 4 x",
               ratio < 4 if sizes[-1] / sizes[0] >= 100 else None)  # fmt: skip


def plain(w: Workload, size: str, rounds: int) -> Row:
    """A figure of ours alone, for workloads without a target."""
    index = index_of(w)
    index.match_many(w.points)
    took = statistics.median(seconds(lambda: index.match_many(w.points)) for _ in range(rounds))
    offsets, _ = index.match_many(w.points)
    matches = offsets[-1] / len(w.points)
    return Row(
        f"{w.name} match_many, {size}, {matches:.0f} matches",
        len(w.points) / took,
        "",
        0.0,
        0.0,
        "",
        None,
    )


FIRST_ANSWER = """
import time
from nearcast.index import BoxIndex
boxes = BoxIndex.from_arrays([1, 2], [[0.0, 0.0], [1.0, 1.0]], [[2.0, 2.0], [3.0, 3.0]])
assert sorted(boxes.match((1.5, 1.5)).tolist()) == [1, 2]
print(time.process_time())
"""


def first_answer() -> Row:
    """Import, build and answer in a new process, compiled code being on disk: processor time."""
    times = []
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-c", FIRST_ANSWER], capture_output=True, text=True, check=True
        )
        times.append(float(done.stdout))
    took = statistics.median(times[1:])
    return Row(
        "first answer of a fresh process, processor s", took, "", 0.0, 0.0, "< 1 s", took < 1
    )


def run(quick: bool) -> dict[str, Any]:
    """Measure; quick takes about two minutes on a quiet machine, and leaves rtree at 10^5."""
    rounds = 3 if quick else 5
    rows: list[Row] = []
    for boxes in [100_000] if quick else [10_000, 100_000, 1_000_000]:
        rows += beside_rtree(boxes, rounds)
    for boxes in [1_000_000] if quick else [10_000, 100_000, 1_000_000]:
        rows += beside_others(boxes, rounds)
    rows.append(growth("U2", [100_000, 1_000_000] if quick else [100_000, 10_000_000], rounds))
    if not quick:
        rows.append(growth("U4", [100_000, 10_000_000], 3))
        rows.append(growth("S10", [100_000, 1_000_000], 3))
    rows.append(first_answer())
    return {"machine": machine(), "quick": quick, "rows": [asdict(row) for row in rows]}


def beside_rtree(boxes: int, rounds: int) -> list[Row]:
    size, u2 = f"{boxes:.0e}", workload("U2", boxes, EVENTS["U2"])
    life, tree = 10_000_000 if boxes == 1_000_000 else 2 * boxes, r_tree(u2)
    return [
        singly_beside_rtree(u2, tree, size, rounds),
        *moves_beside_rtree(u2, tree, size, rounds, life),
        bulk_beside_rtree(workload("U4", boxes, EVENTS["U4"]), size, rounds),
    ]


def beside_others(boxes: int, rounds: int) -> list[Row]:
    def make(name: str) -> Workload:
        return workload(name, boxes, EVENTS[name])

    size, u2 = f"{boxes:.0e}", make("U2")
    return [
        bulk_beside_shapely(u2, size, rounds),
        *singly_beside_shapely(u2, size, rounds),
        bulk_beside_scan(make("S10"), size, rounds, 150),
        bulk_beside_scan(make("C4"), size, rounds, 50),
        *top_beside_collecting(make("C4"), size, rounds, 5),
        *figures_of_build(u2, size, rounds),
        *(plain(make(name), size, rounds) for name in ("Z", "P3", "A4", "U8", "H10")),
    ]


def machine() -> dict[str, str]:
    import numba
    import rtree
    import shapely

    return {
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "shapely": shapely.__version__,
        "rtree": rtree.__version__,
    }


def show(result: dict[str, Any]) -> None:
    for row in result["rows"]:
        holds = {True: "holds", False: "FALLS SHORT", None: ""}[row["holds"]]
        peer = f"{row['peer']} {row['peer_figure']:,.4g}" if row["peer"] else ""
        ratio = f"{row['ratio']:.2f} x" if row["ratio"] else ""
        print(
            f"{row['name']:52} {row['ours']:>12,.4g}  {peer:46} {ratio:>10}  "
            f"{row['target']:10} {holds}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    result = run(given.quick)
    show(result)
    if given.json:
        given.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
