"""The broker's core as extension modules that mypyc made of its sources.

    <package>/_compiled/<key>/nearcast/broker/…  one extension for each module
    <package>/_compiled/<key>/nearcast_core__mypyc…  what they share

The key is a hash of these sources: a core that was compiled from other sources is not found, and
the Python modules serve. `python -m nearcast.compiling` makes the files.
"""

from __future__ import annotations

import hashlib
import os
import sys
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


def sources() -> list[Path]:
    """Return the modules of the core, relative to the package."""
    found = [*(PACKAGE / "mqtt").rglob("*.py"), *(PACKAGE / "broker").rglob("*.py")]
    found += [PACKAGE / "server" / "loop_batches.py", PACKAGE / "server" / "clock.py"]
    return sorted(path.relative_to(PACKAGE) for path in found if path.name != "__init__.py")


def key() -> str:
    """Return the hash of the core's sources."""
    digest = hashlib.sha256()
    for path in sources():
        digest.update(f"{path}\0".encode() + (PACKAGE / path).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def is_in_use() -> bool:
    """Return whether the broker's core runs compiled in this process."""
    return any(isinstance(finder, CompiledCore) for finder in sys.meta_path)


def use() -> None:
    """Make imports find the compiled core, if there is one for these sources and this Python."""
    if os.environ.get(PLAIN) or not DIRECTORY.is_dir():
        return
    files = extensions(DIRECTORY / key())
    if files:
        sys.meta_path.insert(0, CompiledCore(files))


def extensions(directory: Path) -> dict[str, Path]:
    """Return the extension modules in a directory that this Python can load, by module name."""
    suffix = EXTENSION_SUFFIXES[0]
    return {
        ".".join(path.relative_to(directory).parts).removesuffix(suffix): path
        for path in directory.rglob(f"*{suffix}")
    }


class CompiledCore(MetaPathFinder):
    """Finds the modules of the compiled core."""

    def __init__(self, files: dict[str, Path]) -> None:
        self._files = files

    def find_spec(
        self, fullname: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module of the core is loaded from; None for all others."""
        del path, target
        file = self._files.get(fullname)
        if file is None:
            return None
        return spec_from_file_location(
            fullname, file, loader=ExtensionFileLoader(fullname, str(file))
        )
