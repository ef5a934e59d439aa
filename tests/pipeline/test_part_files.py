"""Files that workers write themselves are whole or not there."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nearcast.pipeline.part_files import PartFile, writing_parts

NUMBERS = pa.schema([pa.field("n", pa.int64(), nullable=False)])


def numbers(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], schema=NUMBERS)


def test_a_part_file_is_there_once_it_has_a_row(tmp_path: Path):
    with PartFile(str(tmp_path / "t"), NUMBERS) as empty:
        empty.add(numbers())
    assert (empty.rows, (tmp_path / "t").exists()) == (0, False)
    with PartFile(str(tmp_path / "t"), NUMBERS) as part:
        part.add(numbers(1, 2))
        part.add(numbers(3))
    assert part.rows == 3
    assert pq.read_table(tmp_path / "t" / part.name)["n"].to_pylist() == [1, 2, 3]


def test_a_part_file_of_a_task_that_fails_gets_no_more_rows(tmp_path: Path):
    def failing(batches):
        yield from batches
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        list(writing_parts(str(tmp_path), NUMBERS, failing)(iter([numbers(1)])))
    assert list(tmp_path.glob("*.parquet")) == []


def test_large_groups_are_written_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nearcast.pipeline.part_files._GROUP_ROWS", 2)
    with PartFile(str(tmp_path), NUMBERS) as part:
        for value in range(5):
            part.add(numbers(value))
        assert part.rows == 4
    assert pq.read_metadata(tmp_path / part.name).num_row_groups == 3
    assert pq.read_table(tmp_path / part.name)["n"].to_pylist() == list(range(5))
