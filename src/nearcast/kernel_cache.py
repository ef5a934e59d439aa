"""Numba's cache, shared by processes, in the directory that `kernel_files.py` chooses."""

from __future__ import annotations

from typing import Any

from numba.core import caching as its_caching

from nearcast.kernel_files import Lock, chosen, key

caching: Any = its_caching  # it has no types


class _Locator(caching._CacheLocator):  # type: ignore[misc, unused-ignore]
    """Finds the files of a kernel by the name of its module."""

    def __init__(self, function: Any) -> None:
        self._path = str(chosen() / function.__module__)
        self._line = function.__code__.co_firstlineno

    def get_cache_path(self) -> str:
        return self._path

    def get_source_stamp(self) -> str:
        return key()

    def get_disambiguator(self) -> str:
        return str(self._line)

    @classmethod
    def from_function(cls, function: Any, _file: str) -> Any:
        return cls(function)


class _Implementation(caching.CompileResultCacheImpl):  # type: ignore[misc, unused-ignore]
    """Stores the results of compilations."""

    _locator_classes = (_Locator,)


class SharedCache(caching.FunctionCache):  # type: ignore[misc, unused-ignore]
    """The cache of one kernel; of several processes that need it, one compiles it.

    A process that finds no file takes the kernel's lock, and looks again: another process may have
    compiled it meanwhile. Kernels call each other without cycles, so no deadlock is possible.
    """

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._lock = Lock(f"{function.__module__}/{function.__qualname__}")
        self._compiling = 0  # nested compilations for different types, where a kernel calls itself

    _impl_class = _Implementation

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the function on disk, or None: then `save_overload` or `give_up` follows."""
        found = super().load_overload(sig, target_context)
        if found is None and not self._compiling:
            self._lock.acquire(wait=True)
            found = super().load_overload(sig, target_context)
            if found is not None:
                self._lock.release()
        self._compiling += found is None
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write a compiled function, unless the directory is read-only."""
        try:
            super().save_overload(sig, data)
        except OSError:
            pass  # compiled for this process alone
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Record the end of a compilation, successful or not; release the lock after the last."""
        self._compiling -= 1
        if not self._compiling:
            self._lock.release()


def share(dispatcher: Any) -> None:
    """Make a dispatcher use the cache of its kernel."""
    cache = dispatcher._cache = SharedCache(dispatcher.py_func)
    its_compile = dispatcher._compiler.compile

    def compile_or_give_up(*arguments: Any) -> Any:
        try:
            return its_compile(*arguments)
        except BaseException:
            cache.give_up()
            raise

    dispatcher._compiler.compile = compile_or_give_up
