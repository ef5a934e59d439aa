"""A plan is laid out by what Spark counted: by definition, under any partitioning."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from nearcast.eventlog import POSITIONS, REGIONS
from nearcast.locality import CellCounts, Plan, Rect, load_plan, save_plan
from nearcast.locality.layout.costs import LayoutWeights, layout_rows
from nearcast.locality.layout.movement import Movement
from nearcast.locality.layout.proposals import NAMES, propose
from nearcast.locality.schedule.plan_schedule import load_schedule
from nearcast.model.errors import FileFormatError, MisuseError, OutOfRangeError
from nearcast.pipeline.jobs import plan as plan_job
from nearcast.pipeline.jobs.occupancy import (
    Counted,
    RecordParts,
    central_space,
    collected_moves,
    count_movement,
    moves_between_cells,
    record_ends,
    time_per_cell,
)
from nearcast.pipeline.jobs.plan import (
    BEFORE_FILE,
    PLAN_FILE,
    PlanRules,
    last_plan,
    lay_out,
    regions_of,
    save_found,
)
from nearcast.pipeline.tables.transaction import read_table, spark_schema, transaction

pytestmark = pytest.mark.spark

SPACE = Rect(0.0, 0.0, 8.0, 8.0)
MARKET = Rect(1.0, 1.0, 2.5, 3.0)
START = datetime(2026, 5, 1, tzinfo=UTC)

Fix = tuple[str, datetime, float, float, int, float, float]


def walks(seed: int, users: int = 12, fixes: int = 60) -> list[Fix]:
    """Return random walks in and around the space, each with a pause that begins a second trip."""
    rng = np.random.default_rng(seed)
    rows: list[Fix] = []
    for user in range(users):
        x, y = rng.uniform(0, 8, 2)
        t, trip = START + timedelta(seconds=int(rng.integers(0, 100))), 0
        for i in range(fixes):
            step_s = 0.0
            if i == fixes // 2:
                t, trip = t + timedelta(hours=1), 1
            elif i:
                step_s = round(float(rng.uniform(0.5, 60)), 3)
                t += timedelta(seconds=step_s)
                x, y = x + rng.normal(0, 0.5), y + rng.normal(0, 0.5)
            rows.append((f"user{user}", t, float(x), float(y), trip, step_s, 1.0))
    return rows


def table(
    spark: SparkSession, rows: list[Fix], *, partitions: int = 2, seed: int | None = None
) -> DataFrame:
    if seed is not None:
        order = np.random.default_rng(seed).permutation(len(rows))
        rows = [rows[i] for i in order]
    frame = spark.createDataFrame(rows, spark_schema(POSITIONS))
    return frame.repartition(partitions) if seed is not None else frame.coalesce(partitions)


Moves = dict[tuple[int, int], int]


def cell_of(x: float, y: float) -> int | None:
    if not SPACE.contains(x, y):
        return None
    return min(int(y / 0.5), 15) * 16 + min(int(x / 0.5), 15)


def movement_by_definition(rows: list[Fix], since: float, until: float) -> tuple[list[int], Moves]:
    """Follow each user through each trip; sum steps where they end, and count other cells."""
    times, moves = [0] * 256, Moves()
    for key in {(row[0], row[4]) for row in rows}:
        track = sorted(row for row in rows if (row[0], row[4]) == key)
        before: int | None = None
        for _, t, x, y, _, step_s, _ in track:
            after = cell_of(x, y)
            if since < t.timestamp() <= until:
                if after is not None:
                    times[after] += round(step_s * 1000) or 1000
                if before is not None and after is not None and before != after:
                    pair = (min(before, after), max(before, after))
                    moves[pair] = moves.get(pair, 0) + 1
            before = after
    return times, moves


def moves_of(movement: Movement) -> Moves:
    pairs = zip(movement.low.tolist(), movement.high.tolist(), strict=True)
    return dict(zip(pairs, movement.moves.tolist(), strict=True))


@pytest.mark.parametrize(("partitions", "seed"), [(1, None), (7, 5)])
def test_movement_is_that_of_each_user_in_each_trip(
    spark: SparkSession, partitions: int, seed: int | None
):
    rows = walks(1)
    positions = table(spark, rows, partitions=partitions, seed=seed)
    until = (START + timedelta(minutes=12)).timestamp()
    found = count_movement(positions, SPACE, 4, RecordParts(round(until * 1e6)))
    for movement, since, end in (
        (found.whole, -np.inf, np.inf),
        (found.early, -np.inf, until),
        (found.late, until, np.inf),
    ):
        times, moves = movement_by_definition(rows, since, end)
        assert movement.time_ms.ravel().tolist() == times
        assert moves_of(movement) == moves
        assert moves
    instants = sorted(t.timestamp() for _, t, *_ in rows)
    assert found.whole.span_ms == pytest.approx(1e3 * (instants[-1] - instants[0]), abs=1)
    assert found.early.span_ms < found.whole.span_ms
    assert found.fixes + found.left_out == len(rows)
    assert record_ends(positions) == tuple(round(1e6 * t) for t in (instants[0], instants[-1]))


def test_parts_of_a_record_are_told_apart(spark: SparkSession):
    """By what people do and by the clock: each part is what it is alone."""
    rng = np.random.default_rng(5)
    rows: list[Fix] = []
    for name in ("ann", "bob", "eve"):
        for i in range(40):
            x, y = (float(one) for one in rng.uniform(0, 8, 2))
            step_s = 18_000.0 if i % 20 else 0.0
            walked = float(rng.choice([0, 10_000, 90_000]))
            rows.append((name, START + timedelta(hours=5 * i), x, y, i // 20, step_s, walked))
    zone = "America/Los_Angeles"
    found = count_movement(table(spark, rows, seed=3), SPACE, 4, RecordParts(zone=zone))
    for kind, movement in enumerate(found.kinds):
        alone = [row for row in rows if _kind(row) == kind]
        assert movement.time_ms.ravel().tolist() == _times(alone)
        assert alone
    assert found.week is not None
    for block, movement in enumerate(found.week[0].blocks):
        alone = [row for row in rows if _block(row[1], zone) == block]
        assert movement.time_ms.ravel().tolist() == _times(alone)
        assert alone
    assert sum(one.span_ms for one in found.week[0].blocks) == pytest.approx(
        found.whole.span_ms, rel=0.01
    )
    assert 30 < sum(found.week[0].changes.values()) < 36  # four a day
    assert sum(moves_of(found.whole).values()) > 90
    assert sum(moves_of(found.whole).values()) == sum(
        sum(moves_of(one).values()) for one in found.kinds
    )


def _times(rows: list[Fix]) -> list[int]:
    times = [0] * 256
    for _, _, x, y, _, step_s, _ in rows:
        cell = cell_of(x, y)
        if cell is not None:
            times[cell] += round(step_s * 1000) or 1000
    return times


def _kind(row: Fix) -> int:
    speed = row[6] / row[5] if row[5] else 0.0
    return 0 if speed < 0.5 else 1 if speed < 2.5 else 2


def _block(t: datetime, zone: str) -> int:
    local = t.astimezone(ZoneInfo(zone))
    return (4 if local.strftime("%a") in {"Sat", "Sun"} else 0) + local.hour // 6


def test_what_is_collected_has_a_bound(spark: SparkSession):
    """Nothing that grows with the positions reaches the driver."""
    moves = moves_between_cells(table(spark, walks(1, users=40)), SPACE, 4)
    whole = collected_moves(moves, 4)
    total = whole["moves"].sum()
    assert len(whole) > 100
    few = collected_moves(moves, 4, most_rows=100)
    assert 10 < len(few) <= 100
    assert (few["low"] < few["high"]).all()
    assert 0.3 * total < few["moves"].sum() <= total
    exact = {(r.part, r.low, r.high): r.moves for r in whole.itertuples()}
    step = 2
    while True:
        rounded: dict[tuple[int, int, int], int] = {}
        for (part, *ends), count in exact.items():
            a, b = sorted((c // 16 // step * step) * 16 + c % 16 // step * step for c in ends)
            if a != b:
                rounded[part, a, b] = rounded.get((part, a, b), 0) + count
        if len(rounded) <= 100:
            break
        step *= 2
    assert {(r.part, r.low, r.high): r.moves for r in few.itertuples()} == rounded


def test_plans_of_their_own_where_they_pay(spark: SparkSession, tmp_path: Path):
    """By day all are in the west, by night in the east: each needs brokers there."""
    rng = np.random.default_rng(1)
    rows: list[Fix] = []
    for user in range(40):
        for step in range(5 * 24 * 2):
            t = START + timedelta(minutes=30 * step)
            x = rng.uniform(0.1, 2.9) if 6 <= t.hour < 18 else rng.uniform(5.1, 7.9)
            rows.append((f"u{user}", t, float(x), float(rng.uniform(0, 8)), 0, 1800.0, 10.0))
    rules = PlanRules(capacity=4.0, depth=4, space=SPACE, time_zone="UTC", brokers=3,
                      weights=LayoutWeights(1.0, 0.05, 0.0))  # fmt: skip
    found = lay_out(table(spark, rows), [], rules)
    assert found.scheduled is not None
    by_name = {row["division"]: row for row in found.summary()["time_classes"]}
    assert by_name["hours"]["chosen"]
    assert by_name["hours"]["brokers"] < by_name["always"]["brokers"]
    assert by_name["hours"]["handovers_by_changes"] > 0
    save_found(found, tmp_path)
    loaded = load_schedule(tmp_path / "schedule.json")
    assert loaded.schedule.zone.key == "UTC"
    assert len(loaded.plans) == 4
    assert all(len(set(plan.brokers or ())) <= 3 for plan in loaded.plans.values())
    text = "\n".join(found.lines())
    assert "Plans by hours pay" in text
    once = lay_out(table(spark, rows), [], PlanRules(capacity=4.0, depth=4, space=SPACE))
    assert once.scheduled is None
    save_found(once, tmp_path)
    assert not (tmp_path / "schedule.json").exists()


def test_where_people_do_the_same_at_all_hours_one_plan_is_best(spark: SparkSession):
    rng = np.random.default_rng(2)
    rows: list[Fix] = []
    for user in range(20):
        for i in range(5 * 48):
            x, y = (float(one) for one in rng.uniform(0, 8, 2))
            rows.append((f"u{user}", START + timedelta(minutes=30 * i), x, y, 0, 1800.0, 1.0))
    rules = PlanRules(capacity=2.0, depth=4, space=SPACE, time_zone="Europe/Berlin")
    found = lay_out(table(spark, rows), [], rules)
    assert found.scheduled is not None
    assert found.scheduled.classes.best == "always"
    assert "One plan for all times is best" in "\n".join(found.lines())


def test_the_space_is_where_nearly_all_are(spark: SparkSession):
    rows = [(f"u{i}", START, 8.501 + 0.001 * (i % 39), 47.3, 0, 0.0, 0.0) for i in range(1000)] + [
        ("lost", START, -120.0, -80.0, 0, 0.0, 0.0)
    ]
    assert central_space(table(spark, rows)) == Rect(8.5, 47.3, 8.54, 47.31)


def crowd(spark: SparkSession, town: int = 3, **how: int) -> DataFrame:
    return table(spark, walks(town, users=20), **how)


def test_the_plan_is_the_one_that_locality_lays_out_of_these_counts(spark: SparkSession):
    rules = PlanRules(capacity=0.5, depth=4, space=SPACE, hold_out=0.3)
    positions = crowd(spark)
    found = lay_out(positions, [MARKET, Rect(50.0, 50.0, 51.0, 51.0)], rules)
    whole = count_movement(positions, SPACE, 4).whole
    reach = (1, 1)
    expected = propose(SPACE, [MARKET], whole, 0.5, reach)
    assert [leaf.rect for leaf in found.plan.leaves] == [
        leaf.rect for leaf in expected.plans["optimised"].leaves
    ]
    assert found.regions_outside == 1
    summary = found.summary()
    assert summary["leaves_q_only"] == len(expected.plans["q_only"].leaves)
    assert summary["positions"] + summary["outside_the_space"] == 20 * 60
    loads = sum(leaf.load for leaf in found.plan.leaves)
    assert loads == pytest.approx(summary["users_at_once"], abs=len(found.plan.leaves) / 2)
    learned = [row for row in summary["layouts"] if row["days"] == "learned"]
    assert learned == layout_rows(expected.learned, "learned")


def test_layouts_are_judged_on_days_that_they_were_not_learned_from(spark: SparkSession):
    rules = PlanRules(capacity=0.5, depth=4, space=SPACE, hold_out=0.3)
    positions = crowd(spark)
    found = lay_out(positions, [MARKET], rules)
    rows = {(row["layout"], row["days"]): row for row in found.summary()["layouts"]}
    assert set(rows) == {(name, days) for name in NAMES for days in ("learned", "held_out")}
    first, last = record_ends(positions)
    parts = RecordParts(last - round(0.3 * (last - first)))
    counted = count_movement(positions, SPACE, 4, parts)
    rehearsal = propose(SPACE, [MARKET], counted.early, 0.5, (1, 1))
    costs = rehearsal.on(counted.late, 0.5, (1, 1))
    assert [rows[name, "held_out"] for name in NAMES] == layout_rows(costs, "held_out")
    text = "\n".join(found.lines())
    assert "optimised   held_out" in text
    none = lay_out(positions, [MARKET], PlanRules(capacity=0.5, depth=4, space=SPACE, hold_out=0))
    assert {row["days"] for row in none.summary()["layouts"]} == {"learned"}


@pytest.mark.parametrize(("days", "is_proof"), [(0, False), (1, False), (2, True)])
def test_lines_of_its_own_need_a_second_day(spark: SparkSession, days: int, is_proof: bool):
    """The hours held out are of the same day, or of another one."""
    rows = walks(3, users=6)
    again: list[Fix] = [(row[0], row[1] + timedelta(days=days), *row[2:]) for row in rows]
    rules = PlanRules(capacity=0.5, depth=4, space=SPACE, hold_out=0.5)
    found = lay_out(table(spark, rows + again if days else rows), [], rules)
    rehearsal = plan_job._rehearsal(found.counted)
    assert rehearsal is not None
    assert rehearsal.is_proof == is_proof
    assert is_proof or found.proposals.chosen in {"joined", "q_only"}


def test_where_nothing_is_gained_the_plan_has_quadrants(spark: SparkSession):
    rows = [(f"u{i}", START + timedelta(minutes=i), 4.1, 4.1, 0, 0.0, 0.0) for i in range(50)]
    found = lay_out(table(spark, rows), [], PlanRules(capacity=0.5, depth=4, space=SPACE))
    assert (found.proposals.chosen, found.plan.layout) == ("q_only", "q")
    assert "Nothing is gained over quadrants alone" in "\n".join(found.lines())


def test_about_as_many_leaves_as_asked_for(spark: SparkSession):
    found = lay_out(crowd(spark), [], PlanRules(leaves=100, depth=5, space=SPACE))
    assert len(found.plan.leaves) > 1
    few = lay_out(crowd(spark), [], PlanRules(leaves=1, depth=5, space=SPACE))
    assert len(few.plan.leaves) < len(found.plan.leaves)


def test_the_same_positions_keep_the_plan_and_others_make_the_next_version(
    spark: SparkSession, tmp_path: Path
):
    rules = PlanRules(capacity=0.4, depth=4, space=SPACE, brokers=3)
    first = lay_out(crowd(spark), [MARKET], rules)
    assert (first.plan.version, first.is_new, first.diff) == (1, True, None)
    assert set(first.plan.brokers or ()) == {0, 1, 2}
    save_found(first, tmp_path)
    text = (tmp_path / PLAN_FILE).read_text()
    last = last_plan(tmp_path / PLAN_FILE)
    assert last == first.plan

    again = lay_out(crowd(spark, partitions=5, seed=9), [MARKET], rules, last)
    assert (again.is_new, again.plan) == (False, first.plan)
    assert again.handovers["this plan"] == again.handovers["last plan"]
    save_found(again, tmp_path)
    assert (tmp_path / PLAN_FILE).read_text() == text
    assert not (tmp_path / BEFORE_FILE).exists()

    other = lay_out(crowd(spark, town=8), [], rules, last)
    assert (other.plan.version, other.is_new) == (2, True)
    assert other.diff is not None
    assert other.diff.moved or other.diff.removed
    save_found(other, tmp_path)
    assert (tmp_path / BEFORE_FILE).read_text() == text
    assert load_plan(tmp_path / PLAN_FILE) == other.plan
    for name in ("plan.svg", "plan.geojson"):
        assert (tmp_path / name).stat().st_size > 1_000


def test_brokers_keep_their_leaves_where_they_can(spark: SparkSession):
    rules = PlanRules(capacity=0.4, depth=4, space=SPACE, brokers=3)
    found = lay_out(crowd(spark), [], rules).plan
    turned = found.with_brokers([(broker + 1) % 3 for broker in found.brokers or ()])
    after = lay_out(crowd(spark), [], rules, turned)
    assert after.plan.brokers == turned.brokers
    assert not after.is_new


def test_a_plan_for_another_city_is_laid_out_anew(spark: SparkSession):
    elsewhere = Plan.build((100.0, 40.0, 101.0, 41.0), [], CellCounts.empty(4), version=6)
    found = lay_out(crowd(spark), [], PlanRules(depth=4), elsewhere)
    assert found.plan.version == 7
    assert found.diff is None
    assert found.plan.space.contains(4.0, 4.0)


def test_positions_of_nobody_or_elsewhere_are_said(spark: SparkSession):
    empty = spark.createDataFrame([], spark_schema(POSITIONS))
    with pytest.raises(MisuseError, match="no positions"):
        lay_out(empty, [], PlanRules())
    with pytest.raises(MisuseError, match="no positions"):
        lay_out(empty, [], PlanRules(space=SPACE))
    with pytest.raises(MisuseError, match="1,200 positions, none of them in the space"):
        lay_out(crowd(spark), [], PlanRules(space=Rect(70.0, 70.0, 71.0, 71.0)))
    with pytest.raises(MisuseError, match="no column 'step_s'"):
        lay_out(crowd(spark).drop("step_s"), [], PlanRules())


def test_one_position_is_enough_for_a_plan(spark: SparkSession):
    found = lay_out(table(spark, walks(1, users=1, fixes=1)), [], PlanRules(brokers=2))
    assert len(found.plan.leaves) == 1
    assert found.summary()["handovers"] == {"this plan": 0, "q only": 0}


def test_a_plan_of_another_version_is_refused_and_stays(tmp_path: Path):
    path = tmp_path / PLAN_FILE
    assert last_plan(path) is None
    save_plan(Plan.build(SPACE, [], CellCounts.empty(3)), path)
    for bad in (path.read_text().replace('"format_version": 1', '"format_version": 9'), "{", "[]"):
        path.write_text(bad)
        with pytest.raises(FileFormatError, match="move it away"):
            last_plan(path)
        assert path.read_text() == bad


@pytest.mark.parametrize("wrong", [{"leaves": 0}, {"brokers": 0}, {"capacity": 0.0},
                                   {"capacity": float("nan")}])  # fmt: skip
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, float]):
    with pytest.raises(OutOfRangeError):
        PlanRules(**wrong)  # type: ignore[arg-type]


def test_regions_come_in_the_order_of_their_numbers(spark: SparkSession):
    rows = [(1, 0.0, 0.0, 1.0, 1.0, 2, 9.0, 0.9, 0.1), (0, 2.0, 2.0, 3.0, 3.0, 2, 9.0, 0.9, 0.1)]
    frame = spark.createDataFrame(rows, spark_schema(REGIONS))
    assert regions_of(frame) == [Rect(2.0, 2.0, 3.0, 3.0), Rect(0.0, 0.0, 1.0, 1.0)]
    with pytest.raises(MisuseError, match="no column 'north'"):
        regions_of(frame.drop("north"))


def test_the_map_has_leaves_and_regions(spark: SparkSession, tmp_path: Path):
    found = lay_out(crowd(spark), [MARKET], PlanRules(depth=4, space=SPACE))
    save_found(found, tmp_path / "deep" / "er", tmp_path / "elsewhere.json")
    features = json.loads((tmp_path / "deep/er/plan.geojson").read_text())["features"]
    kinds = [feature["properties"]["kind"] for feature in features]
    assert kinds.count("slow region") == 1
    assert len(kinds) == len(found.plan.leaves) + 1
    assert load_plan(tmp_path / "elsewhere.json") == found.plan


def test_a_stored_table_is_counted_like_any_frame(spark: SparkSession, tmp_path: Path):
    rows = walks(6, users=30)
    frame = table(spark, rows, partitions=3)
    with transaction() as written:
        written.write(frame, str(tmp_path / "positions"), POSITIONS)
    stored = read_table(spark, str(tmp_path / "positions"))
    assert central_space(stored) == central_space(frame)
    assert_equal(count_movement(stored, SPACE, 4), count_movement(frame, SPACE, 4))
    early = stored.where("t < timestamp '2026-05-01 00:05:00'")
    some = [row for row in rows if row[1] < START + timedelta(minutes=5)]
    assert 0 < len(some) < len(rows)
    census = count_movement(early, SPACE, 4)
    assert census.fixes + census.left_out == len(some)  # not those of the whole table
    assert time_per_cell(early, SPACE, 4).where("part >= 24").count() == 0


def assert_equal(found: Counted, wanted: Counted) -> None:
    assert (found.fixes, found.left_out) == (wanted.fixes, wanted.left_out)
    assert (found.whole.time_ms == wanted.whole.time_ms).all()
    assert moves_of(found.whole) == moves_of(wanted.whole)
