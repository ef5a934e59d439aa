"""The changes of a `BoxIndex`: one compiled function for each of its methods.

Each returns OK, or why it did nothing, or which subtree (0 and up) to rebuild: for `add` and `move`
a full leaf, which becomes several, before they are called again; for `rebuild` one that has grown
too high. The caller ensures room in the pools.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.index.boxes.build import build
from nearcast.index.boxes.pools import (
    HIGHEST,
    L_HEIGHT,
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
    _relocate,
    _slots_of_all,
    _take_out,
    collected,
    enter_all,
    insert,
    is_full,
    leaf_for,
    narrowness,
    reenter_all,
    slot_of,
    too_high,
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
    narrow, age = narrowness(box, 0, s.meta[M_DIMS], s.extent), s.meta[M_NEXT_AGE]
    leaf = leaf_for(s, box, narrow, age)
    if is_full(s, leaf):
        return leaf
    insert(s, box, key, age, narrow, weight, -1 - slot)
    s.meta[M_NEXT_AGE] += 1
    s.meta[M_COUNT] += 1
    return OK


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
    narrow = narrowness(box, 0, s.meta[M_DIMS], s.extent)
    leaf = leaf_for(s, box, narrow, age)
    if is_full(s, leaf):
        return leaf
    s.slots[slot] = TAKEN
    _take_out(s, position)
    insert(s, box, key, age, narrow, weight, slot)
    return OK


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


@entry_point("int64, int64, int64")
def rebuild(address: Whole, node: Whole, count: Whole) -> Whole:
    """Rebuild a subtree of `count` boxes in place; its bounds do not change.

    A full leaf becomes several. Returns the next subtree to rebuild, or OK.
    """
    s = pools_at(address)
    boxes, keys, ages, narrows, weights = collected(s, node, count)
    slots = _slots_of_all(s, keys)
    _clear(s, node)
    _relocate(s, node, boxes, keys, ages, narrows, weights, slots)
    return too_high(s, node)


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
