"""The journal file: what is appended comes back, whatever a crash leaves behind."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model.errors import EnvironmentProblem, FileFormatError
from nearcast.server import JournalFile
from nearcast.server.storage import _framed, read_batches

batches = st.lists(st.binary(min_size=1, max_size=20), max_size=6)


def only_file(directory: Path) -> Path:
    (path,) = directory.glob("journal-*.log")
    return path


def test_batches_come_back_in_order(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path)
    journal.compact([b"snapshot", b""])
    journal.append(b"one")
    journal.append(b"two")
    journal.close()

    assert list(JournalFile(tmp_path).batches()) == [b"snapshot", b"one", b"two"]


def test_compaction_leaves_one_file_with_what_survives(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path, syncs=True)
    journal.compact([])
    journal.append(b"history")
    journal.compact([b"now"])
    journal.append(b"later")
    journal.sync()
    journal.close()

    assert only_file(tmp_path).name == "journal-00000002.log"
    assert list(JournalFile(tmp_path).batches()) == [b"now", b"later"]


def test_a_draft_that_was_never_finished_is_passed_over(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path)
    journal.compact([b"good"])
    journal.close()
    (tmp_path / "journal-00000002.new").write_bytes(b"half a snap")

    assert list(JournalFile(tmp_path).batches()) == [b"good"]


def test_the_newest_of_two_files_counts(tmp_path: Path) -> None:
    """A crash between the renaming of the new file and the removal of the old one."""
    journal = JournalFile(tmp_path)
    journal.compact([b"old"])
    old = only_file(tmp_path)
    kept = old.read_bytes()
    journal.compact([b"new"])
    journal.close()
    old.write_bytes(kept)

    assert list(JournalFile(tmp_path).batches()) == [b"new"]


@given(batches, st.data())
def test_any_prefix_of_a_journal_is_a_prefix_of_its_batches(
    written: list[bytes], data: st.DataObject
) -> None:
    raw = b"".join(_framed(one) for one in written)
    cut = data.draw(st.integers(0, len(raw)))

    found = list(read_batches(raw[:cut], 0, "test"))
    assert found == written[: len(found)]
    assert sum(len(_framed(one)) for one in found) <= cut
    if cut == len(raw):
        assert found == written


@given(batches.filter(lambda one: len(one) > 1), st.data())
def test_a_flipped_bit_is_never_read_as_something_else(
    written: list[bytes], data: st.DataObject
) -> None:
    raw = bytearray(b"".join(_framed(one) for one in written))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= 1 << data.draw(st.integers(0, 7))
    found: list[bytes] = []
    with contextlib.suppress(FileFormatError):
        found.extend(read_batches(bytes(raw), 0, "test"))

    assert found == written[: len(found)]


def test_damage_before_the_end_is_named(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path)
    journal.compact([b"one", b"two"])
    journal.close()
    path = only_file(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"one")] ^= 1
    path.write_bytes(bytes(raw))

    with pytest.raises(FileFormatError, match="a damaged batch"):
        list(JournalFile(tmp_path).batches())


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal-00000001.log").write_bytes(b"SQLite format 3")

    with pytest.raises(FileFormatError):
        list(JournalFile(tmp_path).batches())


def test_a_directory_in_use_is_refused_and_free_again_after_the_end(tmp_path: Path) -> None:
    first = JournalFile(tmp_path)
    with pytest.raises(EnvironmentProblem, match="in use"):
        JournalFile(tmp_path)
    first.close()
    JournalFile(tmp_path).close()


def test_a_file_asks_for_compaction_when_most_of_it_is_history(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path)
    journal.compact([b"x"])
    wanted = [journal.wants_compaction]
    journal.size = 65 << 20
    wanted.append(journal.wants_compaction)
    journal.close()

    assert wanted == [False, True]
