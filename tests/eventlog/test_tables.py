"""A table's pointer moves only to what is complete."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nearcast.eventlog import VersionedTable
from nearcast.model.errors import FileFormatError, MisuseError


def write(table: VersionedTable, suffix: str, value: int) -> str:
    version = table.next_version(suffix)
    Path(table.path_of(version)).mkdir(parents=True)
    pq.write_table(pa.table({"x": [value]}), f"{table.path_of(version)}/part-0.parquet")
    return version


def test_a_new_table_has_no_version_and_says_what_to_do(tmp_path: Path):
    table = VersionedTable(str(tmp_path / "t"))
    assert table.current() is None
    with pytest.raises(MisuseError, match="no finished table"):
        table.current_path()


def test_what_is_written_but_not_published_is_not_read(tmp_path: Path):
    table = VersionedTable(str(tmp_path / "t"))
    table.publish(write(table, "a", 1), rows=1)
    write(table, "b", 2)
    assert pq.read_table(table.current_path())["x"].to_pylist() == [1]


def test_publishing_moves_the_pointer_and_old_versions_go(tmp_path: Path):
    table = VersionedTable(str(tmp_path / "t"))
    for value in range(5):
        table.publish(write(table, f"{value}", value))
        table.drop_old()
    assert pq.read_table(table.current_path())["x"].to_pylist() == [4]
    names = sorted(path.name for path in (tmp_path / "t").iterdir())
    assert names == ["000004-3", "000005-4", "CURRENT"]


def test_dropping_spares_a_version_that_is_being_written(tmp_path: Path):
    table = VersionedTable(str(tmp_path / "t"))
    table.publish(write(table, "a", 1))
    unfinished = write(table, "b", 2)
    table.drop_old(keep=1)
    assert Path(table.path_of(unfinished)).exists()


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b'{"format": 99, "version": "x"}', b"\xff"]
)
def test_a_damaged_pointer_is_an_answer(tmp_path: Path, content: bytes):
    (tmp_path / "CURRENT").write_bytes(content)
    with pytest.raises(FileFormatError, match="CURRENT"):
        VersionedTable(str(tmp_path)).current()
