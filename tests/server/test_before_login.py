"""What a connection may cost before its client has logged in."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nearcast.config import ListenerSection
from nearcast.mqtt import Connect, Publish, encode_packet
from nearcast.node import Connection, Node, NodeSettings, Verdict
from nearcast.server.client_log import NodeEntrance
from nearcast.server.clock import Clock
from nearcast.server.listening import take_port, tls_context
from nearcast.server.password_checks import MOST_WAITING, PasswordChecks, source_of
from nearcast.server.processes import free_port
from nearcast.server.tcp import MqttProtocol
from nearcast.server.turns import Turns

HERE = "127.0.0.1"


def seconds_until_end(client: socket.socket, began: float) -> float:
    client.settimeout(30)
    with contextlib.suppress(ConnectionError):
        while client.recv(4096):
            pass
    return time.monotonic() - began


def tls_files(certificates: Path) -> dict[str, str]:
    return {
        "certificate": str(certificates / "server.pem"),
        "key": str(certificates / "server.key"),
    }


# --- one deadline ---------------------------------------------------------------------------


def test_tls_websocket_and_connect_have_one_deadline_together(
    start_broker: Callable[..., Any], certificates: Path
) -> None:
    files = tls_files(certificates)
    kinds = [{"kind": kind, "port": free_port(), **files} for kind in ("tls", "wss")]
    broker = start_broker(
        listener=[*kinds, {"kind": "ws", "port": free_port()}], limits={"connect_timeout": 3.0}
    )
    began = time.monotonic()
    ports = [broker.ports[kind] for kind in ("tls", "wss", "tls", "ws")]
    idle, late_wss, late_tls, half_ws = [socket.create_connection((HERE, one)) for one in ports]
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    context.check_hostname = False
    time.sleep(2)  # most of the time goes by before the handshake
    wrapped = [context.wrap_socket(one) for one in (late_wss, late_tls)]
    wrapped[0].sendall(b"GET /mqtt HTTP/1.1\r\n")
    wrapped[1].sendall(encode_packet(Connect("half"))[:-1])
    half_ws.sendall(b"GET /mqtt HTTP/1.1\r\n")

    for client in (idle, half_ws, *wrapped):
        assert 2.5 < seconds_until_end(client, began) < 4.6
        client.close()


async def test_a_connection_counts_from_its_first_byte_of_tls(certificates: Path) -> None:
    node = Node(NodeSettings(max_open_connections=3))
    turns = Turns(node, Clock())
    context = tls_context(
        ListenerSection.model_validate({"kind": "tls", **tls_files(certificates)})
    )
    door = await take_port("tls", HERE, 0, context)
    await door.open(partial(MqttProtocol, turns, "0"), NodeEntrance(node))
    idle = [await asyncio.open_connection(HERE, door.port) for _ in range(3)]
    reader, writer = await asyncio.open_connection(HERE, door.port)

    async with asyncio.timeout(30):
        assert await reader.read() == b"", "closed at once: three have not finished their handshake"
    assert node.counters.connects_refused == 1
    for _, one in [*idle, (reader, writer)]:
        one.close()
    door.close()
    turns.stop()


# --- memory ---------------------------------------------------------------------------------


def half_a_connect(size: int) -> bytes:
    will = Publish("will", b"x" * size)
    return encode_packet(Connect("c", will=_will(will)))[:-1]


def _will(publish: Publish) -> Any:
    from nearcast.mqtt.packets import Will

    return Will(publish.topic, publish.payload)


def kept_bytes(connection: Connection) -> int:
    return sum(map(sys.getsizeof, connection.pending)) + sys.getsizeof(connection.pending)


def test_half_connects_cost_a_little_each_and_a_bounded_sum() -> None:
    node = Node()
    settings = node.state.settings
    packet = half_a_connect(60_000)
    crowd = [Connection(f"10.0.0.{number}:1") for number in range(1_000)]
    for one in crowd:
        node.open(one, 1)
        node.receive(one, packet, 1)
    kept = sum(map(kept_bytes, crowd))
    refused = sum(one.is_closing for one in crowd)

    assert kept <= settings.newcomers_bytes + len(crowd) * settings.newcomer_bytes
    assert 0 < refused < len(crowd)
    modest = Connection("10.0.1.1:1")
    node.open(modest, 1)
    node.receive(modest, half_a_connect(10_000), 1)
    node.receive(modest, b"x", 1)
    assert modest.session is not None, "who needs little is let in all the same"
    for one in crowd:
        node.lost(one, 2)
    assert node.admission.pool_bytes == 0
    large = Connection("10.0.1.2:1")
    node.open(large, 3)
    node.receive(large, packet, 3)
    node.receive(large, b"x", 3)
    assert large.session is not None


def test_a_connect_in_tiny_pieces_costs_about_its_bytes() -> None:
    node, connection = Node(), Connection()
    packet = half_a_connect(14_000)
    node.open(connection, 1)
    most = 0
    for at in range(0, len(packet), 2):
        node.receive(connection, packet[at : at + 2], 1)
        most = max(most, kept_bytes(connection))

    assert most <= 16 << 10


def test_a_connect_above_the_limit_is_refused_by_its_length_alone() -> None:
    node, connection = Node(), Connection()
    node.open(connection, 1)
    node.receive(connection, b"\x10\x80\x80\x20", 1)  # 512 KiB

    assert connection.is_closing


def test_a_large_publish_right_behind_connect_is_no_connect() -> None:
    node, connection = Node(), Connection()
    node.open(connection, 1)
    large = encode_packet(Publish("a", b"x" * 500_000))
    node.receive(connection, encode_packet(Connect("c")) + large[:-1], 1)
    node.receive(connection, large[-1:], 1)

    assert not connection.is_closing
    assert node.counters.publish_received == 1


# --- passwords ------------------------------------------------------------------------------


def asking(address: str, name: str) -> Connection:
    connection = Connection(f"{address}:1")
    connection.connect = Connect(name, user_name=name, password=b"x")
    return connection


class Checks:
    """Password checks that end when told to."""

    def __init__(self) -> None:
        self.checked: list[str] = []
        self.answers: dict[str, Verdict] = {}
        self.go_on = threading.Semaphore(0)
        self.queue = PasswordChecks(self.check, self.answer)

    def check(self, connect: Connect) -> Verdict:
        assert self.go_on.acquire(timeout=60)
        self.checked.append(connect.client_id)
        return Verdict.WELCOME

    def answer(self, connection: Connection, verdict: Verdict) -> None:
        assert connection.connect is not None
        self.answers[connection.connect.client_id] = verdict

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.answers) < count:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.005)

    def stop(self) -> None:
        for _ in range(1_000):
            self.go_on.release()
        self.queue.stop()


async def test_a_flood_of_logins_delays_another_address_by_a_check_or_two() -> None:
    checks = Checks()
    for number in range(100):
        checks.queue.ask(asking("10.0.0.1", f"wrong{number}"))
    checks.queue.ask(asking("10.0.0.2", "right"))
    for _ in range(8):
        checks.go_on.release()
    await checks.wait_for(8)

    assert "right" in checks.checked
    checks.stop()


async def test_one_address_has_a_limit_and_closed_connections_are_not_checked() -> None:
    checks = Checks()
    crowd = [asking(f"2001:db8::{number}", f"c{number}") for number in range(MOST_WAITING + 20)]
    for one in crowd:
        checks.queue.ask(one)
    busy = [name for name, verdict in checks.answers.items() if verdict is Verdict.BUSY]
    assert 20 - 4 <= len(busy) <= 20, "all of one IPv6 network; some are being checked"
    for one in crowd[10:]:
        one.is_closing = True
    late = asking("2001:db8::ffff", "late")
    checks.queue.ask(late)
    for _ in range(200):
        checks.go_on.release()
    await checks.wait_for(len(busy) + 11)

    assert sorted(checks.checked) == sorted([f"c{number}" for number in range(10)] + ["late"])
    checks.stop()


@pytest.mark.parametrize(
    ("peer", "source"),
    [
        ("10.0.0.7:51234", "10.0.0.7"),
        ("::ffff:10.0.0.7:51234", "10.0.0.7"),
        ("fe80::1%eth0:51234", "fe80::/64"),
        ("", ""),
    ],
)
def test_whom_a_connection_counts_for(peer: str, source: str) -> None:
    assert source_of(peer) == source


# --- descriptors ----------------------------------------------------------------------------


def test_connections_leave_descriptors_for_the_journal_and_the_operator(
    start_broker: Callable[..., Any],
) -> None:
    """Idle connections take what they can: the rest is refused, and everything else works on."""
    broker = start_broker(durability={"mode": "process"}, log={"metrics_port": free_port()})
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (256, 256))
    first = socket.create_connection((HERE, broker.port), timeout=30)
    crowd = [socket.create_connection((HERE, broker.port), timeout=30) for _ in range(300)]
    ended = 0
    for client in crowd:
        client.settimeout(0)
    deadline = time.monotonic() + 30
    while ended < 300 - 192:
        assert time.monotonic() < deadline, ended
        ended = sum(_has_ended(client) for client in crowd)
        time.sleep(0.02)
    assert ended < 200

    with socket.create_connection((HERE, broker.ports["http"]), timeout=30) as operator:
        operator.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert operator.recv(100).startswith(b"HTTP/1.1 200")
    first.sendall(encode_packet(Connect("first", clean_start=False)))
    assert first.recv(100)[:1] == b"\x20"
    for client in crowd:
        client.close()
    first.close()
    assert _is_let_in(broker.port)


def _has_ended(client: socket.socket) -> bool:
    try:
        return client.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def _is_let_in(port: int) -> bool:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with (
            contextlib.suppress(ConnectionError),
            socket.create_connection((HERE, port), timeout=30) as client,
        ):
            client.sendall(encode_packet(Connect("last")))
            if client.recv(100)[:1] == b"\x20":
                return True
        time.sleep(0.05)
    return False
