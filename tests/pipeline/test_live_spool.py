"""What is in the spool is there after any crash, under the same number."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model import FileFormatError, KeyInUseError
from nearcast.pipeline.streaming import spool
from nearcast.pipeline.streaming.spool import (
    NUMBER,
    Spooled,
    SpoolWriter,
    drop_before,
    pairs_of,
    read_spool,
    segments,
    spool_end,
    spool_start,
)


def messages(first: int, count: int) -> list[Spooled]:
    return [
        Spooled(f"a/{n}", b"x" * (n % 7), (("k", str(n)),) * (n % 2), n % 5, 1000 + n)
        for n in range(first, first + count)
    ]


def read(folder: Path, start: int, end: int) -> list[tuple[int, Spooled]]:
    return [
        (
            row[NUMBER],
            Spooled(
                row["topic"], row["payload"], pairs_of(row["pairs"]), row["packet_id"], row["t"]
            ),
        )
        for batch in read_spool(folder, start, end)
        for row in batch.to_pylist()
    ]


def test_every_range_gives_its_messages_whatever_the_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spool, "SEGMENT_BYTES", 800)
    writer = SpoolWriter(tmp_path)
    for count in (1, 4, 2, 6, 3):
        writer.append(messages(writer.end, count))
    assert writer.append([]) == writer.end == 16
    whole = list(enumerate(messages(0, 16)))
    assert len(segments(tmp_path)) > 2
    for start in range(17):
        for end in range(start, 17):
            assert read(tmp_path, start, end) == whole[start:end]
    with pytest.raises(FileFormatError, match="message 16 is not there"):
        read(tmp_path, 3, 18)
    segments(tmp_path)[1].unlink()
    with pytest.raises(FileFormatError, match="is not there"):
        read(tmp_path, 0, 16)
    writer.close()


def test_numbers_and_what_is_unsettled_come_back_and_half_a_block_does_not(tmp_path: Path):
    writer = SpoolWriter(tmp_path)
    writer.append(messages(0, 3))
    writer.settle(2)
    writer.append(messages(3, 2))
    writer.close()
    (segment,) = segments(tmp_path)
    whole = segment.read_bytes()
    for cut in [*range(40), *range(40, len(whole), 23), len(whole) - 1]:
        segment.write_bytes(whole[:cut])
        again = SpoolWriter(tmp_path)
        kept = again.end
        assert kept in (0, 3)
        assert spool_end(tmp_path) == kept
        assert [one for _, one in read(tmp_path, 0, kept)] == messages(0, kept)
        assert again.unsettled() == (messages(2, kept - 2) if kept else [])
        assert again.append(messages(kept, 1)) == kept
        assert [one for _, one in read(tmp_path, 0, kept + 1)] == messages(0, kept + 1)
        again.close()
        segment.write_bytes(whole)
        (tmp_path / "end").write_bytes(spool._MARKS.pack(5, 2))
    again = SpoolWriter(tmp_path)
    assert (again.end, again.settled, again.unsettled()) == (5, 2, messages(2, 3))
    again.close()


@given(st.data())
def test_a_changed_byte_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    folder = tmp_path_factory.mktemp("spool")
    writer = SpoolWriter(folder)
    writer.append(messages(0, 3))
    writer.close()
    (segment,) = segments(folder)
    raw = bytearray(segment.read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    segment.write_bytes(raw)
    with pytest.raises(FileFormatError):
        read(folder, 0, 3)
    again = SpoolWriter(folder)
    assert again.end == 0
    again.close()


def test_only_what_is_settled_and_done_is_dropped_and_never_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spool, "SEGMENT_BYTES", 1)
    writer = SpoolWriter(tmp_path)
    for _ in range(5):
        writer.append(messages(writer.end, 2))
    size = writer.size_bytes
    drop_before(tmp_path, 7)
    assert spool_start(tmp_path) == 0  # nothing is settled yet
    writer.settle(5)
    writer.settle(1)  # it only grows
    drop_before(tmp_path, 7)
    assert spool_start(tmp_path) == 4
    writer.settle(10)
    drop_before(tmp_path, 7)
    assert spool_start(tmp_path) == 6
    assert [one for _, one in read(tmp_path, 7, 10)] == messages(7, 3)
    drop_before(tmp_path, 10)
    assert writer.size_bytes < size
    with pytest.raises(FileFormatError, match="message 6 is not there"):
        read(tmp_path, 6, 10)
    writer.close()
    again = SpoolWriter(tmp_path)
    assert (again.end, again.unsettled()) == (10, [])
    again.close()


def test_a_second_writer_is_refused(tmp_path: Path):
    writer = SpoolWriter(tmp_path)
    with pytest.raises(KeyInUseError, match="another stream"):
        SpoolWriter(tmp_path)
    writer.close()
    SpoolWriter(tmp_path).close()


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    writer = SpoolWriter(tmp_path)
    writer.append(messages(0, 2))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("nearcast.pipeline.streaming.spool.os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            writer.append(messages(2, 3))
    assert writer.end == spool_end(tmp_path) == 2
    other = Spooled("another", b"message")
    writer.append([other])
    assert [one for _, one in read(tmp_path, 0, 3)] == [*messages(0, 2), other]
    assert read(tmp_path, 2, 3) == [(2, other)]
    writer.close()
