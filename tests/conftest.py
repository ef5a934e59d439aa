"""Settings for all tests."""

import os

import pytest
from hypothesis import HealthCheck, settings

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=50, derandomize=True, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("brief", max_examples=8, derandomize=True, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("soak", max_examples=5_000, **_COMMON)  # type: ignore[arg-type]
settings.load_profile(os.environ.get("NEARCAST_HYPOTHESIS", "quick"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give those that start other processes more time: the limit is for what hangs, not slow."""
    if not config.getoption("timeout", None):  # a soak takes as long as it takes
        return
    for item in items:
        is_heavy = item.get_closest_marker("spark") or item.get_closest_marker("server")
        if is_heavy and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(1_200))
