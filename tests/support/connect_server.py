"""A Spark Connect server as a process of its own, and what a notebook or a job does with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from tests.support.waiting import wait_for

from nearcast.server.local_cluster import free_port

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Yield the address of a server that runs in `folder`; end it and all that it started."""
    home, port = Path(pyspark.__file__).parent, free_port()
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    settings = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.python.daemon.module": "nearcast.pipeline.worker_daemon",
    }
    options = [text for key, value in settings.items() for text in ("--conf", f"{key}={value}")]
    log = folder / "server.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [str(home / "bin" / "spark-submit"), "--master", "local[2]", "--class", _CLASS,
             *options, "spark-internal"],
            env=environment, cwd=folder, start_new_session=True, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        wait_for(lambda: "started at" in log.read_text(), 240, said=lambda: log.read_text()[-3000:])
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
