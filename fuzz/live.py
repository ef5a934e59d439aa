"""A broker process with two bystanders, for fuzzers: whatever others send, both must be served.

One bystander is durable and subscribes to everything (`#`); the other one publishes to it, and
both ping. They must never be disconnected, and what is published must arrive, also over restarts.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nearcast.mqtt import (
    Connect,
    Conversation,
    Disconnect,
    FilterRequest,
    Packet,
    Pingresp,
    Properties,
    Publish,
    Suback,
)

WAIT_S = 60.0
_TIMESTAMPS = 35  # SO_TIMESTAMPNS of Linux: when bytes came, told beside them
SLOWER = float(os.environ.get("NEARCAST_FUZZ_SLOWER", "1"))  # with sanitizers, for example
MOST_CPU_S = 0.05 * SLOWER
ENDING_S = 120.0  # the broker waits up to 60 s until its event log is turned into tables

_SERVE = """
import json, sys
from pathlib import Path
from nearcast.config import Configuration
from nearcast.server import serve
def read():
    return Configuration.model_validate_json(Path(sys.argv[1]).read_text())
serve(
    read(),
    on_ready=lambda server: print(json.dumps([port for _, _, port in server.ports]), flush=True),
    reread=read,
)
"""
_ATTRIBUTES = {
    "price": {"low": 0, "high": 1000},
    "kind": {"categories": ["food", "tools"]},
    "lon": {"low": -180, "high": 180},
    "lat": {"low": -90, "high": 90},
}
SPACES = [
    {
        "name": "shops",
        "topics": "shops/#",
        "longitude": "lon",
        "latitude": "lat",
        "positions": "public",
        "attributes": _ATTRIBUTES,
    },
    {
        "name": "cars",
        "topics": "cars/+",
        "values": "properties",
        "missing": "all",
        "top": 3,
        "attributes": {"price": {"low": -1e300, "high": 1e300}},
    },
]


Login = tuple[str, bytes] | None  # user and password


class Bystander:
    """A client on a socket that does nothing special and must be served."""

    def __init__(self, port: int, name: str, *, lasting: bool, login: Login = None) -> None:
        expiry = Properties(session_expiry_interval=3_600 if lasting else 0)
        user, password = login or (None, None)
        connect = Connect(
            name,
            clean_start=not lasting,
            keep_alive_s=0,
            user_name=user,
            password=password,
            properties=expiry,
        )
        self.name = name
        self.conversation = Conversation(connect)
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        # Otherwise the kernel keeps a PINGREQ until the broker's kernel has confirmed what was
        # sent before, up to 40 ms later.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, _TIMESTAMPS, 1)
        self._arrived_s = 0.0  # when the last bytes came, by the kernel's clock
        self._packets: list[Packet] = []
        self._flush()
        while self.conversation.connack is None:
            self._read()
        assert not self.conversation.connack.reason, f"{name} was refused"

    def _flush(self) -> None:
        data = self.conversation.take()
        if data:
            self._socket.sendall(data)

    def _read(self) -> None:
        data, told, _, _ = self._socket.recvmsg(1 << 20, 128)
        assert data, f"the bystander {self.name} was closed"
        for _, kind, value in told:
            if kind == _TIMESTAMPS:
                seconds, nanoseconds = struct.unpack("qq", value)
                self._arrived_s = seconds + nanoseconds / 1e9
        for packet in self.conversation.receive(data):
            assert not isinstance(packet, Disconnect), f"{self.name} was disconnected: {packet}"
            self._packets.append(packet)
        self._flush()

    def take(self) -> list[Packet]:
        """Return what has come and nobody has waited for."""
        packets, self._packets = self._packets, []
        return packets

    def wait_for(self, is_it: Callable[[Packet], bool]) -> Packet:
        """Read until such a packet has come."""
        while True:
            packets, self._packets = self._packets, []
            for place, packet in enumerate(packets):
                if is_it(packet):
                    self._packets = packets[place + 1 :] + self._packets
                    return packet
            self._read()

    def subscribe(self, text: str, qos: int) -> None:
        self.conversation.subscribe(FilterRequest(text, qos))
        self._flush()
        self.wait_for(lambda packet: isinstance(packet, Suback))

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish at QoS 1 and wait for the answer."""
        self.conversation.publish(Publish(topic, payload, 1))
        self._flush()
        while self.conversation.unsettled:
            self._read()

    def ping(self) -> float:
        """Return how long it takes until the answer to a PINGREQ is in this socket, in seconds.

        A bystander that waits for a core to read it adds nothing.
        """
        started_s = time.time()
        self.conversation.ping()
        self._flush()
        self.wait_for(lambda packet: isinstance(packet, Pingresp))
        return max(0.0, self._arrived_s - started_s)

    def close(self) -> None:
        self._socket.close()


