"""The broker's core as extension modules that mypyc made of its sources.

    <package>/_compiled/<key>/nearcast/broker/…  one extension for each module
    <package>/_compiled/<key>/nearcast_core__mypyc…  what they share

The key is a hash of these sources: a core that was compiled from other sources is not found, and
the Python modules serve. `python -m nearcast.compiling` makes the files; `docs/compiled-core.md`
explains it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).parent
DIRECTORY = PACKAGE / "_compiled"
GROUP = "nearcast_core"
"""The name of the extension that has the code; those of the modules only refer to it."""
PLAIN = "NEARCAST_PLAIN"
"""This environment variable, if it is not empty, runs the Python modules."""
IN_C = {"server/sockets/calls.c": "server/sockets/calls.py"}
"""What is written in C, and the Python module beside it that does the same."""
_SERVER = [
    "loop_batches.py",
    "clock.py",
    "listeners/tcp.py",
    "sockets/direct_writes.py",
    "sockets/transport.py",
]


def sources() -> list[Path]:
    """Return the modules that mypyc compiles, relative to the package."""
    found = [*(PACKAGE / "mqtt").rglob("*.py"), *(PACKAGE / "broker").rglob("*.py")]
    found += [PACKAGE / "server" / name for name in _SERVER]
    return sorted(path.relative_to(PACKAGE) for path in found if path.name != "__init__.py")


def key() -> str:
    """Return the hash of the core's sources, and of how they are compiled."""
    digest = hashlib.sha256()
    for path in [*sources(), *map(Path, IN_C), *map(Path, IN_C.values()), Path("compiling.py")]:
        digest.update(f"{path}\0".encode() + (PACKAGE / path).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def is_in_use() -> bool:
    """Return whether the broker's core runs compiled in this process."""
    return any(isinstance(finder, CompiledCore) and finder.works for finder in sys.meta_path)


def described() -> str:
    """Return how the core runs in this process, and if it is plain Python, why."""
    if is_in_use():
        return "compiled"
    if os.environ.get(PLAIN):
        return f"as plain Python: {PLAIN} is set"
    for finder in sys.meta_path:
        if isinstance(finder, CompiledCore):
            return f"as plain Python: the compiled core cannot be loaded ({finder.problem})"
    if cores():
        return "as plain Python: it was compiled from other sources (python -m nearcast.compiling)"
    return "as plain Python: it is not compiled (python -m nearcast.compiling)"


def use() -> None:
    """Make imports find the compiled core, if there is one for these sources and this Python."""
    if os.environ.get(PLAIN) or not DIRECTORY.is_dir():
        return
    files = extensions(DIRECTORY / key())
    if files:
        sys.meta_path.insert(0, CompiledCore(files))


def cores() -> list[Path]:
    """Return the directories of all compiled cores."""
    return list(DIRECTORY.glob("[0-9a-f]" * 16))


def extensions(directory: Path) -> dict[str, Path]:
    """Return the extension modules in a directory that this Python can load, by module name."""
    suffix = EXTENSION_SUFFIXES[0]
    return {
        ".".join(path.relative_to(directory).parts).removesuffix(suffix): path
        for path in directory.rglob(f"*{suffix}")
    }


class CompiledCore(MetaPathFinder):
    """Finds the modules of the compiled core; all of them or, if it cannot be loaded, none."""

    def __init__(self, files: dict[str, Path]) -> None:
        self._files = files
        self.problem = ""
        self._is_tried = False

    @property
    def works(self) -> bool:
        """Return whether the machine can load the code; the first call loads it."""
        if not self._is_tried:
            self._is_tried = True
            group = f"{GROUP}__mypyc"
            if group in self._files:
                try:
                    import_module(group)
                except ImportError as problem:  # of another C library, or cut short
                    self.problem = str(problem)
        return not self.problem

    def find_spec(
        self, fullname: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module of the core is loaded from; None for all others."""
        del path, target
        file = self._files.get(fullname)
        if file is None or not self.works:
            return None
        return spec_from_file_location(
            fullname, file, loader=ExtensionFileLoader(fullname, str(file))
        )
