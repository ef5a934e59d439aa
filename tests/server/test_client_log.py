"""The log about clients: who came and went, who was refused, in text and in JSON."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from nearcast.broker import Broker, BrokerSettings, Connection, LoginVerdict
from nearcast.config import AuthSection, RuleSection
from nearcast.mqtt import (
    Connect,
    Disconnect,
    FilterRequest,
    Packet,
    Properties,
    ProtocolVersion,
    Publish,
    ReasonCode,
    Subscribe,
    encode_packet,
)
from nearcast.server.auth.rules import ConfiguredAccess
from nearcast.server.client_log import ClientLog
from nearcast.server.local_cluster import free_port
from nearcast.server.log_format import RateLimited, set_up_logging

V5 = ProtocolVersion.V5


class Watched:
    """A node whose log is read."""

    def __init__(self, level: str, form: str, access: Any = None) -> None:
        self.stream = StringIO()
        set_up_logging(form, level, self.stream)
        self.node = Broker(BrokerSettings(), access=access)
        self.node.state.observer = ClientLog()
        self.now_ms = 1_000

    def opened(self, address: str = "10.0.0.7:5123") -> Connection:
        connection = Connection(address, "0")
        self.node.open(connection, self.now_ms)
        return connection

    def client(self, name: str, address: str = "10.0.0.7:5123", **settings: Any) -> Connection:
        connection = self.opened(address)
        self.send(connection, Connect(name, **settings))
        return connection

    def send(self, connection: Connection, packet: Packet) -> None:
        self.node.receive(connection, encode_packet(packet, V5), self.now_ms)

    def take_lines(self) -> list[str]:
        """Return level and message of the lines since the last call."""
        text = self.stream.getvalue()
        self.stream.truncate(0)
        self.stream.seek(0)
        return [line.split(" ", 2)[2].strip() for line in text.splitlines()]


@pytest.fixture
def watch() -> Iterator[Callable[..., Watched]]:
    logger = logging.getLogger("nearcast")
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield lambda level="info", form="text", access=None: Watched(level, form, access)
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def test_a_client_that_comes_and_goes_is_two_lines(watch: Callable[..., Watched]) -> None:
    watched = watch()
    client = watched.client("ann", keep_alive_s=60)
    watched.send(client, Disconnect())
    watched.node.lost(client, 2_000)

    assert watched.take_lines() == [
        "info     client 'ann' connected from 10.0.0.7:5123 (MQTT 5, keep-alive 60 s)",
        "info     client 'ann' from 10.0.0.7:5123 disconnected: normal disconnection",
    ]


def test_how_a_connection_ended_is_told(watch: Callable[..., Watched]) -> None:
    watched = watch()
    gone, silent, rude = (
        watched.client(name, keep_alive_s=alive)
        for name, alive in (("gone", 60), ("silent", 1), ("rude", 60))
    )
    watched.take_lines()
    gone.loss = "[Errno 104] Connection reset by peer"
    watched.node.lost(gone, 1_500)
    watched.send(rude, Connect("again"))
    watched.node.lost(rude, 1_600)
    watched.node.wake(3_000)
    watched.node.lost(silent, 3_000)
    lines = watched.take_lines()

    assert lines[0].endswith("disconnected: connection lost ([Errno 104] Connection reset by peer)")
    assert lines[1].startswith("warning  client 'rude' from 10.0.0.7:5123 was disconnected: ")
    assert lines[2].endswith("'silent' from 10.0.0.7:5123 disconnected: keep alive timeout")
    assert len(lines) == 3


def test_a_takeover_and_a_session_that_is_resumed_are_told(watch: Callable[..., Watched]) -> None:
    watched = watch()
    older = watched.client("ann")
    watched.take_lines()
    watched.client("ann", "10.0.0.8:1", clean_start=False)
    watched.node.lost(older, 1_000)
    lines = watched.take_lines()

    assert lines[0] == (
        "info     client 'ann' has connected again: its connection from 10.0.0.7:5123 is closed"
    )
    assert lines[1].startswith("info     client 'ann' connected from 10.0.0.8:1 (MQTT 5")
    assert len(lines) == 2, "the end of the older connection is no second line"


class Refusing:
    """Lets nobody in."""

    def authenticate(self, _connect: Connect, _connection: Connection) -> LoginVerdict:
        return LoginVerdict.WRONG_PASSWORD


def test_refused_logins_are_told_with_name_and_address(watch: Callable[..., Watched]) -> None:
    watched = watch("warning", access=Refusing())
    refused = watched.client("ann", user_name="bob\n", password=b"secret")
    watched.node.lost(refused, 1_000)
    nonsense = watched.opened()
    watched.node.receive(nonsense, b"\x10\x02\0\4", 1_000)

    lines = watched.take_lines()
    assert lines[0] == (
        "warning  login refused: client 'ann' as user 'bob\\n' from 10.0.0.7:5123: "
        "bad user name or password"
    )
    assert lines[1].startswith("warning  login refused: client '' from 10.0.0.7:5123: ")
    assert len(lines) == 2
    assert not any("secret" in line for line in lines)


def test_who_never_logs_in_is_told_at_debug_only(watch: Callable[..., Watched]) -> None:
    for level, count in (("info", 0), ("debug", 2)):
        watched = watch(level)
        watched.node.lost(watched.opened(), 1_000)
        late = watched.opened()
        watched.node.wake(60_000)
        watched.node.lost(late, 60_000)
        assert len(watched.take_lines()) == count


def test_denied_publishes_and_subscriptions_are_told_and_limited(
    watch: Callable[..., Watched],
) -> None:
    rules = [RuleSection(topic="mine/#")]
    access = ConfiguredAccess(AuthSection(anonymous="always", rules=rules), {}, [])
    watched = watch("warning", access=access)
    client = watched.client("ann")
    for _ in range(3):
        watched.send(client, Publish("other", b"x"))
    watched.send(client, Subscribe(1, (FilterRequest("all/#"),)))
    for number in range(30):
        watched.send(client, Publish(f"t/{number}", b"x", 1, packet_id=1))
    lines = watched.take_lines()

    assert lines[0] == "warning  client 'ann' may not publish to 'other'"
    assert lines[1] == "warning  client 'ann' may not subscribe to 'all/#'"
    assert len(lines) == 11, "once per topic, and ten of a kind in ten seconds"


def test_a_selection_that_is_ignored_is_told(watch: Callable[..., Watched]) -> None:
    watched = watch("warning")
    near = Properties(user_properties=(("$near", "500m"),))
    watched.send(watched.client("ann"), Subscribe(1, (FilterRequest("taxis/#"),), near))
    assert watched.take_lines() == [
        (
            "warning  client 'ann': $near: ignored, so every message comes, because 'taxis/#' "
            "meets the topics of no [[space]]; declared: none"
        )
    ]


def test_instructions_that_are_ignored_are_told_and_limited(watch: Callable[..., Watched]) -> None:
    watched = watch("warning")
    client = watched.client("ann")
    top = Properties(user_properties=(("$top", "3"),))
    for _ in range(30):
        watched.send(client, Publish("taxis/7", b"x", properties=top))
    near = Properties(user_properties=(("$near", "500m"),))
    watched.send(client, Subscribe(1, (FilterRequest("taxis/#"),), near))
    lines = watched.take_lines()
    assert lines[0] == (
        "warning  client 'ann', publishing: $top: ignored, because 'taxis/7' is a topic of no "
        "[[space]]; declared: none"
    )
    assert len(lines) == 11, "ten of a kind in ten seconds, and another kind is told still"
    assert "$near: ignored" in lines[-1]


def test_json_lines_have_an_event_and_its_fields(watch: Callable[..., Watched]) -> None:
    watched = watch("info", "json")
    watched.node.lost(watched.client("ann", user_name="u"), 1_000)
    came, went = map(json.loads, watched.stream.getvalue().splitlines())

    assert came["event"] == "client_connected"
    assert (came["client"], came["address"], came["user"]) == ("ann", "10.0.0.7:5123", "u")
    assert (came["mqtt"], came["resumed"], came["level"]) == ("5", False, "info")
    assert (went["event"], went["reason"]) == ("client_disconnected", "connection lost")


def test_what_was_left_out_is_counted_when_the_window_is_over() -> None:
    stream, now_s = StringIO(), [0.0]
    logger = logging.Logger("test")
    logger.addHandler(logging.StreamHandler(stream))
    limited = RateLimited(logger, lambda: now_s[0])
    for number in range(25):
        limited.warning("login refused: %d", number)
    now_s[0] = 10.0
    limited.warning("login refused: %d", 25)
    lines = stream.getvalue().splitlines()

    assert len(lines) == 12
    assert lines[10] == "15 more lines like 'login refused …' were left out"
    assert lines[11] == "login refused: 25"


def test_a_tls_handshake_that_fails_is_told_with_its_address(
    start_broker: Callable[..., Any], certificates: Path
) -> None:
    listener = {
        "kind": "tls",
        "port": free_port(),
        "certificate": str(certificates / "server.pem"),
        "key": str(certificates / "server.key"),
    }
    broker = start_broker(listener=[listener])
    with socket.create_connection(("127.0.0.1", broker.ports["tls"]), timeout=30) as client:
        address = "127.0.0.1:%d" % client.getsockname()[1]  # noqa: UP031
        client.sendall(encode_packet(Connect("plain")) * 3)
        client.recv(100)
        broker.wait_until_said(f"TLS handshake with {address} failed: ")


@pytest.mark.parametrize("reason", [ReasonCode.KEEP_ALIVE_TIMEOUT, 0x42])
def test_any_reason_has_words(watch: Callable[..., Watched], reason: int) -> None:
    watched = watch()
    client = watched.client("ann")
    assert client.session is not None
    ClientLog().disconnected(client, client.session, reason, "")

    assert watched.take_lines()[-1].endswith(("keep alive timeout", "reason 0x42"))
