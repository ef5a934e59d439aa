"""Settings for all tests, and the Spark session that they share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
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

# Tests find what set-up brought: programs of the environment (nats-server, node) and of
# the system's administrator (mosquitto), and mqtt.js.
_PROGRAMS = (str(Path(sys.executable).parent), "/usr/sbin")
os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), *_PROGRAMS])
_NODE_MODULES = Path(sys.prefix) / "peers" / "node_modules"
if _NODE_MODULES.is_dir():
    os.environ.setdefault("NODE_PATH", str(_NODE_MODULES))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from nearcast.pipeline.session import spark_session

    session = spark_session("local[2]", name="nearcast-tests", memory_gb=2)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an authority, a server's and a client's certificate."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    days = ("-days", "2")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(
        "req", "-x509", *key, *days, "-subj", "/CN=test-ca", "-keyout", "ca.key", "-out", "ca.pem"
    )
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for name in ("server", "ann"):
        openssl(
            "req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr"
        )
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
            *("-CAcreateserial", *days, "-extfile", "names", "-out", f"{name}.pem"),
        )
    return folder


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give those that start other processes more time: the limit is for what hangs, not slow."""
    if not config.getoption("timeout", None):  # a soak takes as long as it takes
        return
    for item in items:
        is_heavy = item.get_closest_marker("spark") or item.get_closest_marker("server")
        if is_heavy and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(1_200))


def not_tested(reasons: Counter[str]) -> str:
    """Return the line that counts what was skipped, by reason; empty if nothing was.

    >>> not_tested(Counter({"mqtt.js is not installed": 8, "no right to mount a disk": 1}))
    'Not tested: 9 (8: mqtt.js is not installed; 1: no right to mount a disk)'
    """
    if not reasons:
        return ""
    parts = "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common())
    return f"Not tested: {reasons.total()} ({parts})"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line how many tests were skipped, and why."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    if line := not_tested(reasons):
        terminalreporter.write_line(line, yellow=True)
