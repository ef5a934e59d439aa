"""The process that Spark's Python workers are forked from: it imports what every job needs first.

PySpark forks an empty process, and each worker then imports pandas, pyarrow and this package for
itself: two seconds of CPU time for each worker, which is more than a small job takes. Forked from
this process, a worker has them.

A process must not fork while it has threads, which is why PySpark imports late. The only thread
that these imports start is one of pyarrow's allocator; it is switched off here, and a test counts.
"""

from __future__ import annotations

import os

os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"

import pandas as pd  # noqa: F401 - for the workers
import pyarrow.parquet as pq  # noqa: F401
from pyspark.daemon import manager
from pyspark.worker import main  # noqa: F401

from nearcast.pipeline import run  # noqa: F401

if __name__ == "__main__":
    manager()  # type: ignore[no-untyped-call]
