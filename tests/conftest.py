"""Settings for all tests."""

import os

import pytest
from hypothesis import HealthCheck, settings

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=50, derandomize=True, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("brief", max_examples=8, derandomize=True, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("soak", max_examples=5_000, **_COMMON)  # type: ignore[arg-type]
settings.load_profile(os.environ.get("NEARCAST_HYPOTHESIS", "quick"))


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep all Spark tests in one worker: they share a session."""
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))
