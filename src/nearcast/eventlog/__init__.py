"""What is logged and tabled, and in which form: shared by the broker and the pipeline.

- `schemas.py`: the columns of every table.
- `tables.py`: a table is a directory of versions and a pointer to the current one.

It knows PyArrow and nothing else: no socket, no clock, no Spark.
"""

from nearcast.eventlog.schemas import (
    CELLS,
    DELIVERIES,
    POSITIONS,
    REGIONS,
    REJECTED_POSITIONS,
)
from nearcast.eventlog.tables import VersionedTable

__all__ = [
    "CELLS",
    "DELIVERIES",
    "POSITIONS",
    "REGIONS",
    "REJECTED_POSITIONS",
    "VersionedTable",
]
