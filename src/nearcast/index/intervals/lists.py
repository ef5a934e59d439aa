"""Marker lists: the markers of an edge of the interval skip list, in order of accuracy.

An *entry* is one word: the interval's width in single precision above its slot. Entries compare
by that word where the upper halves differ, and by the records (exact width, then age) where they
do not; so the order is exact and a list costs eight bytes a marker (trap T1.2).

A list of up to 64 entries is one block. A longer one is a directory of chunks of up to 128
(fewer in tests, so that small histories split and join them), so
that an ordered insert moves at most one kilobyte however many intervals share an edge:

    edge:       key of next node | next node | block | length, size class, chunked?
    block:      entry, entry, …
    directory:  number of chunks | … | first entry, chunk, length, greatest weight | …

Ranking by weight prunes with the greatest weight of each chunk.

Previous: `memory.py`; next: `nodes.py`.
"""

from __future__ import annotations

from nearcast.index.intervals.memory import (
    S_CHUNK_BITS,
    S_MARKERS,
    S_RECORDS,
    float_of,
    give_block,
    inlined,
    load,
    log2_up,
    move_words,
    single_bits_of,
    store,
    take_block,
)

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

C_FIRST = 0
C_CHUNK = 1
C_LENGTH = 2
C_WEIGHT = 3

CHUNKED = 1 << 40
LENGTH_MASK = 0xFFFFFFFF


@inlined
def _chunk_limit(s):  # type: ignore[no-untyped-def]
    return 1 << load(s, S_CHUNK_BITS)


@inlined
def _flat_limit(s):  # type: ignore[no-untyped-def]
    return _chunk_limit(s) >> 1


@inlined
def entry_of(width, slot):  # type: ignore[no-untyped-def]
    """Return the entry of an interval."""
    return (single_bits_of(width) << 32) | slot


@inlined
def record_of(records, entry):  # type: ignore[no-untyped-def]
    """Return the address of the record behind an entry."""
    return records + ((entry & 0xFFFFFFFF) << 6)


@inlined
def _before_exactly(records, left, right):  # type: ignore[no-untyped-def]
    one = record_of(records, left)
    other = record_of(records, right)
    if load(one, R_WIDTH) != load(other, R_WIDTH):
        return load(one, R_WIDTH) < load(other, R_WIDTH)
    return load(one, R_AGE) < load(other, R_AGE)


@inlined
def before(records, left, right):  # type: ignore[no-untyped-def]
    """Return whether one entry is more accurate: narrower, or as wide and older."""
    if (left >> 32) != (right >> 32):
        return left < right
    return left != right and _before_exactly(records, left, right)


@inlined
def list_length(edge):  # type: ignore[no-untyped-def]
    """Return the number of markers on an edge."""
    return load(edge, E_INFO) & LENGTH_MASK


@inlined
def is_chunked(edge):  # type: ignore[no-untyped-def]
    """Return whether the edge's list is a directory of chunks."""
    return (load(edge, E_INFO) & CHUNKED) != 0


@inlined
def block_bits(edge):  # type: ignore[no-untyped-def]
    """Return the size class of the edge's block or directory."""
    return (load(edge, E_INFO) >> 32) & 0xFF


@inlined
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


@inlined
def chunk_record(directory, index):  # type: ignore[no-untyped-def]
    """Return the address of a chunk's four words in the directory."""
    return directory + 32 + (index << 5)


@inlined
def _chunk_for(records, directory, entry):  # type: ignore[no-untyped-def]
    """Return the last chunk that does not begin after `entry`, or the first."""
    low = 0
    high = load(directory, 0)
    while low < high:
        middle = (low + high) >> 1
        if before(records, entry, load(chunk_record(directory, middle), C_FIRST)):
            high = middle
        else:
            low = middle + 1
    return max(low - 1, 0)


@inlined
def _weight_of(records, entry):  # type: ignore[no-untyped-def]
    return float_of(load(record_of(records, entry), R_WEIGHT))


@inlined
def _note_greatest_weight(records, chunk):  # type: ignore[no-untyped-def]
    block = load(chunk, C_CHUNK)
    greatest = load(record_of(records, load(block, 0)), R_WEIGHT)
    for index in range(1, load(chunk, C_LENGTH)):
        weight = load(record_of(records, load(block, index)), R_WEIGHT)
        if float_of(weight) > float_of(greatest):
            greatest = weight
    store(chunk, C_WEIGHT, greatest)


@inlined
def _fill_chunk(s, chunk, source, length):  # type: ignore[no-untyped-def]
    block = take_block(s, load(s, S_CHUNK_BITS))
    move_words(block, source, length)
    store(chunk, C_FIRST, load(source, 0))
    store(chunk, C_CHUNK, block)
    store(chunk, C_LENGTH, length)
    _note_greatest_weight(load(s, S_RECORDS), chunk)


