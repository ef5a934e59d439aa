"""SIGTERM as a wish to end in order."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def termination() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGTERM has come; a second one ends the process."""
    came = False

    def note(number: int, _frame: object) -> None:
        nonlocal came
        came = True
        signal.signal(number, before)

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGTERM, before)
