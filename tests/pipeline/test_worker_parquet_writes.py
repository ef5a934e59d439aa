"""Files that workers write themselves are whole or not there."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nearcast.pipeline.tables.worker_writes import (
    Batches,
    Labelled,
    PartFile,
    writing_apart,
    writing_parts,
)

NUMBERS = pa.schema([pa.field("n", pa.int64(), nullable=False)])


def numbers(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], schema=NUMBERS)


def test_a_part_file_is_there_once_it_has_a_row(tmp_path: Path):
    with PartFile(str(tmp_path), NUMBERS) as empty:
        empty.add(numbers())
    assert (empty.rows, list(tmp_path.iterdir())) == (0, [])
    with PartFile(str(tmp_path), NUMBERS) as part:
        part.add(numbers(1, 2))
        part.add(numbers(3))
    assert part.rows == 3
    assert pq.read_table(tmp_path / part.name)["n"].to_pylist() == [1, 2, 3]


def test_a_directory_that_was_given_up_does_not_come_back(tmp_path: Path):
    with pytest.raises(FileNotFoundError), PartFile(str(tmp_path / "gone"), NUMBERS) as part:
        part.add(numbers(1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("group_rows", [1, 10])
def test_a_task_that_fails_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_rows: int
):
    monkeypatch.setattr("nearcast.pipeline.tables.worker_writes._GROUP_ROWS", group_rows)

    def failing(batches):
        yield from batches
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        list(writing_parts(str(tmp_path), NUMBERS, failing)(iter([numbers(1)])))
    assert list(tmp_path.glob("*.parquet")) == []


def test_large_groups_are_written_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nearcast.pipeline.tables.worker_writes._GROUP_ROWS", 2)
    with PartFile(str(tmp_path), NUMBERS) as part:
        for value in range(5):
            part.add(numbers(value))
        assert part.rows == 4
    assert pq.read_metadata(tmp_path / part.name).num_row_groups == 3
    assert pq.read_table(tmp_path / part.name)["n"].to_pylist() == list(range(5))


def test_rows_of_several_tables_are_written_in_one_pass_and_counted_by_label(tmp_path: Path):
    folders = [tmp_path / name for name in ("even", "odd", "none")]
    for folder in folders:
        folder.mkdir()

    def sort(batches: Batches) -> Labelled:
        for batch in batches:
            for n in batch.column("n").to_pylist():
                yield n % 2, "small" if n < 4 else "large", numbers(n)

    write = writing_apart([(str(folder), NUMBERS) for folder in folders], sort)
    (told,) = write(iter([numbers(1, 2, 3), numbers(4, 5, 7)]))
    counts = {(row["place"], row["label"]): row["rows"] for row in told.to_pylist()}
    assert counts == {(0, "small"): 1, (0, "large"): 1, (1, "small"): 2, (1, "large"): 2}
    for place, wanted in enumerate(([2, 4], [1, 3, 5, 7], [])):
        files = {row["file"] for row in told.to_pylist() if row["place"] == place}
        assert {file.name for file in folders[place].iterdir()} == files
        found = [pq.read_table(folders[place] / file)["n"].to_pylist() for file in files]
        assert found == ([wanted] if wanted else [])


def test_a_task_without_rows_writes_and_says_nothing(tmp_path: Path):
    write = writing_apart([(str(tmp_path), NUMBERS)], lambda batches: ((0, "", b) for b in batches))
    assert list(write(iter([numbers()]))) == []
    assert list(tmp_path.iterdir()) == []
