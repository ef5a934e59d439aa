"""Coarse places: the middles of the cells of a grid over the earth.

A place that is known only by its cell cannot be found more exactly, however often somebody asks.
"""

from __future__ import annotations

import math

from nearcast.model.sphere import HALF_TURN_M

Place = tuple[float, float]  # longitude, latitude


def coarse_place(place: Place, step_m: float) -> Place:
    """Return the middle of the cell that contains a place; at most `step_m` away. O(1).

    Rows are about `step_m` high, and cells of a row about as wide, so that all cells of a grid have
    about the same size. The middle of a cell is in that cell.

    >>> coarse_place((8.5417, 47.3769), 1000)
    (8.54581673306771, 47.37646764926305)
    """
    lon, lat = place
    rows = max(1, round(HALF_TURN_M / step_m))
    row = min(int((lat + 90) / 180 * rows), rows - 1)
    middle = (row + 0.5) / rows * 180 - 90
    columns = max(1, round(2 * HALF_TURN_M * math.cos(math.radians(middle)) / step_m))
    column = int((lon + 180) / 360 * columns) % columns
    return (column + 0.5) / columns * 360 - 180, middle
