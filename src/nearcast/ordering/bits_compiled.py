"""Processor instructions for compiled kernels; bits.py says what they mean.

Read next: codec.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from nearcast.kernels import inner

_Generated = tuple[Any, Callable[[Any, Any, Any, Any], Any]]


def _lowest_one(_typing_context: Any, _word: Any) -> _Generated:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        undefined_at_zero = ir.Constant(ir.IntType(1), 1)
        return builder.cttz(arguments[0], undefined_at_zero)

    return types.int64(types.int64), generate


def _ones(_typing_context: Any, _word: Any) -> _Generated:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), generate


def _highest_one(_typing_context: Any, _word: Any) -> _Generated:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        undefined_at_zero = ir.Constant(ir.IntType(1), 1)
        above = builder.ctlz(arguments[0], undefined_at_zero)
        return builder.sub(ir.Constant(ir.IntType(64), 63), above)

    return types.int64(types.int64), generate


def _place(context: Any, builder: Any, kind: Any, buffer: Any, at: Any) -> Any:
    data = context.make_array(kind)(context, builder, buffer).data
    return builder.bitcast(builder.gep(data, [at]), ir.IntType(64).as_pointer())


def _load_word(_typing_context: Any, data: Any, _at: Any) -> _Generated:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _place(context, builder, signature.args[0], *arguments)
        return builder.load(place, align=1)

    return types.int64(data, types.int64), generate


def _store_word(_typing_context: Any, data: Any, _at: Any, _word: Any) -> _Generated:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _place(context, builder, signature.args[0], *arguments[:2])
        builder.store(arguments[2], place, align=1)
        return context.get_dummy_value()

    return types.void(data, types.int64, types.int64), generate


lowest_one = cast("Callable[[int], int]", intrinsic(_lowest_one))
ones = cast("Callable[[int], int]", intrinsic(_ones))
highest_one = cast("Callable[[int], int]", intrinsic(_highest_one))
load_word = cast("Callable[[Any, int], int]", intrinsic(_load_word))
store_word = cast("Callable[[Any, int, int], None]", intrinsic(_store_word))


@inner
def bit_at(number: int) -> int:
    """Return the word whose only one is at a position."""
    return 1 << number


@inner
def byte_at(byte: int, place: int) -> int:
    """Return the word whose only byte, at a place, is this one."""
    return byte << 8 * place


@inner
def without_lowest(word: int) -> int:
    """Return a word without its lowest one."""
    return word & (word - 1)


@inner
def as_bytes(state: Any, begin: int, end: int) -> Any:
    """Return the bytes of some words."""
    return state[begin:end].view(np.uint8)
