"""A broker in a process of its own, with sections of its configuration as arguments."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.forked import Forked
from tests.support.waiting import END_S, wait_for

from nearcast.server.local_cluster import free_port

_SERVE = """
import json, sys
from nearcast.config import Configuration
from nearcast.server import serve
configuration = Configuration.model_validate_json(sys.argv[1])
def ready(server):
    print(json.dumps(server.ports), flush=True)
serve(configuration, on_ready=ready,
      reread=lambda: Configuration.model_validate_json(open(sys.argv[2]).read()))
"""


class BrokerProcess:
    """A broker in a process of its own."""

    def __init__(self, directory: Path, **sections: Any) -> None:
        self.directory = directory
        directory.chmod(0o700)  # a broker names a data directory that others may read
        self.sections = {
            "node": {"data": str(directory)},
            "listener": [{"kind": "tcp", "port": free_port()}],
            "durability": {"mode": "off"},
            "http": {"address": "off"},
            **sections,
            "limits": {"connections": 500, **sections.get("limits", {})},
        }
        self.ports: dict[str, int] = {}
        self.process: subprocess.Popen[str] | None = None
        self._errors = Path()

    def start(self) -> BrokerProcess:
        """Start it, on the same ports as before if it ran already."""
        if self.ports:
            for section in self.sections["listener"]:
                section["port"] = self.ports[section["kind"]]
        errors, path = tempfile.mkstemp(".err", "broker-", self.directory)
        self._errors = Path(path)
        self.process = Forked(
            [sys.executable, "-c", _SERVE, json.dumps(self.sections), self.reload_path],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        os.close(errors)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(self.end())
        self.ports = {kind: port for kind, _, port in json.loads(line)}
        return self

    @property
    def reload_path(self) -> str:
        return str(self.directory / "reload.json")

    @property
    def port(self) -> int:
        return self.ports["tcp"]

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def rss_kb(self) -> int:
        text = Path(f"/proc/{self.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0])

    def said(self) -> str:
        """Return what it said on its error output since it was started."""
        return self._errors.read_text()

    def wait_until_said(self, words: str) -> None:
        wait_for(lambda: words in self.said(), said=self.said)

    def end(self, how: int = signal.SIGTERM) -> str:
        """End the process; return what it said on its error output."""
        process = self.process
        if process is None:
            return ""
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(process.pid, how)
        process.communicate(timeout=END_S)
        self.process = None
        return self.said()