class Live:
    """The broker process and its bystanders; offenders come and go.

    `login` is that of the bystanders, `heard` what the listener subscribes to.
    """

    def __init__(
        self,
        directory: str,
        *,
        login: Login = None,
        heard: tuple[str, ...] = ("#",),
        **sections: Any,
    ) -> None:
        self._log = (Path(directory) / "log").open("w+")
        self._login, self._heard = login, heard
        self.sections = Path(directory) / "sections.json"
        written = {
            "node": {"data": directory},
            "listener": [{"port": 0}],
            "log": {"events": "full", "metrics_port": 0},
            "http": {"address": "off"},
            "space": SPACES,
            **sections,
        }
        self.sections.write_text(json.dumps(written))
        self.count = 0
        self.restarts = 0
        self.pings_s: dict[str, list[float]] = {"speaker": [], "listener": []}
        self.cpu_s: list[float] = []  # the broker's, until a ping was answered
        self.alone_s: list[float] = []  # a ping, without the broker's waiting for a core
        self.slowest_s = 0.0
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, str(self.sections)],
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the broker does not start:\n{self._told()}"
        self.port, *self.other_ports, self._metrics = json.loads(line)
        login = self._login
        self.listener = Bystander(self.port, "bystander/listener", lasting=True, login=login)
        self.speaker = Bystander(self.port, "bystander/speaker", lasting=False, login=login)
        for text in () if self.restarts else self._heard:
            self.listener.subscribe(text, 1)

    def offend(self, data: bytes, cut: int) -> None:
        """Let a newcomer say something damaged, in two portions, and vanish."""
        link = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)
        with link, contextlib.suppress(ConnectionError):  # closing on it is a fair answer
            link.sendall(data[:cut])
            link.sendall(data[cut:])

    def ping(self) -> None:
        """Let both bystanders ping; record how long that takes, and how long the broker worked."""
        for name, bystander in (("speaker", self.speaker), ("listener", self.listener)):
            cpu_s, waits_s = self._spent_s()
            took_s = bystander.ping()
            cpu_after_s, waits_after_s = self._spent_s()
            worked_s = min(took_s, cpu_after_s - cpu_s)  # it may have gone on before this one read
            self.pings_s[name].append(took_s)
            self.cpu_s.append(worked_s)
            self.alone_s.append(max(worked_s, took_s - (waits_after_s - waits_s)))

    def _spent_s(self) -> tuple[float, float]:
        """Return the CPU time of the broker's event loop: other processes do not add to it.

        And how long the loop was ready to run and waited for a core.
        """
        spent, waited, _ = Path(f"/proc/{self.process.pid}/schedstat").read_text().split()
        return int(spent) / 1e9, int(waited) / 1e9

    def check(self) -> None:
        """Assert that the bystanders still understand each other."""
        self.count += 1
        payload = b"%d" % self.count
        started = time.monotonic()
        self.speaker.publish("healthy", payload)
        self._await(payload)
        self.slowest_s = max(self.slowest_s, time.monotonic() - started)

    def _await(self, payload: bytes) -> None:
        self.listener.wait_for(
            lambda packet: (
                isinstance(packet, Publish)
                and packet.topic == "healthy"
                and packet.payload == payload
            )
        )

    def restart(self, how: signal.Signals) -> None:
        """End the broker and start it again; what was published meanwhile must have survived."""
        self.assert_clean()
        self.listener.close()
        self.count += 1
        payload = b"%d" % self.count
        self.speaker.publish("healthy", payload)
        self.speaker.close()
        self.process.send_signal(how)
        code = self.process.wait(ENDING_S)
        assert code in (0, -signal.SIGKILL), f"exit code {code} after {how.name}:\n{self._told()}"
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.restarts += 1
        self._start()
        session = self.listener.conversation.connack
        assert session is not None
        assert session.session_present, "the durable bystander has lost its session"
        self._await(payload)

    def assert_clean(self) -> None:
        """Assert that the broker runs, and that nothing happened that nobody foresaw."""
        assert self.process.poll() is None, f"the broker has ended:\n{self._told()}"
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics}/metrics") as page:
            text = page.read().decode()
        (line,) = [one for one in text.splitlines() if one.startswith("nearcast_internal_errors")]
        assert line.endswith(" 0"), f"{line}\n{self._told()}"

    def _told(self) -> str:
        self._log.flush()
        return Path(self._log.name).read_text()[-20_000:]

    def close(self) -> None:
        """End the broker; it must have complained of nothing."""
        self.assert_clean()
        self.process.terminate()
        assert self.process.wait(ENDING_S) == 0, self._told()
        lines = Path(self._log.name).read_text().splitlines()
        complaints = [one for one in lines if "Traceback" in one or "ERROR" in one]
        assert not complaints, self._told()

    def release(self) -> None:
        """Kill what still runs, and close all files and sockets."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()
        self.listener.close()
        self.speaker.close()

    def told_pings(self) -> str:
        """Return how long pings took: of the speaker, and of the listener.

        The listener's ping waits behind all that it has to read, since it subscribes to `#`.
        """
        told = [f"pings of the {name} {_told_times(times)}" for name, times in self.pings_s.items()]
        return f"{', '.join(told)}; the broker's CPU until then: {_told_times(self.cpu_s)}"

    def assert_quick(self) -> None:
        """Assert that the broker worked for 50 ms at most before 99 of 100 pings were answered.

        It is the broker's CPU that counts: a busy machine, on which all wait, adds nothing to it.
        """
        assert _p99(self.cpu_s) <= MOST_CPU_S, self.told_pings()


def _p99(times_s: list[float]) -> float:
    return sorted(times_s)[len(times_s) * 99 // 100]


def _told_times(times_s: list[float]) -> str:
    most = max(times_s) * 1000
    return f"({len(times_s)}) p99 {_p99(times_s) * 1000:.1f} ms, most {most:.0f} ms"


@contextlib.contextmanager
def living(**sections: Any) -> Iterator[Live]:
    with tempfile.TemporaryDirectory(prefix="nearcast-fuzz-") as directory:
        live = Live(directory, **sections)
        try:
            yield live
            live.close()
        finally:
            live.release()