@inlined
def _write_chunks(s, edge, source, length):  # type: ignore[no-untyped-def]
    fill = 3 * _chunk_limit(s) // 4  # room for as many inserts before the first split
    chunks = (length + fill - 1) // fill
    bits = log2_up(4 + 4 * (chunks + 1))
    directory = take_block(s, bits)
    store(directory, 0, chunks)
    start = 0
    for index in range(chunks):
        end = length * (index + 1) // chunks
        _fill_chunk(s, chunk_record(directory, index), source + (start << 3), end - start)
        start = end
    store(edge, E_BLOCK, directory)
    store(edge, E_INFO, CHUNKED | (bits << 32) | length)


@inlined
def write_list(s, edge, source, length):  # type: ignore[no-untyped-def]
    """Write the sorted entries at `source` to an edge without markers. O(length)."""
    store(s, S_MARKERS, load(s, S_MARKERS) + length)
    if length == 0:
        store(edge, E_BLOCK, 0)
        store(edge, E_INFO, 0)
    elif length <= _flat_limit(s):
        bits = max(1, log2_up(length))
        block = take_block(s, bits)
        move_words(block, source, length)
        store(edge, E_BLOCK, block)
        store(edge, E_INFO, (bits << 32) | length)
    else:
        _write_chunks(s, edge, source, length)


@inlined
def clear_list(s, edge):  # type: ignore[no-untyped-def]
    """Remove all markers of an edge. O(chunks)."""
    length = list_length(edge)
    if length == 0:
        return
    store(s, S_MARKERS, load(s, S_MARKERS) - length)
    block = load(edge, E_BLOCK)
    if is_chunked(edge):
        for index in range(load(block, 0)):
            give_block(s, load(chunk_record(block, index), C_CHUNK), load(s, S_CHUNK_BITS))
    give_block(s, block, block_bits(edge))
    store(edge, E_BLOCK, 0)
    store(edge, E_INFO, 0)


@inlined
def read_list(edge, target):  # type: ignore[no-untyped-def]
    """Copy an edge's entries to `target`, in order; return how many. O(length)."""
    length = list_length(edge)
    block = load(edge, E_BLOCK)
    if not is_chunked(edge):
        move_words(target, block, length)
        return length
    place = target
    for index in range(load(block, 0)):
        chunk = chunk_record(block, index)
        move_words(place, load(chunk, C_CHUNK), load(chunk, C_LENGTH))
        place += load(chunk, C_LENGTH) << 3
    return length


@inlined
def _split_chunk(s, edge, index):  # type: ignore[no-untyped-def]
    """Cut a full chunk in two halves; the directory grows if it must."""
    directory = load(edge, E_BLOCK)
    chunks = load(directory, 0)
    bits = block_bits(edge)
    if 4 + 4 * (chunks + 1) > (1 << bits):
        bigger = take_block(s, bits + 1)
        move_words(bigger, directory, 4 + 4 * chunks)
        give_block(s, directory, bits)
        directory = bigger
        store(edge, E_BLOCK, directory)
        store(edge, E_INFO, load(edge, E_INFO) + (1 << 32))
    chunk = chunk_record(directory, index)
    move_words(chunk + 64, chunk + 32, 4 * (chunks - index - 1))
    store(directory, 0, chunks + 1)
    half = _chunk_limit(s) // 2
    _fill_chunk(s, chunk + 32, load(chunk, C_CHUNK) + (half << 3), load(chunk, C_LENGTH) - half)
    store(chunk, C_LENGTH, half)
    _note_greatest_weight(load(s, S_RECORDS), chunk)


@inlined
def _insert_in_chunks(s, edge, entry):  # type: ignore[no-untyped-def]
    records = load(s, S_RECORDS)
    index = _chunk_for(records, load(edge, E_BLOCK), entry)
    chunk = chunk_record(load(edge, E_BLOCK), index)
    if load(chunk, C_LENGTH) == _chunk_limit(s):
        _split_chunk(s, edge, index)
        chunk = chunk_record(load(edge, E_BLOCK), index)
        if not before(records, entry, load(chunk + 32, C_FIRST)):
            chunk += 32
    block = load(chunk, C_CHUNK)
    length = load(chunk, C_LENGTH)
    place = place_of(records, block, length, entry)
    move_words(block + ((place + 1) << 3), block + (place << 3), length - place)
    store(block, place, entry)
    store(chunk, C_LENGTH, length + 1)
    store(chunk, C_FIRST, load(block, 0))
    if _weight_of(records, entry) > float_of(load(chunk, C_WEIGHT)):
        store(chunk, C_WEIGHT, load(record_of(records, entry), R_WEIGHT))


@inlined
def _make_room(s, edge, length):  # type: ignore[no-untyped-def]
    """Grow a flat list that fills its block: into a bigger block, or into a directory."""
    block = load(edge, E_BLOCK)
    bits = block_bits(edge)
    if length == 0:
        store(edge, E_BLOCK, take_block(s, 1))
        store(edge, E_INFO, 1 << 32)
    elif length == _flat_limit(s):
        _write_chunks(s, edge, block, length)
        give_block(s, block, bits)
    elif length == (1 << bits):
        bigger = take_block(s, bits + 1)
        move_words(bigger, block, length)
        give_block(s, block, bits)
        store(edge, E_BLOCK, bigger)
        store(edge, E_INFO, load(edge, E_INFO) + (1 << 32))


