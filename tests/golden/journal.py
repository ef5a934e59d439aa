"""Journal: every kind of record, what it means, the file formats, a compacted snapshot."""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from unittest import mock

from tests.golden.golden import Maker, as_hex, hex_lines, read_hex_lines
from tests.support.town import SPACE

from nearcast.broker import Broker, Session, SessionSubscription, SpaceSettings
from nearcast.broker.persistence.journal import Journal, split_records
from nearcast.broker.persistence.replay import Replay
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.session.session import WillMessage
from nearcast.model import read_subscription
from nearcast.server import JournalFile
from nearcast.server.storage.journal_format import read_journal

MARK = bytes.fromhex("9300d107ee5a10c4")
NOW_MS = 1_000_000
RECORDS, MEANING = "journal/records.hex", "journal/meaning.txt"
SNAPSHOT, FILE_2, FILE_1 = "journal/snapshot.hex", "journal/format-2.hex", "journal/format-1.hex"


def message(number: int, topic: bytes = b"\0\x03a/b", payload: bytes = b"hello") -> Message:
    """Return a message of QoS 1 with a property and an expiry."""
    head = MessageHead(topic, len(payload), 1, b"\x26\0\x01k\0\x01v", retain=number == 2)
    made = Message(head, payload, 5_000_000)
    made.number = number
    return made


def session(name: str, number: int, user: str | None = None, ends_at_ms: int = 0) -> Session:
    """Return a session of MQTT 5 that lasts an hour."""
    made = Session(name, number)
    made.user_name, made.ends_at_ms = user, ends_at_ms
    made.version, made.expiry_s = 5, 3_600
    return made


def story() -> Iterator[tuple[str, bytes]]:
    """Yield records in an order in which a journal may have them, each with a name."""
    journal = Journal()
    ann, bob, peer = session("ann", 1, "Ann", 7_000_000), session("bob", 2), session("$node/n2", 3)
    ann.came_ms, ann.position = 900_000, (0.25, -0.5)
    ann.will_at_ms, peer.user_name = 6_000_000, "00ff00ff00ff00ff/1234567812345678"
    will = WillMessage(message(0, b"\0\x05wills"), 30, 60)
    first, second, third = message(0), message(0, payload=b""), message(0, b"\0\x01c")
    plain = SessionSubscription(
        ann, "$share/g/a/+", "g", "a/+", 1, no_local=True, retain_as_published=True, identifier=9
    )
    wish = read_subscription("city/#", [("$near", "500m"), ("$retained", "now")]).subscription
    chosen = SessionSubscription(bob, wish.identity, "", "city/#", 2, identifier=300)
    chosen.select(wish, explain=True, label="me", weight=2.5)
    chosen.number, chosen.crosses = 77, True
    long_topic = b"\xff\xff" + b"t" * 65_535
    steps = {
        "session and came": lambda: journal.session(ann),
        "session without user": lambda: journal.session(bob),
        "session of a node": lambda: journal.session(peer),
        "subscribed": lambda: journal.subscribed(plain),
        "selected": lambda: journal.subscribed(chosen),
        "position": lambda: journal.position(ann),
        "will": lambda: journal.will(ann, will),
        "queued, with its message": lambda: journal.queued(2, first, 1),
        "message": lambda: journal.message(second),
        "queued": lambda: journal.queued(2, second, 2),
        "unqueued": lambda: journal.unqueued(2, second),
        "sent": lambda: journal.sent(2, [first], [4_660], 2),
        "sent two": lambda: journal.sent(1, [second, third], [7, 8], 1),
        "settled": lambda: journal.settled(1, [7]),
        "recorded": lambda: journal.recorded(2, [4_660]),
        "incoming": lambda: journal.incoming(3, [65_535]),
        "incoming that stays": lambda: journal.incoming(1, [2]),
        "released": lambda: journal.released(3, [65_535]),
        "retained": lambda: journal.retained(message(2)),
        "retained with the longest topic": lambda: journal.retained(message(2, long_topic)),
        "forgotten": lambda: journal.forgotten(long_topic),
        "note": lambda: journal.note(b"key", b"value", 8_000_000),
        "note, long": lambda: journal.note(b"k" * 65_536, b"v", 8_000_001),
        "note that ends": lambda: journal.note(b"k" * 65_536, b"", 0),
        "unsubscribed": lambda: journal.unsubscribed(1, "$share/g/a/+"),
        "no will": lambda: journal.no_will(1),
        "subscribed again": lambda: journal.subscribed(plain),
        "session that ends": lambda: journal.session(session("gone", 4)),
        "ended": lambda: journal.ended(4),
    }
    for name, step in steps.items():
        step()
        yield name, journal.take()


def node() -> Broker:
    """Return a node that has nothing yet, with a space."""
    return Broker(with_journal=True, spaces=[SpaceSettings(space=SPACE)])


