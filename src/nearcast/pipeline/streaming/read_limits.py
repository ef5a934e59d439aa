"""Limits of a batch that Spark asks a Python source for; Spark 4.1 has none.

There, a source gets neither the start of a batch nor a limit, and a query that ends when all is
read (`availableNow`) asks for the end of its only batch at the beginning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:

    class ReadLimit:
        """A limit."""

    class ReadMaxRows(ReadLimit):
        """At most so many rows."""

        def __init__(self, max_rows: int) -> None:
            self.max_rows = max_rows

    class ReadAllAvailable(ReadLimit):
        """No limit."""

    class StopsWhereItIs:
        """A source that can end where it is when the query begins."""

else:
    try:
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as StopsWhereItIs
    except ModuleNotFoundError:
        from dataclasses import dataclass

        class ReadLimit:
            """A limit."""

        @dataclass(frozen=True)
        class ReadMaxRows(ReadLimit):
            """At most so many rows."""

            max_rows: int

        class ReadAllAvailable(ReadLimit):
            """No limit."""

        class StopsWhereItIs:
            """A source that can end where it is when the query begins."""
