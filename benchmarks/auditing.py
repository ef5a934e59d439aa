"""The audit of event logs: made-up ones with faults planted at known places, and clean ones.

    python benchmarks/auditing.py [--quick] [--deliveries N] [--faults N] [--json]

Two nodes; every message crosses, a quarter is in a causal group, a quarter has waited in a queue. A
run counts only if every planted fault was found and nothing else was. The time includes reading the
log and writing the tables, and not Spark's start (told beside it), nor making the log up.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.audit_samples import SampleSize, write_sample

from nearcast.pipeline.audit.job import KINDS, audit
from nearcast.pipeline.session import spark_session
from nearcast.pipeline.tables.transaction import read_table

CORES = 2
TARGET_S = 120.0


def sample_size(deliveries: int, faults: int) -> SampleSize:
    """Return the size of a log with about so many deliveries."""
    subscribers = 3
    messages = max(deliveries // (2 * (2 * subscribers + 1)), 8 * faults + 500)
    return SampleSize(messages, min(2_000, max(7, messages // 50)), subscribers, faults)


def measure(spark: Any, folder: Path, size: SampleSize, seed: int) -> dict[str, Any]:
    """Audit one log; say how long it took and whether the answer was right."""
    planted = write_sample(folder / "log", size, seed)
    began = time.perf_counter()
    done = audit(spark, str(folder / "log"), str(folder / "out"))
    took_s = time.perf_counter() - began
    rows = read_table(spark, str(folder / "out/faults")).collect()
    found = {(row["kind"], row["node"], row["sequence"], row["receiver"]) for row in rows}
    shutil.rmtree(folder)
    return {
        "deliveries": done.deliveries,
        "events": done.events,
        "seconds": round(took_s, 1),
        "deliveries_per_s": round(done.deliveries / took_s),
        "planted": {kind: sum(one[0] == kind for one in planted) for kind in KINDS},
        "found": done.faults,
        "missed": len(planted - found),
        "false": len(found - planted),
        "unknown": done.unknown,
    }


def main() -> int:
    """Measure a log with faults and a clean one."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="half a million deliveries")
    options.add_argument("--deliveries", type=int, default=10_000_000)
    options.add_argument("--faults", type=int, default=1_000)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    deliveries = 500_000 if chosen.quick else chosen.deliveries
    began = time.perf_counter()
    spark = spark_session(f"local[{CORES}]", name="nearcast-bench-audit")
    start_s = round(time.perf_counter() - began, 1)
    rows = {}
    for name, faults in (("planted", chosen.faults), ("clean", 0)):
        folder = Path(tempfile.mkdtemp(prefix="nearcast-audit-"))
        rows[name] = measure(spark, folder, sample_size(deliveries, faults), seed=1)
    spark.stop()
    report = {"cores": CORES, "spark_start_s": start_s, "target_s": TARGET_S, **rows}
    if chosen.json:
        print(json.dumps(report, indent=1))
    else:
        for name, row in rows.items():
            print(f"{name}: {row['deliveries']:,} deliveries in {row['seconds']} s")
            print(f"  {row['deliveries_per_s']:,}/s, missed {row['missed']}, false {row['false']}")
            print(f"  found {row['found']}, unknown {row['unknown']}")
    right = all(not (row["missed"] or row["false"]) for row in rows.values())
    return 0 if right and all(row["seconds"] < TARGET_S for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
