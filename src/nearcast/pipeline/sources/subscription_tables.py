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
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nearcast.matching import Matcher, MatcherView
from nearcast.model import (
    Expression,
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


def _matcher_of(table: pa.Table, space: Space) -> MatcherView:
    if "where" in table.column_names or "area" in table.column_names:
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


def _matcher_of_texts(table: pa.Table, space: Space) -> Matcher:
    with _without_collections():
        return _parsed(table, space)


def _parsed(table: pa.Table, space: Space) -> Matcher:
    matcher = Matcher([space])
    for row in table.to_pylist():
        try:
            subscription = Subscription(
                topic_filter=space.topic_filter,
                where=_parsed_where(row.get("where")),
                area=_parsed_area(row.get("area")),
            )
            weight = row.get("weight")
            matcher.add(row[KEY], subscription, weight=1.0 if weight is None else weight)
        except NearcastError as error:
            error.where = f"{KEY} {row[KEY]}: {error.where}".rstrip(": ")
            raise
    return matcher


@lru_cache(maxsize=10_000)
def _parsed_where(text: str | None) -> Expression | None:
    return parse_where(text) if text else None


def _parsed_area(text: str | None) -> Shape | None:
    return parse_shape(text) if text else None
