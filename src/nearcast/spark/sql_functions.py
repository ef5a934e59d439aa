"""Functions for SQL: topics, areas, distances, cells and leaves of a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.pandas.functions import pandas_udf

from nearcast.index.topic_filters import topic_matches
from nearcast.locality import Plan
from nearcast.locality.layout.slow_regions import CellGrid
from nearcast.model import parse_shape
from nearcast.model.sphere import distances_m


def register(spark: SparkSession, *, plan: Plan | None = None) -> list[str]:
    """Register the SQL functions in a session, and return their names.

    | function | result |
    |---|---|
    | `nearcast_topic_matches(filter, topic)` | whether an MQTT topic filter matches a topic |
    | `nearcast_in_area(area, lon, lat)` | whether a place lies in a `bbox`, `circle` or `geojson` |
    | `nearcast_distance_m(lon, lat, lon, lat)` | metres between two places |
    | `nearcast_cell(lon, lat, cell_m, at_lat)` | the text COLUMN:ROW of a cell of this size |
    | `nearcast_leaf(lon, lat)` | the leaf of the plan, if one is given; null outside its space |

    A null argument gives null. An area that cannot be read is an error.
    """
    functions: dict[str, tuple[Callable[..., Any], str]] = {
        "nearcast_topic_matches": (_topic_matches, "boolean"),
        "nearcast_in_area": (_in_area, "boolean"),
        "nearcast_distance_m": (_distance_m, "double"),
        "nearcast_cell": (_cell, "string"),
    }
    if plan is not None:
        functions["nearcast_leaf"] = (_leaf_of(plan), "int")
    for name, (function, kind) in functions.items():
        spark.udf.register(name, pandas_udf(function, kind))  # type: ignore[call-overload]
    return list(functions)


def _topic_matches(topic_filter: pd.Series, topic: pd.Series) -> pd.Series:
    return _each(topic_matches, topic_filter, topic)


def _each(function: Callable[..., Any], *columns: pd.Series) -> pd.Series:
    rows = zip(*columns, strict=True)
    found = [None if any(pd.isna(value) for value in row) else function(*row) for row in rows]
    return pd.Series(found, dtype=object)


def _in_area(area: pd.Series, lon: pd.Series, lat: pd.Series) -> pd.Series:
    found = pd.Series([None] * len(area), dtype=object)
    known = (area.notna() & lon.notna() & lat.notna()).to_numpy()
    for text in area[known].unique():
        mine = np.flatnonzero(known & (area == text).to_numpy())
        places = (one.iloc[mine].to_numpy(np.float64) for one in (lon, lat))
        inside = parse_shape(text).contains_many(*places)
        found.iloc[mine] = inside.tolist()
    return found


def _distance_m(lon1: pd.Series, lat1: pd.Series, lon2: pd.Series, lat2: pd.Series) -> pd.Series:
    columns = [one.to_numpy(np.float64) for one in (lon1, lat1, lon2, lat2)]
    return pd.Series(distances_m(*columns))


def _cell(lon: pd.Series, lat: pd.Series, cell_m: pd.Series, at_lat: pd.Series) -> pd.Series:
    def text(east: float, north: float, size_m: float, middle: float) -> str:
        grid = CellGrid(float(size_m), float(middle))  # a number in SQL is a decimal
        return f"{int(float(east) // grid.lon_step)}:{int(float(north) // grid.lat_step)}"

    return _each(text, lon, lat, cell_m, at_lat)


def _leaf_of(plan: Plan) -> Callable[..., Any]:
    space = plan.space

    def leaf(lon: pd.Series, lat: pd.Series) -> pd.Series:
        lon, lat = lon.astype("float64"), lat.astype("float64")
        inside = lon.between(space.west, space.east) & lat.between(space.south, space.north)
        found = pd.Series([None] * len(lon), dtype="Int32")
        mine = np.flatnonzero(inside.to_numpy())
        found.iloc[mine] = plan.leaf_numbers_at(lon.iloc[mine], lat.iloc[mine])
        return found

    # `pandas_udf` reads the types of arguments where the function was made
    leaf.__annotations__ = {"lon": pd.Series, "lat": pd.Series, "return": pd.Series}
    return leaf
