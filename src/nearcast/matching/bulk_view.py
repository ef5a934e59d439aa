"""Builds a matcher of many polygons at once, for batch programs: it does not change afterwards.

`Matcher.add` takes 90 µs for a polygon, most of it in small Python objects. Here the polygons of a
table are arrays from the text to the index; what is no simple polygon comes as an entry each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearcast.matching.exact_shapes import ShapesFromText
from nearcast.matching.filter_index import FilterIndex, FilterIndexEntry
from nearcast.matching.polygon_table import NONE, PolygonTable
from nearcast.matching.polygon_texts import Floats, Ids, ManyPolygons
from nearcast.matching.ranking import accuracies
from nearcast.matching.rows import ROW, Rows
from nearcast.matching.view import MatcherView
from nearcast.model import Box, Space


@dataclass(frozen=True, slots=True)
class PolygonRows:
    """Subscriptions with one polygon each, and what they have beside it."""

    polygons: ManyPolygons
    texts: Sequence[str]  # of the polygons
    keys: Ids
    birth_numbers: Ids
    weights: Floats
    boxes: Sequence[tuple[Box, ...]]  # of different conditions
    conditions: Ids  # of each subscription: its place in `boxes`


@dataclass(frozen=True, slots=True)
class _Boxes:
    """Boxes of a filter index to be, in any order."""

    table: NDArray[np.void]
    lows: Floats
    highs: Floats


def bulk_view(
    space: Space, rows: PolygonRows, others: Sequence[FilterIndexEntry] = ()
) -> MatcherView:
    """Return a matcher of these subscriptions on all topics of the space; O(n log n).

    Only a space with coordinates has polygons. Birth numbers are given, as keys are, and are
    different.
    """
    of_polygons, polygon_of_box = _polygon_boxes(space, rows)
    of_others, entry_of_box = _other_boxes(space, others)
    table, lows, highs = _joined(of_polygons, of_others)
    order = np.argsort(table["age"], kind="stable")
    table, lows, highs = table[order], lows[order], highs[order]
    table["accuracy"] = accuracies(lows, highs, space.extent)
    polygons, slot_of = PolygonTable.of_edges(rows.polygons.edges, rows.polygons.edge_counts)
    slots = np.full(len(table), NONE, np.int64)
    new_place = np.empty(len(order), np.int64)
    new_place[order] = np.arange(len(order))
    split = len(polygon_of_box)
    slots[new_place[:split]] = slot_of[polygon_of_box]
    polygons.slots = slots
    texts = [rows.texts[at] for at in polygon_of_box.tolist()]
    rough = ShapesFromText(dict(zip(new_place[:split].tolist(), ([t] for t in texts), strict=True)))
    for box_id, at in zip(new_place[split:].tolist(), entry_of_box, strict=True):
        if others[at].rough:
            rough[box_id] = others[at].rough
            polygons.put(box_id, others[at].rough)
    from nearcast.index.boxes.box_index import BoxIndex

    extent = (space.extent.lows, space.extent.highs)
    ids = np.arange(len(table))
    index = BoxIndex.from_arrays(ids, lows, highs, weights=table["weight"], extent=extent)
    view = MatcherView([space])
    shelf = FilterIndex.of(space, Rows(table), index, rough, polygons)
    view.put_shelf(space, space.topic_filter, shelf)
    return view


def bulk_hulls(
    space: Space, rows: PolygonRows, others: Sequence[FilterIndexEntry], count: int
) -> tuple[Floats, Floats]:
    """Return bounds around all boxes of each subscription, by birth numbers below `count`.

    They are empty (from infinity to minus infinity) for a subscription without boxes.
    """
    table, lows, highs = _joined(_polygon_boxes(space, rows)[0], _other_boxes(space, others)[0])
    shape = (count, space.dimensions)
    low, high = np.full(shape, math.inf), np.full(shape, -math.inf)
    np.minimum.at(low, table["age"], lows)
    np.maximum.at(high, table["age"], highs)
    return low, high


def _joined(one: _Boxes, other: _Boxes) -> tuple[NDArray[np.void], Floats, Floats]:
    return (
        np.concatenate([one.table, other.table]),
        np.concatenate([one.lows, other.lows]),
        np.concatenate([one.highs, other.highs]),
    )


def _polygon_boxes(space: Space, rows: PolygonRows) -> tuple[_Boxes, Ids]:
    """Return boxes around polygons, cut to the conditions and to the space, and whose they are."""
    counts = np.array([len(boxes) for boxes in rows.boxes], np.int64)
    flat = [box for boxes in rows.boxes for box in boxes]
    shape = (len(flat), space.dimensions)
    lows = np.array([box.lows for box in flat], np.float64).reshape(shape)
    highs = np.array([box.highs for box in flat], np.float64).reshape(shape)
    each = counts[rows.conditions]
    owner = np.repeat(np.arange(len(each)), each)
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(each) - each, each)
    at = (np.cumsum(counts) - counts)[rows.conditions][owner] + nth
    lows, highs = lows[at], highs[at]
    bounds = rows.polygons.bounds[owner]
    keep = np.ones(len(owner), np.bool_)
    for axis, place in enumerate(space.coordinates or ()):
        low, high = axis, axis + 2
        side = space.extent.sides[place]
        lows[:, place] = np.maximum(lows[:, place], np.maximum(bounds[:, low], side.low))
        highs[:, place] = np.minimum(highs[:, place], np.minimum(bounds[:, high], side.high))
        keep &= lows[:, place] <= highs[:, place]
    owner = owner[keep]
    table = np.zeros(len(owner), ROW)
    table["key"], table["age"] = rows.keys[owner], rows.birth_numbers[owner]
    table["weight"], table["radius_m"] = rows.weights[owner], math.nan
    table["lon"], table["lat"] = rows.polygons.middles[owner].T
    return _Boxes(table, lows[keep], highs[keep]), owner


def _other_boxes(space: Space, entries: Sequence[FilterIndexEntry]) -> tuple[_Boxes, list[int]]:
    found, whose, bounds = [], [], []
    for at, entry in enumerate(entries):
        lon, lat = entry.place or (math.nan, math.nan)
        radius_m = math.nan if entry.radius_m is None else entry.radius_m
        row = (entry.key, entry.birth_number, 0.0, entry.weight, lon, lat, radius_m)
        for box in entry.boxes:
            found.append(row)
            whose.append(at)
            bounds.append((box.lows, box.highs))
    shape = (len(found), space.dimensions)
    lows = np.array([low for low, _ in bounds], np.float64).reshape(shape)
    highs = np.array([high for _, high in bounds], np.float64).reshape(shape)
    return _Boxes(np.array(found, ROW), lows, highs), whose
