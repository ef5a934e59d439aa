"""The server around the node: start, end, doors, figures, and clients that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import random
import resource
import signal
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import WAIT_S, until, wait_for

from nearcast.broker import Broker, BrokerSettings, Connection
from nearcast.config import (
    AuthSection,
    Configuration,
    DurabilitySection,
    HttpSection,
    LimitsSection,
    ListenerSection,
    LogSection,
    NodeSection,
    RatesSection,
    RuleSection,
)
from nearcast.eventlog.segments import open_segments, read_segment
from nearcast.model.errors import EnvironmentProblem
from nearcast.mqtt import (
    Connack,
    Connect,
    Disconnect,
    FilterRequest,
    Packet,
    PacketReader,
    Pingreq,
    Pingresp,
    Properties,
    ProtocolVersion,
    Publish,
    PublishAnswer,
    ReasonCode,
    Subscribe,
    encode_packet,
)
from nearcast.server import Server, set_password
from nearcast.server.auth.logins import Login
from nearcast.server.clock import Clock
from nearcast.server.listeners.listener import allow_descriptors
from nearcast.server.loop_batches import LoopBatches
from nearcast.server.storage.journal_file import JournalFile

pytestmark = pytest.mark.server
V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5


class Talker:
    """A client on a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.packets = PacketReader(V5)
        self.waiting: list[Packet] = []

    def send(self, *packets: Packet) -> None:
        for packet in packets:
            if isinstance(packet, Connect):
                self.packets.version = packet.version
            self.writer.write(encode_packet(packet, self.packets.version))

    async def next(self) -> Packet | None:
        """Return the next packet, or None at the end."""
        while not self.waiting:
            async with asyncio.timeout(WAIT_S):
                data = await self.reader.read(65_536)
            if not data:
                return None
            self.waiting += self.packets.feed(data)
        return self.waiting.pop(0)

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


async def talker(server: Server, door: str = "tcp", **options: Any) -> Talker:
    port = next(port for kind, _, port in server.ports if kind == door)
    return Talker(*await asyncio.open_connection("127.0.0.1", port, **options))


async def welcome(server: Server, name: str = "", **connect: Any) -> Talker:
    client = await talker(server)
    client.send(Connect(name, **connect))
    answer = await client.next()
    assert isinstance(answer, Connack)
    assert answer.reason == 0
    return client


async def subscribed(server: Server, topic_filter: str, qos: int = 0) -> Talker:
    client = await welcome(server)
    client.send(Subscribe(1, (FilterRequest(topic_filter, qos),)))
    await client.next()
    return client


def configuration(tmp_path: Path, **sections: Any) -> Configuration:
    base: dict[str, Any] = {
        "node": NodeSection(data=tmp_path / "data"),
        "listener": [ListenerSection(port=0)],
        "durability": DurabilitySection(mode="off"),
        "http": HttpSection(address="off"),
    }
    return Configuration(**{**base, **sections})


@contextlib.asynccontextmanager
async def running(settings: Configuration) -> AsyncIterator[Server]:
    server = Server(settings)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


# --- start and end ------------------------------------------------------------------------------


async def test_clients_hear_of_the_end(tmp_path: Path) -> None:
    server = Server(configuration(tmp_path))
    await server.start()
    new, old = await welcome(server), await welcome(server, version=V311)
    ending = asyncio.create_task(server.stop())

    assert await new.next() == Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
    assert await new.next() is None
    assert await old.next() is None
    for client in (new, old):
        await client.close()
    await ending
    with socket.socket() as probe:  # from another address: a socket can connect to itself
        probe.bind(("127.0.0.2", 0))
        assert probe.connect_ex(("127.0.0.1", server.ports[0][2])) != 0


