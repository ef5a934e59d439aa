"""The process that Spark's Python workers are forked from: it imports what every job needs first.

PySpark forks an empty process, and each worker then imports pandas, pyarrow and this package for
itself: two seconds of CPU time for each worker, which is more than a small job takes. Forked from
this process, a worker has them.

A process must not fork while it has threads, which is why PySpark imports late. The only thread
that these imports start is one of pyarrow's allocator; it is switched off here, and a test counts.

Spark puts archives of PySpark before the installed package: Python would compile each module of
them at each start. And before each task a worker forgets what is where on the path, so that Python
would read the contents of every archive anew: 80 ms of CPU time for each task, and seconds where
Spark has got packages from Maven, whose jars are on the path too. No archive of PySpark and no jar
is looked into.

After each task a worker collects garbage, in Python's whole heap: 0.2 s of CPU time. What is here
before the fork is frozen, so it is not searched.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any


def without_archives(path: list[str]) -> list[str]:
    """Return a search path without the archives of the PySpark that is installed on it.

    An archive of another PySpark, of a Spark that was installed by itself, stays.
    """
    rest = [one for one in path if not one.endswith((".zip", ".jar"))]
    spark, py4j = (PathFinder.find_spec(name, rest) for name in ("pyspark", "py4j"))
    if spark is None or spark.origin is None or py4j is None:
        return path
    home = Path(spark.origin).parent
    return [one for one in path if one in rest or home not in Path(one).parents]


sys.path[:] = without_archives(sys.path)
sys.path_importer_cache.clear()
os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"

import pandas as pd  # noqa: E402, F401 - for the workers
import pyarrow.parquet as pq  # noqa: E402, F401
from pyspark import worker_util  # noqa: E402
from pyspark.daemon import manager  # noqa: E402
from pyspark.worker import main  # noqa: E402, F401

from nearcast import kernel_files, kernels  # noqa: E402
from nearcast.pipeline import run  # noqa: E402, F401

_add_path = worker_util.add_path


def _add_path_unless_jar(path: str) -> Any:
    """Return whether the path has changed, as PySpark's function does from 4.3 on."""
    return False if path.endswith(".jar") else _add_path(path)


worker_util.add_path = _add_path_unless_jar

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
