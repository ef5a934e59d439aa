"""The broker's commands against a real broker process."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.commands import nearcast, served, start_nearcast

from nearcast.client.blocking import BlockingClient, BrokerAddress
from nearcast.mqtt import FilterRequest

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("broker")
    with served("--port", "0", "--data", str(directory / "data"), cwd=directory) as ports:
        yield str(ports["tcp"])


def test_what_is_published_is_printed_by_sub(port: str):
    wish = ("-p", port, "-t", "shops/#", "-C", "3", "-W", "200", "--json")
    with start_nearcast("sub", *wish, stderr=None) as subscriber:
        assert subscriber.stdout is not None
        retained = nearcast("pub", "-p", port, "-t", "shops/1", "-m", "one", "-q", "1", "-r")
        assert retained.returncode == 0, retained.stderr
        first = json.loads(subscriber.stdout.readline())  # live, or retained for the newcomer
        assert (first["topic"], first["payload"]) == ("shops/1", "one")
        nearcast("pub", "-p", port, "-t", "shops/2", "-l", "-D", "colour=red", text="a\nb\n")
        lines = [json.loads(subscriber.stdout.readline()) for _ in range(2)]
        assert [line["payload"] for line in lines] == ["a", "b"]
        assert lines[0]["properties"] == [["colour", "red"]]
        assert subscriber.wait(timeout=60) == 0


def test_a_file_is_published_as_it_is_and_null_ends_retaining(port: str, tmp_path: Path):
    (tmp_path / "payload.txt").write_text("two\nlines\n")
    file = str(tmp_path / "payload.txt")
    assert nearcast("pub", "-p", port, "-t", "kept", "-f", file, "-r", "-q", "1").returncode == 0
    shown = nearcast("sub", "-p", port, "-t", "kept", "-C", "1", "-W", "60", "--json")
    assert json.loads(shown.stdout)["payload"] == "two\nlines\n"
    live = nearcast("sub", "-p", port, "-t", "kept", "-C", "1", "-W", "0.3", "--live")
    assert (live.returncode, live.stdout) == (1, "")
    assert nearcast("pub", "-p", port, "-t", "kept", "-n", "-r", "-q", "1").returncode == 0
    gone = nearcast("sub", "-p", port, "-t", "kept", "-C", "1", "-W", "0.3", "-D", "a=b")
    assert (gone.returncode, gone.stdout) == (1, "")


def test_a_payload_file_that_is_missing_is_named():
    run = nearcast("pub", "-t", "a", "-f", "nowhere.bin")
    assert run.returncode == 5
    assert "nowhere.bin: No such file" in run.stderr


def test_status_shows_the_figures(port: str):
    figures = json.loads(nearcast("status", "-p", port, "--json").stdout)
    assert figures["version"].startswith("nearcast")
    assert int(figures["clients/total"]) >= 0


def test_status_counts_at_once(port: str):
    with BlockingClient(BrokerAddress(port=int(port))) as client:
        client.subscribe(FilterRequest("shops/#"))
        time.sleep(0.1)  # figures are that old at most, and published every ten seconds
        figures = json.loads(nearcast("status", "-p", port, "--json").stdout)
    assert int(figures["clients/connected"]) == 2
    assert int(figures["subscriptions/count"]) >= 1


def test_too_few_messages_are_an_answer_of_no(port: str):
    run = nearcast("sub", "-p", port, "-t", "quiet", "-C", "1", "-W", "0.2", "-V", "3.1.1")
    assert run.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-t", "a", "-m", "x", "-V", "4"], "--version: found '4'; expected 5 or 3.1.1"),
        (["-t", "a"], "found no message; expected one of --message, --file, --null and --lines"),
        (["-t", "a", "-m", "x", "-n"], "found several; expected one of"),
        (["-t", "a", "-m", "x", "-D", "a=b", "-V", "3.1.1"], "expected MQTT 5"),
        (["-t", "a", "-m", "x", "-D", "red"], "--property: found 'red'; expected NAME=VALUE"),
    ],
)
def test_a_mistake_of_the_caller_is_told(arguments: list[str], told: str):
    run = nearcast("pub", *arguments)
    assert run.returncode == 2
    assert told in run.stderr


def test_no_broker_there_is_told_with_what_to_do():
    run = nearcast("pub", "-p", "1", "-t", "a", "-m", "x")
    assert run.returncode == 5
    assert "Is the broker running there?" in run.stderr


def test_a_port_in_use_is_told(port: str, tmp_path: Path):
    run = nearcast("serve", "--port", port, "--data", str(tmp_path / "other"))
    assert run.returncode == 5
    assert f"port {port}" in run.stderr


def test_users_come_and_go(tmp_path: Path):
    users = tmp_path / "users.txt"
    assert nearcast("passwd", str(users), "alice", text="secret\n").returncode == 0
    assert users.read_text().startswith("alice:scrypt$")
    assert nearcast("passwd", str(users), "bob", text="\n").returncode == 2
    assert nearcast("passwd", str(users), "alice", "--delete").returncode == 0
    assert users.read_text() == ""
