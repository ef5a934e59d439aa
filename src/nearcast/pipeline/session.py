"""The one place that builds a Spark session."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from nearcast.model.errors import EnvironmentProblem, MisuseError
from nearcast.pipeline.quiet import with_plain_interrupts, without_boot_warning

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_NEEDED = 17
_INSTALL_JAVA = "Debian/Ubuntu: sudo apt-get install default-jre-headless"
# Spark's planner and Java's regular expressions recurse; a megabyte, Java's default, is not always
# enough for a thread that does both (a stream's does), and Spark's own tests run with this.
_STACK = "-Xss4m"
_MASTER = re.compile(r"local(\[.+\])?|yarn|(spark|k8s)://.+")


def spark_session(
    master: str = "local[*]", *, name: str = "nearcast", memory_gb: int | None = None
) -> SparkSession:
    """Return a session on `master`, with everything set that the jobs rely on.

    A missing or old Java, or a master that nobody answers at, is said before Spark is started:
    Spark itself takes minutes and a page of stack traces to say so.
    """
    check_master(master)
    check_spark()
    from pyspark.sql import SparkSession

    _choose_python(master)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in _settings(master, memory_gb).items():
        builder = builder.config(key, value)
    with without_boot_warning(), with_plain_interrupts():
        session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if not is_local(session):
        session.sparkContext.addPyFile(str(packed_package()))
    return session


def is_local(session: SparkSession) -> bool:
    """Tell whether all workers run on this machine, and so see its files."""
    return str(session.sparkContext.master).startswith("local")


def _choose_python(master: str) -> None:
    """Let workers run this Python; on other machines the user may know better."""
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
    else:  # workers get the package as a zip, beside which compiled kernels cannot be kept
        settings["spark.executorEnv.XDG_CACHE_HOME"] = os.environ.get(
            "XDG_CACHE_HOME", str(Path(tempfile.gettempdir()) / "nearcast-cache")
        )  # where Numba looks for a zip's kernels, whatever NUMBA_CACHE_DIR says
    return {key: value for key, value in settings.items() if value}


def _is_on_this_machine(master: str) -> bool:
    host = urlsplit(master.split(",", maxsplit=1)[0]).hostname if "://" in master else None
    return master.startswith("local") or host in {"127.0.0.1", "localhost", "::1"}


def _half_of_memory_gb() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(8, total // 2**31))


def check_spark() -> None:
    """Raise unless PySpark and a Java that it can use are installed; starts neither."""
    for package in ("PySpark", "pandas"):
        if find_spec(package.lower()) is None:
            raise EnvironmentProblem(
                f"{package} is not installed", todo="pip install 'nearcast[spark]'"
            )
    check_java()


def check_java() -> None:
    """Raise unless there is a Java that Spark can use."""
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
        found = f"Java {version[1]}" if version else "a Java that does not say its version"
        raise EnvironmentProblem(
            found, where=java, expected=f"Java {JAVA_NEEDED} or newer", todo=_INSTALL_JAVA
        )


def check_master(master: str) -> None:
    """Raise unless `master` is a Spark master's address and, where that can be seen, answers."""
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
    """Zip this package for a cluster's workers; return the file."""
    source = Path(__file__).parents[1]
    target = Path(tempfile.mkdtemp(prefix="nearcast-")) / "nearcast"
    return Path(shutil.make_archive(str(target), "zip", source.parent, source.name))
