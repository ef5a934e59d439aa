"""Silences two kinds of Spark output that mean nothing to a user: at its start and at Ctrl-C.

Java prints a warning about a module that Spark's launcher requests before logging is configured, so
no setting can suppress it. All other output of Java passes through at once.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NOISE = b"WARNING: Using incubator modules"
_STDERR = 2
_TOLD_BY_PY4J = "KeyboardInterrupt while sending command."


@contextmanager
def without_boot_warning() -> Iterator[None]:
    """Filter one warning from the standard error of processes that the body starts.

    Such a process keeps writing to a pipe after the body; a daemon thread copies its lines for as
    long as the process lives.
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
    """Copy lines from `reading` to `target`, without the warning, until the pipe is closed."""
    with os.fdopen(reading, "rb") as lines:
        for line in lines:
            if not line.startswith(_NOISE):
                _write(target, line)
    os.close(target)


def _write(target: int, line: bytes) -> None:
    while line:
        line = line[os.write(target, line) :]


@contextmanager
def with_plain_interrupts() -> Iterator[None]:
    """Defer Ctrl-C until the body has created the session; after that Ctrl-C ends a job at once.

    Spark's own handler asks Java to cancel while an answer of Java is being read; that fails with
    three stack traces. Java ends with this process anyway.
    """
    logging.getLogger().addFilter(_says_something)
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts: list[int] = []

    def note(number: int, _frame: object) -> None:
        interrupts.append(number)
        os.write(_STDERR, b"Ending as soon as Spark is up ...\n")

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupts:
        raise KeyboardInterrupt


def _says_something(record: logging.LogRecord) -> bool:
    """Return False for py4j's record of Ctrl-C, and silence the records that follow from it."""
    is_interrupt = record.msg == _TOLD_BY_PY4J
    if is_interrupt:
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
    return not is_interrupt
