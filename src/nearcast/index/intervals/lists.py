"""Marker lists: the markers of an edge of the interval skip list, in order of accuracy.

An *entry* is one word: the interval's width in single precision above its slot. Entries compare
by that word where the upper halves differ, and by the records (exact width, then age) where they
do not; so the order is exact and a list costs eight bytes a marker (trap T1.2).

    edge:   key of next node | next node | block | length, size class
    block:  entry, entry, …

A block has a power of two of words. A list has a few hundred intervals before they become a run,
so an ordered insert moves little.

Previous: `memory.py`; next: `nodes.py`.
"""

from __future__ import annotations

from nearcast.index.intervals.memory import (
    S_MARKERS,
    S_RECORDS,
    give_block,
    load,
    log2_up,
    move_words,
    single_bits_of,
    store,
    take_block,
)
from nearcast.kernels import inner

# A record of one interval: eight words.
R_LOW = 0  # ordinal of the first value inside
R_HIGH = 1  # ordinal of the first value above
R_WIDTH = 2  # bits of a float that is never negative
R_AGE = 3  # birth number, times four, plus openness of low and high
R_WEIGHT = 4  # bits of a float
R_LOW_NODE = 5
R_HIGH_NODE = 6

E_NEXT_KEY = 0
E_NEXT = 1
E_BLOCK = 2
E_INFO = 3

LENGTH_MASK = 0xFFFFFFFF


@inner
def entry_of(width, slot):  # type: ignore[no-untyped-def]
    """Return the entry of an interval."""
    return (single_bits_of(width) << 32) | slot


@inner
def record_of(records, entry):  # type: ignore[no-untyped-def]
    """Return the address of the record behind an entry."""
    return records + ((entry & 0xFFFFFFFF) << 6)


@inner
def _before_exactly(records, left, right):  # type: ignore[no-untyped-def]
    one = record_of(records, left)
    other = record_of(records, right)
    if load(one, R_WIDTH) != load(other, R_WIDTH):
        return load(one, R_WIDTH) < load(other, R_WIDTH)
    return load(one, R_AGE) < load(other, R_AGE)


@inner
def before(records, left, right):  # type: ignore[no-untyped-def]
    """Return whether one entry is more accurate: narrower, or as wide and older."""
    if (left >> 32) != (right >> 32):
        return left < right
    return left != right and _before_exactly(records, left, right)


@inner
def list_length(edge):  # type: ignore[no-untyped-def]
    """Return the number of markers on an edge."""
    return load(edge, E_INFO) & LENGTH_MASK


@inner
def block_bits(edge):  # type: ignore[no-untyped-def]
    """Return the size class of the edge's block or directory."""
    return (load(edge, E_INFO) >> 32) & 0xFF


@inner
def place_of(records, block, length, entry):  # type: ignore[no-untyped-def]
    """Return how many of the block's entries come before `entry`. O(log length)."""
    low = 0
    high = length
    while low < high:
        middle = (low + high) >> 1
        if before(records, load(block, middle), entry):
            low = middle + 1
        else:
            high = middle
    return low


@inner
def write_list(s, edge, source, length):  # type: ignore[no-untyped-def]
    """Write the sorted entries at `source` to an edge without markers. O(length)."""
    store(s, S_MARKERS, load(s, S_MARKERS) + length)
    if length == 0:
        store(edge, E_BLOCK, 0)
        store(edge, E_INFO, 0)
    else:
        bits = max(1, log2_up(length))
        block = take_block(s, bits)
        move_words(block, source, length)
        store(edge, E_BLOCK, block)
        store(edge, E_INFO, (bits << 32) | length)


@inner
def clear_list(s, edge):  # type: ignore[no-untyped-def]
    """Remove all markers of an edge. O(1)."""
    length = list_length(edge)
    if length > 0:
        store(s, S_MARKERS, load(s, S_MARKERS) - length)
        give_block(s, load(edge, E_BLOCK), block_bits(edge))
        store(edge, E_BLOCK, 0)
        store(edge, E_INFO, 0)


@inner
def read_list(edge, target):  # type: ignore[no-untyped-def]
    """Copy an edge's entries to `target`, in order; return how many. O(length)."""
    length = list_length(edge)
    move_words(target, load(edge, E_BLOCK), length)
    return length


@inner
def _make_room(s, edge, length):  # type: ignore[no-untyped-def]
    """Move a list that fills its block into a bigger one."""
    block = load(edge, E_BLOCK)
    bits = block_bits(edge)
    if length == 0:
        store(edge, E_BLOCK, take_block(s, 1))
        store(edge, E_INFO, 1 << 32)
    elif length == (1 << bits):
        bigger = take_block(s, bits + 1)
        move_words(bigger, block, length)
        give_block(s, block, bits)
        store(edge, E_BLOCK, bigger)
        store(edge, E_INFO, load(edge, E_INFO) + (1 << 32))


@inner
def insert_marker(s, edge, entry):  # type: ignore[no-untyped-def]
    """Insert an entry in order. O(log length), plus a move of the entries behind it."""
    length = list_length(edge)
    _make_room(s, edge, length)
    block = load(edge, E_BLOCK)
    place = place_of(load(s, S_RECORDS), block, length, entry)
    move_words(block + ((place + 1) << 3), block + (place << 3), length - place)
    store(block, place, entry)
    store(edge, E_INFO, load(edge, E_INFO) + 1)
    store(s, S_MARKERS, load(s, S_MARKERS) + 1)


@inner
def remove_marker(s, edge, entry):  # type: ignore[no-untyped-def]
    """Remove an entry that exists. O(log length), plus a move of the entries behind it."""
    length = list_length(edge)
    if length == 1:
        clear_list(s, edge)
        return
    block = load(edge, E_BLOCK)
    place = place_of(load(s, S_RECORDS), block, length, entry)
    move_words(block + (place << 3), block + ((place + 1) << 3), length - place - 1)
    store(edge, E_INFO, load(edge, E_INFO) - 1)
    store(s, S_MARKERS, load(s, S_MARKERS) - 1)
