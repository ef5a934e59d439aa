"""What the people of the town did in the hours before: positions in a file, to learn from.

It is the same town with the same people, made by the same simulation, but not the day that the
demonstration shows. No broker is asked: the positions are written as a fleet's own record would be.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from nearcast.demo.city import DemoCity, Place

HOURS = 3
STEP_S = 15


def tracks_before(people: int, seed: int) -> dict[str, list[Place]]:
    """Return where everybody was in the hours before, every `STEP_S` seconds."""
    city = DemoCity(people, seed, day=0)
    tracks: dict[str, list[Place]] = {one.name: [] for one in city.movers}
    for _ in range(HOURS * 3600 // STEP_S):
        for one in city.movers:
            tracks[one.name].append(one.place)
        city.step(STEP_S)
    return tracks


def write_positions(tracks: dict[str, list[Place]], path: Path) -> None:
    """Write the tracks as a Parquet file that `nearcast pipeline run` reads; they end just now."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    steps = max(map(len, tracks.values()))
    begun = datetime.now(UTC) - timedelta(seconds=steps * STEP_S)
    instants = [begun + timedelta(seconds=step * STEP_S) for step in range(steps)]
    places = [place for track in tracks.values() for place in track]
    columns = {
        "user_id": pa.array([name for name, track in tracks.items() for _ in track]),
        "t": pa.array(instants * len(tracks), pa.timestamp("us", "UTC")),
        "lon": pa.array([lon for lon, _ in places]),
        "lat": pa.array([lat for _, lat in places]),
    }
    pq.write_table(pa.table(columns), path)
