"""The journal file: what is appended comes back, whatever a crash leaves behind."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.broker.persistence.journal import HEADER as RECORD
from nearcast.model.errors import EnvironmentProblem, FileFormatError
from nearcast.server import JournalFile
from nearcast.server.storage.journal_format import (
    _OLD_BATCH,
    BATCH_HEADER_BYTES,
    FILE_HEADER_BYTES,
    MAGIC,
    OLD_MAGIC,
    Damage,
    JournalBatch,
    batch_header,
    file_header,
    read_journal,
)

MARK = b"\x93\0\xd1\x07\xee\x5a\x10\xc4"
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


def whole_file(written: list[bytes], snapshot: int = 0) -> tuple[bytes, list[int]]:
    """Return a file of these batches, the first of them a snapshot, and where each one begins."""
    parts = [batch_header(MARK, number, one) + one for number, one in enumerate(written, 1)]
    starts = [FILE_HEADER_BYTES]
    for one in parts:
        starts.append(starts[-1] + len(one))
    return file_header(MARK, starts[snapshot]) + b"".join(parts), starts


def read(data: bytes) -> tuple[list[bytes], list[Damage]]:
    found = list(read_journal(data, "test"))
    return (
        [one.records for one in found if isinstance(one, JournalBatch)],
        [one for one in found if isinstance(one, Damage)],
    )


@given(batches, st.data())
def test_any_prefix_of_a_journal_is_a_prefix_of_its_batches_with_a_plain_tail(
    written: list[bytes], data: st.DataObject
) -> None:
    raw, starts = whole_file(written)
    cut = data.draw(st.integers(FILE_HEADER_BYTES, len(raw)))
    found, damages = read(raw[:cut])

    assert found == written[: len(found)]
    assert starts[len(found)] <= cut
    assert [one.is_tail for one in damages] == ([] if cut in starts else [True])


@given(batches.filter(lambda one: len(one) > 1), st.data())
def test_a_flipped_bit_is_told_and_costs_its_own_batch_at_most(
    written: list[bytes], data: st.DataObject
) -> None:
    raw, starts = whole_file(written)
    place = data.draw(st.integers(0, len(raw) - 1))
    bad = bytearray(raw)
    bad[place] ^= 1 << data.draw(st.integers(0, 7))
    if place < len(MAGIC) and bytes(bad).startswith(OLD_MAGIC):
        return
    found, damages = read(bytes(bad))

    hit = max(0, bisect_right(starts, place) - 1)
    expected = written if place < FILE_HEADER_BYTES else written[:hit] + written[hit + 1 :]
    assert found in (expected, written)  # a damaged size alone costs nothing
    assert len(damages) == 1
    assert not damages[0].is_tail or found == written[:-1]


def test_a_flipped_bit_in_the_last_batch_is_damage_and_not_a_plain_tail() -> None:
    raw, starts = whole_file([b"first", b"last one"])
    for place in range(starts[1], len(raw)):
        for bit in range(8):
            bad = bytearray(raw)
            bad[place] ^= 1 << bit
            found, (damage,) = read(bytes(bad))
            assert found[0] == b"first"
            assert not damage.is_tail, (place, bit)


@given(batches.filter(lambda one: len(one) > 2), st.data())
def test_a_batch_left_out_repeated_or_out_of_order_is_told(
    written: list[bytes], data: st.DataObject
) -> None:
    raw, starts = whole_file(written)
    parts = [raw[a:b] for a, b in itertools.pairwise(starts)]
    place = data.draw(st.integers(0, len(parts) - 2))
    without = parts[:place] + parts[place + 1 :]
    twice = parts[: place + 1] + parts[place:]
    swapped = [*parts[:place], parts[place + 1], parts[place], *parts[place + 2 :]]

    found, (damage,) = read(raw[: starts[0]] + b"".join(without))
    assert found == written[:place] + written[place + 1 :]
    assert damage.lost == 1
    found, (damage,) = read(raw[: starts[0]] + b"".join(twice))
    assert (found, damage.lost) == (written, 0)
    found, damages = read(raw[: starts[0]] + b"".join(swapped))
    assert found == written[:place] + written[place + 1 :]
    assert len(damages) == 2


def test_zeros_in_the_middle_are_damage_and_what_is_behind_them_is_read() -> None:
    written = [b"%d" % number * 3_000 for number in range(9)]
    raw, _ = whole_file(written)
    bad = raw[:10_000] + bytes(4_096) + raw[14_096:]
    found, (damage,) = read(bad)

    assert found == written[:3] + written[5:]
    assert damage.lost == 2
    assert not damage.is_tail


def test_zeros_at_the_end_are_damage() -> None:
    raw, _ = whole_file([b"one"])
    found, (damage,) = read(raw + bytes(4_096))

    assert (found, damage.reason, damage.is_tail) == ([b"one"], "zeros", False)


@pytest.mark.parametrize("lost", range(1, 30))
def test_a_file_that_ends_before_its_snapshot_does_is_damaged(lost: int) -> None:
    raw, _ = whole_file([b"first", b"second"], snapshot=2)
    _, damages = read(raw[:-lost])

    assert damages
    assert not any(one.is_tail for one in damages)


def test_a_snapshot_that_ends_between_two_batches_is_damaged_too() -> None:
    raw, starts = whole_file([b"first", b"second"], snapshot=2)
    found, (damage,) = read(raw[: starts[1]])

    assert found == [b"first"]
    assert damage.reason == f"the snapshot ends at byte {starts[2]}"
    assert not damage.is_tail


def test_an_empty_batch_is_refused_even_with_a_checksum_that_fits() -> None:
    raw, _ = whole_file([b"", b"second"])
    found, (damage,) = read(raw)

    assert found == [b"second"]
    assert damage.lost == 1


def test_what_a_client_sends_is_never_read_as_a_batch_behind_damage() -> None:
    forged = batch_header(b"12345678", 2, b"forged") + b"forged"
    raw, starts = whole_file([b"..." + forged + b"...", b"second"])
    bad = bytearray(raw)
    bad[starts[0] + BATCH_HEADER_BYTES] ^= 1

    assert read(bytes(bad))[0] == [b"second"]


# --- format 1 ---------------------------------------------------------------------------------


def old_file(written: list[bytes]) -> tuple[bytes, list[int]]:
    parts = [_OLD_BATCH.pack(len(one), zlib.crc32(one)) + one for one in written]
    starts = [len(OLD_MAGIC)]
    for one in parts:
        starts.append(starts[-1] + len(one))
    return OLD_MAGIC + b"".join(parts), starts


OLD = [RECORD.pack(19, size) + bytes(size) for size in (3, 40, 7)]


def test_a_journal_of_format_1_is_read_and_goes_on_as_format_2(tmp_path: Path) -> None:
    (tmp_path / "journal-00000007.log").write_bytes(old_file(OLD)[0])
    journal = JournalFile(tmp_path)
    assert list(journal.batches()) == OLD
    assert (journal.damages, journal.keep_damaged()) == ([], None)
    journal.begin(OLD)
    journal.close()

    assert only_file(tmp_path).name == "journal-00000008.log"
    assert only_file(tmp_path).read_bytes().startswith(MAGIC)
    assert list(JournalFile(tmp_path).batches()) == OLD


def test_a_tail_of_format_1_is_told_from_damage_in_its_middle() -> None:
    raw, starts = old_file(OLD)
    found, (damage,) = read(raw[:-2])
    assert (found, damage.is_tail) == (OLD[:2], True)
    bad = bytearray(raw)
    bad[starts[1] + 3] ^= 0x40  # its size is beyond the end of the file now
    found, (damage,) = read(bytes(bad))
    assert (found, damage.is_tail) == (OLD, False)
    bad[starts[1] + 20] ^= 1
    found, (damage,) = read(bytes(bad))
    assert (found, damage.is_tail) == ([OLD[0], OLD[2]], False)
    found, (damage,) = read(raw[: starts[1]] + bytes(4_096) + raw[starts[1] :])
    assert (found, damage.is_tail) == (OLD, False)


# --- files ------------------------------------------------------------------------------------


def test_damage_is_told_and_the_damaged_file_is_kept(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path)
    journal.compact([b"one", b"two"])
    journal.close()
    path = only_file(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"one")] ^= 1
    path.write_bytes(bytes(raw))
    journal = JournalFile(tmp_path)

    assert list(journal.batches()) == [b"two"]
    assert [one.lost for one in journal.damages] == [1]
    kept = journal.keep_damaged()
    assert kept == path.with_suffix(".damaged")
    journal.begin([b"two"])
    assert kept.read_bytes() == bytes(raw)
    assert only_file(tmp_path) != path
    journal.close()


def test_a_plain_tail_is_told_and_its_file_is_not_kept(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path)
    journal.compact([])
    journal.append(b"one")
    journal.append(b"two")
    journal.close()
    path = only_file(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    journal = JournalFile(tmp_path)

    assert list(journal.batches()) == [b"one"]
    assert [one.is_tail for one in journal.damages] == [True]
    assert journal.keep_damaged() is None
    journal.close()


class GivenUpError(Exception):
    pass


def broken_snapshot() -> Iterator[bytes]:
    yield b"half"
    raise GivenUpError


def test_a_compaction_that_fails_leaves_the_file_in_use_and_no_draft(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path)
    journal.compact([b"before"])
    before = descriptors()
    with pytest.raises(GivenUpError):
        journal.compact(broken_snapshot())
    journal.append(b"after")
    assert descriptors() == before
    journal.close()

    assert {one.name for one in tmp_path.iterdir()} == {"lock", "journal-00000001.log"}
    assert list(JournalFile(tmp_path).batches()) == [b"before", b"after"]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


_WITHOUT_DESCRIPTORS = """
import os, sys
from pathlib import Path
from nearcast.server import JournalFile
journal = JournalFile(Path(sys.argv[1]), syncs=True)
journal.compact([b"before"])
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError as problem:
    assert problem.errno == 24, problem
