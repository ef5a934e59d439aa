"""Events × octagons, or × boxes, counted per subscription: ours beside sedonadb and Sedona.

Each peer runs in an environment of its own, which this makes with uv the first time, and reads the
same two files. A peer that cannot be had is told as such, with the reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.pipeline_measuring import Taken, timed

LEAST = {
    "octagons": {"sedonadb": 1.0, "sedona": 3.0},
    "boxes": {"sedonadb": 3.0, "sedona": 3.0},
}
ROOT = Path(__file__).parents[1]
Row = dict[str, Any]
PEERS = {
    "sedonadb": ("sedonadb==0.5.*", "geoarrow-pyarrow", "geopandas"),
    "sedona": ("pyspark==4.0.*", "apache-sedona==1.8.*", "shapely", "pandas", "pyarrow"),
}
SEDONA_JARS = (
    "org.apache.sedona:sedona-spark-shaded-4.0_2.13:1.8.0,"
    "org.datasyslab:geotools-wrapper:1.8.0-33.1"
)


def write_inputs(folder: Path, events: int, areas: int, shape: str) -> None:
    rng = np.random.default_rng(1)
    points = rng.random((events, 2))
    table = {"event_id": np.arange(events), "lon": points[:, 0], "lat": points[:, 1]}
    pq.write_table(pa.table(table), folder / "events.parquet", row_group_size=250_000)
    centres, radius = rng.random((areas, 2)) * 0.98 + 0.01, rng.uniform(0.002, 0.006, areas)
    columns, rings = (_octagons if shape == "octagons" else _boxes)(centres, radius)
    texts = [f"POLYGON(({', '.join(f'{x!r} {y!r}' for x, y in ring.tolist())}))" for ring in rings]
    ids = np.arange(areas)
    pq.write_table(pa.table({"subscription_id": ids, **columns}), folder / "areas.parquet")
    pq.write_table(pa.table({"subscription_id": ids, "wkt": texts}), folder / "wkt.parquet")


def _octagons(centres: np.ndarray, radius: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    """Return the columns of our table, and rings for the peers."""
    turns = np.append(np.arange(8), 0) * np.pi / 4
    rings = np.round(
        centres[:, None] + radius[:, None, None] * np.stack([np.cos(turns), np.sin(turns)], 1), 6
    )
    areas = [
        f'geojson({{"type":"Polygon","coordinates":{json.dumps([ring.tolist()])}}})'
        for ring in rings
    ]
    return {"area": areas}, rings


def _boxes(centres: np.ndarray, radius: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    low, high = np.round(centres - radius[:, None], 6), np.round(centres + radius[:, None], 6)
    names = {f"{name}_{side}": ends[:, at] for at, name in enumerate(("lon", "lat"))
             for side, ends in (("low", low), ("high", high))}  # fmt: skip
    lons, lats = ([low[:, at], high[:, at]] for at in (0, 1))
    corners = ((0, 0), (1, 0), (1, 1), (0, 1), (0, 0))
    return names, np.stack([np.stack([lons[i], lats[j]], 1) for i, j in corners], 1)


def ours(folder: Path) -> Taken:
    """Group the pairs of `nearcast.spark.match`; in a process of its own, as the peers."""
    import nearcast.spark as ns

    def count(*given: Any) -> Any:
        return ns.match(*given).groupBy("subscription_id").agg({"*": "count"})

    return _by_nearcast(folder, "ours", count)


def ours_counted(folder: Path) -> Taken:
    """Count by `nearcast.spark.match_counts`."""
    import nearcast.spark as ns

    return _by_nearcast(folder, "ours_counted", ns.match_counts)


def _by_nearcast(folder: Path, name: str, count: Any) -> Taken:
    import nearcast.spark as ns
    from nearcast.pipeline.session import spark_session

    space = ns.Space(
        name="plane", topic_filter="plane/#", longitude="lon", latitude="lat",
        attributes=[ns.Attribute.number("lon", -180, 180), ns.Attribute.number("lat", -90, 90)],
    )  # fmt: skip
    spark = spark_session("local[2]", memory_gb=4)
    events, areas = (spark.read.parquet(str(folder / f"{n}.parquet")) for n in ("events", "areas"))
    count(events.limit(1000), areas.limit(100), space).toArrow()  # Java and kernels are warm
    taken, found = timed(lambda: count(events, areas, space).toArrow())
    save_counts(folder, name, found["subscription_id"], found[1])
    spark.stop()
    return taken


def by_sedonadb(folder: Path) -> Taken:
    import sedonadb  # type: ignore[import-not-found]

    session = sedonadb.connect()
    session.sql("SET datafusion.execution.target_partitions = 2").execute()
    session.read_parquet(str(folder / "events.parquet")).to_view("e")
    session.read_parquet(str(folder / "wkt.parquet")).to_view("w")
    query = """
        SELECT w.subscription_id AS id, count(*) AS n
        FROM (SELECT ST_Point(lon, lat) AS p FROM e {}) AS e
        JOIN (SELECT subscription_id, ST_GeomFromText(wkt) AS g FROM w) AS w
          ON ST_Intersects(w.g, e.p) GROUP BY w.subscription_id
    """
    session.sql(query.format("LIMIT 1000")).to_arrow_table()
    taken, found = timed(lambda: session.sql(query.format("")).to_arrow_table())
    save_counts(folder, "sedonadb", found["id"], found["n"])
    return taken


def by_sedona(folder: Path) -> Taken:
    from sedona.spark import SedonaContext  # type: ignore[import-not-found]

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SedonaContext.builder().master("local[2]").config("spark.jars.packages", SEDONA_JARS)
    for key, value in (
        ("spark.driver.memory", "4g"), ("spark.ui.enabled", "false"),
        ("spark.sql.shuffle.partitions", "4"),
    ):  # fmt: skip
        builder = builder.config(key, value)
    spark = SedonaContext.create(builder.getOrCreate())
    events, wkt = (spark.read.parquet(str(folder / f"{n}.parquet")) for n in ("events", "wkt"))
    wkt.createOrReplaceTempView("w")
    query = """
        SELECT w.subscription_id AS id, count(*) AS n
        FROM e JOIN (SELECT subscription_id, ST_GeomFromText(wkt) AS g FROM w) AS w
          ON ST_Intersects(w.g, ST_Point(e.lon, e.lat)) GROUP BY w.subscription_id
    """
    events.limit(1000).createOrReplaceTempView("e")
    spark.sql(query).toPandas()
    events.createOrReplaceTempView("e")
    taken, found = timed(lambda: spark.sql(query).toPandas())
    save_counts(folder, "sedona", found["id"], found["n"])
    spark.stop()
    return taken


def save_counts(folder: Path, name: str, ids: Any, counts: Any) -> None:
    pairs = sorted(zip(map(int, ids.to_numpy()), map(int, counts.to_numpy()), strict=True))
    (folder / f"{name}.json").write_text(json.dumps(pairs))


RUNS = {"ours": ours, "ours_counted": ours_counted, "sedonadb": by_sedonadb, "sedona": by_sedona}


def python_of(name: str) -> Path:
    """Return the Python of a peer's environment, made the first time."""
    if name not in PEERS:
        return Path(sys.executable)
    place = ROOT / f".venv-{name}"
    if not (place / "bin" / "python").exists():
        uv = next(iter(ROOT.glob(".venv/uv/bin/uv")), Path("uv"))
        for command in (
            ("venv", "-q", str(place), "--python", sys.executable),
            ("pip", "install", "-q", "--python", str(place / "bin" / "python"), *PEERS[name]),
        ):
            subprocess.run([str(uv), *command], check=True, capture_output=True, text=True)
    return place / "bin" / "python"


