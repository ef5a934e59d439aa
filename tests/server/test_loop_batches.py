"""Turns of the loop, without sockets: when answers leave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from nearcast.broker import Broker, Connection
from nearcast.broker.settings import BrokerSettings
from nearcast.mqtt import Connect, FilterRequest, Properties, Publish, Subscribe, encode_packet
from nearcast.server import JournalFile
from nearcast.server import loop_batches as turns_module
from nearcast.server.clock import Clock
from nearcast.server.loop_batches import _MOST_READS, LoopBatches


@pytest.fixture(autouse=True)
def _long_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no slice be spent because this machine stood still."""
    monkeypatch.setattr(turns_module, "_SLICE_S", 60.0)


class Wire:
    """Keeps what is written to one connection."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []

    def write(self, chunks: list[bytes]) -> None:
        self.chunks += chunks

    def pause_reading(self) -> None:
        """Others are served first: a slice may be over at any time."""

    def resume_reading(self) -> None:
        """Read on."""

    def finish(self) -> None:
        raise AssertionError


class SlowClock(Clock):
    """Goes on when it is told to."""

    __slots__ = ("ms",)

    def __init__(self) -> None:
        super().__init__()
        self.ms = 1_000

    def now_ms(self) -> int:
        return self.ms


def _storm(count: int) -> tuple[list[bool], list[bool]]:
    """Let a crowd speak at once; return who was answered before the loop went on, and after."""

    async def run() -> tuple[list[bool], list[bool]]:
        turns = LoopBatches(Broker(BrokerSettings()), Clock())
        wires = [Wire() for _ in range(count)]
        turns.schedule()
        for number, wire in enumerate(wires):
            connection = Connection(address=str(number))
            connection.transport = wire
            turns.node.open(connection, turns.now_ms)
            turns.read(connection, encode_packet(Connect(f"c{number}")))
        early = [bool(one.chunks) for one in wires]
        for _ in range(20):
            await asyncio.sleep(0)
        turns.stop()
        return early, [bool(one.chunks) for one in wires]

    return asyncio.run(run())


def test_in_a_storm_the_first_are_answered_before_the_last_are_read() -> None:
    early, late = _storm(2 * _MOST_READS + 40)
    assert early == [True] * (2 * _MOST_READS) + [False] * 40
    assert all(late)


def test_a_small_crowd_is_answered_in_one_go() -> None:
    early, late = _storm(40)
    assert not any(early)
    assert all(late)


@pytest.mark.plain  # its clock derives from a class of the core
def test_what_is_read_after_a_turn_was_held_up_has_the_instant_of_then() -> None:
    async def run() -> list[int]:
        clock, instants = SlowClock(), []
        turns = LoopBatches(Broker(BrokerSettings()), clock)
        turns.schedule()
        for number in range(2):
            connection = Connection(address=str(number))
            connection.transport = Wire()
            turns.node.open(connection, turns.now_ms)
            turns.read(connection, encode_packet(Connect(f"c{number}")))
            instants.append(turns.node.state.now_ms)
            clock.ms += 5_000
        turns.stop()
        return instants

    assert asyncio.run(run()) == [1_000, 6_000]


class FullJournal:
    """A journal on a full disk: it takes a number of batches, then none."""

    syncs = wants_compaction = False

    def __init__(self, room: int) -> None:
        self.room = room

    def append(self, _records: bytes) -> None:
        self.room -= 1
        if self.room < 0:
            raise OSError(28, "No space left on device")


def _acknowledged(ending: Callable[[LoopBatches, FullJournal], None]) -> list[int]:
    """Let a client publish to itself three times at QoS 1; return which it takes for safe."""

    async def run() -> list[int]:
        journal = FullJournal(room=100)
        node = Broker(BrokerSettings(), with_journal=True)
        turns = LoopBatches(node, Clock(), journal=journal)  # type: ignore[arg-type]
        connection = Connection(address="client")
        connection.transport = wire = Wire()
        node.open(connection, turns.now_ms)
        connect = Connect("c", clean_start=False, properties=Properties(session_expiry_interval=60))
        turns.read(connection, encode_packet(connect))
        turns.read(connection, encode_packet(Subscribe(1, (FilterRequest("t", 1),))))
        for number in (7, 8, 9):
            turns.read(connection, encode_packet(Publish("t", b"x", 1, packet_id=number)))
            turns.end()
            if number == 7:
                ending(turns, journal)
        for _ in range(5):
            await asyncio.sleep(0)
        turns.resumed(connection)
        turns.stop()
        heard = b"".join(wire.chunks)
        return [one for one in (7, 8, 9) if bytes((0x40, 2, 0, one)) in heard]

    return asyncio.run(run())


def test_while_the_journal_is_written_all_is_acknowledged() -> None:
    assert _acknowledged(lambda _turns, _journal: None) == [7, 8, 9]


def test_a_client_that_reads_again_is_told_only_what_is_stored() -> None:
    async def run() -> tuple[int, list[bytes], list[bytes]]:
        journal = FullJournal(room=100)
        turns = LoopBatches(Broker(BrokerSettings(), with_journal=True), Clock(), journal=journal)  # type: ignore[arg-type]
        connection, wire = Connection(address="client"), Wire()
        connection.transport = wire
        turns.node.open(connection, turns.now_ms)
        connect = Connect("c", clean_start=False, properties=Properties(session_expiry_interval=60))
        turns.read(connection, encode_packet(connect))
        turns.read(connection, encode_packet(Subscribe(1, (FilterRequest("t", 1),))))
        turns.end()
        wire.chunks.clear()
        connection.is_paused = True
        room = journal.room
        turns.read(connection, encode_packet(Publish("t", b"x", 1, packet_id=7)))
        turns.resumed(connection)
        stored, early = room - journal.room, list(wire.chunks)
        for _ in range(5):
            await asyncio.sleep(0)
        turns.stop()
        return stored, early, wire.chunks

    stored, early, late = asyncio.run(run())
    assert (stored, early) == (0, [])  # the turn is not over
    assert bytes((0x40, 2, 0, 7)) in b"".join(late)


def test_once_the_journal_cannot_be_written_nothing_is_acknowledged_any_more() -> None:
    assert _acknowledged(lambda _turns, journal: setattr(journal, "room", 0)) == [7]


def test_what_comes_after_the_end_is_not_acknowledged() -> None:
    assert _acknowledged(lambda turns, _journal: turns.stop()) == [7]


# --- compaction -----------------------------------------------------------------------------


class Growing(JournalFile):
    """A journal that always wants to be compacted, on a disk that the test holds."""

    def __init__(self, directory: Path, *, syncs: bool = False) -> None:
        super().__init__(directory, syncs=syncs)
        self.is_full = False
        self.compactions = 0
        self.may_sync = threading.Event()
        self.begin([])

    wants_compaction = property(lambda _: True)

    def compact(self, snapshot: Iterable[bytes]) -> None:
        if self.is_full:
            list(snapshot)
            raise OSError(24, "Too many open files")
        super().compact(snapshot)
        self.compactions += 1

    def sync(self) -> None:
        self.may_sync.wait(60)
        super().sync()


def connected(turns: LoopBatches) -> tuple[Connection, Wire]:
    """Return a client with a session that lasts."""
    connection, wire = Connection(address="client"), Wire()
    connection.transport = wire
    turns.node.open(connection, turns.now_ms)
    lasting = Properties(session_expiry_interval=60)
    turns.read(connection, encode_packet(Connect("c", properties=lasting)))
    return connection, wire


def subscribe(turns: LoopBatches, connection: Connection, number: int) -> None:
    turns.read(connection, encode_packet(Subscribe(number, (FilterRequest(f"t/{number}", 1),))))
    turns.end()


@pytest.mark.plain  # its clock derives from a class of the core
def test_a_compaction_that_fails_is_told_and_tried_again_later_and_the_broker_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> tuple[list[int], int]:
        journal, clock, tried = Growing(tmp_path), SlowClock(), []
        turns = LoopBatches(Broker(BrokerSettings(), with_journal=True), clock, journal=journal)
        connection, wire = connected(turns)
        journal.is_full = True
        before = journal.compactions
        for number in range(1, 4):
            subscribe(turns, connection, number)
            tried.append(turns.node.counters.journal_compactions_failed)
        clock.ms += 60_000
        subscribe(turns, connection, 4)
        tried.append(turns.node.counters.journal_compactions_failed)
        journal.is_full = False
        clock.ms += 60_000
        subscribe(turns, connection, 5)
        turns.stop()
        journal.close()
        assert journal.compactions == before + 1
        return tried, b"".join(wire.chunks).count(b"\x90")

    tried, answers = asyncio.run(run())
    assert tried == [1, 1, 1, 2]
    assert answers == 5
    assert "could not be compacted (OSError: [Errno 24] Too many open files)" in caplog.text
    node = Broker(with_journal=True)
    assert node.restore(JournalFile(tmp_path).batches(), 1) == []
    assert len(node.state.sessions["c"].subscriptions) == 5


def test_a_journal_is_not_compacted_while_a_sync_runs(tmp_path: Path) -> None:
    """The sync would wait for a file that is closed, or for another one."""

    async def run() -> list[int]:
        journal = Growing(tmp_path, syncs=True)
        turns = LoopBatches(Broker(BrokerSettings(), with_journal=True), Clock(), journal=journal)
        connection, wire = connected(turns)
        seen = [journal.compactions]
        for number in (1, 2):
            subscribe(turns, connection, number)
            seen.append(journal.compactions)
        journal.may_sync.set()
        async with asyncio.timeout(60):
            while b"".join(wire.chunks).count(b"\x90") < 2:  # noqa: ASYNC110 - a wire has no event
                await asyncio.sleep(0.001)
        subscribe(turns, connection, 3)
        seen.append(journal.compactions)
        turns.stop()
        await asyncio.sleep(0)
        journal.close()
        return seen

    first, *during, after = asyncio.run(run())
    assert during == [first, first]
    assert after == first + 1


def test_answers_that_wait_for_a_sync_do_not_count_as_unread(tmp_path: Path) -> None:
    async def run() -> list[int]:
        journal = Growing(tmp_path, syncs=True)
        turns = LoopBatches(Broker(BrokerSettings(), with_journal=True), Clock(), journal=journal)
        connection, _ = connected(turns)
        seen = []
        for _ in range(3):
            turns.read(connection, b"\xc0\0" * 100)
            turns.end()
            seen.append(connection.answer_bytes)
        journal.may_sync.set()
        turns.stop()
        await asyncio.sleep(0.05)
        journal.close()
        return seen

    assert asyncio.run(run()) == [0, 0, 0]


def test_what_a_subscriber_is_owed_goes_on_after_a_sync_though_a_slice_found_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns_module, "_SLICE_S", 1e-9)  # a step each

    async def run() -> bytes:
        journal = JournalFile(tmp_path, syncs=True)
        journal.begin([])
        node = Broker(BrokerSettings(outbox_window_bytes=100), with_journal=True)
        for topic in ("t/0/y", *(f"t/{one}/x" for one in range(1, 50)), "t/50/y"):
            node.publish(topic, b"wanted" * 20, now_ms=1, retain=True)
        turns = LoopBatches(node, Clock(), journal=journal)
        connection, wire = connected(turns)
        turns.read(connection, encode_packet(Subscribe(1, (FilterRequest("t/+/y", 1),))))
        async with asyncio.timeout(20):
            while b"t/50/y" not in b"".join(wire.chunks):  # noqa: ASYNC110 - a wire has no event
                await asyncio.sleep(0.001)
        turns.stop()
        await asyncio.sleep(0)
        journal.close()
        return b"".join(wire.chunks)

    assert b"t/0/y" in asyncio.run(run())


class BrokenWire(Wire):
    """Cannot be written to, as nobody foresaw."""

    def write(self, chunks: list[bytes]) -> None:
        raise RuntimeError


def test_a_connection_that_cannot_be_written_to_after_a_sync_holds_nobody_else_back(
    tmp_path: Path,
) -> None:
    async def run() -> tuple[bytes, int]:
        journal = Growing(tmp_path, syncs=True)
        journal.may_sync.set()
        turns = LoopBatches(Broker(BrokerSettings(), with_journal=True), Clock(), journal=journal)
        turns.node.state.failures.listener = lambda *_: None
        broken = Connection(address="broken")
        broken.transport = BrokenWire()
        turns.node.open(broken, turns.now_ms)
        turns.read(broken, encode_packet(Connect("broken")))
        _, wire = connected(turns)
        turns.end()
        async with asyncio.timeout(60):
            while not wire.chunks or turns._sync:  # noqa: ASYNC110 - a wire has no event
                await asyncio.sleep(0.001)
        turns.stop()
        journal.close()
        return b"".join(wire.chunks), turns.node.state.failures.count

    answer, errors = asyncio.run(run())
    assert answer[0] == 0x20
    assert errors == 1


@pytest.mark.parametrize(("most_s", "iterations"), [(60.0, 9), (0.0, 1)])
def test_a_crowd_is_gathered_for_some_iterations_but_not_for_long(
    monkeypatch: pytest.MonkeyPatch, most_s: float, iterations: int
) -> None:
    """Eight iterations with bursts of connections in them took 60 ms, and the first one waited."""
    monkeypatch.setattr(turns_module, "_CROWD_S", most_s)

    async def run() -> int:
        turns = LoopBatches(Broker(BrokerSettings()), Clock())
        first = Wire()
        turns.schedule()
        for iteration in range(20):
            for number in range(10):
                connection = Connection(address=f"{iteration}/{number}")
                connection.transport = Wire() if iteration or number else first
                turns.node.open(connection, turns.now_ms)
                turns.read(connection, encode_packet(Connect(connection.address)))
            await asyncio.sleep(0)
            if first.chunks:
                break
        turns.stop()
        return iteration + 1

    assert asyncio.run(run()) == iterations
