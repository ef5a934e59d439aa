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
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from nearcast.model.errors import EnvironmentProblem, MisuseError
from nearcast.pipeline.packages import packages_resolved
from nearcast.pipeline.spark_logging import with_plain_interrupts, without_boot_warning
from nearcast.pipeline.temporary_files import session_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_NEEDED = 17
_INSTALL_JAVA = "Debian/Ubuntu: sudo apt-get install default-jre-headless"
# Spark's planner and Java's regular expressions recurse. Java's default stack of 1 MB is too small
# for a thread that runs both (a streaming query does); Spark's own tests use 4 MB.
_STACK = "-Xss4m"
_MASTER = re.compile(r"local(\[.+\])?|yarn|(spark|k8s|sc)://.+")
_PORTS = {"spark": 7077, "sc": 15002}
_FOR_CONNECT = ("grpc", "grpc_status", "google.rpc", "zstandard")
_MADE_HERE = {"_kernels", "_compiled", "__pycache__"}
_OF_THE_SESSION = ("spark.sql.session.timeZone", "spark.sql.parquet.outputTimestampType")


def spark_session(
    master: str = "local[*]",
    *,
    name: str = "nearcast",
    memory_gb: int | None = None,
    more: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a Spark session on `master` with all settings that the jobs rely on, and `more`.

    Checks Java and the address of the master first and raises at once. Spark itself would take
    minutes and print a page of stack traces.
    """
    check_master(master)
    check_spark(master)
    from pyspark.sql import SparkSession

    if is_connect_address(master):
        return _connected(master)
    _choose_python(master)
    builder = SparkSession.builder.master(master).appName(name)
    settings = _settings(master, memory_gb, session_folder())
    for key, value in {**settings, **(more or {})}.items():
        builder = builder.config(key, value)
    with without_boot_warning(), with_plain_interrupts(), packages_resolved(more or {}):
        session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if not _is_local(session):
        send_package(session)
    return session


def is_connect_address(master: str) -> bool:
    """Return whether this is the address of a Spark Connect server."""
    return master.startswith("sc://")


def is_connect(session: SparkSession) -> bool:
    """Return whether a session is one on a Spark Connect server: it has no Java here."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def tasks_at_once(session: SparkSession) -> int:
    """Return how many tasks can run at once, as Spark divides work without an input; one job."""
    from pyspark.sql import functions as F  # noqa: N812

    return session.range(1 << 12).select(F.spark_partition_id()).distinct().count()


def send_package(session: SparkSession) -> None:
    """Send Nearcast to the session's workers, for those that have not installed it."""
    if is_connect(session):
        session.addArtifacts(str(packed_package()), pyfile=True)
    else:
        session.sparkContext.addPyFile(str(packed_package()))


def _connected(address: str) -> SparkSession:
    """Return a session on a Spark Connect server, whose own settings stay as they are."""
    from pyspark.sql import SparkSession

    session: SparkSession = SparkSession.builder.remote(address).getOrCreate()
    for key, value in _settings("local", None).items():
        if key in _OF_THE_SESSION:
            session.conf.set(key, value)
    if not _has_package(session):
        send_package(session)
    return session


def _has_package(session: SparkSession) -> bool:
    """Return whether a worker of the server has this version of Nearcast."""
    from nearcast import __version__

    def look(batches: Any) -> Any:
        import pyarrow as pa

        for batch in batches:
            try:
                import nearcast

                found = nearcast.__version__
            except ImportError:
                found = ""
            yield pa.RecordBatch.from_pydict({"found": [found] * len(batch)})

    row = session.range(1).mapInArrow(look, "found string").first()
    return row is not None and row["found"] == __version__


def _is_local(session: SparkSession) -> bool:
    """Return whether all workers run on this machine and can read its files."""
    return str(session.sparkContext.master).startswith("local")


def _choose_python(master: str) -> None:
    """Make workers run this Python; on a cluster the user's PYSPARK_PYTHON wins."""
    if master.startswith("local"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _settings(master: str, memory_gb: int | None, folder: Path | None = None) -> dict[str, str]:
    quiet = files("nearcast.pipeline") / "log4j2.properties"
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # By default opening a file counts like reading 4 MB: 100,000 tiny files make 3,000 tasks.
        "spark.sql.files.openCostInBytes": "262144",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1" if _is_on_this_machine(master) else "",
        "spark.driver.memory": f"{memory_gb or _half_of_memory_gb()}g",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{quiet} {_STACK}",
    }
    if folder is not None:
        settings["spark.local.dir"] = str(folder)
        settings["spark.driver.extraJavaOptions"] += f" -Djava.io.tmpdir={folder}"
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


def check_spark(master: str = "local[*]") -> None:
    """Raise EnvironmentProblem unless PySpark and a usable Java are installed; start neither.

    On Spark Connect, Java runs at the server; here its protocol must be installed.
    """
    for package in ("PySpark", "pandas"):
        if find_spec(package.lower()) is None:
            raise EnvironmentProblem(
                f"{package} is not installed", todo="pip install 'nearcast[spark]'"
            )
    if is_connect_address(master):
        _check_protocol()
    else:
        check_java()


def _check_protocol() -> None:
    missing = [name for name in _FOR_CONNECT if not _is_installed(name)]
    if missing:
        raise EnvironmentProblem(
            f"{', '.join(missing)} of Spark Connect not installed",
            todo="pip install 'nearcast[spark,connect]'",
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent
        return False


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

    The address of a `spark://` master or a `sc://` server must also accept a connection.
    """
    if not _MASTER.fullmatch(master):
        raise MisuseError(
            repr(master),
            where="--master",
            expected="local[*], spark://host:port, sc://host:port, yarn or k8s://…",
        )
    kind = master.partition("://")[0]
    if kind not in _PORTS:
        return
    told, todo = _NO_ANSWER[kind]
    address = urlsplit(master.split(",", maxsplit=1)[0].partition(";")[0])
    try:
        to = (address.hostname or "", address.port or _PORTS[kind])
        with socket.create_connection(to, timeout=5):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise EnvironmentProblem(f"{told} answers ({reason})", where=master, todo=todo) from None


_NO_ANSWER = {
    "spark": (
        "no Spark master",
        "Start one (start-master.sh), or leave --master out to run on this machine",
    ),
    "sc": (
        "no Spark Connect server",
        "Start one (start-connect-server.sh), or leave --master out to run on this machine",
    ),
}


def packed_package() -> Path:
    """Zip the sources of this package for the workers of a cluster and return the path of the zip.

    The same sources give the same bytes, so workers find the kernels that an earlier job compiled.
    """
    source, target = Path(__file__).parents[1], session_folder() / "nearcast.zip"
    with ZipFile(target, "w") as packed:
        for path in sorted(source.rglob("*")):
            name = path.relative_to(source.parent)
            if path.is_file() and _MADE_HERE.isdisjoint(name.parts):
                packed.writestr(ZipInfo(str(name)), path.read_bytes(), ZIP_DEFLATED)
    return target
