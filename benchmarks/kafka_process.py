"""Kafka as a process: one server in KRaft mode, from the jars that `make setup` got."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from nearcast.server.local_cluster import free_port

START_S = 120
JARS = Path(sys.prefix) / "peers" / "kafka"


def connector_jars() -> str:
    """Return the jars of Spark's connector, for `--jars`."""
    return ",".join(str(path) for path in sorted((JARS / "connector").glob("*.jar")))


class Kafka:
    """A Kafka on a port of its own, which keeps its data over `kill` and `start`."""

    def __init__(self, folder: Path) -> None:
        self.port, control = free_port(), free_port()
        self._config = folder / "kafka.properties"
        self._config.write_text(
            "process.roles=broker,controller\nnode.id=1\n"
            f"controller.quorum.voters=1@127.0.0.1:{control}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{control}\n"
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{self.port}\n"
            "controller.listener.names=CONTROLLER\n"
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
            f"log.dirs={folder}/data\noffsets.topic.replication.factor=1\nnum.partitions=2\n"
            "offsets.topic.num.partitions=1\ngroup.initial.rebalance.delay.ms=0\n"
            "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
        )
        identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._run("kafka.tools.StorageTool", "format", "-t", identity, "-c").wait(START_S)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def servers(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.port}"

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        memory = ("-Xmx300m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        return subprocess.Popen(
            ["java", *memory, "-cp", f"{JARS}/server/*", program, *arguments, str(self._config)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = self._run("kafka.Kafka")
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert time.monotonic() < deadline, "Kafka did not start"
            time.sleep(0.3)

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        quiet: dict[str, str | int | float | bool] = {
            "bootstrap.servers": self.servers,
            "log_level": 0,
        }
        try:
            return bool(AdminClient(quiet).list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    def make_topic(self, name: str, partitions: int) -> None:
        """Make a topic."""
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        client = AdminClient({"bootstrap.servers": self.servers})
        client.create_topics([NewTopic(name, partitions, 1)])[name].result(60)

    def kill(self) -> None:
        """Kill it at once."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
