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
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import until

from nearcast.broker import Broker, BrokerSettings, Connection, LoginVerdict
from nearcast.broker.session.admission import Admission
from nearcast.config import ListenerSection
from nearcast.mqtt import Connect, MqttProtocolError, Publish, ReasonCode, encode_packet
from nearcast.server.auth.logins import Login
from nearcast.server.auth.password_checks import MOST_WAITING, PasswordChecks, source_of
from nearcast.server.client_log import BrokerAcceptPolicy
from nearcast.server.clock import Clock
from nearcast.server.listeners import listener as listening
from nearcast.server.listeners.listener import AcceptPolicy, take_port
from nearcast.server.listeners.tcp import MqttProtocol
from nearcast.server.listeners.tls import tls_context
from nearcast.server.local_cluster import free_port
from nearcast.server.loop_batches import LoopBatches

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
    node = Broker(BrokerSettings(max_open_connections=3))
    turns = LoopBatches(node, Clock())
    context = tls_context(
        ListenerSection.model_validate({"kind": "tls", **tls_files(certificates)})
    )
    door = await take_port("tls", HERE, 0, context)
    await door.open(partial(MqttProtocol, turns, "0"), BrokerAcceptPolicy(node))
    idle = [await asyncio.open_connection(HERE, door.port) for _ in range(3)]
    reader, writer = await asyncio.open_connection(HERE, door.port)

    async with asyncio.timeout(30):
        assert await reader.read() == b"", "closed at once: three have not finished their handshake"
    assert node.counters.connects_refused == 1
    for _, one in [*idle, (reader, writer)]:
        one.close()
    door.close()
    turns.stop()


class CountingContext(ssl.SSLContext):
    """Counts the connections that have a state of TLS."""

    states = 0

    def wrap_bio(self, *given: Any, **named: Any) -> ssl.SSLObject:
        self.states += 1
        return super().wrap_bio(*given, **named)


class Listener(AcceptPolicy):
    """Keeps what is told of handshakes that came to nothing."""

    def __init__(self, most_s: float = 60.0) -> None:
        super().__init__()
        self.most_s = most_s
        self.told: list[str] = []

    def timeout_s(self) -> float:
        return self.most_s

    def failed(self, address: str, problem: Exception) -> None:
        self.told.append(str(problem))


@contextlib.asynccontextmanager
async def tls_door(certificates: Path, entrance: AcceptPolicy) -> AsyncIterator[tuple[int, Any]]:
    """Open a door for TLS that echoes nothing; yield its port and its context."""
    context = CountingContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    door = await take_port("tls", HERE, 0, context)
    await door.open(asyncio.Protocol, entrance)
    yield door.port, context
    door.close()


