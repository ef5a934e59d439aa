"""What is on a wire or a disk, or seen by users, is what it was: nothing is written here.

A test that fails shows the difference. `python tests/golden/make.py` writes the files anew, where
the change is meant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.golden import frames, journal
from tests.golden.golden import DIRECTORY, difference, files_below, read_hex_lines
from tests.golden.make import PLAIN, SERVER, SPARK

from nearcast.broker.persistence.journal import RecordKind, split_records
from nearcast.cluster.messages import MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("name", PLAIN)
def test_the_code_makes_the_golden_file(name: str):
    assert not difference(name, PLAIN[name]())


@pytest.mark.server
@pytest.mark.parametrize("name", SERVER)
def test_processes_make_the_golden_file(name: str):
    assert not difference(name, SERVER[name]())


@pytest.mark.spark
@pytest.mark.parametrize("name", SPARK)
def test_jobs_make_the_golden_file(name: str, spark: SparkSession):
    assert not difference(name, SPARK[name]())


def test_every_golden_file_is_compared():
    found = {str(path.relative_to(DIRECTORY)) for path in files_below(DIRECTORY)}
    assert found == {*PLAIN, *SERVER, *SPARK}


def test_every_kind_of_journal_record_has_a_golden_one():
    records = b"".join(read_hex_lines(journal.RECORDS).values())
    assert {kind for _, kind, _ in split_records(records)} == set(RecordKind)


def test_every_message_between_nodes_has_a_golden_one():
    assert {type(one) for one in frames.TOLD.values()} == set(MESSAGES)


def test_the_conversation_has_every_kind_of_part_and_of_note():
    text = (DIRECTORY / frames.CONVERSATION).read_text(encoding="utf-8")
    assert {kind for kind, _ in frames.parts_in(text)} == set("MOTPD")
    assert {key[:1] for key, _, _ in frames.notes_in(text)} == {*map(str.encode, "ispkedtuc")}
