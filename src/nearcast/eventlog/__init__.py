"""Formats of the event log and of tables, shared by the broker and the pipeline.

- `schemas.py`: the columns of every table.
- `records.py`: the records that a node collects while it works; `segments.py`: their form on disk,
  and their conversion to Parquet, one table for each kind of record (`LOG_TABLES`).
- `tables.py`: a table is a directory of versions and a pointer to the current one.

The package uses PyArrow and no socket, clock or Spark.
"""

from nearcast.eventlog.schemas import (
    CELLS,
    DELIVERIES,
    FAULTS,
    LOG_TABLES,
    POSITIONS,
    QUALITY,
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
    "QUALITY",
    "REGIONS",
    "REJECTED_POSITIONS",
    "REJECTED_ROWS",
    "UNKNOWN",
    "VersionedTable",
    "events_schema",
]
