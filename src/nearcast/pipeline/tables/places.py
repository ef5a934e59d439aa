"""Geometry and cells as columns, with the metadata of GeoParquet 1.1.

A geometry is WKB, in longitude and latitude (OGC:CRS84, the default of GeoParquet). A cell is the
number of a square of the globe, halved `depth` times in each direction and numbered along a Z: a
cell divided by 4 is the cell above it, and near places have near numbers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GEOMETRY, CELL = "geometry", "cell"
_POINT = np.frombuffer(b"\x01\x01\x00\x00\x00", np.uint8)  # little-endian, a point


@dataclass(frozen=True, slots=True)
class PlaceColumns:
    """The columns that are added to a table of positions."""

    geometry: bool = False
    depth: int | None = None  # of cells

    def schema(self, plain: pa.Schema) -> pa.Schema:
        """Return a schema with these columns at its end."""
        added = plain
        if self.depth is not None:
            added = added.append(pa.field(CELL, pa.int64(), nullable=False))
        if self.geometry:
            added = added.append(pa.field(GEOMETRY, pa.binary(), nullable=False))
            added = added.with_metadata(geo_metadata("Point"))
        return added

    def add(self, batch: pa.RecordBatch, plain: pa.Schema) -> pa.RecordBatch:
        """Return a batch of positions with these columns."""
        lon, lat = (batch.column(name).to_numpy() for name in ("lon", "lat"))
        columns = list(batch.columns)
        if self.depth is not None:
            columns.append(pa.array(cells_of(lon, lat, self.depth)))
        if self.geometry:
            columns.append(points_wkb(lon, lat))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema(plain))


def geo_metadata(kind: str, bounds: Sequence[float] | None = None) -> dict[str, str]:
    """Return the metadata of a file whose column `geometry` has geometries of one kind."""
    column: dict[str, object] = {"encoding": "WKB", "geometry_types": [kind]}
    if bounds is not None:
        column["bbox"] = list(bounds)
    content = {"version": "1.1.0", "primary_column": GEOMETRY, "columns": {GEOMETRY: column}}
    return {"geo": json.dumps(content)}


def points_wkb(lon: np.ndarray, lat: np.ndarray) -> pa.Array:
    """Return points as WKB: 21 bytes each."""
    rows = np.empty((len(lon), 21), np.uint8)
    rows[:, :5] = _POINT
    rows[:, 5:13] = np.ascontiguousarray(lon, "<f8").view(np.uint8).reshape(-1, 8)
    rows[:, 13:] = np.ascontiguousarray(lat, "<f8").view(np.uint8).reshape(-1, 8)
    offsets = np.arange(len(lon) + 1, dtype=np.int32) * 21
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(rows)]
    return pa.Array.from_buffers(pa.binary(), len(lon), buffers)


def cells_of(lon: np.ndarray, lat: np.ndarray, depth: int) -> np.ndarray:
    """Return the cell of each position.

    >>> cells_of(np.array([-180.0, 180.0, 0.0]), np.array([-90.0, 90.0, 0.0]), 1).tolist()
    [0, 3, 3]
    """
    side = 1 << depth
    across = np.clip(((lon + 180.0) / 360.0 * side).astype(np.int64), 0, side - 1)
    up = np.clip(((lat + 90.0) / 180.0 * side).astype(np.int64), 0, side - 1)
    found = np.zeros(len(lon), np.int64)
    for bit in range(depth):
        found |= ((across >> bit) & 1) << (2 * bit)
        found |= ((up >> bit) & 1) << (2 * bit + 1)
    return found


def write_boxes(table: pa.Table, path: Path) -> None:
    """Write rows with west, south, east and north as GeoParquet of polygons."""
    import shapely

    sides = [table[name].to_numpy() for name in ("west", "south", "east", "north")]
    polygons = pa.array(shapely.to_wkb(shapely.box(*sides)).tolist(), pa.binary())
    bounds = None
    if table.num_rows:
        low = [float(sides[0].min()), float(sides[1].min())]
        bounds = [*low, float(sides[2].max()), float(sides[3].max())]
    full = table.append_column(pa.field(GEOMETRY, pa.binary()), polygons)
    partial = path.with_name(f".{path.name}.part")
    pq.write_table(full.replace_schema_metadata(geo_metadata("Polygon", bounds)), partial)
    partial.replace(path)
