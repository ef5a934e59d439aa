"""Spark's start without the line that says nothing to a user.

Java prints one warning about a module that Spark's launcher asks for, before any logging is set
up, so no setting reaches it. All else that Java prints passes through at once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NOISE = b"WARNING: Using incubator modules"
_STDERR = 2


@contextmanager
def without_boot_warning() -> Iterator[None]:
    """Let a process started in the body write to our standard error, but for one warning.

    The process keeps writing through a pipe after the body; a daemon thread passes lines on for
    as long as the process lives.
    """
    reading, writing = os.pipe()
    saved = os.dup(_STDERR)
    os.dup2(writing, _STDERR)
    os.close(writing)
    threading.Thread(target=_pass_on, args=(reading, saved), daemon=True).start()
    try:
        yield
    finally:
        os.dup2(saved, _STDERR)


def _pass_on(reading: int, target: int) -> None:
    """Copy lines until nobody writes any more."""
    with os.fdopen(reading, "rb") as lines:
        for line in lines:
            if not line.startswith(_NOISE):
                _write(target, line)
    os.close(target)


def _write(target: int, line: bytes) -> None:
    while line:
        line = line[os.write(target, line) :]
