"""Subscription tables: their columns, and a matcher built from one.

A table has `subscription_id` (int64) and describes the subscription in one of two ways:

- `where` (text of the `where` language) and `area` (text of a shape); either may be null;
- for each attribute NAME the closed bounds NAME_low and NAME_high, null where open.

Both may have `weight`. A smaller id is an older subscription.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nearcast.matching import MatcherView
from nearcast.matching.bulk_view import PolygonRows, bulk_hulls, bulk_view
from nearcast.matching.filter_index import FilterIndexEntry
from nearcast.matching.matcher import checked_weight
from nearcast.matching.polygon_texts import read_polygons
from nearcast.matching.subscription_compiler import placed_in, spaces_for
from nearcast.model import (
    Box,
    Expression,
    KeyInUseError,
    MisuseError,
    NearcastError,
    Space,
    Subscription,
    parse_shape,
    parse_where,
)
from nearcast.model.shape_text import Shape

KEY = "subscription_id"


def subscription_columns(space: Space, present: list[str], where: str) -> list[str]:
    """Return the columns to read.

    Raise MisuseError for a table without conditions or with both kinds.
    """
    if KEY not in present:
        raise MisuseError(
            f"no column '{KEY}'", where=where, expected=f"its columns are {', '.join(present)}"
        )
    bounds = [
        name
        for attribute in space.attributes
        for name in (f"{attribute.name}_low", f"{attribute.name}_high")
        if name in present
    ]
    texts = [name for name in ("where", "area") if name in present]
    if bool(bounds) == bool(texts):
        raise MisuseError(
            "both conditions and bounds" if bounds else "neither conditions nor bounds",
            where=where,
            expected="either 'where' and 'area', or NAME_low and NAME_high for the attributes",
        )
    return [KEY, *texts, *bounds, *(["weight"] if "weight" in present else [])]


def matcher_of(table: pa.Table, space: Space) -> MatcherView:
    """Return a matcher of a table's rows, which are sorted by id."""
    try:
        return _matcher_of(table, space)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise MisuseError(
            f"columns of a wrong type ({error})",
            where="subscriptions",
            expected="numbers as bounds and weights, texts as conditions",
        ) from None


def has_conditions(table: pa.Table) -> bool:
    """Return whether a table has conditions as text, not bounds."""
    return "where" in table.column_names or "area" in table.column_names


def _matcher_of(table: pa.Table, space: Space) -> MatcherView:
    if has_conditions(table):
        return _matcher_of_texts(table, space)
    lows, highs = bounds_of_table(table, space)
    keys = table[KEY].to_numpy()
    weights = _weights(table)
    return MatcherView.of_boxes(space, keys, lows, highs, weights=weights)


def bounds_of_table(table: pa.Table, space: Space) -> tuple[np.ndarray, np.ndarray]:
    """Return the closed bounds as two (rows, attributes) arrays; null or absent means open."""
    shape = (table.num_rows, space.dimensions)
    lows, highs = np.full(shape, -np.inf), np.full(shape, np.inf)
    for place, attribute in enumerate(space.attributes):
        for side, array in (("low", lows), ("high", highs)):
            name = f"{attribute.name}_{side}"
            if name in table.column_names:
                open_end = -np.inf if side == "low" else np.inf
                array[:, place] = pc.fill_null(table[name].cast(pa.float64()), open_end)
    return lows, highs


def _weights(table: pa.Table) -> np.ndarray | None:
    if "weight" not in table.column_names:
        return None
    weights: np.ndarray = pc.fill_null(table["weight"].cast(pa.float64()), 1.0).to_numpy()
    return weights


@contextmanager
def _without_collections() -> Iterator[None]:
    """Pause the garbage collector: it would look through all that the body builds and keeps."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _matcher_of_texts(table: pa.Table, space: Space) -> MatcherView:
    _check_different(table[KEY].to_pylist())
    with _without_collections():
        return bulk_view(space, *_read(_Conditions.of(table), space))


def hulls_of_table(table: pa.Table, space: Space) -> tuple[np.ndarray, np.ndarray]:
    """Return bounds that cover the boxes of each row, as two (rows, attributes) arrays."""
    if not has_conditions(table):
        return bounds_of_table(table, space)
    return bulk_hulls(space, *_read(_Conditions.of(table), space), table.num_rows)


@dataclass(frozen=True, slots=True)
class _Conditions:
    """The columns of a table with conditions as text; a row's number is its birth number."""

    keys: list[int]
    wheres: list[str | None]
    areas: list[str | None]
    weights: np.ndarray

    @classmethod
    def of(cls, table: pa.Table) -> _Conditions:
        weights = _weights(table)
        return cls(
            table[KEY].to_pylist(),
            _texts(table, "where"),
            _texts(table, "area"),
            np.ones(table.num_rows) if weights is None else weights,
        )


def _texts(table: pa.Table, name: str) -> list[str | None]:
    if name not in table.column_names:
        return [None] * table.num_rows
    found: list[str | None] = table[name].cast(pa.string()).to_pylist()
    return found


def _check_different(keys: list[int | None]) -> None:
    """Raise if a key is missing or stands there twice; the keys are sorted."""
    if keys and keys[-1] is None:
        raise MisuseError("a row without it", where=KEY, expected="a whole number in each row")
    twice = next((key for key, after in pairwise(keys) if key == after), None)
    if twice is not None:
        raise KeyInUseError(
            f"the key {twice}", where=f"{KEY} {twice}", expected="each id once", todo="Remove one"
        )


def _read(conditions: _Conditions, space: Space) -> tuple[PolygonRows, list[FilterIndexEntry]]:
    """Return the simple polygons, read in bulk, and all other rows, one by one."""
    polygons = read_polygons(conditions.areas if space.coordinates is not None else [])
    polygons = polygons.of_rows(np.isfinite(conditions.weights[polygons.rows]))
    in_bulk = set(polygons.rows.tolist())
    places: dict[str | None, int] = {}
    boxes: list[tuple[Box, ...]] = []
    others: list[FilterIndexEntry] = []
    for row, where in enumerate(conditions.wheres):
        try:
            if row not in in_bulk:
                others.append(_entry(conditions, row, space))
            elif where not in places:
                boxes.append(space.boxes(_parsed_where(where)))
                places[where] = len(places)
        except NearcastError as error:
            error.where = f"{KEY} {conditions.keys[row]}: {error.where}".rstrip(": ")
            raise
    rows = polygons.rows
    subscriptions = PolygonRows(
        polygons,
        [conditions.areas[row] or "" for row in rows.tolist()],
        np.array(conditions.keys, np.int64)[rows],
        rows,
        conditions.weights[rows],
        boxes,
        np.array([places[conditions.wheres[row]] for row in rows.tolist()], np.int64),
    )
    return subscriptions, others


def _entry(conditions: _Conditions, row: int, space: Space) -> FilterIndexEntry:
    subscription = Subscription(
        topic_filter=space.topic_filter,
        where=_parsed_where(conditions.wheres[row]),
        area=_parsed_area(conditions.areas[row]),
    )
    spaces_for(subscription, [space])  # raises if it cannot match
    weight = checked_weight(float(conditions.weights[row]))
    return placed_in(space, subscription, conditions.keys[row], row, weight, None)


@lru_cache(maxsize=10_000)
def _parsed_where(text: str | None) -> Expression | None:
    return parse_where(text) if text else None


def _parsed_area(text: str | None) -> Shape | None:
    return parse_shape(text) if text else None
