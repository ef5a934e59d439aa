"""The memory of a `BoxIndex`: flat arrays, and one table of their addresses.

    meta      counters: see the `M_…` numbers below
    extent    low and high of each attribute's range, then the floor of narrowness
    coords    per leaf: low of attribute 0 (LEAF numbers), its high, low of attribute 1 …
    keys, ages, narrow, weights      LEAF of each per leaf, at the same positions
    leaf_node per leaf: its node
    nodes     per node 64 bytes, one cache line, all that matching reads of it. As
              floats, the first four: the hull of its left and of its right child in one
              attribute. As `links`, int32, the last eight: the `L_…` numbers. As `bits` of
              a leaf, uint64, the first: which attributes its boxes constrain
    routes    per node: the value (and age) from which on a new box goes right
    bounds    per node: least and greatest low and high per attribute, least narrowness,
              least age, greatest weight
    slots     hash table from key to position; -1 is free

A *position* is leaf * LEAF + place in the leaf. Places beyond a leaf's count have the
box [+inf, -inf], which nothing matches, so that kernels can always test whole leaves.

A call of a compiled function from Python costs about 100 ns per array. So kernels take
the address of one table of addresses, and create the views themselves (`pools_at`).
Read `build.py` next.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import carray, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic

from nearcast.kernels import inner

LEAF = 64  # most boxes of a leaf: hits are the bits of one word
FILL = 52  # boxes of a leaf after a build
HIGHEST = np.finfo(np.float64).max
MOST_AGES = 2**32 - 1  # ages are uint32; before they run out they are renumbered

M_DIMS, M_COUNT, M_NEXT_AGE, M_LEAVES, M_LEAF_FREE, M_NODES, M_NODE_FREE, M_BUILT = range(8)
M_LEVELS = 8  # no leaf is deeper
M_SIZE = 16

# One node's links. L_CHILD is the left child (the right one is next to it) or -1 in a leaf.
# They are the second half of its 16 int32 words.
L_CHILD, L_DIM, L_LEAF, L_COUNT, L_ROUTE, L_PARENT, L_HEIGHT, L_SPARE = range(8, 16)

# The table: address and length of each pool, then the event's address, then the keys' and their
# length, then whether the event is a point.
T_EVENT, T_FOUND, T_IS_POINT, T_SIZE = 28, 29, 31, 32

# Arguments of kernels: numbers of Python or of NumPy. Numba infers their types.
Whole: TypeAlias = Any
Real: TypeAlias = Any
Truth: TypeAlias = Any

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]


class Pools(NamedTuple):
    """All arrays of one index, in the order of the address table."""

    meta: Ints
    extent: Floats
    coords: Floats
    keys: Ints
    ages: npt.NDArray[np.uint32]
    narrow: Floats
    weights: Floats
    leaf_node: Int32s
    nodes: Floats
    links: Int32s
    bits: npt.NDArray[np.uint64]
    routes: Floats
    bounds: Floats
    slots: Int32s


DTYPES: dict[str, str] = {
    "meta": "<i8",
    "extent": "<f8",
    "coords": "<f8",
    "keys": "<i8",
    "ages": "<u4",
    "narrow": "<f8",
    "weights": "<f8",
    "leaf_node": "<i4",
    "nodes": "<f8",
    "routes": "<f8",
    "bounds": "<f8",
    "slots": "<i4",
}


def _typed_pointer(_context: Any, _address: Any) -> Any:
    """Cast an int64 to a pointer."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


_pointer: Any = intrinsic(_typed_pointer)


@inner
def table_at(address: int) -> Any:
    """Return the table of addresses at an address."""
    return carray(_pointer(address), (T_SIZE,), np.int64)


@inner
def pools_at(address: int) -> Any:
    """Return the pools whose addresses and lengths are in the table at an address."""
    table = table_at(address)
    return Pools(
        carray(_pointer(table[0]), (table[1],), np.int64),
        carray(_pointer(table[2]), (table[3],), np.float64),
        carray(_pointer(table[4]), (table[5],), np.float64),
        carray(_pointer(table[6]), (table[7],), np.int64),
        carray(_pointer(table[8]), (table[9],), np.uint32),
        carray(_pointer(table[10]), (table[11],), np.float64),
        carray(_pointer(table[12]), (table[13],), np.float64),
        carray(_pointer(table[14]), (table[15],), np.int32),
        carray(_pointer(table[16]), (table[17],), np.float64),
        carray(_pointer(table[18]), (table[19],), np.int32),
        carray(_pointer(table[20]), (table[21],), np.uint64),
        carray(_pointer(table[22]), (table[23],), np.float64),
        carray(_pointer(table[24]), (table[25],), np.float64),
        carray(_pointer(table[26]), (table[27],), np.int32),
    )


@inner
def event_at(address: int, dims: int) -> Any:
    """Return the lows and the highs of the event or box that Python has written."""
    table = table_at(address)
    low = carray(_pointer(table[T_EVENT]), (dims,), np.float64)
    high = carray(_pointer(table[T_EVENT] + 8 * dims), (dims,), np.float64)
    return low, high


@inner
def found_at(address: int) -> Any:
    """Return the array where Python expects the keys found."""
    table = table_at(address)
    return carray(_pointer(table[T_FOUND]), (table[T_FOUND + 1],), np.int64)


@inner
def is_point_at(address: int) -> Any:
    """Return whether the event that Python has written is a point."""
    return table_at(address)[T_IS_POINT] != 0


