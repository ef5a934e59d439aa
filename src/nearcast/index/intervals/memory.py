"""Memory as the kernels of the interval skip list see it: words, an arena, a key table.

Kernels get one number, the address of a small table of words (`S_…` below), instead of a dozen
arrays: a Numba call costs 100 to 200 ns per array, and a list that is queried a few hundred
thousand times a second cannot pay that. Everything here counts in words of eight bytes.

All memory is NumPy's, and belongs to `store.py`, which enlarges it *before* a kernel
changes anything. Kernels never allocate, so they cannot fail half way.

The key of the disk cache covers the sources of all kernels (`nearcast/kernel_files.py`).

Previous: `store.py`; next: `lists.py` (marker lists).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from nearcast.kernels import entry_point, inner

# The table of words.
S_HEIGHT = 0
S_HEADER = 1
S_TAIL = 2
S_RANDOM = 3
S_NEXT_AGE = 4
S_COUNT = 5  # number of intervals, in the list and in runs
S_RECORDS = 6
S_RECORD_CAPACITY = 7
S_RECORDS_USED = 8
S_FREE_SLOT = 9
S_KEYS = 10
S_TABLE = 11
S_TABLE_BITS = 12
S_BUMP = 13
S_BUMP_END = 14
S_SCRATCH = 15
S_SCRATCH_WORDS = 16
S_TOUCHED = 17
S_EDGES = 18
S_NODES = 19
S_MARKERS = 20
S_EXTENT_LOW = 21
S_EXTENT_HIGH = 22
S_LISTED = 24  # intervals in the list; the others are in runs
S_LIST_LIMIT = 25
S_MARKER_LIMIT = 26
S_RUN_COUNT = 27
S_WORN_RUN = 28  # a run of mostly removed intervals, or 0
S_FREE_BLOCK = 32  # one free list per power of two of words
S_FREE_NODE = 80  # one free list per level
S_PATH = 128  # the marked edges over a value, from the top down
S_REACH = 168
S_ASK = 208  # the query of a caller, written there by `struct`
S_RUN = 224  # addresses of the runs, the largest first
S_CURSORS = 256  # what a merge reads next from each list, eight words each
S_HEAP = 528
S_LOW_PATH = 576  # by level: the node before an end point; the node after; its key
S_HIGH_PATH = 672
S_STAIRS = 768  # the edges of a staircase, a hundred at a time
S_STACK = 896  # nodes of a run that are still to be visited
STATE_WORDS = 1536

MOST_RUNS = 16
_WORD = ir.IntType(64)
_intrinsic: Any = intrinsic  # its annotations describe the implementation, not the call


def _word_pointer(builder: Any, address: Any, offset: Any) -> Any:
    # Addresses are integers here, and LLVM splits their sums arbitrarily. Where the part it treats
    # as the pointer is 0, it would consider the access impossible and drop the branch that leads
    # there, unless 0 is declared a valid pointer. (llvmlite does not list this attribute; hence the
    # plain `set.add`.)
    set.add(builder.function.attributes, "null_pointer_is_valid")
    pointer = builder.inttoptr(address, _WORD.as_pointer())
    return builder.gep(pointer, [offset])


@_intrinsic
def load(_context: Any, address: Any, offset: Any) -> Any:  # noqa: ARG001
    """Return the word `offset` words after `address`."""

    def generate(_: Any, builder: Any, __: Any, args: Any) -> Any:
        return builder.load(_word_pointer(builder, args[0], args[1]))

    return types.int64(types.int64, types.int64), generate


@_intrinsic
def store(_context: Any, address: Any, offset: Any, value: Any) -> Any:  # noqa: ARG001
    """Write a word `offset` words after `address`."""

    def generate(context: Any, builder: Any, __: Any, args: Any) -> Any:
        builder.store(args[2], _word_pointer(builder, args[0], args[1]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@_intrinsic
def prefetch(_context: Any, address: Any) -> Any:  # noqa: ARG001
    """Prefetch a cache line that will be read soon."""

    def generate(context: Any, builder: Any, __: Any, args: Any) -> Any:
        small = ir.IntType(32)
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, small, small, small])
        function = builder.module.declare_intrinsic("llvm.prefetch", (pointer,), kind)
        numbers = [ir.Constant(small, n) for n in (0, 3, 1)]
        builder.call(function, [builder.inttoptr(args[0], pointer), *numbers])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@_intrinsic
def bits_of(_context: Any, value: Any) -> Any:  # noqa: ARG001
    """Return the 64 bits of a float as an integer."""

    def generate(_: Any, builder: Any, __: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _WORD)

    return types.int64(types.float64), generate


@_intrinsic
def float_of(_context: Any, bits: Any) -> Any:  # noqa: ARG001
    """Return the float that has these 64 bits."""

    def generate(_: Any, builder: Any, __: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), generate


@_intrinsic
def single_bits_of(_context: Any, value: Any) -> Any:  # noqa: ARG001
    """Return the 32 bits of a float rounded to single precision; keeps the order from 0 up."""

    def generate(_: Any, builder: Any, __: Any, args: Any) -> Any:
        single = builder.fptrunc(args[0], ir.FloatType())
        return builder.zext(builder.bitcast(single, ir.IntType(32)), _WORD)

    return types.int64(types.float64), generate


_memmove = types.ExternalFunction("memmove", types.int64(types.int64, types.int64, types.uint64))


@inner
def move_words(target, source, words):  # type: ignore[no-untyped-def]
    """Copy words; the two places may overlap."""
    if words > 0:
        _memmove(target, source, words << 3)


@inner
def log2_up(number):  # type: ignore[no-untyped-def]
    """Return the least b with 2**b >= number."""
    bits = 0
    while (1 << bits) < number:
        bits += 1
    return bits


@inner
def take_words(s, words):  # type: ignore[no-untyped-def]
    """Return the address of fresh words with undefined content. O(1).

    There is room: the caller has ensured it before the change.
    """
    bump = load(s, S_BUMP)
    store(s, S_BUMP, bump + (words << 3))
    return bump


@inner
def free_words(s):  # type: ignore[no-untyped-def]
    """Return how many words of the arena were never used."""
    return (load(s, S_BUMP_END) - load(s, S_BUMP)) >> 3


@inner
def take_block(s, bits):  # type: ignore[no-untyped-def]
    """Return a block of 2**bits words, a freed one if there is any. O(1)."""
    block = load(s, S_FREE_BLOCK + bits)
    if block != 0:
        store(s, S_FREE_BLOCK + bits, load(block, 0))
        return block
    return take_words(s, 1 << bits)


@inner
def give_block(s, block, bits):  # type: ignore[no-untyped-def]
    """Free a block. O(1)."""
    store(block, 0, load(s, S_FREE_BLOCK + bits))
    store(s, S_FREE_BLOCK + bits, block)


@inner
def scratch(s):  # type: ignore[no-untyped-def]
    """Return a scratch area that is valid until the next call of this."""
    return load(s, S_SCRATCH)


@inner
def ordinal(value):  # type: ignore[no-untyped-def]
    """Return an integer for a float, in the same order; the next float has the next integer."""
    bits = bits_of(value + 0.0)  # -0.0 becomes 0.0
    if bits < 0:
        bits ^= 0x7FFFFFFFFFFFFFFF
    return bits


@inner
def value_of(number):  # type: ignore[no-untyped-def]
    """Return the float that has this ordinal."""
    if number < 0:
        return float_of(number ^ 0x7FFFFFFFFFFFFFFF)
    return float_of(number)


@inner
def _hash(s, key):  # type: ignore[no-untyped-def]
    mixed = key * -7046029254386353131
    mixed ^= (mixed >> 29) & 0x7FFFFFFFF
    mixed *= -4658895280553007687
    bits = load(s, S_TABLE_BITS)
    return (mixed >> (64 - bits)) & ((1 << bits) - 1)


@inner
def find_slot(s, key):  # type: ignore[no-untyped-def]
    """Return the slot of a key, or -1. Expected O(1)."""
    table = load(s, S_TABLE)
    mask = (1 << load(s, S_TABLE_BITS)) - 1
    place = _hash(s, key)
    while True:
        slot = load(table, 2 * place + 1)
        if slot < 0 or load(table, 2 * place) == key:
            return slot
        place = (place + 1) & mask


@inner
def remember_key(s, key, slot):  # type: ignore[no-untyped-def]
    """Add a key that is not there yet with its slot. Expected O(1)."""
    table = load(s, S_TABLE)
    mask = (1 << load(s, S_TABLE_BITS)) - 1
    place = _hash(s, key)
    while load(table, 2 * place + 1) >= 0:
        place = (place + 1) & mask
    store(table, 2 * place, key)
    store(table, 2 * place + 1, slot)


@inner
def forget_key(s, key):  # type: ignore[no-untyped-def]
    """Remove a key, closing the gap so that no tombstone remains."""
    table = load(s, S_TABLE)
    mask = (1 << load(s, S_TABLE_BITS)) - 1
    hole = _hash(s, key)
    while load(table, 2 * hole) != key or load(table, 2 * hole + 1) < 0:
        hole = (hole + 1) & mask
    place = (hole + 1) & mask
    while load(table, 2 * place + 1) >= 0:
        home = _hash(s, load(table, 2 * place))
        if ((place - home) & mask) >= ((place - hole) & mask):
            store(table, 2 * hole, load(table, 2 * place))
            store(table, 2 * hole + 1, load(table, 2 * place + 1))
            hole = place
        place = (place + 1) & mask
    store(table, 2 * hole + 1, -1)


@entry_point("int64, int64[::1]")
def move_keys(s, old):  # type: ignore[no-untyped-def]
    """Copy all keys of a former table into the current one, which is empty."""
    for word in range(0, len(old), 2):
        if old[word + 1] >= 0:
            remember_key(s, old[word], old[word + 1])
