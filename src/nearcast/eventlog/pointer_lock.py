"""Lets writers of one table replace its pointer one after the other.

On a local disk that is a lock of the operating system on the table's directory, which ends with its
process, however it ends. Object stores have no such lock: there the last of two racing writers
wins. Nothing dangles, but each may have the same version before it; Delta and Iceberg do better.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pyarrow import fs


@contextmanager
def locked(store: fs.FileSystem, base: str) -> Iterator[None]:
    """Hold the lock of the table at `base` in the body."""
    if not isinstance(store, fs.LocalFileSystem):
        yield
        return
    import fcntl

    directory = os.open(base, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)  # unlocks it
