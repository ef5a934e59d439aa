"""Rows that workers read themselves are the rows that Spark would have read."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from nearcast.pipeline.tables.worker_reads import (
    Batches,
    RowGroups,
    map_rows,
    note_files,
    numbers_of,
    pieces_of,
    plain_pieces,
    reading,
    scan,
    small_table,
)


def adding() -> Callable[[Batches], Batches]:
    def add(batches: Batches) -> Batches:  # inside, so that it travels to workers as a whole
        total = sum(sum(batch.column("n").to_pylist()) for batch in batches)
        yield pa.RecordBatch.from_pydict({"total": pa.array([total], pa.int64())})

    return add


def write(path: Path, rows: int, group: int) -> str:
    table = pa.table({"n": range(rows), "word": [f"w{n % 3}" for n in range(rows)]})
    pq.write_table(table, path, row_group_size=group)
    return str(path)


def test_files_are_cut_at_row_groups_into_pieces_of_some_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("nearcast.pipeline.tables.worker_reads._PIECE_ROWS", 20)
    files = [
        write(tmp_path / "a", 50, 10),
        write(tmp_path / "b", 5, 10),
        write(tmp_path / "c", 0, 1),
    ]
    a, b, _ = files
    assert pieces_of(files) == [
        RowGroups(a, (0, 1), 20), RowGroups(a, (2, 3), 20), RowGroups(a, (4,), 10),
        RowGroups(b, (0,), 5),
    ]  # fmt: skip


@pytest.mark.spark
def test_a_frame_of_noted_files_is_read_by_workers_and_its_children_by_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("nearcast.pipeline.tables.worker_reads._PIECE_ROWS", 20)
    files = [write(tmp_path / "a.parquet", 50, 10), write(tmp_path / "b.parquet", 30, 10)]
    frame = note_files(spark.read.parquet(*files), files)
    tasks = map_rows(frame, ["n"], adding(), "total bigint").collect()
    assert len(tasks) == 5
    assert sum(row["total"] for row in tasks) == sum(range(50)) + sum(range(30))
    some = map_rows(frame.where("n < 10"), ["n"], adding(), "total bigint").collect()
    assert sum(row["total"] for row in some) == 2 * sum(range(10))


@pytest.mark.spark
def test_many_small_files_share_tasks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("nearcast.pipeline.tables.worker_reads._LEAST_TASKS", 4)
    files = [write(tmp_path / f"{n}.parquet", n, 10) for n in range(1, 31)]
    frame = note_files(spark.read.parquet(*files), files)
    tasks = map_rows(frame, ["n"], adding(), "total bigint").collect()
    assert len(tasks) == 4
    assert sum(row["total"] for row in tasks) == sum(sum(range(n)) for n in range(1, 31))


@pytest.mark.spark
def test_a_damaged_file_is_left_to_spark(spark: SparkSession, tmp_path: Path):
    file = write(tmp_path / "a.parquet", 50, 10)
    frame = note_files(spark.read.parquet(file), [file])
    Path(file).write_bytes(Path(file).read_bytes()[:100])
    with pytest.raises(Exception, match="FAILED_READ_FILE"):
        map_rows(frame, ["n"], adding(), "total bigint").collect()


@pytest.mark.spark
def test_texts_come_as_codes_where_asked(spark: SparkSession, tmp_path: Path):
    def kinds(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"kind": [str(batch.column("word").type)]})

    pieces = pieces_of([write(tmp_path / "a.parquet", 50, 50)])
    plain = scan(spark, pieces, ["word"], kinds, "kind string").collect()
    coded = scan(spark, pieces, ["word"], kinds, "kind string", coded=["word"]).collect()
    assert [row["kind"] for row in plain] == ["string"]
    assert [row["kind"][:10] for row in coded] == ["dictionary"]


def test_a_bare_scan_is_read_by_workers_and_nothing_else_is(spark: SparkSession, tmp_path: Path):
    folder = tmp_path / "two words %"
    folder.mkdir()
    for part in range(2):
        pq.write_table(pa.table({"n": [part, 10], "x": [0.5, 1.5]}), folder / f"{part}.parquet")
    frame = spark.read.parquet(str(folder))
    pieces = plain_pieces(frame, ["n", "x"])
    assert pieces is not None
    found = numbers_of(spark, pieces).mapInArrow(reading(pieces, ["x", "n"]), "x double, n bigint")
    assert sorted(map(tuple, found.collect())) == [(0.5, 0), (0.5, 1), (1.5, 10), (1.5, 10)]
    table = small_table(frame, ["x"], 1 << 20)
    assert table is not None
    assert sorted(table["x"].to_pylist()) == [0.5, 0.5, 1.5, 1.5]
    assert small_table(frame, ["x"], 100) is None
    assert plain_pieces(frame.where("n < 10"), ["n"]) is None
    assert plain_pieces(frame.select("n"), ["n"]) is None
    assert plain_pieces(frame.limit(1), ["n"]) is None
    assert plain_pieces(frame.union(frame), ["n"]) is None
    wider = spark.read.schema("n double, x double").parquet(str(folder))
    assert plain_pieces(wider, ["n"]) is None
    assert plain_pieces(wider, ["x"]) is not None
    more = spark.read.schema("n bigint, y double").parquet(str(folder))
    assert plain_pieces(more, ["n", "y"]) is None
    (folder / "part=7").mkdir()
    pq.write_table(pa.table({"n": [1]}), folder / "part=7" / "0.parquet")
    assert plain_pieces(spark.read.parquet(str(folder / "part=7")), ["n"]) is not None
    parts = spark.read.option("basePath", str(folder)).parquet(str(folder / "part=7"))
    assert parts.columns == ["n", "part"]
    assert plain_pieces(parts, ["n"]) is None
    frame.cache()
    assert plain_pieces(frame, ["n"]) is None
    frame.unpersist()
    spark.range(3).write.csv(str(tmp_path / "csv"))
    assert plain_pieces(spark.read.csv(str(tmp_path / "csv")), ["_c0"]) is None
