"""Work is dealt out whole and evenly, and every task is a partition of its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from nearcast.pipeline.jobs.task_balancing import deal_out, keys_of_partitions, spark_hash

LOADS = st.dictionaries(
    st.integers(0, 60), st.tuples(st.integers(0, 10_000), st.integers(0, 300)), max_size=40
)


@given(LOADS, st.integers(1, 20))
def test_every_cell_with_work_is_dealt_out_once_and_no_task_has_much_more_than_its_share(
    loads, tasks
):
    pieces = deal_out(loads, tasks)
    work = {cell: load for cell, load in loads.items() if load[0] and load[1]}
    assert {piece.cell for piece in pieces} == set(work)
    of_tasks = [0.0] * tasks
    for cell, (events, boxes) in work.items():
        deals = [piece for piece in pieces if piece.cell == cell]
        assert [piece.deal for piece in deals] == list(range(len(deals)))
        for piece in deals:
            of_tasks[piece.task] += events / len(deals) + boxes
    # Whoever gets a piece had least before, so nobody is ahead of the mean by more than a piece.
    largest = max(
        (load[0] / sum(p.cell == cell for p in pieces) + load[1] for cell, load in work.items()),
        default=0,
    )
    assert max(of_tasks) <= sum(of_tasks) / tasks + largest + 1e-6


def test_the_largest_pieces_go_first():
    loads = {**dict.fromkeys(range(4), (5, 25)), 4: (10, 50)}
    of_tasks = [0, 0]
    for piece in deal_out(loads, 2):
        of_tasks[piece.task] += sum(loads[piece.cell])
    assert of_tasks == [90, 90]


def test_a_hot_cell_is_spread_over_all_tasks():
    pieces = deal_out({0: (1_000_000, 1_000), **dict.fromkeys(range(1, 20), (100, 1000))}, 16)
    tasks = [piece.task for piece in pieces if piece.cell == 0]
    assert set(tasks) == set(range(16))
    assert len(tasks) <= 64


@pytest.mark.parametrize("partitions", [1, 2, 7, 40])
def test_each_partition_has_a_key(partitions: int):
    keys = keys_of_partitions(partitions)
    assert [spark_hash(key) % partitions for key in keys] == list(range(partitions))


@pytest.mark.spark
def test_the_hash_is_that_of_spark(spark: SparkSession):
    rows = spark.range(0, 3_000).select("id", F.hash(F.col("id").cast("int")).alias("h")).collect()
    assert [spark_hash(row["id"]) for row in rows] == [row["h"] for row in rows]
    keys = spark.createDataFrame([(key,) for key in keys_of_partitions(9)], "key int")
    sizes = keys.repartition(9, "key").select(F.spark_partition_id().alias("p")).collect()
    assert sorted(row["p"] for row in sizes) == list(range(9))
