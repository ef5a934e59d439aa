"""Long answers in slices: the event loop serves clients in between."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Iterable
from time import perf_counter
from typing import Any, TypeVar

T = TypeVar("T")
_SLICE_S = 0.001
_LOOK_EVERY = 64


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield items; after each millisecond the loop has its turn."""
    until_s = perf_counter() + _SLICE_S
    for number, one in enumerate(items):
        if not number % _LOOK_EVERY and perf_counter() >= until_s:
            await asyncio.sleep(0)
            until_s = perf_counter() + _SLICE_S
        yield one


async def smallest(
    items: Iterable[T], count: int, key: Callable[[T], Any], keeps: Callable[[T], bool]
) -> tuple[list[T], int]:
    """Return the `count` smallest of the items that are kept, in order, and how many are kept.

    O(items log count) in slices.
    """
    found: list[T] = []
    best: list[T] = []
    kept = 0
    async for one in in_slices(items):
        if not keeps(one):
            continue
        kept += 1
        found.append(one)
        if len(found) >= 4 * count + 100:
            best = heapq.nsmallest(count, found, key=key)
            found = best
    return heapq.nsmallest(count, found, key=key), kept
