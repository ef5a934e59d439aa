"""Mosquitto as a process of a test, with sessions that survive its end."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.waiting import wait_for

from nearcast.client.blocking import BlockingClient, BrokerAddress
from nearcast.model.errors import EnvironmentProblem
from nearcast.server.local_cluster import free_port


class Mosquitto:
    """A Mosquitto on a port of its own; skips the test where there is none."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("mosquitto") is None:
            pytest.skip("Mosquitto is not installed (make setup)")
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)  # it gives up its rights
        self.port = free_port()
        self._config = folder / "mosquitto.conf"
        self._config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 100000\n"
            f"persistence true\npersistence_location {folder}/\nuser root\n"
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = subprocess.Popen(
            ["mosquitto", "-c", str(self._config)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(self._answers)

    def _answers(self) -> bool:
        try:
            BlockingClient(BrokerAddress(port=self.port)).close()
        except EnvironmentProblem:
            return False
        return True

    def end(self) -> None:
        """End it; it saves its sessions."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)
