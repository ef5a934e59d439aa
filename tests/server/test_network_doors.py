"""A network over an encrypted NATS that asks for a password: members join, a stranger does not."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from nearcast.server.processes import Child, Fleet, find_nats_server, free_port

pytestmark = pytest.mark.server

WAIT_S = 30.0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def start_closed_nats(directory: Path, certificates: Path) -> Child:
    """Start a NATS that encrypts, shows a certificate and asks for user and password."""
    port = free_port()
    (directory / "nats.conf").write_text(
        f'listen: "127.0.0.1:{port}"\n'
        f'jetstream {{store_dir: "{directory / "store"}"}}\n'
        f'tls {{cert_file: "{certificates}/server.pem", key_file: "{certificates}/server.key"}}\n'
        'authorization {user: "node", password: "secret"}\n'
    )
    command = [find_nats_server(), "-c", str(directory / "nats.conf")]
    return Child("nats", port, command, directory / "nats.log")


def configuration(directory: Path, certificates: Path, name: str, password: str) -> Path:
    path = directory / f"{name}.toml"
    path.write_text(
        f'[network]\nuser = "node"\npassword = "{password}"\n'
        f'authority = "{certificates / "ca.pem"}"\n'
    )
    return path


def client(port: int) -> tuple[paho.Client, queue.Queue[bytes], queue.Queue[int]]:
    got: queue.Queue[bytes] = queue.Queue()
    answers: queue.Queue[int] = queue.Queue()
    one = paho.Client(CallbackAPIVersion.VERSION2)
    one.on_message = lambda _c, _u, message: got.put(bytes(message.payload))
    one.on_subscribe = lambda *_: answers.put(1)
    one.connect("127.0.0.1", port)
    one.loop_start()
    return one, got, answers


def test_members_join_through_a_closed_door_and_a_stranger_is_told_why_not(
    tmp_path: Path, certificates: Path
):
    nats = start_closed_nats(tmp_path, certificates)
    try:
        wait_for(lambda: nats.has_said("Server is ready"))
        address = f"tls://127.0.0.1:{nats.port}"
        member = configuration(tmp_path, certificates, "member", "secret")
        guess = configuration(tmp_path, certificates, "guess", "guess")
        with Fleet(tmp_path) as fleet:
            a = fleet.start_node("a", free_port(), address, member)
            b = fleet.start_node("b", free_port(), address, member)
            stranger = fleet.start_node("stranger", free_port(), address, guess)
            fleet.wait_until_ready()
            wait_for(lambda: a.has_said("the link to node b is up"))
            wait_for(lambda: b.has_said("the link to node a is up"))
            wait_for(lambda: stranger.has_said("NATS does not accept the user, password"))

            listener, got, answers = client(b.port)
            listener.subscribe("closed", 1)
            answers.get(timeout=WAIT_S)
            publisher, _, _ = client(a.port)
            publisher.publish("closed", b"1", 1)
            assert got.get(timeout=WAIT_S) == b"1"

            alone, mine, answers = client(stranger.port)  # it serves its own clients
            alone.subscribe("closed", 1)
            answers.get(timeout=WAIT_S)
            alone.publish("closed", b"2", 1)
            assert mine.get(timeout=WAIT_S) == b"2"
            assert not a.has_said("stranger")
            assert got.empty()
            for one in (listener, publisher, alone):
                one.disconnect()
                one.loop_stop()
            assert "secret" not in a.log.read_text() + stranger.log.read_text()
    finally:
        nats.ask_to_end()
        nats.end(5)
