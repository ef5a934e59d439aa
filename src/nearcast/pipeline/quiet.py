"""Spark without the words that say nothing to a user: at its start, and at Ctrl-C.

Java prints one warning about a module that Spark's launcher asks for, before any logging is set
up, so no setting reaches it. All else that Java prints passes through at once.
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


@contextmanager
def with_plain_interrupts() -> Iterator[None]:
    """Make a session in the body; Ctrl-C waits until it is there, and then ends any job at once.

    Spark's own handler asks Java to cancel in the middle of reading an answer of Java, which fails
    with three stack traces. Java ends with this process anyway.
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
    """Let a record pass, unless py4j tells of Ctrl-C; what else it tells then follows from it."""
    is_interrupt = record.msg == _TOLD_BY_PY4J
    if is_interrupt:
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
    return not is_interrupt
