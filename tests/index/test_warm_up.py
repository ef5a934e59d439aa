"""After `warm_up()` no call waits for a compiler, whatever arrays it is given."""

from __future__ import annotations

import types
from typing import Any

import numpy as np

from nearcast.index import BoxIndex, IntervalSkipList, warm_up
from nearcast.index.boxes import change, tree
from nearcast.index.boxes import match as _box_match
from nearcast.index.boxes import top as _box_top
from nearcast.index.intervals import queries, skip_list
from nearcast.index.intervals import top as _interval_top

KERNELS: list[types.ModuleType] = [
    change, _box_match, _box_top, tree, queries, skip_list, _interval_top,
]  # fmt: skip


def compiled() -> dict[str, int]:
    """Return how many kinds of arguments each kernel was compiled for."""
    return {
        f"{module.__name__}.{name}": len(kernel.signatures)
        for module in KERNELS
        for name, kernel in vars(module).items()
        if hasattr(kernel, "signatures")
    }


def sealed(values: Any) -> Any:
    """Return an array that may not be written to, as those from files and messages are."""
    array = np.array(values)
    array.flags.writeable = False
    return array


def live_through_everything() -> None:
    """Call all there is, with lists, sealed arrays, other types and strides."""
    keys, lows = sealed([1, 2, 3]), sealed([0.0, 1.0, 2.0])
    index = IntervalSkipList.from_arrays(keys, lows, lows, weights=lows, extent=(0, 50), _limit=2)
    for key in range(10, 40):
        index.add(key, 0, float(np.float32(key)), weight=1, age=key)
    for xs in (lows, [1, 2], np.arange(6.0)[::2], sealed([1, 2])):
        index.stab_many(xs)
    index.stab(1)
    index.meeting(0, 3)
    index.top(1, 1000, {"centre": 1, "weight": 1})
    for key in range(10, 40):
        index.remove(key)
    for dims in (1, 2, 3):
        rows = sealed(np.ones((3, dims)))
        boxes = BoxIndex.from_arrays(keys, rows, rows, weights=lows, extent=(rows[0] - 1, rows[0]))
        for key in range(10, 300):
            boxes.add(key, [0] * dims, [2 + key % 5] * dims, weight=2)
            boxes.move(key, rows[0], rows[0])
        for points in (rows, np.ones((3, 2 * dims))[:, ::2], np.ones((3, dims), dtype=np.int32)):
            boxes.match_many(points)
            boxes.top_many(points, 3, "centre")
        boxes.match(rows[0])
        boxes.match_box(rows[0], rows[0])
        boxes.top(rows[0], 3)
        boxes.remove(10)


def test_whatever_is_called_after_warming_up_is_compiled_already() -> None:
    warm_up()
    before = compiled()
    live_through_everything()
    assert compiled() == before
