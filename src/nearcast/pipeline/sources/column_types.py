"""Checks column types before a job starts, so that no worker fails half-way."""

from __future__ import annotations

from pyspark.sql import DataFrame

from nearcast.model import MisuseError, Space

EVENT_KEY = "event_id"
EVENT_DETAILS = ("t", "publisher", "topic")  # kept beside the attributes, if the input has them
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_NUMBERS = (*_WHOLE, "float", "double", "decimal", "void")  # void: only nulls
_TEXTS = ("string", "void")


def check_event_columns(events: DataFrame, space: Space) -> None:
    """Raise MisuseError if a table of events lacks its key or has a column of the wrong type."""
    if EVENT_KEY not in events.columns:
        present = ", ".join(events.columns)
        raise MisuseError(f"no column '{EVENT_KEY}'", where="events", expected=f"one of {present}")
    _check(events, "events", {EVENT_KEY: _WHOLE})
    _check(
        events,
        "events",
        {each.name: _TEXTS if each.is_category else _NUMBERS for each in space.attributes},
    )


def check_subscription_columns(subscriptions: DataFrame, key: str) -> None:
    """Raise MisuseError if a column of a subscription table has the wrong type."""
    bounds = [name for name in subscriptions.columns if name.endswith(("_low", "_high"))]
    kinds = {key: _WHOLE, "where": _TEXTS, "area": _TEXTS, "weight": _NUMBERS}
    _check(subscriptions, "subscriptions", {**dict.fromkeys(bounds, _NUMBERS), **kinds})


def check_present(frame: DataFrame, names: list[str], where: str, todo: str) -> None:
    """Raise MisuseError unless `frame` has all columns in `names`."""
    missing = [name for name in names if name not in frame.columns]
    if missing:
        present = ", ".join(frame.columns)
        expected = f"it; its columns are {present}"
        raise MisuseError(f"no column '{missing[0]}'", where=where, expected=expected, todo=todo)


def _check(frame: DataFrame, where: str, wanted: dict[str, tuple[str, ...]]) -> None:
    for name, kind in frame.dtypes:
        kinds = wanted.get(name)
        if kinds and kind.partition("(")[0] not in kinds:
            told = {_WHOLE: "whole numbers", _NUMBERS: "numbers", _TEXTS: "texts"}[kinds]
            raise MisuseError(
                f"column '{name}' of type {kind}",
                where=where,
                expected=told,
                todo="Clean the table first: nearcast pipeline ingest --space …",
            )