def client_hello() -> tuple[ssl.SSLObject, ssl.MemoryBIO, bytes]:
    """Return a client's state of TLS, what it reads from, and what it says first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return client, incoming, outgoing.read()


async def test_a_client_costs_no_state_of_tls_before_its_hello_is_whole(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wakes: list[socket.socket] = []
    real = listening.is_readable

    async def counted(accepted: socket.socket) -> None:
        await real(accepted)
        wakes.append(accepted)

    monkeypatch.setattr(listening, "is_readable", counted)
    entrance = Listener()
    async with tls_door(certificates, entrance) as (port, context):
        client, incoming, hello = client_hello()
        reader, writer = await asyncio.open_connection(HERE, port)
        await until(lambda: entrance.handshakes == 1)
        for at in range(len(hello) - 1):
            writer.write(hello[at : at + 1])
            await writer.drain()
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        assert context.states == 0
        assert len(wakes) == 1, "its head; the rest wakes nobody before it is whole"
        writer.write(hello[-1:])
        incoming.write(await asyncio.wait_for(reader.read(1 << 16), 60))
        assert context.states == 1
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        assert client.version() is not None
        writer.close()
        await until(lambda: not entrance.handshakes)
    assert len(wakes) == 2


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01", b"\x16\x03\x01\x02\x00" + b"x" * 100])
async def test_a_client_that_ends_before_its_hello_is_whole_is_forgotten(
    certificates: Path, said: bytes
) -> None:
    entrance = Listener()
    async with tls_door(certificates, entrance) as (port, _):
        _, writer = await asyncio.open_connection(HERE, port)
        await until(lambda: entrance.handshakes == 1)
        writer.write(said)
        await writer.drain()
        writer.close()
        await until(lambda: not entrance.handshakes)
    assert len(entrance.told) == 1


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n", b"\x10\x0d\0\4MQTT", b"\x16\x03\x01\xff\xff"]
)
async def test_what_is_no_tls_is_refused_at_once(certificates: Path, said: bytes) -> None:
    entrance = Listener()
    async with tls_door(certificates, entrance) as (port, _):
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(said)
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionError):
                await reader.read()
        writer.close()
        await until(lambda: not entrance.handshakes)
    assert len(entrance.told) == 1


async def test_a_hello_that_does_not_come_in_time_ends_the_connection(certificates: Path) -> None:
    entrance = Listener(0.2)
    async with tls_door(certificates, entrance) as (port, context):
        clients = [await asyncio.open_connection(HERE, port) for _ in range(2)]
        clients[1][1].write(b"\x16\x03\x01\x02")
        for reader, writer in clients:
            async with asyncio.timeout(30):
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            writer.close()
        await until(lambda: not entrance.handshakes)
        assert context.states == 0
    assert entrance.told == ["no ClientHello in time"] * 2


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
    node = Broker()
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
    node, connection = Broker(), Connection()
    packet = half_a_connect(14_000)
    node.open(connection, 1)
    most = 0
    for at in range(0, len(packet), 2):
        node.receive(connection, packet[at : at + 2], 1)
        most = max(most, kept_bytes(connection))

    assert most <= 16 << 10


def test_a_connect_above_the_limit_is_refused_by_its_length_alone() -> None:
    node, connection = Broker(), Connection()
    node.open(connection, 1)
    node.receive(connection, b"\x10\x80\x80\x20", 1)  # 512 KiB

    assert connection.is_closing


def test_a_large_publish_right_behind_connect_is_no_connect() -> None:
    node, connection = Broker(), Connection()
    node.open(connection, 1)
    large = encode_packet(Publish("a", b"x" * 500_000))
    node.receive(connection, encode_packet(Connect("c")) + large[:-1], 1)
    node.receive(connection, large[-1:], 1)

    assert not connection.is_closing
    assert node.counters.publish_received == 1


def test_so_many_connections_may_be_open_and_no_more() -> None:
    node = Broker(BrokerSettings(max_open_connections=2))
    crowd = [Connection(str(one)) for one in range(3)]
    for one in crowd:
        node.open(one, 1)
    assert [one.is_closing for one in crowd] == [False, False, True]
    assert node.counters.connects_refused == 1


@pytest.mark.parametrize(
    ("size", "reason"), [(110, None), (111, ReasonCode.SERVER_BUSY), (10, None)]
)
def test_the_pool_may_be_used_to_its_last_byte(size: int, reason: ReasonCode | None) -> None:
    settings = BrokerSettings(newcomer_bytes=10, newcomers_bytes=100, max_connect_bytes=1_000)
    assert _refusal(size, settings) is reason


@pytest.mark.parametrize(("size", "reason"), [(1_010, None), (1_011, ReasonCode.PACKET_TOO_LARGE)])
def test_one_newcomer_holds_a_connect_and_its_allowance(
    size: int, reason: ReasonCode | None
) -> None:
    settings = BrokerSettings(newcomer_bytes=10, newcomers_bytes=1 << 20, max_connect_bytes=1_000)
    assert _refusal(size, settings) is reason


def _refusal(size: int, settings: BrokerSettings) -> ReasonCode | None:
    connection = Connection("c")
    connection.pending_bytes = size
    try:
        Admission().hold(connection, settings)
    except MqttProtocolError as problem:
        return problem.reason
    return None


def test_what_a_connect_in_pieces_holds_is_accounted_for_and_given_back() -> None:
    settings = BrokerSettings(newcomer_bytes=1_000, newcomers_bytes=5_000)
    node, connection = Broker(settings), Connection("c")
    node.open(connection, 1)
    packet = half_a_connect(4_000) + b"x"
    for at in range(0, len(packet) - 1, 100):
        held = at
        assert node.admission.pool_bytes == max(0, held - settings.newcomer_bytes)
        node.receive(connection, packet[at : min(at + 100, len(packet) - 1)], 1)
    assert node.admission.pool_bytes > 2_000
    node.receive(connection, packet[-1:], 1)
    assert connection.session is not None
    assert node.admission.pool_bytes == connection.pool_bytes == 0


def test_a_connect_in_pieces_is_refused_as_soon_as_it_holds_too_much() -> None:
    node, connection = (
        Broker(BrokerSettings(newcomer_bytes=1_000, newcomers_bytes=500)),
        Connection(),
    )
    node.open(connection, 1)
    packet = half_a_connect(4_000)
    sent = 0
    while not connection.is_closing:
        node.receive(connection, packet[sent : sent + 100], 1)
        sent += 100
    assert sent == 1_600
    node.lost(connection, 1)
    assert node.admission.pool_bytes == 0


class Ending(asyncio.Transport):
    """A transport that notes how it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.how: list[str] = []

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.how.append("eof")

    def abort(self) -> None:
        self.how.append("abort")


