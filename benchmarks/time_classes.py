"""Do plans of their own for hours and weekdays pay? And who is handed over: by kind of mobility.

    python -m benchmarks.time_classes RECORD.parquet|commuters ZONE [--leaves 60]

Learned from the first 60 % of a record, judged on the rest, as `pipeline plan --time-zone` does.
Made records begin on a Monday at 00:00 of the zone.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from benchmarks.layouts import DEPTH, capacity_for, movement_of
from benchmarks.made_movement import MADE
from benchmarks.recorded_movement import Fixes

from nearcast.locality.layout.costs import LayoutWeights, plan_owners
from nearcast.locality.layout.grid import Grid
from nearcast.locality.layout.proposals import propose
from nearcast.locality.layout.rect import Rect
from nearcast.locality.layout.tracks import MobilityKind, mobility_kinds
from nearcast.locality.schedule.week import (
    BLOCKS,
    block_changes,
    block_spans_ms,
    blocks_of,
    time_zone,
)
from nearcast.locality.schedule.worth import LayoutRules, WeekRecord, weigh_divisions

_GAP_S = 600.0


def start_us(record: str, zone: str) -> int:
    """Return the first instant of a record."""
    if record in MADE:
        return round(datetime(2026, 6, 1, tzinfo=time_zone(zone)).timestamp() * 1e6)
    first = pc.min(pq.read_table(record, columns=["t"])["t"])
    return int(first.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).as_py())


def week_of(fixes: Fixes, space: Rect, chosen: np.ndarray, first_us: int, zone: str) -> WeekRecord:
    """Count a part of a record by blocks of the week."""
    clock = time_zone(zone)
    t_us = first_us + (fixes.seconds * 1e6).astype(np.int64)
    blocks = blocks_of(t_us, clock)
    ends = int(t_us[chosen].min()), int(t_us[chosen].max())
    spans_ms = block_spans_ms(*ends, clock)
    return WeekRecord(
        [
            replace(
                movement_of(fixes, space, chosen & (blocks == block)),
                span_ms=max(1_000, spans_ms[block]),
            )
            for block in range(BLOCKS)
        ],
        block_changes(*ends, clock),
    )


def kinds_of(fixes: Fixes) -> np.ndarray:
    """Return the kind of each step."""
    step_s = np.diff(fixes.seconds, prepend=0.0)
    step_m = np.hypot(np.diff(fixes.xs, prepend=0.0), np.diff(fixes.ys, prepend=0.0))
    follows = np.diff(fixes.users, prepend=-1) == 0
    step_s[~follows | (step_s > _GAP_S)] = 0.0
    return mobility_kinds(step_s, step_m)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record")
    parser.add_argument("zone")
    parser.add_argument("--leaves", type=int, default=60, help="of quadrants alone")
    parser.add_argument("--people", type=int, default=300, help="of a made record")
    arguments = parser.parse_args()
    record, zone = arguments.record, arguments.zone
    if record in MADE:
        fixes = MADE[record](1, arguments.people)
    else:
        fixes = Fixes.from_parquet(Path(record)).in_metres()
    space = fixes.central(0.99)
    first = fixes.seconds < 0.6 * fixes.seconds.max()
    learned, unseen = (movement_of(fixes, space, part) for part in (first, ~first))
    capacity, reach = capacity_for(learned, arguments.leaves), (8, 8)
    plan = propose(space, [], learned, capacity, reach).plans
    owners = [plan_owners(plan[name], DEPTH) for name in ("optimised", "q_only")]
    kinds = kinds_of(fixes)
    for kind in MobilityKind:
        share = float((kinds[~first] == kind).mean())
        moved = _handovers(fixes, space, owners, ~first, kinds == kind)
        print(f"{kind.name.lower():<6} {share:.0%} of the fixes, handovers {moved[0]:,}, "
              f"{moved[1]:,} (q only)", flush=True)  # fmt: skip
    at_us = start_us(record, zone)
    weeks = [week_of(fixes, space, part, at_us, zone) for part in (first, ~first)]
    rules = LayoutRules(space, capacity, reach, LayoutWeights(), is_free=True)
    for row in weigh_divisions(weeks[0], weeks[1], rules).rows():
        print(row, flush=True)
    print(f"{unseen.users:.0f} users at once on the days held out")


def _handovers(
    fixes: Fixes, space: Rect, owners: list[np.ndarray], part: np.ndarray, kind: np.ndarray
) -> list[int]:
    """Count the steps of a kind that change the leaf, under each layout."""
    cells = Grid.over(space, DEPTH).cells(fixes.xs, fixes.ys)
    steps = (np.diff(fixes.users) == 0) & (np.diff(fixes.seconds) <= _GAP_S)
    steps &= part[1:] & kind[1:] & (cells[1:] >= 0) & (cells[:-1] >= 0)
    found = []
    for one in owners:
        leaf = one.ravel()
        found.append(int((leaf[cells[1:]] != leaf[cells[:-1]])[steps].sum()))
    return found


if __name__ == "__main__":
    main()
