"""One Spark session for all tests of the pipeline."""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from nearcast.pipeline.session import spark_session

# Tests run much code once and little of it often: Java's second compiler costs them more than it
# saves (a fifth of the time). Java processes that tests start get this too.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = spark_session("local[2]", name="nearcast-tests", memory_gb=2)
    yield session
    session.stop()
