"""From points to files: whole runs on a stand-in and on Spark, and runs that fail."""

import json
from pathlib import Path
from typing import Any

import pytest

from nearcast.cli import app
from nearcast.model.errors import EnvironmentProblem, UnknownNameError
from nearcast.papers import PAPERS, Point, chosen, reproduce
from nearcast.papers.sweep import TaskFailedError, run_point, sweep

CLAIMS = {
    *(f"C0.{n}" for n in range(1, 6)),
    *(f"C1.{n}" for n in range(1, 3)),
    *(f"C2.{n}" for n in range(1, 4)),
    *(f"C3.{n}" for n in range(1, 7)),
    *(f"C4.{n}" for n in range(1, 3)),
}


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_whole_run_judges_every_claim_of_all_papers(
    one_by_one: Any, tiny_points: list[Point], tmp_path: Path
):
    outcome = reproduce(one_by_one, tmp_path, points=tiny_points)
    assert set(outcome.verdicts()) == CLAIMS
    assert one_by_one.slices == len(tiny_points)
    records = json.loads((tmp_path / "claims.json").read_text())
    assert {record["id"] for record in records} == CLAIMS
    wanted = {"id", "paper_says", "measured", "confidence_interval", "holds", "seeds", "parameters"}
    assert all(wanted <= set(record) for record in records)
    assert all(record["holds"] in (True, False) and record["measured"] for record in records)
    text = (tmp_path / "report.html").read_text()
    assert all(f"<strong>{name}</strong>" in text for name in CLAIMS)
    pictures = list((tmp_path / "figures").iterdir())
    assert text.count("<figure") == len(pictures) == 7
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert set(rows) == {"0", "1", "2", "3", "4"}
    assert not list(tmp_path.glob(".new-*"))


def test_rows_come_back_in_the_order_of_the_points_with_the_dearest_run_first(one_by_one: Any):
    points = [
        Point(1, "errors", s, {"workload": "uniform", "intervals": 9, "k": 2, "queries": 5}, cost)
        for s, cost in ((1, 1.0), (2, 9.0), (3, 3.0))
    ]
    done = sweep(one_by_one, points)
    assert [one.point.seed for one in done] == [1, 2, 3]
    assert [one.rows[0]["seed"] for one in done] == [1, 2, 3]
    assert [one.point.seed for one in one_by_one.values] == [2, 3, 1]


def test_a_point_gives_the_same_rows_again():
    point = Point(1, "errors", 4, {"workload": "uniform", "intervals": 40, "k": 2, "queries": 20})
    assert run_point(point).rows == run_point(point).rows
    assert run_point(point).rows[0]["kind"] == "errors"


@pytest.mark.spark
def test_spark_gives_the_same_verdicts_as_one_process(
    spark: Any, one_by_one: Any, tiny_points: list[Point], tmp_path: Path
):
    few = [point for point in tiny_points if point.paper in (0, 1, 4)]
    ours = reproduce(spark, tmp_path / "a", papers=[0, 1, 4], points=few)
    other = reproduce(one_by_one, tmp_path / "b", papers=[0, 1, 4], points=few)
    assert [c for p in ours.papers for c in p.claims] == [c for p in other.papers for c in p.claims]
    assert ours.facts["tasks"] == str(len(few))


# --- bad input, and runs that do not end well ---------------------------------------------------


@pytest.mark.parametrize("number", [-1, 5, 99])
def test_an_unknown_paper_is_named_before_anything_starts(number: int, tmp_path: Path):
    with pytest.raises(UnknownNameError, match=rf"--paper: found {number}; expected .* 0 to 4"):
        chosen([number])
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, ["reproduce", "--paper", str(number), "--out", str(tmp_path)])
    assert isinstance(result.exception, UnknownNameError)
    assert list(tmp_path.iterdir()) == []


def test_papers_can_be_chosen_and_none_means_all():
    assert list(chosen([3, 1, 3])) == [1, 3]
    assert chosen([]) == PAPERS


def test_a_file_in_the_place_of_the_folder_is_said_before_anything_starts(
    one_by_one: Any, tmp_path: Path
):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    for out in (taken, taken / "below"):
        with pytest.raises(EnvironmentProblem, match="nothing can be written there"):
            reproduce(one_by_one, out, points=[])
    assert taken.read_text() == "mine"
    assert one_by_one.slices == 0


def test_no_java_is_said_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from typer.testing import CliRunner

    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    result = CliRunner().invoke(app, ["reproduce", "--quick", "--out", str(tmp_path / "out")])
    assert isinstance(result.exception, EnvironmentProblem)
    assert "Spark needs Java" in str(result.exception)


@pytest.fixture
def old_report(tmp_path: Path) -> dict[str, bytes]:
    """What an earlier run wrote, and a file that is not ours."""
    (tmp_path / "figures").mkdir()
    for name in ("report.html", "claims.json", "rows.json", "figures/paper-1.svg", "notes.txt"):
        (tmp_path / name).write_text(f"old {name}")
    return files(tmp_path)


def test_a_task_that_fails_is_named_and_the_old_report_stays(
    one_by_one: Any, old_report: dict[str, bytes], tmp_path: Path
):
    bad = Point(1, "errors", 7, {"workload": "none such", "intervals": 3, "k": 1, "queries": 1})
    with pytest.raises(TaskFailedError, match=r"seed 7 .*'none such'.* untouched"):
        reproduce(one_by_one, tmp_path, papers=[1], points=[bad])
    assert files(tmp_path) == old_report


@pytest.mark.parametrize("where", ["run", "page"])
def test_an_interrupted_run_leaves_the_old_report(
    where: str,
    one_by_one: Any,
    tiny_points: list[Point],
    old_report: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    import sys

    module = sys.modules["nearcast.papers.reproduce"]

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, {"run": "sweep", "page": "page"}[where], interrupted)
    some = [point for point in tiny_points if point.paper == 1]
    with pytest.raises(KeyboardInterrupt):
        reproduce(one_by_one, tmp_path, papers=[1], points=some)
    assert files(tmp_path) == old_report


def test_a_disk_that_is_full_leaves_the_old_report(
    one_by_one: Any,
    tiny_points: list[Point],
    old_report: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    some = [point for point in tiny_points if point.paper == 1]
    with pytest.raises(EnvironmentProblem, match="No space left on device"):
        reproduce(one_by_one, tmp_path, papers=[1], points=some)
    assert files(tmp_path) == old_report


def test_a_new_run_takes_the_place_of_the_old_one_and_keeps_other_files(
    one_by_one: Any, tiny_points: list[Point], old_report: dict[str, bytes], tmp_path: Path
):
    some = [point for point in tiny_points if point.paper == 4]
    reproduce(one_by_one, tmp_path, papers=[4], points=some)
    assert (tmp_path / "notes.txt").read_text() == "old notes.txt"
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert names == ["paper-4-omega.svg", "paper-4-publish.svg"]
    assert "C1.1" not in (tmp_path / "claims.json").read_text()