@pytest.mark.parametrize(("is_late", "how"), [(True, "abort"), (False, "eof")])
async def test_nobody_waits_for_the_end_of_a_client_that_came_too_late(
    is_late: bool, how: str
) -> None:
    turns = LoopBatches(Broker(), Clock())
    protocol = MqttProtocol(turns, "0")
    transport = Ending()
    protocol._transport = transport
    turns.node.open(protocol._connection, 1)
    if is_late:
        turns.node.wake(1 << 40)
    protocol.finish()
    assert transport.how == [how]
    moment = protocol._last_moment
    protocol.connection_lost(None)
    assert moment is None or moment.cancelled()
    turns.stop()


# --- passwords ------------------------------------------------------------------------------


def asking(address: str, name: str) -> Connection:
    connection = Connection(f"{address}:1")
    connection.connect = Connect(name, user_name=name, password=b"x")
    return connection


class Checks:
    """Password checks that end when told to."""

    def __init__(self) -> None:
        self.checked: list[str] = []
        self.answers: dict[str, LoginVerdict] = {}
        self.go_on = threading.Semaphore(0)
        self.queue = PasswordChecks(self.check, self.answer)

    def check(self, connection: Connection) -> Login:
        assert connection.connect is not None
        assert self.go_on.acquire(timeout=60)
        self.checked.append(connection.connect.client_id)
        return Login(LoginVerdict.WELCOME)

    def answer(self, connection: Connection, login: Login) -> None:
        assert connection.connect is not None
        self.answers[connection.connect.client_id] = login.verdict

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
    busy = [name for name, verdict in checks.answers.items() if verdict is LoginVerdict.BUSY]
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


async def test_a_worker_stays_free_for_other_addresses() -> None:
    checks = Checks()
    started: list[str] = []
    check = checks.queue.check

    def noted(connection: Connection) -> Login:
        assert connection.connect is not None
        started.append(connection.connect.client_id)
        return check(connection)

    checks.queue.check = noted
    checks.queue._workers, checks.queue._most_of_one = 2, 1
    for name in ("a1", "a2", "a3"):
        checks.queue.ask(asking("10.0.0.1", name))
    checks.queue.ask(asking("10.0.0.2", "b1"))
    await until(lambda: len(started) == 2)
    assert sorted(started) == ["a1", "b1"]
    checks.stop()
    await checks.wait_for(2)


async def test_addresses_take_turns_and_nothing_is_kept_of_them() -> None:
    checks = Checks()
    checks.queue._workers = checks.queue._most_of_one = 1
    gone = asking("10.0.0.1", "gone")
    for one in (asking("10.0.0.1", "a1"), asking("10.0.0.1", "a2"), gone):
        checks.queue.ask(one)
    checks.queue.ask(asking("10.0.0.1", "a3"))
    checks.queue.ask(asking("10.0.0.2", "b1"))
    gone.is_closing = True
    for count in range(1, 5):
        checks.go_on.release()
        await checks.wait_for(count)
    assert checks.checked == ["a1", "a2", "b1", "a3"]
    assert not checks.queue._running
    assert not checks.queue._waiting
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