def facts(replay: Replay, into: Broker) -> set[str]:
    """Return what records have told so far, one fact a line."""
    found = {f"retained {_told(one)}" for one in into.state.retained.all()}
    for key, (until_ms, value) in into.state.notes.items():
        found.add(f"note {as_hex(key)} = {as_hex(value)} until {until_ms}")
    for one in replay.sessions:
        name = one.client_id
        found.add(
            f"{name}: number {one.number}, version {int(one.version)}, expiry {one.expiry_s} s, "
            f"ends {one.ends_at_ms}, user {one.owner}, node {one.is_peer}, "
            f"durable {one.is_durable}, came {one.came_ms}, at {one.position}"
        )
        found |= {f"{name}: queue {qos} {_told(each)}" for each, qos in one.queue}
        found |= {f"{name}: in flight {at} {_told(each)}" for at, each in one.in_flight.items()}
        found.add(f"{name}: exact {sorted(one.exact)} released {list(one.released)}")
        found.add(f"{name}: incoming {sorted(one.incoming)} last {one.last_packet_id}")
        if one.will is not None:
            each = one.will
            told = f"{each.delay_s} s {each.expiry_s} s at {one.will_at_ms}"
            found.add(f"{name}: will {told} {_told(each.message)}")
        found |= {f"{name}: {_wish(each)}" for each in one.subscriptions.values()}
    return found


def _told(one: Message) -> str:
    head = one.head
    return (
        f"#{one.number} {as_hex(head.topic)} qos {head.qos} retain {head.retain} "
        f"[{as_hex(head.properties)}] until {one.expires_at_ms} <{as_hex(one.payload)}>"
    )


def _wish(one: SessionSubscription) -> str:
    selection = None if one.selection is None else one.selection.identity
    return (
        f"wants {one.text} = {one.group}|{one.topic_filter}|{selection} qos {one.qos} "
        f"{one.no_local} {one.retain_as_published} id {one.identifier} number {one.number} "
        f"explain {one.explain} crosses {one.crosses} label {one.label} weight {one.weight}"
    )


def meaning(records: dict[str, bytes]) -> str:
    """Return what each record changes: facts that come (+) and go (-)."""
    into = node()
    replay = Replay(into.state)
    lines, before = [], set[str]()
    for name, data in records.items():
        replay.apply(data)
        after = facts(replay, into)
        lines += [name, *(f"  - {one}" for one in sorted(before - after))]
        lines += [f"  + {one}" for one in sorted(after - before)]
        before = after
    lines += [f"set aside: {one.kind} {one.reason}" for one in replay.aside]
    return "\n".join(lines) + "\n"


def snapshot_of(batches: list[bytes]) -> dict[str, bytes]:
    """Return a node's snapshot after these batches, one record each, by number and kind."""
    one = node()
    assert one.restore(batches, NOW_MS) == []
    one.take_journal()
    records = [record for batch in one.snapshot() for record in split_records(batch)]
    header = Struct("<BI")
    return {
        f"{place}": header.pack(kind, len(body)) + body
        for place, (_, kind, body) in enumerate(records)
    }


def written_file() -> dict[str, bytes]:
    """Return the files of a journal's directory after a compaction and two batches."""
    records = [data for _, data in story()]
    with (
        tempfile.TemporaryDirectory() as name,
        mock.patch.object(os, "urandom", lambda size: MARK[:size]),
    ):
        journal = JournalFile(Path(name))
        journal.compact([b"".join(records[:3]), b""])
        journal.append(records[3])
        journal.compact([b"".join(records[:3]), records[3]])
        journal.append(records[4])
        journal.append(records[5])
        journal.close()
        return {path.name: path.read_bytes() for path in sorted(Path(name).iterdir())}


def old_file() -> bytes:
    """Return a file as format 1 had it: size and CRC-32 before each batch."""
    records = [data for _, data in story()]
    batches = [b"".join(records[:3]), records[3], records[4]]
    head = Struct("<II")
    parts = [head.pack(len(one), zlib.crc32(one)) + one for one in batches]
    return b"nearcast journal 1\n" + b"".join(parts)


def batches_in(data: bytes) -> list[bytes]:
    """Return the batches of a journal file, which must be whole."""
    return [one.records for one in read_journal(data, "golden")]  # type: ignore[union-attr]


def set_aside() -> str:
    """Return what is written of records that cannot be applied: the keys, and what is in them."""
    with tempfile.TemporaryDirectory() as name:
        journal = JournalFile(Path(name))
        journal.compact([bytes.fromhex("3f02000000abcd0804000000ffffffff")])
        aside = node().restore(journal.batches(), NOW_MS)
        lines = journal.write_aside(aside).read_text(encoding="utf-8").splitlines()
        written = [path.name for path in sorted(Path(name).iterdir())]
        journal.close()
    rows = [json.loads(line) for line in lines]
    told = [{key: row[key] if key in ("kind", "record") else "…" for key in row} for row in rows]
    return json.dumps({"files": written, "lines": told}, indent=1) + "\n"


_ABOUT = (
    "records of a journal, in an order in which they may come; some names stand for two records"
)

FILES: dict[str, Maker] = {
    RECORDS: lambda: hex_lines(_ABOUT, dict(story())),
    MEANING: lambda: meaning(read_hex_lines(RECORDS)),
    SNAPSHOT: lambda: hex_lines(
        "the snapshot of a node that has applied records.hex", snapshot_of([d for _, d in story()])
    ),
    FILE_2: lambda: hex_lines("the directory of a journal, its mark fixed", written_file()),
    FILE_1: lambda: hex_lines("a file of format 1, which is read only", {"file": old_file()}),
    "journal/set-aside.json": set_aside,
}
