"""The process that Spark's Python workers are forked from: it imports what every job needs first.

PySpark forks an empty process, and each worker then imports pandas, pyarrow and this package for
itself: two seconds of CPU time for each worker, which is more than a small job takes. Forked from
this process, a worker has them. PySpark collects garbage after every task, in Python's whole heap:
0.2 s of CPU time. What is here already is frozen, so it is not searched.

A process must not fork while it has threads, which is why PySpark imports late. The only thread
that these imports start is one of pyarrow's allocator; it is switched off here, and a test counts.
"""

from __future__ import annotations

import gc
import os

os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"

import pandas as pd  # noqa: F401 - for the workers
import pyarrow.parquet as pq  # noqa: F401
from pyspark.daemon import manager
from pyspark.worker import main  # noqa: F401

from nearcast import kernel_files, kernels
from nearcast.pipeline import run  # noqa: F401

_PART = "matching"


def load_kernels() -> None:
    """Load the kernels of the matcher, if all are compiled: else each worker would at first use."""
    if kernel_files.is_warm(kernel_files.choose([_PART]).parent, [_PART]):
        kernels.load([_PART])


if __name__ == "__main__":
    load_kernels()
    gc.collect()
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]