for number in range(3):
    journal.compact([b"after %d" % number])
journal.append(b"later")
journal.close()
"""


def test_a_journal_is_compacted_when_clients_have_taken_all_descriptors(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WITHOUT_DESCRIPTORS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert list(JournalFile(tmp_path).batches()) == [b"after 2", b"later"]


_FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from nearcast.server import JournalFile
from nearcast.model.errors import EnvironmentProblem
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = JournalFile(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    journal.begin([b"x" * 20_000])
except EnvironmentProblem as problem:
    print(problem)
"""


def test_a_full_disk_at_the_start_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    """A limit on the size of files refuses to write, as a full disk does."""
    journal = JournalFile(tmp_path)
    journal.compact([b"x" * 20_000])
    journal.close()
    before = only_file(tmp_path).read_bytes()
    command = [sys.executable, "-c", _FULL_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.stderr == ""
    assert "the journal cannot be written (File too large). Free some space" in done.stdout
    assert {one.name for one in tmp_path.iterdir()} == {"lock", "journal-00000001.log"}
    assert only_file(tmp_path).read_bytes() == before


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is synced, by name, while the real calls are made."""
    names: list[str] = []

    def watch(name: str) -> None:
        real = getattr(os, name)

        def call(descriptor: int) -> None:
            names.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
            real(descriptor)

        monkeypatch.setattr(os, name, call)

    watch("fsync")
    watch("fdatasync")
    return names


def test_with_power_a_new_file_is_synced_before_it_has_its_name_and_then_its_directory(
    tmp_path: Path, synced: list[str]
) -> None:
    journal = JournalFile(tmp_path, syncs=True)
    journal.compact([b"now"])
    assert synced == ["journal-00000001.new", tmp_path.name]
    synced.clear()
    journal.append(b"later")
    journal.sync()
    assert synced == ["journal-00000001.log"]
    journal.append(b"at the end")
    journal.close()
    assert synced == ["journal-00000001.log"] * 2


def test_without_power_nothing_is_synced(tmp_path: Path, synced: list[str]) -> None:
    journal = JournalFile(tmp_path)
    journal.compact([b"now"])
    journal.append(b"later")
    journal.close()

    assert synced == []


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


def test_a_large_snapshot_is_not_compacted_again_before_it_has_grown_fourfold(
    tmp_path: Path,
) -> None:
    journal = JournalFile(tmp_path)
    journal.compact([bytes(1 << 20)] * 70)
    wanted = [journal.wants_compaction]
    for size in (4 * 70 - 1, 4 * 71):
        journal.size = size << 20
        wanted.append(journal.wants_compaction)
    journal.close()

    assert wanted == [False, False, True]
