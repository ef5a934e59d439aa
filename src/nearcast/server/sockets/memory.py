"""Memory that large payloads have used is kept for the next ones."""

from __future__ import annotations

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
_KEPT_BYTES = 32 << 20
_MAPPED_BYTES = 16 << 20  # what is larger is given back at once


def keep_freed_memory() -> None:
    """Make the C library keep some freed memory, where it is one that can.

    By default it maps and unmaps each block of 128 KiB and more. The kernel then clears every page
    of a large payload again, which costs several times as much as to copy the payload.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)
        library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
