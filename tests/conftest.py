"""Settings for all tests, and the Spark session that the tests of a worker share."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=50, derandomize=True, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("brief", max_examples=8, derandomize=True, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("soak", max_examples=5_000, **_COMMON)  # type: ignore[arg-type]
settings.load_profile(os.environ.get("NEARCAST_HYPOTHESIS", "quick"))

# The Python modules of the broker's core are tested here, and with NEARCAST_PLAIN empty the
# compiled ones (`make test-compiled`).
os.environ.setdefault("NEARCAST_PLAIN", "1")

# Tests run much code once and little of it often: Java's second compiler and a garbage collector
# with threads of its own cost them more than they save (a fifth of the time each). What the first
# compiler makes is kept: 48 MB, its default, is less than a session needs. Classes come
# prepared from the file that scripts/java_archive.py wrote (half of the CPU time of a start). Java
# processes that tests start get this too.
_CLASSES = Path(sys.prefix) / "spark.jsa"
_PREPARED = f" -XX:SharedArchiveFile={_CLASSES} -Xlog:disable -Xlog:all=error:stderr"
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
    + (_PREPARED if _CLASSES.exists() else ""),
)

# Tests find what set-up brought: programs of the environment (nats-server, node) and of
# the system's administrator (mosquitto), and mqtt.js.
_PROGRAMS = (str(Path(sys.executable).parent), "/usr/sbin")
os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), *_PROGRAMS])
_NODE_MODULES = Path(sys.prefix) / "peers" / "node_modules"
if _NODE_MODULES.is_dir():
    os.environ.setdefault("NODE_PATH", str(_NODE_MODULES))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute files over the workers as `lanes.py` says."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.support.lanes import Lanes

    return Lanes(config, log)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from nearcast.pipeline.session import spark_session

    _close_what_pyspark_leaves_open()
    session = spark_session("local[2]", name="nearcast-tests", memory_gb=2)
    yield session
    session.stop()


def _close_what_pyspark_leaves_open() -> None:
    """Mark sockets of PySpark 4.1 as closed: each then ends with the file that is read from it.

    PySpark leaves them to the garbage collector, which warns, and warnings fail tests. Other
    sockets are not concerned: one that we forget still fails its test.
    """
    from pyspark import util

    connect = util.local_connect_and_auth

    def connect_and_mark(*arguments: Any) -> Any:
        file, connection = connect(*arguments)
        connection.close()  # while the file is open, this only marks it
        return file, connection

    util.local_connect_and_auth = connect_and_mark  # type: ignore[assignment]


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


# The files that take longest, longest first: a worker that begins one of them last would be alone
# at the end of a run.
_LONGEST = (
    "tests/compiled/test_both_ways.py",  # waits for set-up, or compiles: two minutes
    "tests/pipeline/test_open_tables.py",
    "tests/demo/test_demo.py",
    "tests/pipeline/test_plans.py",
    "tests/pipeline/test_cluster.py",
    "tests/pipeline/test_loop.py",
    "tests/spark/test_library.py",
    "tests/server/test_network_faults.py",
    "tests/pipeline/test_run.py",
    "tests/pipeline/test_mqtt_format.py",
    "tests/pipeline/test_kills.py",
    "tests/cli/test_examples.py",
    "tests/golden/test_unchanged.py",
    "tests/pipeline/test_stream.py",
    "tests/pipeline/test_live.py",
    "tests/pipeline/test_training.py",
    "tests/server/test_workers.py",
    "tests/pipeline/test_kafka.py",
    "tests/server/test_network_causal_clients.py",
    "tests/server/test_network_rival_plans.py",
    "tests/server/test_peers.py",
    "tests/spark/test_connect.py",
    "tests/server/test_network.py",
    "tests/page/test_page.py",
    "tests/pipeline/test_match.py",
    "tests/server/test_peer_bridge.py",
    "tests/server/test_network_sharing.py",
    "tests/server/test_fuzz.py",
    "tests/server/test_network_causal_explain.py",
    "tests/pipeline/test_live_recipe.py",
    "tests/spark/test_notebook.py",
    "tests/papers/test_sweep.py",
    "tests/server/test_event_log.py",
    "tests/kernels/test_kernels.py",
)
_PURE = 2


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests by file, see `_order`.

    Tests that start other processes have more time: the limit is for what hangs, not for what is
    slow; a soak has none.
    """
    ranks: dict[str, int] = {}
    for item in items:
        ranks[_file(item)] = min(_rank(item), ranks.get(_file(item), _PURE))
    place = {file: number for number, file in enumerate(_order(ranks))}
    items.sort(key=lambda item: place[_file(item)])
    if not os.environ["NEARCAST_PLAIN"]:
        _leave_out(config, items, "plain")
    for item in items:
        has_own = item.get_closest_marker("timeout") is not None
        if config.getoption("timeout", None) and _rank(item) < _PURE and not has_own:
            item.add_marker(pytest.mark.timeout(1_200))


def pytest_collection_finish() -> None:
    """Keep Python's garbage collector from all that is imported and collected by now."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Undo that: some libraries complain of what is left when the process ends."""
    gc.unfreeze()


def _leave_out(config: pytest.Config, items: list[pytest.Item], marker: str) -> None:
    """Deselect the tests with a marker."""
    gone = [item for item in items if item.get_closest_marker(marker) is not None]
    config.hook.pytest_deselected(items=gone)
    items[:] = [item for item in items if item not in gone]


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _order(ranks: Mapping[str, int]) -> list[str]:
    """Return the files in the order in which workers take them.

    Files with Spark, which need processors, and files with other processes, which mostly wait, are
    shuffled into each other, the longest of each first; the rest follows.

    >>> _order({"a": 2, "b": 0, "c": 1, "tests/pipeline/test_run.py": 0, "d": 1})
    ['tests/pipeline/test_run.py', 'c', 'b', 'd', 'a']
    """
    known = {file: number for number, file in enumerate(_LONGEST)}
    files = sorted(ranks, key=lambda file: known.get(file, len(known)))
    places: dict[str, tuple[bool, float, int]] = {}
    for rank in set(ranks.values()):
        of_rank = [file for file in files if ranks[file] == rank]
        for number, file in enumerate(of_rank):
            places[file] = (rank == _PURE, number / len(of_rank), rank)
    return sorted(files, key=lambda file: places[file])


def _rank(item: pytest.Item) -> int:
    """Return 0 for tests with Spark, 1 for those with other processes, and `_PURE` for the rest."""
    marks = ("spark", "server")
    return next((n for n, name in enumerate(marks) if item.get_closest_marker(name)), _PURE)


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
