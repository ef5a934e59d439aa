"""Where compiled kernels are stored, and how processes share the work of compiling.

    <directory>/<key>/<module>/…    Numba's files for each kernel
    <directory>/<key>/<task>.done   a task of `warming.py` is finished

The key is a hash of the sources of all kernels, Numba and Python: after any change a new directory
is used, so no kernel is ever older than one it calls. (Numba itself looks only at the file of a
kernel.) Files do not contain the path of the package, so a directory can be copied with it.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import re
import shutil
import sys
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent
BESIDE_THE_PACKAGE = PACKAGE / "_kernels"
_PACKAGES = ("index", "locality", "matching", "ordering", "overlay", "papers", "retained")
_DEFINES_KERNELS = re.compile(
    r"^@(kernel|inner|entry_point)\b|\bintrinsic\(|= kernel\(", re.MULTILINE
)
_IMPORTS = re.compile(r"^from nearcast\.([\w.]+) import", re.MULTILINE)

_chosen: Path | None = None


@cache
def key() -> str:
    """Return the hash of the sources of all kernels and of the versions that compile them."""
    digest = hashlib.sha256()
    if not PACKAGE.is_dir():  # for Spark's workers the package is in a zip
        digest.update(next(one for one in PACKAGE.parents if one.is_file()).read_bytes())
    for name, text in sorted(_sources().items()):
        digest.update(f"{name}\0{text}\0".encode())
    made_by = f"{version('numba')}-{version('llvmlite')}-{version('numpy')}"
    digest.update(f"{made_by}-{sys.implementation.cache_tag}".encode())
    return digest.hexdigest()[:16]


def _sources() -> dict[str, str]:
    """Return the modules that define kernels, and all that these import: their constants count."""
    todo = [
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for name in _PACKAGES
        for path in (PACKAGE / name).rglob("*.py")
        if _DEFINES_KERNELS.search(path.read_text(encoding="utf-8"))
    ]
    found: dict[str, str] = {}
    while todo:
        name = todo.pop()
        path = PACKAGE / f"{name.replace('.', '/')}.py"
        if name not in found and path.exists():
            found[name] = path.read_text(encoding="utf-8")
            todo += _IMPORTS.findall(found[name])
    return found


def is_warm(directory: Path, tasks: list[str]) -> bool:
    """Return whether all of these tasks are finished in a directory."""
    return all((directory / key() / f"{task}.done").exists() for task in tasks)


def _has_any(directory: Path) -> bool:
    return next((directory / key()).glob("*.done"), None) is not None


def choose(tasks: list[str], data: Path | None = None) -> Path:
    """Choose the directory for this process, and return it with the key.

    It is the first of these where these tasks are finished (or that has any file, if no tasks are
    given), else the first that is writable: the one that `NUMBA_CACHE_DIR` names, the one beside
    the package, that in a broker's data directory, the user's.
    """
    global _chosen  # noqa: PLW0603 - one directory for one process
    candidates = _candidates(data)
    warm = (one for one in candidates if (is_warm(one, tasks) if tasks else _has_any(one)))
    usable = (one for one in candidates if _can_be_written(one))
    found = next(warm, None) or next(usable, None) or _for_this_process_only()
    _chosen = found / key()
    return _chosen


def use(directory: Path) -> None:
    """Use a directory that another process has chosen; the key is part of it."""
    global _chosen  # noqa: PLW0603 - one directory for one process
    _chosen = directory


def chosen() -> Path:
    """Return the directory of this process, the key included."""
    return _chosen if _chosen is not None else choose([])


def _candidates(data: Path | None) -> list[Path]:
    named = os.environ.get("NUMBA_CACHE_DIR")
    if named:
        return [Path(named)]
    users = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    found = [BESIDE_THE_PACKAGE]
    if data is not None:
        found.append(data / "kernels")
    if Path(users).is_absolute():
        found.append(Path(users) / "nearcast" / "kernels")
    return found


def _can_be_written(directory: Path) -> bool:
    try:
        (directory / key()).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory / key()):
            return True
    except OSError:
        return False


def _for_this_process_only() -> Path:
    """Return a new temporary directory for this process: no other is writable."""
    made = Path(tempfile.mkdtemp(prefix="nearcast-kernels-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


class Lock:
    """A lock between processes, on a file in the directory; released at the end of the process."""

    def __init__(self, name: str) -> None:
        self._path = chosen() / f"{name}.lock"
        self._file: Any = None

    def acquire(self, *, wait: bool) -> bool:
        """Acquire the lock; return False if another process has it and `wait` is false."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = self._path.open("wb")
        except OSError:  # a read-only directory: no other process writes there either
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            file.close()
            return False
        self._file = file
        return True

    def release(self) -> None:
        """Release the lock."""
        if self._file is not None:
            self._file.close()
            self._file = None