def measured(name: str, folder: Path) -> tuple[Taken | None, str]:
    """Return what one took, or None and why it could not be measured."""
    try:
        run = subprocess.run(
            [str(python_of(name)), __file__, name, str(folder)],
            capture_output=True, text=True, check=False, timeout=1800,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as problem:
        return None, f"not measured ({problem})"
    if run.returncode:
        return None, f"not measured ({(run.stderr.strip().splitlines() or ['?'])[-1]})"
    wall_s, cpu_s = map(float, run.stdout.split()[-2:])
    return Taken(wall_s, cpu_s), ""


def area_rows(shape: str, events: int, areas: int) -> Iterator[Row]:
    """Yield a row for each peer; the results must be equal."""
    what = f"{events:,} events x {areas:,} {shape}, counts"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_inputs(folder, events, areas, shape)
        told = {name: measured(name, folder) for name in RUNS}
        for peer, least in LEAST[shape].items():
            for mine in ("ours", "ours_counted"):
                yield _compared(what, mine, peer, told, folder, least)


def _compared(
    what: str, ours: str, peer: str, told: dict[str, tuple[Taken | None, str]], folder: Path,
    least: float,
) -> Row:  # fmt: skip
    (mine, why), (taken, why_not) = told[ours], told[peer]
    row: Row = {"name": f"{what}: {peer} / {ours}"}
    if mine is None or taken is None:
        return row | {"told": why_not or why, "holds": None}
    same = (folder / f"{ours}.json").read_text() == (folder / f"{peer}.json").read_text()
    ratio = taken.wall_s / mine.wall_s
    return row | {
        "ours": mine.wall_s, "peer": taken.wall_s, "ratio": ratio, "ours_cpu_s": mine.cpu_s,
        "peer_cpu_s": taken.cpu_s, "ratio_cpu": taken.cpu_s / mine.cpu_s, "target": f">= {least}",
        "holds": same and ratio >= least, "equal": same,
    }  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in RUNS:
        told = RUNS[sys.argv[1]](Path(sys.argv[2]))
        print(told.wall_s, told.cpu_s)
    else:
        for shape in sys.argv[1:] or LEAST:
            for row in area_rows(shape, 2_000_000, 20_000):
                print(row, flush=True)
