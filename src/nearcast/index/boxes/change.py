"""The changes of a `BoxIndex`: one compiled function for each of its methods.

Each returns OK, or why it did nothing, or which subtree (0 and up) has grown too high and has to be
rebuilt. The caller ensures room in the pools.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.index.boxes.build import build
from nearcast.index.boxes.pools import (
    HIGHEST,
    L_HEIGHT,
    LEAF,
    M_BUILT,
    M_COUNT,
    M_DIMS,
    M_LEAVES,
    M_LEVELS,
    M_NEXT_AGE,
    Real,
    Truth,
    Whole,
    event_at,
    pools_at,
)
from nearcast.index.boxes.tree import (
    TAKEN,
    _clear,
    _forget,
    _insert,
    _relocate,
    _slots_of_all,
    _take_out,
    collected,
    enter_all,
    narrowness,
    reenter_all,
    size_of,
    slot_of,
)
from nearcast.kernels import entry_point, inner

OK, KEY_IN_USE, KEY_MISSING, BAD_BOX = -1, -2, -3, -4


@inner
def is_box(box: Any) -> Truth:
    """Return whether low <= high for all attributes, with no NaN, nor +inf low, nor -inf high."""
    for i in range(box.size // 2):
        low, high = box[2 * i], box[2 * i + 1]
        if not low <= high or low > HIGHEST or high < -HIGHEST:
            return False
    return True


@entry_point("int64")
def is_box_given(address: Whole) -> Truth:
    """Return whether the numbers that Python has written are a box."""
    return is_box(_box_given(address, pools_at(address).meta[M_DIMS]))


@entry_point("float64[::1], int64")
def first_bad_box(box: Any, dims: Whole) -> Whole:
    """Return the first row that is not a box, or -1."""
    for row in range(box.size // (2 * dims)):
        if not is_box(box[row * 2 * dims : (row + 1) * 2 * dims]):
            return row
    return -1


@inner
def _box_given(address: Whole, dims: Whole) -> Any:
    """Return the box that Python has written, low and high alternating."""
    low, high = event_at(address, dims)
    box = np.empty(2 * dims, dtype=np.float64)
    for i in range(dims):
        box[2 * i], box[2 * i + 1] = low[i], high[i]
    return box


@entry_point("int64, int64, float64")
def add(address: Whole, key: Whole, weight: Real) -> Whole:
    """Add the box that Python has written under a new key."""
    s = pools_at(address)
    box = _box_given(address, s.meta[M_DIMS])
    if not is_box(box):
        return BAD_BOX
    slot = slot_of(s, key)
    if slot >= 0:
        return KEY_IN_USE
    slot = -1 - slot
    s.slots[slot] = TAKEN
    narrow = narrowness(box, 0, s.meta[M_DIMS], s.extent)
    status = _insert(s, box, key, s.meta[M_NEXT_AGE], narrow, weight, slot)
    s.meta[M_NEXT_AGE] += 1
    s.meta[M_COUNT] += 1
    return status


@entry_point("int64, int64")
def move(address: Whole, key: Whole) -> Whole:
    """Replace the box of a key by the one that Python has written; age and weight stay."""
    s = pools_at(address)
    box = _box_given(address, s.meta[M_DIMS])
    if not is_box(box):
        return BAD_BOX
    slot = slot_of(s, key)
    if slot < 0:
        return KEY_MISSING
    position = s.slots[slot]
    age = np.int64(s.ages[position])
    weight = s.weights[position] if s.weights.size else 1.0
    s.slots[slot] = TAKEN
    _take_out(s, position)
    narrow = narrowness(box, 0, s.meta[M_DIMS], s.extent)
    return _insert(s, box, key, age, narrow, weight, slot)


@entry_point("int64, int64")
def remove(address: Whole, key: Whole) -> Whole:
    """Remove a key and its box."""
    s = pools_at(address)
    slot = slot_of(s, key)
    if slot < 0:
        return KEY_MISSING
    position = s.slots[slot]
    s.slots[slot] = TAKEN
    _take_out(s, position)
    _forget(s, slot)
    s.meta[M_COUNT] -= 1
    return OK


@entry_point("int64, int64")
def find(address: Whole, key: Whole) -> Whole:
    """Return a key's position, or -1."""
    s = pools_at(address)
    slot = slot_of(s, key)
    return np.int64(s.slots[slot]) if slot >= 0 else np.int64(-1)


@entry_point("int64, int64")
def size(address: Whole, node: Whole) -> Whole:
    """Return how many boxes a subtree holds."""
    return size_of(pools_at(address), node)


@entry_point("int64, int64, int64")
def rebuild(address: Whole, node: Whole, count: Whole) -> None:
    """Rebuild a subtree of `count` boxes in place; its bounds do not change."""
    s = pools_at(address)
    boxes, keys, ages, narrows, weights = collected(s, node, count, 0)
    slots = _slots_of_all(s, keys)
    _clear(s, node)
    _relocate(s, node, boxes, keys, ages, narrows, weights, slots)


@entry_point("int64")
def everything(address: Whole) -> Any:
    """Return copies of all boxes, keys, ages, narrownesses and weights, in leaf order."""
    s = pools_at(address)
    return collected(s, 0, s.meta[M_COUNT], 0)


@entry_point("int64, float64[::1], int64[::1], uint32[::1], float64[::1], float64[::1]")
def build_all(address: Whole, boxes: Any, keys: Any, ages: Any, narrow: Any, weights: Any) -> Whole:
    """Fill empty pools; return OK, the row of a repeated key, or BAD_BOX if there is no room."""
    s = pools_at(address)
    placed = np.empty(keys.size, dtype=np.int32)
    s.meta[M_LEAVES] = 0
    if not build(s, 0, boxes, keys, ages, narrow, weights, placed):
        return BAD_BOX
    s.meta[M_COUNT] = keys.size
    s.meta[M_BUILT] = keys.size
    s.meta[M_LEVELS] = s.links[L_HEIGHT] + 1
    return enter_all(s, keys, placed)


@entry_point("int64, int32[::1]")
def move_slots(address: Whole, old: Any) -> None:
    """Fill a larger hash table from the previous one."""
    reenter_all(pools_at(address), old)


@entry_point("int64, int64, float64[::1]")
def box_at(address: Whole, position: Whole, out: Any) -> None:
    """Write the box at a position to `out`."""
    s = pools_at(address)
    base = position // LEAF * LEAF * 2 * s.meta[M_DIMS] + position % LEAF
    for c in range(out.size):
        out[c] = s.coords[base + c * LEAF]
