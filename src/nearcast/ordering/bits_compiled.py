"""Processor instructions for compiled kernels; bits.py says what they mean.

Read next: codec.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_Generated = tuple[Any, Callable[[Any, Any, Any, Any], Any]]

_WORD = ir.IntType(64)
_UNDEFINED_AT_ZERO = ir.Constant(ir.IntType(1), 1)


def _of_a_word(generate: Callable[[Any, Any], Any]) -> Callable[[int], int]:
    """Return the instruction that `generate` builds from a builder and a word."""

    def instruction(_typing_context: Any, _word: Any) -> _Generated:
        return types.int64(types.int64), lambda _c, builder, _s, given: generate(builder, given[0])

    return cast("Callable[[int], int]", intrinsic(instruction))


lowest_one = _of_a_word(lambda builder, word: builder.cttz(word, _UNDEFINED_AT_ZERO))
ones = _of_a_word(lambda builder, word: builder.ctpop(word))
highest_one = _of_a_word(
    lambda builder, word: builder.sub(_WORD(63), builder.ctlz(word, _UNDEFINED_AT_ZERO))
)
bit_at = _of_a_word(lambda builder, number: builder.shl(_WORD(1), number))
without_lowest = _of_a_word(lambda builder, word: builder.and_(word, builder.sub(word, _WORD(1))))


def _place(context: Any, builder: Any, kind: Any, buffer: Any, at: Any) -> Any:
    data = context.make_array(kind)(context, builder, buffer).data
    return builder.bitcast(builder.gep(data, [at]), _WORD.as_pointer())


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


load_word = cast("Callable[[Any, int], int]", intrinsic(_load_word))
store_word = cast("Callable[[Any, int, int], None]", intrinsic(_store_word))
