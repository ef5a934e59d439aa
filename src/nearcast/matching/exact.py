"""From covering boxes to exact shapes: inside the circle, not only inside its bounding box."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearcast.index.distance import compiled_distance_m
from nearcast.kernels import entry_point


@entry_point("int64[::1], float64, float64, float64[:], float64[:], float64[:], int64[::1]")
def _circles(ids: Any, lon: float, lat: float, lons: Any, lats: Any, radii: Any, keep: Any) -> int:
    kept = 0
    for i in range(ids.size):
        box = ids[i]
        radius = radii[box]
        # A row without a circle has the radius NaN, for which every comparison is false.
        if not compiled_distance_m(lons[box], lats[box], lon, lat) > radius:
            keep[kept] = box
            kept += 1
    return kept


def inside_circles(
    ids: NDArray[np.int64], rows: NDArray[np.void], lon: float, lat: float
) -> NDArray[np.int64]:
    """Return the boxes whose circle, if they have one, contains the place."""
    keep = np.empty_like(ids)
    kept = _circles(ids, lon, lat, rows["lon"], rows["lat"], rows["radius_m"], keep)
    return keep[:kept]


@entry_point(
    "int64[::1], float64, float64, float64[:], float64[:], float64[:], int64[:], int64[::1]"
)
def _keys_of_circles(
    ids: Any, lon: float, lat: float, lons: Any, lats: Any, radii: Any, keys: Any, out: Any
) -> int:
    kept = 0
    for i in range(ids.size):
        box = ids[i]
        if not compiled_distance_m(lons[box], lats[box], lon, lat) > radii[box]:
            out[kept] = keys[box]
            kept += 1
    return kept


def keys_inside_circles(
    ids: NDArray[np.int64],
    place: tuple[float, float],
    columns: tuple[NDArray[Any], ...],
) -> NDArray[np.int64]:
    """Return the keys of the boxes whose circle, if any, contains the place; overwrites `ids`.

    `columns` are longitude, latitude, radius and key of each box.
    """
    lons, lats, radii, keys = columns
    return ids[: _keys_of_circles(ids, *place, lons, lats, radii, keys, ids)]


@entry_point(
    "int64[::1], int64[::1], float64[::1], float64[::1], "
    "float64[:], float64[:], float64[:], boolean[::1]"
)
def _circle_pairs(
    events: Any,
    ids: Any,
    event_lons: Any,
    event_lats: Any,
    lons: Any,
    lats: Any,
    radii: Any,
    ok: Any,
) -> None:
    for i in range(ids.size):
        box, event = ids[i], events[i]
        far = compiled_distance_m(lons[box], lats[box], event_lons[event], event_lats[event])
        ok[i] = not far > radii[box]


def pairs_inside_circles(
    events: NDArray[np.int64],
    ids: NDArray[np.int64],
    rows: NDArray[np.void],
    event_lons: NDArray[np.float64],
    event_lats: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """Return for each pair of event and box if the box's circle, if any, contains the event."""
    ok = np.empty(len(ids), np.bool_)
    places = (rows["lon"], rows["lat"], rows["radius_m"])
    _circle_pairs(events, ids, event_lons, event_lats, *places, ok)
    return ok
