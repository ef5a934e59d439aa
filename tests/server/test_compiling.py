"""A broker does not wait for a compiler: it answers at once, and compiled kernels take over."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import wait_for

import nearcast
from nearcast.client.blocking import BlockingClient, BrokerAddress
from nearcast.mqtt import FilterRequest, Publish
from nearcast.server.local_cluster import free_port

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]
CONFIGURATION = """
[node]
data = "{data}"
[[listener]]
port = {port}
[[space]]
name = "city"
topics = "city/#"
longitude = "lon"
latitude = "lat"
[space.attributes]
lon = {{ low = -180, high = 180 }}
lat = {{ low = -90, high = 90 }}
"""
WAIT_S = 300.0  # for what must come; on a good day nobody waits
PEOPLE = 30  # more than are looked at one by one


class Serving:
    """`nearcast serve` as its users start it, and what it has said so far."""

    def __init__(self, folder: Path, data: Path, *before: str, **more: str) -> None:
        self.port = free_port()
        configuration = folder / "nearcast.toml"
        configuration.write_text(CONFIGURATION.format(data=data, port=self.port))
        command = [sys.executable, "-u", "-c", "from nearcast.cli import main; main()", "serve"]
        self._said = folder / "said"
        with self._said.open("wb") as file:
            self.process = subprocess.Popen(
                [*before, *command, "--config", str(configuration)],
                env={**os.environ, **more},
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd="/",
            )

    def said(self) -> str:
        return self._said.read_text()

    def wait_until_said(self, words: str) -> None:
        wait_for(
            lambda: words in self.said() or self.process.poll() is not None, WAIT_S, said=self.said
        )
        assert words in self.said(), self.said()

    def end(self, how: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(WAIT_S)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    all_of_them: list[Serving] = []

    def start(**more: str) -> Serving:
        all_of_them.append(Serving(tmp_path, tmp_path / "data", **more))
        return all_of_them[-1]

    yield start
    for one in all_of_them:
        one.end(signal.SIGKILL)


class People:
    """Clients a hundred metres apart, each of which wants what is near."""

    def __init__(self, port: int) -> None:
        self.clients = [
            BlockingClient(BrokerAddress(port=port, timeout_s=WAIT_S)) for _ in range(PEOPLE)
        ]
        for number, one in enumerate(self.clients):
            one.publish([Publish("$position", place(number), 1)])
            one.subscribe(FilterRequest("$near/150m/city/#"), FilterRequest("mark"))

    def __enter__(self) -> People:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.clients:
            one.__exit__(None, None, None)

    def who_gets(self, number: int, text: str) -> list[int]:
        """Return who gets an event at a person's place; a mark behind it says when all is over."""
        sender = self.clients[0]
        sender.publish([Publish(f"city/{text}", place(number), 1), Publish("mark", b"", 1)])
        found = []
        for client_number, one in enumerate(self.clients):
            topics = []
            for message in one.messages(WAIT_S):
                topics.append(message.topic)
                if message.topic == "mark":
                    break
            if f"city/{text}" in topics:
                found.append(client_number)
        return found


def place(number: int) -> bytes:
    return json.dumps({"lon": 13.0, "lat": 50.0 + number * 0.0009}).encode()


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(one) for one in found.split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_first_start_answers_while_children_compile_which_end_with_it(
    serve: Callable[..., Serving],
    tmp_path: Path,
    how: int,
) -> None:
    broker = serve(NUMBA_CACHE_DIR=str(tmp_path / "nothing"))
    broker.wait_until_said("compiling kernels (matching)")
    broker.wait_until_said("Ready.")
    pid = broker.process.pid
    wait_for(lambda: children(pid))
    with People(broker.port) as people:
        assert people.who_gets(10, "first") == [9, 10, 11]
    assert "full speed" not in broker.said()
    workers = children(pid)
    assert workers
    assert broker.end(how) == (-how if how == signal.SIGKILL else 0)
    wait_for(lambda: not any(map(is_running, workers)))
    assert "Traceback" not in broker.said()


def test_compiled_kernels_take_over_in_a_broker_that_serves(serve: Callable[..., Serving]) -> None:
    broker = serve()
    broker.wait_until_said("Ready.")
    rounds = 0
    with People(broker.port) as people:
        while "full speed" not in broker.said():
            assert people.who_gets(10, f"before{rounds}") == [9, 10, 11]
            rounds += 1
        assert people.who_gets(20, "after") == [19, 20, 21]
    assert broker.end() == 0


def test_a_broker_without_spaces_loads_no_compiler(start_broker: Any) -> None:
    broker = start_broker()
    maps = Path(f"/proc/{broker.pid}/maps").read_text()
    assert "llvmlite" not in maps
    assert not children(broker.pid)


def test_an_end_that_is_asked_for_during_the_start_is_heard(tmp_path: Path) -> None:
    code = """
import asyncio, os, signal, sys
from nearcast.config import Configuration
from nearcast.server import Server, serve
async def never(self): os.kill(os.getpid(), signal.SIGINT); await asyncio.sleep(3600)
Server._take_ports = never
serve(Configuration.model_validate({"node": {"data": sys.argv[1]}}))
print("ended")
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "ended\n", done.stderr


def test_a_service_user_without_a_home_and_with_a_read_only_package_starts(tmp_path: Path) -> None:
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("becoming another user needs root and setpriv")
    user = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")
    home = Path("/tmp") / f"nearcast-service-{os.getpid()}"  # what pytest makes is for root alone
    try:
        package, data = home / "package", home / "data"
        shutil.copytree(
            Path(nearcast.__file__).parent,
            package / "nearcast",
            ignore=shutil.ignore_patterns("__pycache__", "_kernels"),
        )
        data.mkdir()
        shutil.chown(data, "nobody", "nogroup")
        seen = subprocess.run([*user, sys.executable, "-c", "import numba"], check=False, cwd="/")
        if seen.returncode:
            pytest.skip("this Python is not readable for other users")
        broker = Serving(home, data, *user, PYTHONPATH=str(package), HOME="/nonexistent")
        try:
            broker.wait_until_said("Ready.")
            broker.wait_until_said(f"into {data}/kernels/")
            with People(broker.port) as people:
                assert people.who_gets(10, "here") == [9, 10, 11]
        finally:
            ended = broker.end()
        assert ended == 0
    finally:
        shutil.rmtree(home, ignore_errors=True)
