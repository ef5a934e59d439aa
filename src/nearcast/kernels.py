"""Kernels: functions that Numba compiles; plain Python answers until they are compiled.

    @kernel                       called by other kernels, or from Python with any types
    @inner                        called by other kernels, never from Python
    @entry_point("int64, …")      called from Python, with arguments of exactly these types

A batch program (a Spark worker, a benchmark, a test) imports compiled kernels: each is compiled at
its first call, or read from disk (`kernel_files.py`).

A server must not wait for a compiler. It calls `interpret()` before it imports any kernel: then a
kernel is the Python function as written. Child processes compile (`warming.py`); `load()`, in a
thread, reads their results; and `switch_on()` replaces the Python functions by the compiled ones,
between two calls.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from importlib import import_module
from types import FunctionType
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast, overload

P = ParamSpec("P")
R = TypeVar("R")

PARTS: dict[str, tuple[str, ...]] = {
    "matching": (
        "nearcast.index.boxes.box_index",
        "nearcast.index.intervals.interval_skip_list",
        "nearcast.matching.exact",
        "nearcast.matching.polygon_table",
    ),
    "ordering": ("nearcast.ordering.kernels",),
    "retained": ("nearcast.retained.general", "nearcast.retained.experience"),
    "learning": ("nearcast.retained.exact", "nearcast.retained.qlearning"),
    "overlay": ("nearcast.overlay.events",),
}
"""Parts that are compiled together, and the modules with their kernels."""
_ONLY_COMPILED = ("nearcast.index.boxes.", "nearcast.index.intervals.")  # they read raw memory
_ALSO_OF = {
    "nearcast.index.boxes.box_index": "nearcast.index.boxes.",
    "nearcast.index.intervals.interval_skip_list": "nearcast.index.intervals.",
}


class KernelEntry(NamedTuple):
    """A kernel that is called from Python."""

    function: Any
    types: str

    @property
    def name(self) -> str:
        """Return its unique name, usable as a file name."""
        return f"{self.function.__module__}.{self.function.__qualname__}"


class _Mode:
    interprets = False  # decorators return the Python function
    is_switched = True  # compiled functions are in use


_plain: dict[Any, dict[str, Any]] = {}  # Python functions in use, and Numba's options
_replacements: dict[Any, Any] = {}  # their compiled replacements
_entries: list[KernelEntry] = []
_waiting: list[weakref.WeakMethod[Callable[[], None]]] = []


@overload
def kernel(function: Callable[P, R], **options: Any) -> Callable[P, R]: ...
@overload
def kernel(**options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def kernel(function: Any = None, **options: Any) -> Any:
    """Compile a function with Numba, with its options."""
    if function is None:
        return lambda one: kernel(one, **options)
    if _Mode.interprets and not function.__module__.startswith(_ONLY_COMPILED):
        _plain[function] = options
        return function
    return _dispatcher(function, options)


def inner(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that only kernels call; a call from Python would be fatal.

    It is translated, and optimised as a part of the kernels that call it (`kernel_linking.py`).
    """
    return kernel(function, is_part=True)


def entry_point(types: str, **options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile a function that is called from Python with arguments of these types."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        _entries.append(KernelEntry(function, types))
        return kernel(function, **options)

    return decorate


def instruction(home: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Replace this function in compiled code by the one of the same name in the module `home`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if not _Mode.interprets:
            return cast("Callable[P, R]", getattr(import_module(home), function.__name__))
        _plain[function] = {"home": home}
        return function

    return decorate


def copy_of(function: Callable[P, R]) -> Callable[P, R]:
    """Return a distinct function with the same code: replacing it leaves the other as it is."""
    assert isinstance(function, FunctionType)
    copy = FunctionType(function.__code__, function.__globals__, function.__name__)
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    copy.__annotations__ = function.__annotations__
    return copy


def _dispatcher(function: Any, options: dict[str, Any]) -> Any:
    if "home" in options:
        return getattr(import_module(options["home"]), function.__name__)
    from nearcast.kernel_linking import part, whole

    if "is_part" in options:
        return part(function)
    return whole(function, options)


# -- compiling ---------------------------------------------------------------------------------


def entries(part: str) -> list[KernelEntry]:
    """Return the entry points of a part, importing its modules."""
    for name in PARTS[part]:
        import_module(name)
    homes = tuple(_ALSO_OF.get(name, name) for name in PARTS[part])
    return [one for one in _entries if one.function.__module__.startswith(homes)]


def compile_entry(one: Any) -> Any:
    """Compile an entry point and all it calls, or read it from disk; return the function itself."""
    function = getattr(one, "py_func", one)
    found = next(known for known in _entries if known.function is function)
    compiled = _replacements.get(function)
    if compiled is None:
        compiled = getattr(sys.modules[function.__module__], function.__name__)
    return compiled.compile(_types(found.types))


def _types(names: str) -> Any:
    from numba.core import sigutils

    read: Any = sigutils.normalize_signature
    return read(f"({names},)")[0]


# -- from Python to compiled code --------------------------------------------------------------


def interpret() -> None:
    """Use Python functions instead of kernels in modules that are imported from now on."""
    _Mode.interprets, _Mode.is_switched = True, False


def is_switched() -> bool:
    """Return whether compiled functions are in use; False while Python functions are."""
    return _Mode.is_switched


def load(parts: Iterable[str]) -> None:
    """Read the kernels of these parts from disk; `switch_on` comes next. For a thread."""
    _Mode.interprets = False
    for function, options in list(_plain.items()):
        _replacements[function] = _dispatcher(function, options)
    for part in parts:
        for one in entries(part):
            compile_entry(one.function)


def switch_on() -> None:
    """Replace Python functions by compiled ones, and call the `on_switch` callbacks."""
    _Mode.interprets, _Mode.is_switched = False, True
    for name, module in list(sys.modules.items()):
        if name.startswith("nearcast."):
            for word, value in list(vars(module).items()):
                if isinstance(value, FunctionType) and value in _replacements:
                    setattr(module, word, _replacements[value])
    _plain.clear()
    _replacements.clear()
    waiting = [one() for one in _waiting]
    _waiting.clear()
    for call in waiting:
        if call is not None:
            call()


def on_switch(call: Callable[[], None]) -> None:
    """Call a method when compiled functions take over, if its object still exists."""
    _waiting.append(weakref.WeakMethod(call))
