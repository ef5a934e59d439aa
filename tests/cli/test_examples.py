"""The examples of `--help`: each is a command line that is taken, and those of a broker are run."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from nearcast.cli import app
from nearcast.server.processes import free_port

NEARCAST = [sys.executable, "-c", "from nearcast.cli import main; main()"]
ENVIRON = {key: value for key, value in os.environ.items() if not key.startswith("NEARCAST_")}
LOGGED = {"NEARCAST_LOG__EVENTS": "full", "NEARCAST_LOG__SEGMENT": "1s"}


def leaves(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for word, one in getattr(command, "commands", {}).items():
        yield from leaves(one, f"{name} {word}".strip())
    if not hasattr(command, "commands"):
        yield name, command


COMMANDS = dict(leaves(typer.main.get_command(app)))


def examples(name: str) -> list[str]:
    text = " ".join((COMMANDS[name].help or "").split())
    return [one.strip().removeprefix("nearcast ") for one in text.split("Example: ")[1:]]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_is_a_command_line_that_is_taken(name: str):
    assert examples(name)
    for one in examples(name):
        words = shlex.split(one)
        assert words[: len(name.split())] == name.split()
        COMMANDS[name].make_context(name, words[len(name.split()) :]).close()


class Place:
    """A directory in which examples are run, and the port of their broker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = str(free_port())

    def words(self, example: str) -> list[str]:
        words = shlex.split(example.replace("1884", self.port))
        if words[0] in {"pub", "sub", "explain"} and "--log" not in words:
            words += ["-p", self.port]
        return [*NEARCAST, *words]

    def run(self, example: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(example),
            cwd=self.folder, env=ENVIRON, input=text, capture_output=True, text=True,
            timeout=240, check=False,
        )  # fmt: skip

    def start(self, example: str, *more: str, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.words(example), *more],
            cwd=self.folder, env=ENVIRON | environ, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip


def first(stream: Any, start: str) -> str:
    lines: list[str] = []
    for line in stream:
        lines.append(line)
        if line.startswith(start):
            return "".join(lines)
    raise AssertionError(lines)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_examples_of_files_work(place: Place):
    assert place.run(examples("init")[0]).returncode == 0
    checked = place.run(examples("config check")[0])
    assert checked.stdout.startswith("fleet.toml is right:")
    add, delete = examples("passwd")
    assert place.run(add, "secret\n").stdout.startswith("alice is in users.txt.")
    assert place.run(delete).stdout == "alice is no longer in users.txt\n"


@pytest.mark.server
def test_the_examples_of_a_broker_work(place: Place):
    place.run("init")
    plain, with_config, _ = examples("serve")
    assert plain == "serve"
    broker = place.start(with_config, **LOGGED)
    try:
        assert "Configuration: nearcast.toml" in first(broker.stdout, "Ready.")
        everything, near, lasting = examples("sub")
        clients = [
            place.start(one, "-C", count, "-W", "200")
            for one, count in ((everything, "2"), (near, "1"), (lasting, "2"))
        ]
        for client in clients:
            assert client.stderr is not None
            assert client.stderr.readline().startswith("Subscribed to shops/# at QoS")
        for one in examples("pub"):
            run = place.run(one)
            assert (run.returncode, run.stderr) == (0, "")
        told = [client.communicate(timeout=200) for client in clients]
        assert [client.returncode for client in clients] == [0, 0, 0], told
        assert told[0][0].startswith('shops/bakery {"price": 3, "lon": 2.35')
        assert told[1][0] == '{"price": 3, "lon": 2.35, "lat": 48.85}\n'
        assert "clients/connected" in place.run(examples("status")[0]).stdout
        live, logged = examples("explain")
        now = place.run(live)
        assert "topic       subscribed by shops/#" in now.stdout  # the session lasts, bob is away
        assert "at QoS 0 nothing waits for a client that is away" in now.stdout
    finally:
        broker.terminate()
        broker.communicate(timeout=60)
    past = place.run(logged)
    assert re.search(r"^event \d+, .* shops/bakery", past.stdout), past.stderr
    assert "bob gets it" in past.stdout
