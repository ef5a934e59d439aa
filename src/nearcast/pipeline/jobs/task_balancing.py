"""Distributes the work of a partitioned match over tasks of about equal length.

The work of a grid cell is its events and the boxes that they meet. A cell that is too large is cut
into several pieces, each with a share of the events and all of the boxes. The pieces, largest
first, each go to the task with the least load.

Spark sends a row to the partition given by the hash of its key; `keys_of_partitions` finds for each
task a key that hashes to a partition of its own.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass

_MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class CellShare:
    """A share of a cell's events, and the task that matches it."""

    cell: int
    deal: int
    task: int


def deal_out(loads: Mapping[int, tuple[int, int]], tasks: int) -> list[CellShare]:
    """Return all pieces of the cells; `loads` has the numbers of (events, boxes) per cell.

    A cell without events or without boxes is no work. Complexity: O(pieces log tasks).

    >>> [(piece.cell, piece.task) for piece in deal_out({7: (90, 10), 8: (10, 50)}, 2)]
    [(7, 1), (7, 1), (7, 0), (8, 0)]
    """
    work = {cell: load for cell, load in loads.items() if all(load)}
    share = sum(events + boxes for events, boxes in work.values()) / tasks
    pieces = []
    for cell, (events, boxes) in work.items():
        # A piece carries all boxes of its cell, so its events get only the load that the boxes
        # leave.
        deals = math.ceil(events / max(share / 2 - boxes, share / 4, 1))
        pieces += [(events / deals + boxes, cell, deal) for deal in range(deals)]
    heap = [(0.0, task) for task in range(tasks)]
    done = []
    for load, cell, deal in sorted(pieces, key=lambda piece: (-piece[0], piece[1:])):
        before, task = heapq.heappop(heap)
        done.append(CellShare(cell, deal, task))
        heapq.heappush(heap, (before + load, task))
    return sorted(done, key=lambda piece: (piece.cell, piece.deal))


def keys_of_partitions(partitions: int) -> list[int]:
    """Return for each partition an integer that Spark's hash sends there."""
    keys: dict[int, int] = {}
    key = 0
    while len(keys) < partitions:
        keys.setdefault(spark_hash(key) % partitions, key)
        key += 1
    return [keys[at] for at in range(partitions)]


def spark_hash(value: int) -> int:
    """Return Spark's `hash` of a non-negative int (Murmur3, 32 bits, seed 42), signed."""
    mixed = _rotated(value * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    state = _rotated(42 ^ mixed, 13) * 5 + 0xE6546B64 & _MASK
    state ^= 4  # bytes
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK
