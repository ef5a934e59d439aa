"""Settings for all tests."""

import os

from hypothesis import HealthCheck, settings

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=50, derandomize=True, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("brief", max_examples=8, derandomize=True, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("soak", max_examples=5_000, **_COMMON)  # type: ignore[arg-type]
settings.load_profile(os.environ.get("NEARCAST_HYPOTHESIS", "quick"))
