"""Kernels are optimised once: with the entry point that calls them.

Numba optimises every function, links it into each of its callers, and optimises it there again: a
function six calls below an entry point, six times. Here a kernel that only kernels call is
translated and left as it is. The entry point links in all that it needs, makes it private, and has
LLVM optimise the whole.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding
from numba import njit as its_njit
from numba.core import codegen as its_codegen
from numba.core import compiler as its_compiler
from numba.core import types as its_types

from nearcast.kernel_cache import share

codegen: Any = its_codegen  # they have no types
compiler: Any = its_compiler
types: Any = its_types
njit: Any = its_njit


class _Part(codegen.JITCodeLibrary):  # type: ignore[misc, unused-ignore]
    """The code of a kernel that only kernels call: translated, neither optimised nor runnable."""

    def finalize(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, _name: str) -> int:
        """Return 0, which is what Numba expects of a function without a wrapper for Python."""
        return 0

    @property
    def codegen(self) -> Any:
        """Return an object that ignores the environment of a function that cannot run."""
        return _NoEnvironment

    def names(self) -> set[str]:
        return {one.name for one in self._final_module.functions if not one.is_declaration}


class _NoEnvironment:
    @staticmethod
    def set_env(_name: str, _environment: Any) -> None:
        """Do nothing."""


class _Whole(codegen.JITCodeLibrary):  # type: ignore[misc, unused-ignore]
    """The code of a kernel that Python may call, with all parts that it needs."""

    def add_linking_library(self, library: Any) -> None:
        """Add a library, and after it its parts: LLVM links only what is called so far."""
        if library not in self._linking_libraries:
            super().add_linking_library(library)
            if isinstance(library, _Part):
                for one in library._linking_libraries:
                    self.add_linking_library(one)

    def _optimize_final_module(self) -> None:
        parts = [one for one in self._linking_libraries if isinstance(one, _Part)]
        private = set[str]().union(*(one.names() for one in parts))
        for function in self._final_module.functions:
            if function.name in private and not function.is_declaration:
                function.linkage = binding.Linkage.internal
        super()._optimize_final_module()


class _Compiler(compiler.Compiler):  # type: ignore[misc, unused-ignore]
    kind: type

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.state.library = self.kind(self.state.targetctx.codegen(), "kernel")
        self.state.library.enable_object_caching()


class _PartCompiler(_Compiler):
    kind = _Part


class _WholeCompiler(_Compiler):
    kind = _Whole


def part(function: Any) -> Any:
    """Return the compiled form of a function that only kernels call."""
    made = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, pipeline_class=_PartCompiler)
    return _once_for_numbers(made(function))


def whole(function: Any, options: dict[str, Any]) -> Any:
    """Return the compiled form of a function that Python may call, cached on disk."""
    made = njit(no_cfunc_wrapper=True, pipeline_class=_WholeCompiler, **options)(function)
    share(made)
    return _once_for_numbers(made)


def _once_for_numbers(dispatcher: Any) -> Any:
    """Compile it once for whole numbers of up to 64 bits.

    Numba would again for each constant, and each size, that a caller passes.
    """
    its_template = dispatcher.get_call_template
    dispatcher.get_call_template = lambda given, more: its_template(
        [_widest(types.unliteral(one)) for one in given], more
    )
    return dispatcher


def _widest(kind: Any) -> Any:
    return types.int64 if isinstance(kind, types.Integer) and kind.bitwidth < 64 else kind
