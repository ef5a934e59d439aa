"""What `up`, `nodes` and `serve` say about a network: mistakes by option, tables on any screen."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nearcast.cli import app
from nearcast.cli import network as commands
from nearcast.cli.serve import _announce
from nearcast.config import Configuration, NetworkSection
from nearcast.model.errors import NearcastError
from nearcast.server.cluster.nats_members import LinkState, MemberRecord


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def said(result: Result) -> str:
    assert isinstance(result.exception, NearcastError), result.output
    return str(result.exception)


@pytest.mark.parametrize("command", ["serve", "nodes"])
@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--join", "10.0.0.1:4222", "an address such as nats://10.0.0.1:4222"),
        ("--join", "", "an address such as nats://10.0.0.1:4222"),
        ("--network", "a.b", "letters, digits"),
    ],
)
def test_a_mistake_in_an_option_names_the_option(
    command: str, option: str, value: str, expected: str
):
    text = said(run(command, option, value))
    assert text.startswith(f"{option}: found {value!r}; expected {expected}")


def test_a_mistake_in_the_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NEARCAST_NETWORK__JOIN", "nowhere")
    assert said(run("nodes")).startswith("environment NEARCAST_NETWORK__JOIN: network.join[0]:")


def test_two_wishes_at_a_time_are_refused():
    text = said(run("nodes", "--leave", "a", "--forget", "b"))
    assert text == "nodes: found --leave and --forget; expected one of them at a time"


def test_reassigning_without_a_plan_is_refused():
    assert said(run("nodes", "--reassign")) == "--reassign: found no plan; expected --plan FILE"


def test_up_says_what_is_wrong_with_its_configuration_before_it_starts_anything(tmp_path: Path):
    (tmp_path / "n.toml").write_text("[limits]\nconections = 5\n")
    data = tmp_path / "data"
    text = said(run("up", "--config", str(tmp_path / "n.toml"), "--data", str(data)))
    assert "n.toml:2: limits.conections: found unknown key" in text
    assert not data.exists()


def test_up_refuses_ports_beyond_the_last():
    assert "expected ports up to 65535" in said(run("up", "--nodes", "2", "--port", "65535"))
    assert run("up", "--port", "0").exit_code == 2


def member(name: str, **links: LinkState) -> MemberRecord:
    address = f"mqtt://127.0.0.1:{18830 + len(links)}"
    now_ms = int(time.time() * 1000)
    return MemberRecord(
        name,
        "",
        addresses=[address],
        started_ms=now_ms,
        frames_sent=4_211,
        frames_received=3_902,
        links=links,
    )


SECTION = NetworkSection(join=["nats://u:secret@127.0.0.1:4222"])


@pytest.mark.parametrize("width", [80, 200])
def test_the_table_can_be_read_on_any_screen(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", str(width))
    problem = "the clock of clk is 60.0 s ahead of ours: set both clocks"
    up = LinkState(is_up=True)
    commands._print_members(
        SECTION, [member("node-1", b=up, clk=LinkState(problem=problem)), member("b", a=up)]
    )
    lines = capsys.readouterr().out.splitlines()
    (head,) = (line for line in lines if "received" in line)
    assert "links up" in head
    assert "clients" in head
    (row,) = (line for line in lines if "node-1" in line and "1 of 2" in line)
    assert "mqtt://127.0.0.1:18832" in row
    assert f"node-1: {problem}" in lines
    assert all(len(line.rstrip()) <= width for line in lines)


def test_a_network_without_nodes_is_said_in_words(capsys: pytest.CaptureFixture[str]):
    commands._print_members(SECTION, [])
    assert capsys.readouterr().out == "No node of network nearcast is at nats://127.0.0.1:4222.\n"


def test_nodes_that_have_not_found_the_others_are_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "a").write_text("Network nearcast (joined)\nReady.\n")
    (tmp_path / "b").write_text("Network nearcast (not yet: no connection (111))\nReady.\n")
    fleet: Any = SimpleNamespace(
        nodes=[SimpleNamespace(name=name, log=tmp_path / name) for name in "ab"]
    )
    commands._tell_of_islands(fleet)
    assert (
        capsys.readouterr().err
        == "b serves its clients alone and keeps trying: no connection (111)\n"
    )


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Who started the tests may have told them to ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_an_interruption_that_is_held_back_comes_afterwards():
    done = False

    def interrupted() -> None:
        nonlocal done
        with commands._held_back(signal.SIGINT):
            os.kill(os.getpid(), signal.SIGINT)
            done = True

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done
    with commands._held_back(signal.SIGINT):
        pass  # none came, none goes


def test_a_door_without_a_network_is_said_to_be_of_no_use(capsys: pytest.CaptureFixture[str]):
    configuration = Configuration(network=NetworkSection(direct="127.0.0.1:7400"))
    server: Any = SimpleNamespace(ports=[], network=None, configuration=configuration)
    _announce(None, server)
    assert "direct has no effect without join" in capsys.readouterr().out
