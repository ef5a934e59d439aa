"""The memory of an interval skip list: NumPy arrays, and how kernels reach them.

    meta      counters (`M_…`), and address and length of each run's block
    path      of a search, by level; then the intervals whose markers are being re-placed
    nodes     per node: levels, owners, then next node and first marker of the edge of each level
    ends      per node: the value at which it stands
    cells     markers: the interval, and the next marker on the same edge
    bounds    per interval in the list: low, high, first value above it, weight
    listed    per interval in the list: steps of narrowness, age, key, node of its low and high end
    homes     per key: run and place, or `LISTED` and place in the list; -1 where there is none
    stack     nodes of a run that are still to be visited, with their bounds

A call of a compiled function costs about 100 ns for each array, so a kernel gets one number, the
address of a table of addresses, and makes the views itself. Kernels never allocate: everything
that a change may need is there before it begins.

Read next: `skip_list.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic
from numpy.typing import NDArray

from nearcast.kernels import inner

LEVELS = 16
HEADER, TAIL = 0, 1  # the first two nodes
N_LEVELS, N_OWNERS, N_NEXT, N_MARKER = 0, 1, 2, 2 + LEVELS
NODE_WORDS = 2 + 2 * LEVELS

M_LISTED, M_HEIGHT, M_FREE_NODE, M_NODES, M_FREE_CELL, M_CELLS, M_FREE_PLACE = range(7)
M_PLACES, M_RANDOM, M_RUNS, M_TOUCHED, M_DIMENSIONS = range(7, 12)
M_RUN, M_RUN_LENGTH = 16, 32  # by number of the run
MOST_RUNS = 16
META_WORDS = 48

B_LOW, B_HIGH, B_ABOVE, B_WEIGHT = range(4)
L_STEPS, L_AGE, L_KEY, L_LOW_NODE, L_HIGH_NODE = range(5)
PLACE_BITS = 40  # of a home; the run is above them
LISTED = MOST_RUNS  # the home of an interval in the list
STACK_ROWS = 256

STEP = 2.0**-24  # narrowness is compared in these steps, in bits; as in the box index


class Memory(NamedTuple):
    """All arrays of one list, in the order of the address table."""

    meta: NDArray[np.int64]
    path: NDArray[np.int64]
    nodes: NDArray[np.int64]
    ends: NDArray[np.float64]
    cells: NDArray[np.int64]
    bounds: NDArray[np.float64]
    listed: NDArray[np.int64]
    homes: NDArray[np.int64]
    stack: NDArray[np.float64]


def new_memory(limit: int, seed: int, dimensions: int) -> Memory:
    """Return the memory of an empty list of at most `limit` intervals.

    An interval marks at most every edge of level 0, so there are always enough cells; memory that
    was never used costs nothing.
    """
    nodes = 2 * limit + 2
    made = Memory(
        np.zeros(META_WORDS, np.int64),
        np.empty(LEVELS + limit, np.int64),
        np.empty((nodes, NODE_WORDS), np.int64),
        np.empty(nodes),
        np.empty((limit * nodes, 2), np.int64),
        np.empty((limit, 4)),
        np.empty((limit, 5), np.int64),
        np.full(16, -1, np.int64),
        np.empty((STACK_ROWS, 3)),
    )
    made.meta[M_RANDOM] = seed
    made.meta[M_DIMENSIONS] = dimensions
    empty_list(made)
    return made


def empty_list(memory: Memory) -> None:
    """Empty the list itself; runs stay."""
    meta = memory.meta
    meta[[M_LISTED, M_HEIGHT, M_NODES, M_CELLS, M_PLACES]] = 0, 1, 2, 0, 0
    meta[[M_FREE_NODE, M_FREE_CELL, M_FREE_PLACE]] = -1
    memory.nodes[:2] = -1
    memory.nodes[HEADER, N_NEXT : N_NEXT + LEVELS] = TAIL
    memory.nodes[:2, N_LEVELS] = LEVELS
    memory.ends[:2] = -np.inf, np.inf


def address_table(memory: Memory) -> NDArray[np.int64]:
    """Return addresses and lengths of the arrays; valid while they exist."""
    return np.array([n for array in memory for n in (array.ctypes.data, len(array))], np.int64)


def _typed_pointer(_context: Any, _address: Any) -> Any:
    """Cast an int64 to a pointer."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        # Where LLVM treats a part of an address as the pointer and that part is 0, it would drop
        # the access as impossible, unless 0 is declared valid.
        set.add(builder.function.attributes, "null_pointer_is_valid")
        kind = ir.IntType(8).as_pointer()
        found = builder.inttoptr(arguments[0], kind)
        return builder.bitcast(found, context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


pointer: Any = intrinsic(_typed_pointer)


@inner
def memory_at(address: Any) -> Any:
    """Return the arrays whose addresses are in the table at an address."""
    table = carray(pointer(address), (18,), np.int64)
    return Memory(
        carray(pointer(table[0]), (table[1],), np.int64),
        carray(pointer(table[2]), (table[3],), np.int64),
        carray(pointer(table[4]), (table[5], NODE_WORDS), np.int64),
        carray(pointer(table[6]), (table[7],), np.float64),
        carray(pointer(table[8]), (table[9], 2), np.int64),
        carray(pointer(table[10]), (table[11], 4), np.float64),
        carray(pointer(table[12]), (table[13], 5), np.int64),
        carray(pointer(table[14]), (table[15],), np.int64),
        carray(pointer(table[16]), (table[17], 3), np.float64),
    )
