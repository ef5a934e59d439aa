"""An S3 server (moto's) in a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyarrow import fs
from tests.support.waiting import wait_for

from nearcast.server.local_cluster import free_port

KEYS = {"access_key": "somebody", "secret_key": "a secret"}


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Start it; return its address."""
    server = Path(sys.prefix) / "peers" / "s3" / "bin" / "moto_server"
    if not server.exists():
        pytest.skip("moto's S3 server is not installed (make setup)")
    port = free_port()
    with (folder / "s3.log").open("wb") as log:
        process = subprocess.Popen(
            [str(server), "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log
        )
    try:
        wait_for(lambda: "Running on" in (folder / "s3.log").read_text(), 60)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)


def store_at(address: str) -> fs.FileSystem:
    """Return the server's file system, with a bucket `lake`."""
    store = fs.S3FileSystem(
        endpoint_override=address.removeprefix("http://"), scheme="http", region="us-east-1",
        allow_bucket_creation=True, **KEYS,
    )  # fmt: skip
    store.create_dir("lake")
    return store


def hadoop_settings(address: str) -> dict[str, str]:
    """Return Spark's settings for the server."""
    hadoop = {
        "access.key": KEYS["access_key"], "secret.key": KEYS["secret_key"], "endpoint": address,
        "path.style.access": "true", "endpoint.region": "us-east-1",
        "connection.ssl.enabled": "false",
    }  # fmt: skip
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in hadoop.items()}


def s3_jars() -> dict[str, str]:
    """Return settings with the jar files for S3 that Spark got from Maven before, if it did.

    With packages it sends 640 MB to each worker, which has them on its disk already.
    """
    names = ("hadoop-aws-*", "awssdk_bundle-*", "wildfly-openssl-*", "analyticsaccelerator-s3-*")
    found = [list(Path.home().glob(f".ivy2*/jars/*{name}.jar")) for name in names]
    if not all(len(one) == 1 for one in found):
        return {}
    jars = ",".join(f"local:{path}" for (path,) in found)
    return {"spark.jars": jars, "spark.jars.packages": ""}
