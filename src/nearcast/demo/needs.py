"""What learning needs beside the broker: PySpark and Java, which may still be arriving."""

from __future__ import annotations

import importlib
from pathlib import Path

from nearcast.model.errors import EnvironmentProblem


class Needs:
    """Says what is missing; `arriving` is the log of an installation, there as long as it runs."""

    def __init__(self, arriving: Path | None = None) -> None:
        self._arriving = arriving

    def is_arriving(self) -> bool:
        """Return whether an installation runs."""
        return self._arriving is not None and self._arriving.exists()

    def progress(self) -> str:
        """Return the last line that the installation has written."""
        try:
            lines = self._arriving.read_text(encoding="utf-8") if self._arriving else ""
        except OSError:  # it has just ended
            lines = ""
        return (lines.strip().splitlines() or ["Installing ..."])[-1]

    def missing(self) -> str:
        """Return what is missing, with what to do about it; empty if nothing is."""
        from nearcast.pipeline.session import check_spark

        importlib.invalidate_caches()  # it may have come since this process began
        try:
            check_spark()
        except EnvironmentProblem as problem:
            return str(problem)
        return ""
