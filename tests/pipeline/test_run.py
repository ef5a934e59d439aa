"""A whole run: every job in turn, what changed since the last one, and nothing by halves."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.support.space_sections import placed_section, space_section
from tests.support.walks_log import START, write_log
from typer.testing import CliRunner

from nearcast.cli import app
from nearcast.eventlog.segments import MAGIC
from nearcast.locality import load_plan
from nearcast.model.errors import NearcastError
from nearcast.pipeline.jobs.histogram import load_histogram
from nearcast.pipeline.run import changes, last_report
from nearcast.retained import read_policies

pytestmark = pytest.mark.spark

CONFIG = (
    placed_section("shops", lon=(8, 9), lat=(47, 48))
    + space_section("silent", x=(0, 1))
    + """
[[retained]]
topics = "plant/#"
mode = "learned"
hold = "10s"
"""
)


def nearcast(*words: str) -> Any:
    """Run a command as people do; return its JSON."""
    done = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def write_walks(path: Path, users: int = 6) -> None:
    """Write people who stand in a market for an hour and then walk across the town."""
    rows: dict[str, list[Any]] = {"user_id": [], "t": [], "lon": [], "lat": []}
    for user in range(users):
        for i in range(120):
            far = max(0, i - 60)
            rows["user_id"].append(f"u{user}")
            rows["t"].append(START + timedelta(minutes=i))
            rows["lon"].append(8.5 + 0.0005 * user + 0.002 * far)
            rows["lat"].append(47.3 + 0.0001 * (i % 3) + 0.001 * far * (user % 2))
    table = {**rows, "t": pa.array(rows["t"], pa.timestamp("us", tz="UTC"))}
    pq.write_table(pa.table(table), path)


def steps_of(report: Any) -> dict[str, Any]:
    return {step["name"]: step for step in report["steps"]}


def test_a_file_of_positions_gives_a_plan_and_the_rest_is_skipped_in_plain_words(
    spark: SparkSession, tmp_path: Path
):
    source, output = tmp_path / "walks.parquet", tmp_path / "out"
    write_walks(source)
    asked = ("pipeline", "run", "--input", str(source), "--output", str(output), "--brokers", "2")
    first = nearcast(*asked)
    steps = steps_of(first)
    assert list(steps) == ["ingest", "regions", "plan", "histogram", "train", "audit"]
    for name in ("histogram", "train", "audit"):
        assert "positions only" in steps[name]["skipped"]
    assert steps["ingest"]["summary"]["kept"] == 720
    assert steps["plan"]["summary"]["version"] == 1
    assert first["first"]
    plan = load_plan(output / "plan.json")
    assert len(plan.leaves) == steps["plan"]["summary"]["leaves"]

    write_walks(source, users=12)
    told = CliRunner().invoke(app, asked, catch_exceptions=False).stdout
    assert "since the last run: kept: 720 -> 1,440" in told
    assert "since the last run: version: 1 -> 2" in told
    assert "plan 2:" in told
    assert "train: skipped, the input has positions only" in told
    assert last_report(str(output))["plan"]["version"] == 2


def test_a_log_gives_plan_histogram_and_policies_and_a_bad_file_stops_all_of_it(
    spark: SparkSession, tmp_path: Path
):
    log, output, config = tmp_path / "log", tmp_path / "out", tmp_path / "nearcast.toml"
    write_log(log)
    config.write_text(CONFIG)
    policies = tmp_path / "data" / "policies.json"
    asked = ("pipeline", "run", "--input", str(log), "--output", str(output),
             "--config", str(config), "--policies", str(policies), "--capacity", "0.1")  # fmt: skip
    steps = steps_of(nearcast(*asked))
    assert steps["ingest"]["summary"]["kept"] == 240
    shops = steps["histogram"]["summary"]["shops"]
    assert (shops["events"], shops["kind"], shops["moved_share"]) == (60, "histogram", None)
    assert "no event" in steps["histogram"]["summary"]["silent"]["skipped"]
    assert steps["train"]["summary"]["tables"] == 2
    assert steps["audit"]["summary"] is not None
    assert set(read_policies(policies).topics) == {"plant/1", "plant/2"}
    density = load_histogram(output / "histogram-shops.json").density()
    assert density.expected(((8.2, 47.4), (8.7, 47.6))) > 0.95
    plan = (output / "plan.json").read_text()
    histogram = (output / "histogram-shops.json").stat().st_mtime_ns

    # A broker of another version wrote the policies: nothing at all is replaced.
    strange = policies.read_text().replace('"version": 1', '"version": 7')
    policies.write_text(strange)
    for path in log.glob("*/part-*.parquet"):
        path.unlink()
    write_log(log, walkers=9)
    with pytest.raises(NearcastError, match="version 7"):
        nearcast(*asked)
    assert policies.read_text() == strange
    assert (output / "plan.json").read_text() == plan
    assert (output / "histogram-shops.json").stat().st_mtime_ns == histogram

    policies.unlink()
    after = nearcast(*asked)
    assert "changed" not in " ".join(after["changes"]["train"])
    assert steps_of(after)["histogram"]["summary"]["shops"]["moved_share"] == 0.0


def test_a_log_without_positions_is_trained_on_all_the_same(spark: SparkSession, tmp_path: Path):
    log, config = tmp_path / "log", tmp_path / "nearcast.toml"
    write_log(log, walkers=0)
    config.write_text(CONFIG)
    out = ("--output", str(tmp_path / "out"), "--config", str(config))
    steps = steps_of(nearcast("pipeline", "run", "--input", str(log), *out))
    assert steps["plan"]["skipped"] == "no client has published its position"
    assert steps["train"]["summary"]["tables"] == 2


def test_an_empty_log_is_said_and_leaves_nothing(spark: SparkSession, tmp_path: Path):
    log = tmp_path / "log"
    log.mkdir()
    (log / "open-n1-00000001.log").write_bytes(MAGIC)
    with pytest.raises(NearcastError, match="an empty log: no event, no position"):
        nearcast("pipeline", "run", "--input", str(log), "--output", str(tmp_path / "out"))
    (log / "open-n1-00000001.log").write_bytes(b"nearcast events 1\n")
    with pytest.raises(NearcastError, match="another version"):
        nearcast("pipeline", "run", "--input", str(log), "--output", str(tmp_path / "out"))
    assert not list((tmp_path / "out").iterdir())


def test_the_jobs_one_by_one(spark: SparkSession, tmp_path: Path):
    log, output, config = tmp_path / "log", tmp_path / "out", tmp_path / "nearcast.toml"
    write_log(log)
    config.write_text(CONFIG)
    here, set_up = ("--output", str(output)), ("--config", str(config))
    for space in ((), ("--space", "shops", *set_up)):
        nearcast("pipeline", "ingest", "--input", str(log), *here, *space)
    positions = str(output / "positions")
    nearcast("pipeline", "regions", "--input", positions, *here)
    bounds = ("--bounds", "8.2,47.3,8.5,47.5")
    planned = nearcast("pipeline", "plan", "--input", positions, *here, *bounds)
    assert planned["space"] == [8.2, 47.3, 8.5, 47.5]
    assert planned["brokers"] is None
    events = str(output / "events")
    counted = nearcast(
        "pipeline", "histogram", "--input", events, "--space", "shops", *here, *set_up
    )
    assert counted["events"] == 60
    trained = nearcast("pipeline", "train", "--input", str(log), *here, *set_up)
    assert trained["tables"] == 2
    told = (
        CliRunner().invoke(app, ["pipeline", "train", "--input", str(log), *here, *set_up]).stdout
    )
    assert "(unchanged)" in told
    for wrong, match in (
        (("plan", "--input", positions, "--bounds", "1,2,3"), "--bounds"),
        (("plan", "--input", positions, "--bounds", "a,b,c,d"), "--bounds"),
        (("plan", "--input", str(output / "none")), "no finished table"),
        (("histogram", "--input", events, "--space", "nowhere", *set_up), "nowhere"),
        (("train", "--input", events, *set_up), "no event log"),
    ):
        with pytest.raises(NearcastError, match=match):
            nearcast("pipeline", *wrong, *here)


def test_changes_are_told_by_name():
    before = {"a": 1, "b": {"c": 2.5, "d": True}, "gone": 3}
    assert changes(before, {"a": 1, "b": {"c": 3.5, "d": False}, "new": 1}) == [
        "b c: 2.5 -> 3.5",
        "b d: True -> False",
    ]
    assert changes({}, {"a": 1, "b": {"c": 2}}) == []


def test_a_damaged_report_is_no_report(tmp_path: Path):
    for text in ("", "[]", '{"steps": 3}', '{"steps": [{}]}'):
        (tmp_path / "run.json").write_text(text)
        assert last_report(str(tmp_path)) == {}
