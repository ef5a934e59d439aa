"""`nearcast journal`: what is there and what is lost, by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nearcast.broker import Broker
from nearcast.broker.persistence.journal import Journal
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.cli import app
from nearcast.model.errors import EnvironmentProblem, FileFormatError, MisuseError
from nearcast.server import JournalFile


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["journal", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def message(topic: str, payload: bytes) -> Message:
    return Message(
        MessageHead(len(topic).to_bytes(2, "big") + topic.encode(), len(payload), 1), payload
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data directory: a client with three messages that wait, and a retained message."""
    journal, file = Journal(), JournalFile(tmp_path / "journal")
    session = Session("ann", 1)
    session.expiry_s = 60
    file.begin([])
    journal.session(session)
    journal.subscribed(SessionSubscription(session, "shops/#", "", "shops/#", 1))
    file.append(journal.take())
    for number in range(3):
        journal.queued(1, message(f"shops/{number}", b"payload %d" % number), 1)
        file.append(journal.take())
    journal.retained(message("board", b"kept"))
    file.append(journal.take())
    file.close()
    return tmp_path


def journal_of(data: Path) -> Path:
    (path,) = (data / "journal").glob("journal-*.log")
    return path


def damage(data: Path, what: bytes) -> None:
    path = journal_of(data)
    raw = bytearray(path.read_bytes())
    raw[raw.index(what)] ^= 1
    path.write_bytes(bytes(raw))


def test_a_whole_journal_is_told_by_name(data: Path) -> None:
    code, said = run("check", str(data))

    assert code == 0
    assert "1 sessions, 1 retained messages, 0 notes" in said
    assert "'ann': 1 subscriptions, 3 queued, 0 in flight" in said
    assert "retained 'board'" in said
    assert said.endswith("Nothing is lost.\n")


def test_damage_is_told_with_the_names_of_what_is_lost_and_of_what_depends_on_it(
    data: Path,
) -> None:
    damage(data, b"payload 1")
    code, said = run("check", str(data))

    assert code == 1
    assert "'ann': 1 subscriptions, 2 queued" in said
    assert "bytes that are no whole batch" in said
    assert "1 batches lost" in said
    assert "lost: MESSAGE of topic 'shops/1'" in said
    assert "lost: QUEUED of client 'ann', message 2" in said
    assert said.endswith("Something is lost: see above.\n")


def test_machines_get_all_of_it(data: Path) -> None:
    damage(data, b"shops/#")
    code, said = run("check", str(journal_of(data)), "--json")
    told = json.loads(said)

    assert code == 1
    assert (told["whole"], told["format"], told["batches"]) == (False, 2, 4)
    assert told["sessions"] == []
    assert [one["record"].partition(": ")[2] for one in told["aside"]] == [
        f"QUEUED of session 1, message {number} ('shops/{number - 1}')" for number in (1, 2, 3)
    ]
    assert "SESSION of client 'ann'" in told["damages"][0]["names"]


def test_a_repaired_journal_is_whole_and_what_was_damaged_is_kept(data: Path) -> None:
    damage(data, b"payload 1")
    before = journal_of(data)
    raw = before.read_bytes()
    code, said = run("repair", str(data))

    assert code == 0
    assert "lost: MESSAGE of topic 'shops/1'" in said
    assert before.with_suffix(".damaged").read_bytes() == raw
    assert journal_of(data) != before
    assert run("check", str(data))[0] == 0
    node = Broker(with_journal=True)
    assert node.restore(JournalFile(data / "journal").batches(), 1) == []
    assert [one.payload for one, _ in node.state.sessions["ann"].queue] == [
        b"payload 0",
        b"payload 2",
    ]


def test_records_that_cannot_be_applied_are_left_out_and_kept_in_a_file(data: Path) -> None:
    damage(data, b"shops/#")
    assert run("repair", str(data))[0] == 0
    (aside,) = (data / "journal").glob("*.set-aside")
    lines = [json.loads(line) for line in aside.read_text().splitlines()]

    assert [one["kind"] for one in lines] == ["QUEUED"] * 3
    assert all("batch" in one["place"] and one["record"] for one in lines)
    assert run("check", str(data))[0] == 0


def test_what_is_left_of_a_record_that_is_partly_lost_is_repaired(tmp_path: Path) -> None:
    journal, file = Journal(), JournalFile(tmp_path)
    session = Session("ann", 1)
    session.expiry_s = 60
    some = [message("a", b"first"), message("a", b"second")]
    journal.session(session)
    file.begin([journal.take()])
    for one in some:
        journal.named(one)
        file.append(journal.take())
    journal.sent(1, some, [7, 8], 1)
    file.append(journal.take())
    file.close()
    path = next(tmp_path.glob("*.log"))
    path.write_bytes(path.read_bytes().replace(b"first", b"fjrst"))
    run("repair", str(tmp_path))
    node = Broker(with_journal=True)

    assert node.restore(JournalFile(tmp_path).batches(), 1) == []
    held: Any = node.state.sessions["ann"].in_flight
    assert {packet_id: one.payload for packet_id, one in held.items()} == {8: b"second"}


def test_a_journal_in_use_is_looked_at_and_not_repaired(data: Path) -> None:
    file = JournalFile(data / "journal")
    damage(data, b"payload 1")
    assert run("check", str(data))[0] == 1
    with pytest.raises(EnvironmentProblem, match="in use"):
        run("repair", str(data))
    file.close()


def test_a_plain_tail_is_no_loss(data: Path) -> None:
    path = journal_of(data)
    path.write_bytes(path.read_bytes()[:-1])
    code, said = run("check", str(data))

    assert code == 0
    assert "a last batch that was cut short, as a crash leaves it" in said


def test_what_is_no_journal_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="there is no journal"):
        run("check", str(tmp_path))
    (tmp_path / "journal-00000001.log").write_bytes(b"SQLite format 3")
    for command in ("check", "repair"):
        with pytest.raises(FileFormatError, match="SQLite"):
            run(command, str(tmp_path))


def test_an_older_file_is_not_repaired(data: Path) -> None:
    older = data / "journal" / "journal-00000000.log"
    older.write_bytes(journal_of(data).read_bytes())
    with pytest.raises(MisuseError, match="the newest journal"):
        run("repair", str(older))
