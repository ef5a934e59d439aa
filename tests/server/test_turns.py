"""Turns of the loop, without sockets: when answers leave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from nearcast.mqtt import Connect, FilterRequest, Properties, Publish, Subscribe, encode_packet
from nearcast.node import Connection, Node
from nearcast.node.settings import NodeSettings
from nearcast.server import JournalFile
from nearcast.server.clock import Clock
from nearcast.server.turns import _MOST_READS, Turns


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
        turns = Turns(Node(NodeSettings()), Clock())
        wires = [Wire() for _ in range(count)]
        turns.schedule()
        for number, wire in enumerate(wires):
            connection = Connection(peer=str(number))
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


def test_what_is_read_after_a_turn_was_held_up_has_the_instant_of_then() -> None:
    async def run() -> list[int]:
        clock, instants = SlowClock(), []
        turns = Turns(Node(NodeSettings()), clock)
        turns.schedule()
        for number in range(2):
            connection = Connection(peer=str(number))
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


def _acknowledged(ending: Callable[[Turns, FullJournal], None]) -> list[int]:
    """Let a client publish to itself three times at QoS 1; return which it takes for safe."""

    async def run() -> list[int]:
        journal = FullJournal(room=100)
        node = Node(NodeSettings(), with_journal=True)
        turns = Turns(node, Clock(), journal=journal)  # type: ignore[arg-type]
        connection = Connection(peer="client")
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


def connected(turns: Turns) -> tuple[Connection, Wire]:
    """Return a client with a session that lasts."""
    connection, wire = Connection(peer="client"), Wire()
    connection.transport = wire
    turns.node.open(connection, turns.now_ms)
    lasting = Properties(session_expiry_interval=60)
    turns.read(connection, encode_packet(Connect("c", properties=lasting)))
    return connection, wire


def subscribe(turns: Turns, connection: Connection, number: int) -> None:
    turns.read(connection, encode_packet(Subscribe(number, (FilterRequest(f"t/{number}", 1),))))
    turns.end()


def test_a_compaction_that_fails_is_told_and_tried_again_later_and_the_broker_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> tuple[list[int], int]:
        journal, clock, tried = Growing(tmp_path), SlowClock(), []
        turns = Turns(Node(NodeSettings(), with_journal=True), clock, journal=journal)
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
    node = Node(with_journal=True)
    assert node.restore(JournalFile(tmp_path).batches(), 1) == []
    assert len(node.state.sessions["c"].subscriptions) == 5


def test_a_journal_is_not_compacted_while_a_sync_runs(tmp_path: Path) -> None:
    """The sync would wait for a file that is closed, or for another one."""

    async def run() -> list[int]:
        journal = Growing(tmp_path, syncs=True)
        turns = Turns(Node(NodeSettings(), with_journal=True), Clock(), journal=journal)
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
