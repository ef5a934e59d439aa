"""What is logged and tabled, and in which form: shared by the broker and the pipeline.

- `schemas.py`: the columns of every table.
- `records.py`: what a node notes while it works; `segments.py`: how that lies on disk and how it
  becomes Parquet, one table for each kind of record (`LOG_TABLES`).
- `tables.py`: a table is a directory of versions and a pointer to the current one.

It knows PyArrow and nothing else: no socket, no clock, no Spark.
"""

from nearcast.eventlog.schemas import (
    CELLS,
    DELIVERIES,
    FAULTS,
    LOG_TABLES,
    POSITIONS,
    REGIONS,
    REJECTED_POSITIONS,
    REJECTED_ROWS,
    UNKNOWN,
    events_schema,
)
from nearcast.eventlog.tables import VersionedTable

__all__ = [
    "CELLS",
    "DELIVERIES",
    "FAULTS",
    "LOG_TABLES",
    "POSITIONS",
    "REGIONS",
    "REJECTED_POSITIONS",
    "REJECTED_ROWS",
    "UNKNOWN",
    "VersionedTable",
    "events_schema",
]
