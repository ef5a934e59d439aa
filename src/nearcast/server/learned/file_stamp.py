"""Whether a file has changed since it was last read."""

from __future__ import annotations

from pathlib import Path

FileStamp = tuple[int, int, int]


def file_stamp(path: Path) -> FileStamp | None:
    """Return a stamp of a file's version; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)
