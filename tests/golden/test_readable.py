"""Bytes and files that were written before mean the same as ever: the golden files, read.

What journal records and log segments mean is a golden file itself, made of golden bytes.
"""

from __future__ import annotations

import asyncio
import json
import tomllib
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.golden import frames, journal, saved, settings, store, tables, wire
from tests.golden.golden import DIRECTORY, from_hex, plain, read_hex_lines
from tests.golden.make import CODECS

from nearcast.broker import Broker
from nearcast.broker.persistence.journal import Journal
from nearcast.cluster.cluster import Cluster
from nearcast.config import read
from nearcast.eventlog import VersionedTable
from nearcast.locality import load_plan
from nearcast.locality.registration.plan_assignment import NamedPlan
from nearcast.model import Space, read_subscription, split_prefixes
from nearcast.model.requests import SELECTING, decoded
from nearcast.mqtt import Publish
from nearcast.overlay.density_file import read_density
from nearcast.pipeline.jobs.histogram import load_histogram
from nearcast.pipeline.streaming.collector import identity
from nearcast.pipeline.streaming.spool import Spooled, SpoolWriter, pairs_of, read_spool
from nearcast.pipeline.streaming.stream import pinned
from nearcast.retained import Caps, Policies, read_policies
from nearcast.retained.experience_file import experience_from_text
from nearcast.server import is_password, read_users
from nearcast.server.cluster.nats_members import read_left, read_member
from nearcast.server.cluster.nats_pieces import Assembly
from nearcast.server.feed.numbers import FeedNumbers


def text_of(name: str) -> str:
    return (DIRECTORY / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CODECS)
def test_golden_bytes_decode_to_the_known_values(name: str):
    codec = CODECS[name]
    records = read_hex_lines(name)
    assert {one: codec.decode(data) for one, data in records.items()} == codec.meant()


# --- journal -------------------------------------------------------------------------------------


def test_journal_files_of_both_formats_are_read():
    records = list(read_hex_lines(journal.RECORDS).values())
    before = [b"".join(records[:3]), *records[3:6]]
    new = read_hex_lines(journal.FILE_2)["journal-00000002.log"]
    assert journal.batches_in(new) == before
    assert journal.batches_in(read_hex_lines(journal.FILE_1)["file"]) == before[:3]


def test_a_snapshot_comes_back_and_is_the_next_snapshot():
    records = read_hex_lines(journal.SNAPSHOT)
    assert journal.snapshot_of([b"".join(records.values())]) == records


def test_notes_of_the_network_are_understood():
    written = Journal()
    for key, until_ms, value in frames.notes_in(text_of(frames.CONVERSATION)):
        if until_ms:
            written.note(key, value, until_ms)
    node = Broker(with_journal=True, spaces=frames.SPACES)
    mesh = Cluster("n1", node, random=Random(1))
    assert node.restore([written.take()], 1_200) == []
    assert mesh.plans == (1, 1)
    assert mesh.has_unsettled()  # the contest and the events that were not yet settled


# --- between nodes and with NATS -----------------------------------------------------------------


def test_causal_messages_mean_what_they_meant():
    lines = read_hex_lines(frames.CAUSAL)
    found = {name: frames.causal_meaning(lines[name]) for name in frames.CAUSAL_MEANING}
    assert found == frames.CAUSAL_MEANING


def test_every_part_of_the_conversation_is_understood():
    codecs = {"T": CODECS["frames/messages.hex"], "P": CODECS["frames/places.hex"]}
    for kind, body in frames.parts_in(text_of(frames.CONVERSATION)):
        if kind in codecs:
            assert codecs[kind].encode(codecs[kind].decode(body)) == body


def test_pieces_become_a_frame():
    pieces, assembly = read_hex_lines("store/pieces.hex"), Assembly()
    assert [assembly.add(one) for one in pieces.values()] == [None, None, bytes(range(20))]


def test_entries_and_marks_are_read():
    lines = dict(
        one.split(" = ", 1) for one in text_of("store/buckets.txt").splitlines() if " = " in one
    )
    assert read_member(lines["berlin=2E3"].encode()) == store.MEMBER
    assert read_left(lines["left.berlin=2E3"].encode()) == store.LEFT


def test_fed_messages_that_are_sent_again_keep_their_numbers(tmp_path: Path):
    path = tmp_path / "feed-numbers"
    path.write_bytes(read_hex_lines("store/feed-numbers.hex")["file"])
    numbers = FeedNumbers(path)
    again = [
        Publish(one.topic, one.payload, one.qos, False, True, one.packet_id, one.properties)
        for one in store.NUMBERED
    ]
    assert (numbers.epoch, [numbers.assign(one) for one in again]) == (store.TOKEN[:16], [1, 2])
    numbers.close()


