"""A box index in files that can be memory-mapped.

A directory with one `.npy` file for each pool and `boxes.json`, written last: format version, and
the size, type and CRC-32 of each pool. A file that is cut, damaged or of another version is a
FileFormatError, never a crash: kernels follow links without checking them.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearcast.index.boxes.pools import DTYPES, LEAF, M_SIZE, Pools, pools_of, stored
from nearcast.model.errors import FileFormatError, MisuseError

VERSION = 1
MANIFEST = "boxes.json"


def save(pools: Pools, path: Path) -> None:
    """Write the pools into a directory that is new or empty."""
    path.mkdir(parents=True, exist_ok=True)
    if any(path.iterdir()):
        raise MisuseError(f"{path}, which is not empty", where="save", expected="a new directory")
    manifest: dict[str, Any] = {"format": "nearcast boxes", "version": VERSION, "leaf": LEAF}
    manifest["pools"] = {}
    for name, pool in stored(pools).items():
        np.save(path / f"{name}.npy", pool)
        manifest["pools"][name] = {"size": pool.size, "crc32": _checksum(pool)}
    (path / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def load(path: Path) -> Pools:
    """Memory-map the pools in a directory, read-only, after checking them. O(bytes)."""
    manifest = _manifest(path / MANIFEST)
    return pools_of({name: _load_pool(path, name, manifest["pools"]) for name in DTYPES})


def _checksum(pool: npt.NDArray[Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(pool).data.cast("B")) if pool.size else 0


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        kind, version, leaf = manifest["format"], manifest["version"], manifest["leaf"]
        complete = set(manifest["pools"]) == set(DTYPES)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _refused(path, f"{type(error).__name__}: {error}") from None
    if kind != "nearcast boxes" or not complete:
        raise _refused(path, f"format {kind!r}")
    if (version, leaf) != (VERSION, LEAF):
        raise _refused(path, f"version {version} with leaves of {leaf}")
    return dict(manifest)


def _load_pool(path: Path, name: str, entries: dict[str, Any]) -> npt.NDArray[Any]:
    file = path / f"{name}.npy"
    size, checksum = entries[name].get("size"), entries[name].get("crc32")
    try:
        # An empty array cannot be mapped.
        pool: npt.NDArray[Any] = np.load(file, mmap_mode="r" if size else None)
    except (OSError, ValueError, EOFError) as error:
        raise _refused(file, f"{type(error).__name__}: {error}") from None
    if pool.dtype != np.dtype(DTYPES[name]) or pool.shape != (size,):
        raise _refused(file, f"{pool.dtype} of shape {pool.shape}")
    if name == "meta" and size != M_SIZE:
        raise _refused(file, f"{size} counters")
    if _checksum(pool) != checksum:
        raise _refused(file, "a checksum that does not fit")
    return np.asarray(pool)


def _refused(path: Path, found: str) -> FileFormatError:
    return FileFormatError(
        found,
        where=str(path),
        expected=f"an index as version {VERSION} saves it",
        todo="Save the index again.",
    )