async def test_a_port_in_use_is_named_and_nothing_stays_open(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        doors = [ListenerSection(port=0), ListenerSection(port=taken.getsockname()[1])]
        server = Server(
            configuration(tmp_path, listener=doors, durability=DurabilitySection(mode="process"))
        )
        with pytest.raises(EnvironmentProblem, match="cannot be opened"):
            await server.start()
    JournalFile(tmp_path / "data" / "journal").close()


async def test_a_log_in_use_is_named_and_nothing_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearcast.server.eventlog.event_log._LOCK_S", 0.1)
    settings = configuration(
        tmp_path, durability=DurabilitySection(mode="process"), log=LogSection(events="full")
    )
    folder = tmp_path / "data" / "eventlog"
    folder.mkdir(parents=True)
    with (folder / "lock-nearcast").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(EnvironmentProblem, match="event log is in use"):
            await Server(settings).start()
    JournalFile(tmp_path / "data" / "journal").close()


async def test_a_certificate_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("nonsense")
    door = ListenerSection(
        kind="tls", port=0, certificate=tmp_path / "bad.pem", key=tmp_path / "bad.pem"
    )

    with pytest.raises(EnvironmentProblem, match="certificate"):
        await Server(configuration(tmp_path, listener=[door])).start()


async def test_a_password_file_that_is_missing_is_named(tmp_path: Path) -> None:
    auth = AuthSection(users=tmp_path / "nobody")

    with pytest.raises(EnvironmentProblem, match="nobody"):
        Server(configuration(tmp_path, auth=auth))


async def test_a_client_certificate_is_asked_for_and_is_a_name(
    tmp_path: Path, certificates: Path
) -> None:
    door = ListenerSection(
        kind="tls",
        port=0,
        certificate=certificates / "server.pem",
        key=certificates / "server.key",
        client_ca=certificates / "ca.pem",
    )
    auth = AuthSection(anonymous="never", rules=[RuleSection(user="ann", topic="ann/#")])
    async with running(configuration(tmp_path, listener=[door], auth=auth)) as server:
        context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        nameless = await talker(server, "tls", ssl=context)
        nameless.send(Connect("c"))
        with pytest.raises((OSError, AssertionError)):
            assert await nameless.next() is not None
        await nameless.close()
        context.load_cert_chain(certificates / "ann.pem", certificates / "ann.key")
        client = await talker(server, "tls", ssl=context)
        client.send(Connect("c"))
        answer = await client.next()
        assert isinstance(answer, Connack)
        assert answer.reason == 0
        client.send(Subscribe(1, (FilterRequest("ann/x"), FilterRequest("bob/x"))))
        answer = await client.next()
        assert getattr(answer, "reasons", None) == (0, ReasonCode.NOT_AUTHORIZED)
        await client.close()


def test_a_broker_allows_itself_the_open_files_that_its_connections_need() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        allow_descriptors(2_000)
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        allow_descriptors(10)
        unchanged = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert raised == (3_200 if hard == resource.RLIM_INFINITY else hard)
    assert unchanged == raised


# --- figures ------------------------------------------------------------------------------------


async def ask(port: int, request: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.encode())
    said = (await reader.read()).decode()
    writer.close()
    return said


async def test_metrics_health_and_sys_topics(tmp_path: Path) -> None:
    settings = configuration(tmp_path, log=LogSection(metrics_port=0))
    async with running(settings) as server:
        web = next(port for kind, _, port in server.ports if kind == "http")
        client = await subscribed(server, "$SYS/broker/clients/connected")
        retained = await client.next()
        assert isinstance(retained, Publish)
        assert retained.retain
        page = await ask(web, "GET /metrics HTTP/1.1\r\n\r\n")
        assert "\r\n\r\n" in page
        assert "\nnearcast_connections 1\n" in page
        assert 'nearcast_dropped_total{reason="slow"} 0' in page
        assert (await ask(web, "GET /healthz HTTP/1.1\r\n\r\n")).endswith("\r\n\r\nok\n")
        assert "404" in await ask(web, "GET /other HTTP/1.1\r\n\r\n")
        assert "400" in await ask(web, "nonsense\r\n\r\n")
        await client.close()


# --- passwords ----------------------------------------------------------------------------------


async def test_wrong_passwords_in_a_loop_keep_nobody_else_waiting(tmp_path: Path) -> None:
    set_password(tmp_path / "users", "ann", b"pw")
    auth = AuthSection(users=tmp_path / "users")
    may_go_on, impatient = threading.Event(), threading.Event()
    limits = LimitsSection(connect_timeout=120.0)  # a check may take long on a busy machine
    rates = RatesSection(guesses=0)
    async with running(configuration(tmp_path, auth=auth, limits=limits, rates=rates)) as server:
        assert server.turns is not None
        check_password = server.turns.checks.check

        def check_slowly(connection: Connection) -> Login:
            if not impatient.is_set() and not may_go_on.wait(20):
                impatient.set()  # nobody was served meanwhile
            return check_password(connection)

        server.turns.checks.check = check_slowly
        calm = await welcome(server)
        guessers = []
        for number in range(20):
            guesser = await talker(server)
            guesser.send(Connect(f"g{number}", user_name="ann", password=b"%d" % number))
            guessers.append(guesser)
        for _ in range(5):
            calm.send(Pingreq())
            assert await calm.next() == Pingresp()
        assert not impatient.is_set()
        may_go_on.set()
        for guesser in guessers:
            answer = await guesser.next()
            assert isinstance(answer, Connack)
            assert answer.reason == ReasonCode.BAD_USER_NAME_OR_PASSWORD
            assert await guesser.next() is None
            await guesser.close()
        good = await welcome(server, user_name="ann", password=b"pw")
        await good.close()
        await calm.close()


async def test_reloading_changes_users_and_rules(tmp_path: Path) -> None:
    async with running(configuration(tmp_path)) as server:
        client = await subscribed(server, "a")
        rule = RuleSection(topic="b")
        server.reload(configuration(tmp_path, auth=AuthSection(rules=[rule])))
        client.send(Publish("a", b"x", 1, packet_id=1), Publish("b", b"x", 1, packet_id=2))

        answers = [await client.next(), await client.next()]
        reasons = [one.reason for one in answers if isinstance(one, PublishAnswer)]
        assert reasons == [ReasonCode.NOT_AUTHORIZED, ReasonCode.NO_MATCHING_SUBSCRIBERS]
        await client.close()


def test_sighup_reloads_and_a_bad_file_changes_nothing(start_broker: Callable[..., Any]) -> None:
    broker = start_broker()
    Path(broker.reload_path).write_text("nonsense")
    os.kill(broker.pid, signal.SIGHUP)
    broker.wait_until_said("refused, the old one stays")
    changed = {**broker.sections, "auth": {"anonymous": "never"}}

    def answer() -> bytes:
        with socket.create_connection(("127.0.0.1", broker.port)) as sock:
            sock.sendall(encode_packet(Connect("c", V311)))
            return sock.recv(4)

    assert answer() == b"\x20\x02\x00\x00"
    Path(broker.reload_path).write_text(json.dumps(changed))
    os.kill(broker.pid, signal.SIGHUP)
    wait_for(lambda: answer() == b"\x20\x02\x00\x05")


def test_the_event_log_survives_a_kill_and_ends_as_parquet(
    start_broker: Callable[..., Any],
) -> None:
    import pyarrow.parquet as pq

    from nearcast.client.blocking import BlockingClient, BrokerAddress

    broker = start_broker(log={"events": "full"})
    folder = broker.directory / "eventlog"

    def is_written(payload: bytes) -> bool:
        return any(
            payload in body for path in open_segments(folder) for _, body in read_segment(path)
        )

    with BlockingClient(BrokerAddress(port=broker.port)) as client:
        client.subscribe(FilterRequest("e/#", 1))
        client.publish([Publish("e/x", b"first", 1)])
        wait_for(lambda: is_written(b"first"))
        client.publish([Publish("e/x", b"second", 0)])
        wait_for(lambda: is_written(b"second"))
        client.publish([Publish("e/x", b"third", 1)])
    os.kill(broker.pid, signal.SIGKILL)
    broker.end(signal.SIGKILL)
    broker.start()
    with BlockingClient(BrokerAddress(port=broker.port)) as client:
        client.publish([Publish("e/y", b"after", 2)])
    assert broker.end(signal.SIGTERM) == ""
    events = [
        row
        for path in sorted((folder / "events").glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
    gaps = pq.read_table(next((folder / "gaps").glob("*.parquet"))).to_pylist()

    payloads = [row["payload"] for row in events]
    assert payloads[:2] == [b"first", b"second"]
    assert payloads[-1] == b"after"
    assert len({row["sequence"] for row in events}) == len(events)
    assert gaps[0]["reason"].startswith("crash")
    assert list(folder.glob("open-*")) == []


# --- clients that misbehave -----------------------------------------------------------------------


async def check_alive(server: Server) -> None:
    """Two healthy clients still understand each other."""
    listener, sender = await subscribed(server, "alive", 1), await welcome(server)
    sender.send(Publish("alive", b"yes", 1, packet_id=1))
    message = await listener.next()
    assert isinstance(message, Publish)
    assert message.payload == b"yes"
    for client in (listener, sender):
        await client.close()


async def test_a_slow_loris_is_closed_in_time(tmp_path: Path) -> None:
    limits = LimitsSection(connect_timeout=0.2)
    async with running(configuration(tmp_path, limits=limits)) as server:
        client = await talker(server)
        client.writer.write(b"\x10\x20\x00")
        assert server.node.state.settings.connect_timeout_ms == 200
        assert await client.next() is None
        await client.close()
        server.reload(configuration(tmp_path))  # those who check may take their time
        await check_alive(server)


async def test_hundreds_of_connects_and_disconnects_leave_nothing(tmp_path: Path) -> None:
    async with running(configuration(tmp_path)) as server:
        for _ in range(10):
            clients = [await talker(server) for _ in range(30)]
            for number, client in enumerate(clients):
                if number % 3:
                    client.send(Connect(f"c{number}"))
                if number % 3 == 2:
                    client.send(Subscribe(1, (FilterRequest("#"),)))
            for client in clients:
                client.writer.transport.abort()
        await check_alive(server)  # who comes last is served last: all others were there
        state = server.node.state
        await until(lambda: not state.sessions and not state.connections)
        assert state.router.subscription_count == 0


async def test_noise_hurts_only_who_makes_it(tmp_path: Path) -> None:
    rng = random.Random(5)
    good = encode_packet(Connect("noise")) + encode_packet(Publish("a", b"x", 1, packet_id=1))
    async with running(configuration(tmp_path)) as server:
        for _ in range(150):
            data = bytearray(good)
            for _ in range(rng.randint(1, 5)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            client = await talker(server)
            client.writer.write(bytes(data) + rng.randbytes(rng.randint(0, 40)))
            client.writer.write_eof()
            await client.close()
        await check_alive(server)


async def test_requests_that_are_no_websocket_are_answered_and_closed(tmp_path: Path) -> None:
    doors = [ListenerSection(port=0), ListenerSection(kind="ws", port=0)]
    async with running(configuration(tmp_path, listener=doors)) as server:
        port = next(port for kind, _, port in server.ports if kind == "ws")
        assert "404" in await ask(port, "GET / HTTP/1.1\r\n\r\n")
        assert "400" in await ask(port, "x" * 9000)
        await check_alive(server)


def test_a_stuck_subscriber_costs_bounded_memory_and_slows_nobody(
    start_broker: Callable[..., Any],
) -> None:
    """One subscriber never reads while 100 MB pass by; another one gets everything."""
    broker = start_broker(limits={"queue": 4 << 20})
    total, size = 1600, 64_000

    def connected(name: str) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", broker.port), timeout=60)
        sock.sendall(encode_packet(Connect(name, V311)))
        assert sock.recv(4) == b"\x20\x02\x00\x00"
        return sock

    stuck, reader, sender = connected("stuck"), connected("reader"), connected("sender")
    for sock in (stuck, reader):
        sock.sendall(encode_packet(Subscribe(1, (FilterRequest("a"),)), V311))
        assert len(sock.recv(5)) == 5
    packet = encode_packet(Publish("a", b"x" * size), V311)
    before_kb = broker.rss_kb()
    received = 0

    def read_all() -> None:
        nonlocal received
        while received < total * len(packet):
            part = reader.recv(1 << 20)
            if not part:
                return
            received += len(part)

    thread = threading.Thread(target=read_all)
    thread.start()
    most_kb = 0
    for number in range(total):
        while number * len(packet) - received > 2 << 20:
            time.sleep(0.001)
        sender.sendall(packet)
        if number % 100 == 0:
            most_kb = max(most_kb, broker.rss_kb())
    thread.join(60)
    for sock in (stuck, reader, sender):
        sock.close()

    assert received == total * len(packet)
    assert most_kb - before_kb < 40_000


# --- durability `power` ------------------------------------------------------------------


class SlowDisk(JournalFile):
    """A journal whose disk the test holds."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, syncs=True)
        self.may_go_on = threading.Event()
        self.count = 0

    def sync(self) -> None:
        self.count += 1
        self.may_go_on.wait(WAIT_S)


class Cable:
    """Collects what a turn writes."""

    def __init__(self) -> None:
        self.sent = b""

    def write(self, chunks: list[bytes]) -> None:
        self.sent += b"".join(chunks)

    def finish(self) -> None:
        self.sent += b"(closed)"


async def test_with_power_durability_nothing_is_acknowledged_before_the_disk_has_it(
    tmp_path: Path,
) -> None:
    from nearcast.broker import Connection

    disk = SlowDisk(tmp_path)
    disk.compact([])
    node = Broker(BrokerSettings(), with_journal=True)
    turns = LoopBatches(node, Clock(), journal=disk)
    link, cable = Connection(), Cable()
    link.transport = cable
    node.open(link, turns.clock.now_ms())
    lasting = Properties(session_expiry_interval=60)
    turns.read(link, encode_packet(Connect("c", properties=lasting)))
    await until(lambda: disk.count == 1)
    assert cable.sent == b""
    turns.read(link, encode_packet(Pingreq()))
    await until(lambda: turns._held)  # the turn is over: what it has to say waits
    assert cable.sent == b""
    disk.may_go_on.set()
    await until(lambda: disk.count == 2 and link.outbox_bytes == 0)

    packets = PacketReader(V5).feed(cable.sent)
    assert [type(one) for one in packets] == [Connack, Pingresp]
    assert link.outbox_bytes == 0
    assert disk.count == 2
    turns.stop()
    disk.close()
