"""Builds the Spark session; the only module that does."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from nearcast.model.errors import EnvironmentProblem, MisuseError
from nearcast.pipeline.spark_logging import with_plain_interrupts, without_boot_warning

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_NEEDED = 17
_INSTALL_JAVA = "Debian/Ubuntu: sudo apt-get install default-jre-headless"
# Spark's planner and Java's regular expressions recurse. Java's default stack of 1 MB is too small
# for a thread that runs both (a streaming query does); Spark's own tests use 4 MB.
_STACK = "-Xss4m"
_MASTER = re.compile(r"local(\[.+\])?|yarn|(spark|k8s)://.+")


def spark_session(
    master: str = "local[*]",
    *,
    name: str = "nearcast",
    memory_gb: int | None = None,
    libraries: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a Spark session on `master` with all settings that the jobs rely on.

    Checks Java and the address of the master first and raises at once. Spark itself would take
    minutes and print a page of stack traces.
    """
    check_master(master)
    check_spark()
    from pyspark.sql import SparkSession

    _choose_python(master)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**_settings(master, memory_gb), **(libraries or {})}.items():
        builder = builder.config(key, value)
    with without_boot_warning(), with_plain_interrupts():
        session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if not is_local(session):
        session.sparkContext.addPyFile(str(packed_package()))
    return session


def is_local(session: SparkSession) -> bool:
    """Return whether all workers run on this machine and can read its files."""
    return str(session.sparkContext.master).startswith("local")


def _choose_python(master: str) -> None:
    """Make workers run this Python; on a cluster the user's PYSPARK_PYTHON wins."""
    if master.startswith("local"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _settings(master: str, memory_gb: int | None) -> dict[str, str]:
    quiet = files("nearcast.pipeline") / "log4j2.properties"
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1" if _is_on_this_machine(master) else "",
        "spark.driver.memory": f"{memory_gb or _half_of_memory_gb()}g",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{quiet} {_STACK}",
    }
    if master.startswith("local"):
        settings["spark.sql.shuffle.partitions"] = str(2 * (os.cpu_count() or 2))
        settings["spark.python.daemon.module"] = "nearcast.pipeline.worker_daemon"
    else:  # workers get the package as a zip, beside which compiled kernels cannot be kept
        settings["spark.executorEnv.XDG_CACHE_HOME"] = os.environ.get(
            "XDG_CACHE_HOME", str(Path(tempfile.gettempdir()) / "nearcast-cache")
        )  # Numba's cache for code in a zip; it ignores NUMBA_CACHE_DIR there
    return {key: value for key, value in settings.items() if value}


def _is_on_this_machine(master: str) -> bool:
    host = urlsplit(master.split(",", maxsplit=1)[0]).hostname if "://" in master else None
    return master.startswith("local") or host in {"127.0.0.1", "localhost", "::1"}


def _half_of_memory_gb() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(8, total // 2**31))


def check_spark() -> None:
    """Raise EnvironmentProblem unless PySpark and a usable Java are installed; start neither."""
    for package in ("PySpark", "pandas"):
        if find_spec(package.lower()) is None:
            raise EnvironmentProblem(
                f"{package} is not installed", todo="pip install 'nearcast[spark]'"
            )
    check_java()


def check_java() -> None:
    """Raise EnvironmentProblem unless a Java that Spark can use is installed."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME={home}" if home else ""
        raise EnvironmentProblem(
            "Spark needs Java, and there is none", where=where, todo=_INSTALL_JAVA
        )
    run = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603 - the user's own Java
    version = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    if version is None or int(version[1]) < JAVA_NEEDED:
        found = f"Java {version[1]}" if version else "a Java of unknown version"
        raise EnvironmentProblem(
            found, where=java, expected=f"Java {JAVA_NEEDED} or newer", todo=_INSTALL_JAVA
        )


def check_master(master: str) -> None:
    """Raise unless `master` is a valid Spark master.

    A `spark://` master must also accept a connection.
    """
    if not _MASTER.fullmatch(master):
        raise MisuseError(
            repr(master), where="--master", expected="local[*], spark://host:port, yarn or k8s://…"
        )
    if not master.startswith("spark://"):
        return
    address = urlsplit(master.split(",", maxsplit=1)[0])
    try:
        with socket.create_connection((address.hostname or "", address.port or 7077), timeout=5):
            pass
    except OSError as error:
        raise EnvironmentProblem(
            f"no Spark master answers ({error.strerror or error})",
            where=master,
            todo="Start one (start-master.sh), or leave --master out to run on this machine",
        ) from None


def packed_package() -> Path:
    """Zip this package for the workers of a cluster and return the path of the zip."""
    source = Path(__file__).parents[1]
    target = Path(tempfile.mkdtemp(prefix="nearcast-")) / "nearcast"
    return Path(shutil.make_archive(str(target), "zip", source.parent, source.name))