@inlined
def insert_marker(s, edge, entry):  # type: ignore[no-untyped-def]
    """Insert an entry in order. O(log length), plus a move of at most one kilobyte."""
    if not is_chunked(edge):
        _make_room(s, edge, list_length(edge))
    if is_chunked(edge):
        _insert_in_chunks(s, edge, entry)
    else:
        length = list_length(edge)
        block = load(edge, E_BLOCK)
        place = place_of(load(s, S_RECORDS), block, length, entry)
        move_words(block + ((place + 1) << 3), block + (place << 3), length - place)
        store(block, place, entry)
    store(edge, E_INFO, load(edge, E_INFO) + 1)
    store(s, S_MARKERS, load(s, S_MARKERS) + 1)


@inlined
def _drop_chunk(s, directory, index):  # type: ignore[no-untyped-def]
    chunk = chunk_record(directory, index)
    give_block(s, load(chunk, C_CHUNK), load(s, S_CHUNK_BITS))
    move_words(chunk, chunk + 32, 4 * (load(directory, 0) - index - 1))
    store(directory, 0, load(directory, 0) - 1)


@inlined
def _join_chunks(s, directory, index):  # type: ignore[no-untyped-def]
    """Append chunk `index + 1` to chunk `index` if both together are no more than half full."""
    if index < 0 or index + 1 >= load(directory, 0):
        return
    chunk = chunk_record(directory, index)
    length = load(chunk, C_LENGTH)
    added = load(chunk + 32, C_LENGTH)
    if length + added > _chunk_limit(s) // 2:
        return
    move_words(load(chunk, C_CHUNK) + (length << 3), load(chunk + 32, C_CHUNK), added)
    store(chunk, C_FIRST, load(load(chunk, C_CHUNK), 0))
    store(chunk, C_LENGTH, length + added)
    _note_greatest_weight(load(s, S_RECORDS), chunk)
    _drop_chunk(s, directory, index + 1)


@inlined
def _flatten(s, edge):  # type: ignore[no-untyped-def]
    directory = load(edge, E_BLOCK)
    bits = block_bits(edge)
    flat_bits = load(s, S_CHUNK_BITS) - 1
    block = take_block(s, flat_bits)
    length = read_list(edge, block)
    for index in range(load(directory, 0)):
        give_block(s, load(chunk_record(directory, index), C_CHUNK), load(s, S_CHUNK_BITS))
    give_block(s, directory, bits)
    store(edge, E_BLOCK, block)
    store(edge, E_INFO, (flat_bits << 32) | length)


@inlined
def _remove_from_chunks(s, edge, entry):  # type: ignore[no-untyped-def]
    records = load(s, S_RECORDS)
    directory = load(edge, E_BLOCK)
    index = _chunk_for(records, directory, entry)
    chunk = chunk_record(directory, index)
    block = load(chunk, C_CHUNK)
    length = load(chunk, C_LENGTH)
    place = place_of(records, block, length, entry)
    move_words(block + (place << 3), block + ((place + 1) << 3), length - place - 1)
    store(chunk, C_LENGTH, length - 1)
    if length == 1:
        _drop_chunk(s, directory, index)
        return
    store(chunk, C_FIRST, load(block, 0))
    if _weight_of(records, entry) == float_of(load(chunk, C_WEIGHT)):
        _lower_weight(records, chunk)
    if length - 1 <= _chunk_limit(s) // 4:
        _join_chunks(s, directory, index)
        _join_chunks(s, directory, index - 1)


@inlined
def _lower_weight(records, chunk):  # type: ignore[no-untyped-def]
    """Recompute the greatest weight, stopping early where another entry has it too."""
    block = load(chunk, C_CHUNK)
    for index in range(load(chunk, C_LENGTH)):
        if load(record_of(records, load(block, index)), R_WEIGHT) == load(chunk, C_WEIGHT):
            return
    _note_greatest_weight(records, chunk)


@inlined
def remove_marker(s, edge, entry):  # type: ignore[no-untyped-def]
    """Remove an entry that exists. O(log length), plus a move of at most one kilobyte."""
    length = list_length(edge)
    store(s, S_MARKERS, load(s, S_MARKERS) - 1)
    if is_chunked(edge):
        _remove_from_chunks(s, edge, entry)
        store(edge, E_INFO, load(edge, E_INFO) - 1)
        if length - 1 <= _flat_limit(s) // 2:
            _flatten(s, edge)
        return
    block = load(edge, E_BLOCK)
    place = place_of(load(s, S_RECORDS), block, length, entry)
    move_words(block + (place << 3), block + ((place + 1) << 3), length - place - 1)
    store(edge, E_INFO, load(edge, E_INFO) - 1)
    if length == 1:
        give_block(s, block, block_bits(edge))
        store(edge, E_BLOCK, 0)
        store(edge, E_INFO, 0)
