"""Unexpected exceptions: counted, reported once per place, kept from affecting other clients."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2s
from pathlib import PurePath

Listener = Callable[[str, str, BaseException], None]
"""Gets a fingerprint, the activity, and the exception; called once per fingerprint."""

_MOST_KINDS = 1_000  # fingerprints that are remembered


class InternalErrors:
    """Exceptions inside the broker that no input should cause: our own mistakes.

    Without a listener an exception is raised as it is: a test or a simulation should end with it.
    With one, the broker continues, and the client that caused the exception is disconnected.
    """

    def __init__(self) -> None:
        self.count = 0
        self.by_fingerprint: dict[str, int] = {}
        self.listener: Listener | None = None

    def is_known(self, problem: BaseException) -> bool:
        """Return whether the same exception came from the same place before."""
        return fingerprint(problem) in self.by_fingerprint

    def take(self, doing: str, problem: Exception) -> None:
        """Count an exception; report the first of a kind. Call this in the `except` block."""
        if self.listener is None:
            raise problem
        self.count += 1
        name = fingerprint(problem)
        if name not in self.by_fingerprint and len(self.by_fingerprint) >= _MOST_KINDS:
            return
        self.by_fingerprint[name] = self.by_fingerprint.get(name, 0) + 1
        if self.by_fingerprint[name] == 1:
            self.listener(name, doing, problem)

    @contextmanager
    def kept(self, doing: str) -> Iterator[None]:
        """Catch and report an exception that the block raises."""
        try:
            yield
        except Exception as problem:  # noqa: BLE001 - a mistake of ours
            self.take(doing, problem)


def fingerprint(problem: BaseException) -> str:
    """Return eight hex digits that are equal for equal exceptions from the same place."""
    frames = traceback.extract_tb(problem.__traceback__)
    ours = [one for one in frames if "nearcast" in one.filename]
    place = [f"{PurePath(one.filename).name}:{one.lineno}" for one in ours[-1:] + frames[-1:]]
    text = "\n".join((type(problem).__name__, *place))
    return blake2s(text.encode(), digest_size=4).hexdigest()