def _typed_prefetch(_context: Any, array: Any, index: Any) -> Any:
    """Prefetch the cache line of an array's element."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        data = context.make_array(kind)(context, builder, arguments[0]).data
        place = builder.gep(data, [arguments[1]])
        byte = ir.IntType(8).as_pointer()
        word = ir.IntType(32)
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte, word, word, word]),
            "llvm.prefetch.p0i8",
        )
        hints = [ir.Constant(word, n) for n in (0, 3, 1)]  # to read, keep close, data
        builder.call(function, [builder.bitcast(place, byte), *hints])
        return context.get_dummy_value()

    return types.void(array, index), generate


prefetch: Any = intrinsic(_typed_prefetch)


def address_table(pools: Pools, event: Floats, found: Ints) -> Ints:
    """Return the address table of these arrays; valid while they exist."""
    addresses = [n for a in pools for n in (a.ctypes.data, a.size)]
    places = (event.ctypes.data, found.ctypes.data, found.size)
    return np.array([*addresses, *places, True], np.int64)


def count_below(pools: Pools, root: int) -> int:
    """Return how many boxes a subtree has; O(its nodes)."""
    links = pools.links.reshape(-1, 16)
    total, stack = 0, [root]
    while stack:
        node = links[stack.pop()]
        if node[L_CHILD] >= 0:
            stack += [int(node[L_CHILD]), int(node[L_CHILD]) + 1]
        else:
            total += int(node[L_COUNT])
    return total


def boxes_at(pools: Pools, positions: Int32s | Ints) -> Floats:
    """Return the boxes at some positions as rows, low and high alternating."""
    leaves = pools.coords.reshape(-1, 2 * int(pools.meta[M_DIMS]), LEAF)
    found: Floats = leaves[positions // LEAF, :, positions % LEAF]
    return found


def pools_of(arrays: dict[str, npt.NDArray[Any]]) -> Pools:
    """Return the pools made of these arrays, `links` and `bits` being views of `nodes`."""
    nodes = arrays["nodes"]
    return Pools(**arrays, links=nodes.view(np.int32), bits=nodes.view(np.uint64))


def stored(pools: Pools) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that own their memory, by name."""
    return {name: getattr(pools, name) for name in DTYPES}


def _aligned(size: int, dtype: str) -> npt.NDArray[Any]:
    """Return an array of zeros, aligned to a cache line.

    Zeros, because pools are saved whole: files must not hold what was in this memory before.
    """
    kind = np.dtype(dtype)
    raw = np.zeros(size * kind.itemsize + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size * kind.itemsize].view(kind)


def bounds_size(dims: int) -> int:
    """Return how many numbers of `bounds` belong to one node."""
    return 4 * dims + 3


def _sizes(dims: int, leaves: int, nodes: int) -> dict[str, int]:
    return {
        "coords": leaves * LEAF * 2 * dims,
        "keys": leaves * LEAF,
        "ages": leaves * LEAF,
        "narrow": leaves * LEAF,
        "leaf_node": leaves,
        "nodes": nodes * 8,
        "routes": nodes * 2,
        "bounds": nodes * bounds_size(dims),
    }


def empty_pools(dims: int, extent: Floats, boxes: int, *, weighed: bool = False) -> Pools:
    """Return pools with room for `boxes` boxes and one empty leaf as root."""
    leaves = boxes // FILL * 17 // 16 + 4
    arrays: dict[str, Any] = {
        name: _aligned(size, DTYPES[name])
        for name, size in _sizes(dims, leaves, 2 * leaves + 2).items()
    }
    arrays["meta"] = np.zeros(M_SIZE, dtype=np.int64)
    arrays["extent"] = extent
    arrays["weights"] = np.ones(leaves * LEAF if weighed else 0, dtype=np.float64)
    arrays["slots"] = np.full(slots_for(boxes), -1, dtype=np.int32)
    pools = pools_of(arrays)
    pools.meta[[M_DIMS, M_LEAF_FREE, M_NODE_FREE]] = dims, -1, -1
    _plant_root(pools)
    return pools


def _plant_root(pools: Pools) -> None:
    """Make node 0 an empty leaf, as a split leaf or a freed one would be."""
    dims = int(pools.meta[M_DIMS])
    pools.meta[[M_NODES, M_LEAVES, M_LEVELS]] = 2, 1, 1
    pools.nodes[:16] = 0
    pools.links[8:16] = pools.links[24:32] = [-1, 0, 0, 0, 0, -1, 0, 0]
    pools.leaf_node[0] = 0
    edges = pools.coords[: LEAF * 2 * dims].reshape(2 * dims, LEAF)
    edges[0::2], edges[1::2] = np.inf, -np.inf
    clear = [np.inf, -np.inf, np.inf, -np.inf] * dims + [np.inf, np.inf, -np.inf]
    pools.bounds[: bounds_size(dims)] = clear


def slots_for(boxes: int) -> int:
    """Return the hash table's size for `boxes` boxes: a power of two, at most 70 % used."""
    size = 64
    while size * 7 < boxes * 10:
        size *= 2
    return size


def grown(pools: Pools, leaves: int, nodes: int, *, copy: bool = False) -> Pools:
    """Return pools with room for at least so many leaves and nodes; copy all if `copy`."""
    dims = int(pools.meta[M_DIMS])
    leaves = max(leaves, pools.leaf_node.size)
    nodes = max(nodes, pools.nodes.size // 8)
    sizes = _sizes(dims, leaves, nodes)
    if pools.weights.size:
        sizes["weights"] = leaves * LEAF
    arrays = stored(pools)
    if copy:
        arrays = {name: np.array(array) for name, array in arrays.items()}
    return pools_of(arrays | {name: _longer(arrays[name], n) for name, n in sizes.items()})


def _longer(old: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    if old.size >= size:
        return old
    new = _aligned(size, old.dtype.str)
    new[: old.size] = old
    return new
