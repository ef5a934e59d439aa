"""What Spark lacks is said before Spark is started."""

import gc
import logging
import os
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from nearcast.model.errors import EnvironmentProblem, MisuseError
from nearcast.pipeline import spark_logging
from nearcast.pipeline.session import check_java, check_master, packed_package


def fake_java(home: Path, says: str) -> None:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IEXEC)


def test_no_java_is_said_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match=r"there is none.*apt-get install"):
        check_java()


@pytest.mark.parametrize(
    ("says", "found"),
    [('openjdk version "11.0.2"', "Java 11"), ('java version "1.8.0"', "Java 8")],
)
def test_an_old_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says, found):
    fake_java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match=f"found {found}; expected Java 17 or newer"):
        check_java()


def test_a_new_java_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake_java(tmp_path, 'openjdk version "21.0.1" 2023-10-17')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    check_java()


@pytest.mark.parametrize("master", ["", "locale", "http://x", "local[", "spark://"])
def test_a_master_that_is_none_is_refused(master: str):
    with pytest.raises(MisuseError, match="--master"):
        check_master(master)


def test_a_master_that_does_not_answer_is_said_at_once():
    with pytest.raises(EnvironmentProblem, match="no Spark master answers"):
        check_master("spark://127.0.0.1:1")


def test_the_package_is_packed_for_workers():
    path = packed_package()
    assert path.suffix == ".zip"
    with zipfile.ZipFile(path) as packed:
        names = packed.namelist()
    assert {"nearcast/__init__.py", "nearcast/pipeline/log4j2.properties"} <= {*names}
    made_here = {"_kernels", "_compiled", "__pycache__"}
    assert not [one for one in names if made_here.intersection(Path(one).parts)]
    before = path.read_bytes()
    assert packed_package().read_bytes() == before  # workers keep what they compiled of it
    path.unlink()


INTERRUPTING = """
import os, signal, sys, threading, time
from unittest import mock
from nearcast import cli
from nearcast.pipeline import spark_logging
from nearcast.pipeline.session import spark_session

def interrupt_after(seconds):
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()

def job(**options):
    if sys.argv[1] == "while Spark starts":
        interrupt_after(1.0)
    spark = spark_session("local[1]", memory_gb=1)
    interrupt_after(1.0)
    spark.sparkContext.parallelize([600]).map(time.sleep).collect()

with mock.patch.object(cli, "app", job):
    cli.main()
"""


@pytest.mark.spark
@pytest.mark.java
@pytest.mark.parametrize("moment", ["while Spark starts", "in the middle of a job"])
def test_ctrl_c_ends_a_job_without_a_stack_trace_and_java_with_it(moment: str):
    words = [sys.executable, "-c", INTERRUPTING, moment]
    begun = time.monotonic()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - begun < 300


IMPORTING = """
import os
from nearcast.matching import polygon_table
from nearcast.pipeline import worker_daemon
worker_daemon.load_kernels()
print(len(os.listdir("/proc/self/task")), len(polygon_table._verdicts.signatures))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="Linux counts threads here")
def test_the_process_that_workers_are_forked_from_has_one_thread_and_compiled_kernels():
    env = {**os.environ, "OMP_NUM_THREADS": "1"}  # as Spark sets it
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "1 1\n"


@pytest.mark.spark
def test_a_worker_has_what_jobs_need_when_it_starts(spark: SparkSession):
    """It looks for modules in no archive of Spark, and for garbage in nothing that is imported."""

    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        finders = sys.path_importer_cache
        for _ in batches:
            found = {
                "is_there": "nearcast.pipeline.audit.job" in sys.modules,
                "archives": sum("zipimporter" in repr(one) for one in finders.values()),
                "frozen": gc.get_freeze_count(),
            }
            yield pa.RecordBatch.from_pylist([found])

    schema = "is_there boolean, archives bigint, frozen bigint"
    (row,) = spark.range(1, numPartitions=1).mapInArrow(look, schema).collect()
    assert (row.is_there, row.archives) == (True, 0)
    assert row.frozen > 50_000


def test_archives_of_another_spark_stay_on_the_path():
    from nearcast.pipeline.worker_daemon import without_archives  # which changes our path as well

    own, other = str(Path(pyspark.__file__).parent / "python/lib"), "/opt/spark/python/lib"
    installed = [str(Path(pyspark.__file__).parents[1])]
    archives = ["pyspark.zip", "py4j-0.10.9.9-src.zip"]
    ours = [f"{own}/{name}" for name in archives]
    others = [f"{other}/{name}" for name in archives]
    users = ["/home/ann/job.zip"]
    assert without_archives([*ours, *users, *installed]) == [*users, *installed]
    assert without_archives([*others, *installed]) == [*others, *installed]
    assert without_archives(ours) == ours  # there is no other PySpark


def test_a_worker_looks_for_modules_in_no_jar_that_spark_got(monkeypatch: pytest.MonkeyPatch):
    from pyspark import worker_util

    from nearcast.pipeline import worker_daemon  # noqa: F401 - it replaces the function

    monkeypatch.setattr(sys, "path", ["here", "there"])
    for name in ("files/delta.jar", "files/job.zip"):
        worker_util.add_path(name)
    assert sys.path == ["here", "files/job.zip", "there"]


def test_after_ctrl_c_py4j_tells_nothing_more_and_before_it_does():
    py4j = logging.getLogger("py4j")
    level, caller = py4j.level, logging.getLogger("py4j.clientserver")
    try:
        other = logging.makeLogRecord({"msg": "Exception while sending command."})
        assert spark_logging._says_something(other)
        assert caller.isEnabledFor(logging.ERROR)
        told = logging.makeLogRecord({"msg": "KeyboardInterrupt while sending command."})
        assert not spark_logging._says_something(told)
        assert not caller.isEnabledFor(logging.ERROR)
    finally:
        py4j.setLevel(level)
