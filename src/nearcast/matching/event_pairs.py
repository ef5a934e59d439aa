"""Matches of many events at once, as pairs of event and box or as offsets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


def first_of_each(events: Ids, keys: Ids, keep: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which kept pairs are the first with their event and key."""
    order = np.lexsort((~keep, keys, events))
    same = np.zeros(len(keys), np.bool_)
    same[1:] = (np.diff(events[order]) == 0) & (np.diff(keys[order]) == 0)
    first = np.empty(len(keys), np.bool_)
    first[order] = ~same
    return first


def joined(parts: list[tuple[Ids, Ids]], events: int) -> tuple[Ids, Ids]:
    """Return the results of several filter indexes joined event by event."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return np.zeros(events + 1, np.int64), np.empty(0, np.int64)
    counts = sum(np.diff(offsets) for offsets, _ in parts)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    event_of = np.concatenate([np.repeat(np.arange(events), np.diff(o)) for o, _ in parts])
    keys = np.concatenate([k for _, k in parts])
    return offsets, keys[np.argsort(event_of, kind="stable")]
