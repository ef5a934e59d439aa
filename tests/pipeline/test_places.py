"""Geometry columns are GeoParquet, and cells are squares that nest."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import shapely
from hypothesis import given
from hypothesis import strategies as st

from nearcast.pipeline.tables.places import PlaceColumns, cells_of, points_wkb, write_boxes

PLAIN = pa.schema([("user_id", pa.string()), ("lon", pa.float64()), ("lat", pa.float64())])


def test_points_are_the_bytes_that_shapely_writes():
    lon, lat = np.array([8.54, -0.0, 180.0]), np.array([47.38, 0.0, -90.0])
    assert points_wkb(lon, lat).to_pylist() == shapely.to_wkb(shapely.points(lon, lat)).tolist()


def test_a_file_with_geometry_says_so(tmp_path: Path):
    columns = PlaceColumns(geometry=True, depth=16)
    batch = pa.RecordBatch.from_pydict({"user_id": ["a"], "lon": [8.54], "lat": [47.38]}, PLAIN)
    with pq.ParquetWriter(tmp_path / "a.parquet", columns.schema(PLAIN)) as writer:
        writer.write_batch(columns.add(batch, PLAIN))
    told = json.loads(pq.read_schema(tmp_path / "a.parquet").metadata[b"geo"])
    assert told["columns"][told["primary_column"]]["encoding"] == "WKB"
    (row,) = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert shapely.from_wkb(row["geometry"]) == shapely.Point(8.54, 47.38)


def test_boxes_are_polygons_with_bounds(tmp_path: Path):
    box = {"west": [8.0, 7.0], "south": [47.0, 47.5], "east": [9.0, 7.5], "north": [48.0, 47.6]}
    write_boxes(pa.table(box), tmp_path / "regions.parquet")
    table = pq.read_table(tmp_path / "regions.parquet")
    told = json.loads(table.schema.metadata[b"geo"])["columns"]["geometry"]
    assert told["bbox"] == [7.0, 47.0, 9.0, 48.0]
    assert shapely.from_wkb(table["geometry"][0].as_py()).equals(shapely.box(8.0, 47.0, 9.0, 48.0))


@given(st.floats(-180, 180), st.floats(-90, 90), st.integers(1, 27))
def test_a_cell_lies_in_the_cell_above_it(lon: float, lat: float, depth: int):
    place = np.array([lon]), np.array([lat])
    (cell,), (above,) = cells_of(*place, depth + 1), cells_of(*place, depth)
    assert cell // 4 == above
