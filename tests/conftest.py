"""Settings for all tests, and the Spark session that they share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=50, derandomize=True, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("brief", max_examples=8, derandomize=True, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("soak", max_examples=5_000, **_COMMON)  # type: ignore[arg-type]
settings.load_profile(os.environ.get("NEARCAST_HYPOTHESIS", "quick"))

# Tests run much code once and little of it often: Java's second compiler and a garbage collector
# with threads of its own cost them more than they save (a fifth of the time each). Java processes
# that tests start get this too.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from nearcast.pipeline.session import spark_session

    session = spark_session("local[2]", name="nearcast-tests", memory_gb=2)
    yield session
    session.stop()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give those that start other processes more time: the limit is for what hangs, not slow."""
    if not config.getoption("timeout", None):  # a soak takes as long as it takes
        return
    for item in items:
        is_heavy = item.get_closest_marker("spark") or item.get_closest_marker("server")
        if is_heavy and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(1_200))
