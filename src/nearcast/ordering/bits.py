"""Two processor instructions that Python has no word for.

Read next: codec.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

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


lowest_one = cast("Callable[[int], int]", intrinsic(_lowest_one))
"""Return the position of the lowest one of a word that is not zero. Only for kernels."""

ones = cast("Callable[[int], int]", intrinsic(_ones))
"""Return how many ones a word has. Only for kernels."""