async def test_a_node_that_introduces_itself_is_welcome():
    lines = dict(one.split(": ") for one in text_of("store/direct.txt").splitlines())
    heard: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
    async with store.doors("n2", lambda *one: heard.put_nowait(one)) as doors:
        host, _, port = doors.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(from_hex(lines["line"]) + from_hex(lines["frame"]))
        assert await reader.readexactly(1) == store.WELCOME
        assert await asyncio.wait_for(heard.get(), 60) == ("n1", b"frame")
        writer.close()


# --- event log and tables ------------------------------------------------------------------------


def test_a_pointer_is_followed(tmp_path: Path):
    told, *_ = text_of(tables.POINTER).splitlines()
    (tmp_path / "CURRENT").write_text(told)
    assert VersionedTable(str(tmp_path)).current_path() == f"{tmp_path}/000002-abababab"


def test_a_spool_is_read_and_gone_on_with(tmp_path: Path):
    for name, data in read_hex_lines(tables.SPOOL).items():
        (tmp_path / name).write_bytes(data)
    rows = [row for batch in read_spool(tmp_path, 0, 3) for row in batch.to_pylist()]
    assert [
        Spooled(row["topic"], row["payload"], pairs_of(row["pairs"]), row["packet_id"], row["t"])
        for row in rows
    ] == tables.SPOOLED
    writer = SpoolWriter(tmp_path)
    assert (writer.end, writer.settled, writer.unsettled()) == (3, 1, tables.SPOOLED[1:])
    writer.close()


def test_pins_and_sources_of_a_stream_are_read(tmp_path: Path):
    lines = dict(one.split(": ", 1) for one in text_of(tables.CHECKPOINT).splitlines())
    (tmp_path / "3.json").write_text(lines["pins/3.json"])
    (tmp_path / "source.json").write_text(lines["source.json"])
    assert pinned(tmp_path, 3, lambda: "another") == "000.parquet"
    assert identity(tmp_path, "shops/#") == ("nearcast-stream-1", True)


# --- files ---------------------------------------------------------------------------------------


def test_plans_are_read():
    assert load_plan(DIRECTORY / saved.PLAN) == saved.THE_PLAN  # version 1
    assert load_plan(DIRECTORY / saved.PLAN_2) == saved.THE_PLAN_2
    assert NamedPlan.from_bytes(text_of(saved.NAMED_PLAN).encode()) == saved.THE_NAMED_PLAN


def test_experience_is_read():
    text = (DIRECTORY / saved.EXPERIENCE).read_text("utf-8")
    ((name, one),) = experience_from_text(text, Policies(Caps(2, 3)))
    ((expected, kept),) = saved.the_experience().all()
    assert (name, one.follows) == (expected, kept.follows)
    for part in ("quality", "visits", "evidence"):
        assert (getattr(one, part) == getattr(kept, part)).all()


def test_policies_are_read():
    def values(one: Any) -> Any:
        return plain((one.caps, one.timeliness, one.discount, one.general, one.topics))

    assert values(read_policies(DIRECTORY / saved.POLICIES)) == values(saved.THE_POLICIES)


@pytest.mark.parametrize("name", saved.THE_HISTOGRAMS)
def test_histograms_are_read_by_jobs_and_by_brokers(name: str):
    known = saved.THE_HISTOGRAMS[name]
    assert plain(load_histogram(DIRECTORY / name)) == plain(known)
    space = Space(name="shops", topic_filter="shops/#", attributes=wire.SHOPS.attributes[:2])
    assert type(read_density(text_of(name), space, where=name)) is type(known.density())


def test_users_may_log_in():
    users = read_users(DIRECTORY / saved.USERS)
    assert list(users) == ["ann", "bob"]
    assert is_password(b"secret", users["ann"])
    assert not is_password(b"secret", users["bob"])


def test_a_saved_matcher_finds_what_it_found():
    assert saved.matches(read_hex_lines(saved.MATCHER)) == saved.MATCHES


def test_selections_are_read_back_from_what_they_are_called():
    for line in text_of("wire/selections.txt").splitlines():
        identity = line.partition("  ->  ")[2]
        prefixes, bare = split_prefixes(identity, SELECTING)
        assert read_subscription(bare, decoded(prefixes)).subscription.identity == identity


def test_the_file_of_init_is_right_and_the_environment_overrides_it():
    text = text_of(settings.INIT)
    assert tomllib.loads(text)["space"][0]["name"] == "shops"
    environ = {"NEARCAST_LIMITS__PACKET": "2MiB", "NEARCAST_LISTENER__0__PORT": "1884"}
    found = read(text, environ, file="golden")
    assert found.problems == ()
    assert found.configuration is not None
    told = json.loads(found.configuration.model_dump_json())
    assert (told["limits"]["packet"], told["listener"][0]["port"]) == (2 << 20, 1884)
