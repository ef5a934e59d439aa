"""The Maven packages that a session needs for open table formats and for S3.

Spark gets them itself when it starts (`spark.jars.packages`) and keeps them in its cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from nearcast.model.errors import EnvironmentProblem

_SPARK_LINE = "4.1"
_PACKAGES = {
    "delta": f"io.delta:delta-spark_{_SPARK_LINE}_2.13:4.3.1",
    "iceberg": f"org.apache.iceberg:iceberg-spark-runtime-{_SPARK_LINE}_2.13:1.12.0",
}
_SETTINGS = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Delta reads its own log with 50 tasks, whatever the size of the table.
        "spark.databricks.delta.snapshotPartitions": "2",
    },
    "iceberg": {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    },
}
# Spark has these itself. Some caches have a description of them without the file.
_EXCLUDED = "org.slf4j:slf4j-api,org.xerial.snappy:snappy-java"
_JARS = "spark.jars.packages"


def package_settings(table_format: str, paths: Sequence[str]) -> dict[str, str]:
    """Return the settings with which a session writes a format, and opens these paths."""
    packages = [_PACKAGES[table_format]] if table_format in _PACKAGES else []
    if packages and not version("pyspark").startswith(f"{_SPARK_LINE}."):
        raise EnvironmentProblem(
            f"Spark {version('pyspark')}, for which there is no {table_format}",
            where="--format",
            expected=f"Spark {_SPARK_LINE}",
            todo=f"pip install 'pyspark=={_SPARK_LINE}.*', or --format parquet",
        )
    if any(path.startswith("s3a:") for path in paths) and not list(_jars().glob("hadoop-aws-*")):
        packages.append(f"org.apache.hadoop:hadoop-aws:{_hadoop_version()}")
    settings = dict(_SETTINGS.get(table_format, {}))
    if packages:
        settings |= {_JARS: ",".join(packages), "spark.jars.excludes": _EXCLUDED}
    return settings


@contextmanager
def packages_resolved(settings: Mapping[str, str]) -> Iterator[None]:
    """Translate the end of Spark's start: without its packages Java ends at once."""
    from pyspark.errors import PySparkRuntimeError

    try:
        yield
    except PySparkRuntimeError as error:
        if _JARS not in settings or "JAVA_GATEWAY_EXITED" not in str(error):
            raise
        raise EnvironmentProblem(
            "Spark could not get its packages from Maven",
            where=settings[_JARS],
            todo="Its own words are above. Allow it to get them once, or put the jar files into "
            f"{_jars()}",
        ) from None


def _jars() -> Path:
    spec = find_spec("pyspark")
    return Path(spec.origin).parent / "jars" if spec and spec.origin else Path("jars")


def _hadoop_version() -> str:
    names = [path.name for path in _jars().glob("hadoop-client-api-*.jar")]
    found = re.search(r"(\d+\.\d+\.\d+)\.jar", " ".join(names))
    return found[1] if found else "3.4.2"
