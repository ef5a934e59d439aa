"""The demonstration as a user runs it: nodes, clients and Spark for real, and nothing left over."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nearcast.cli import app
from nearcast.demo.needs import Needs

INSTALL_SPARK = "PySpark is not installed. pip install 'nearcast[spark]'"
pytestmark = pytest.mark.server


def run_demo(out: Path, *options: str) -> Any:
    command = ["demo", "--people", "24", "--seconds", "4", "--out", str(out), *options]
    run = CliRunner().invoke(app, command)
    assert run.exit_code == 0, run.output
    return json.loads(run.stdout) if "--json" in options else run.stdout


@pytest.mark.spark
@pytest.mark.java
def test_a_small_city_lives_learns_and_lives_on(tmp_path: Path):
    out = tmp_path / "demo"
    story = run_demo(out, "--json")
    chapters = [story[name] for name in ("no_plan", "learned", "quadrants")]
    # at first all stops, in each step twelve events and the stops whose turn it is: 2, 2, 2, 1
    assert chapters[0]["events"] == 7 + 8 * 12 + 2 * 7
    assert [one["events"] for one in chapters] == 3 * [chapters[0]["events"]]
    assert all(one["near"] > 0 and one["messages"] > 0 for one in chapters)
    assert story["flooded"] == 2 * 3 * chapters[0]["events"]
    names = [step["name"] for step in story["steps"]]
    assert names == ["ingest", "regions", "plan", "train"]
    assert story["leaves_quadrants"] == story["leaves_needed"]  # both have as many people in each
    assert story["audit"]["clean"]
    assert story["leaves"] > 4
    assert story["no_plan"]["copies"] >= story["learned"]["copies"]  # one for each arrival before
    assert story["missing"] == []
    page = (out / "demo.html").read_text()
    assert "<svg" in page
    assert "no message was lost, doubled or late" in page
    assert page.count("<rect ") == story["leaves"]
    assert all(name in page for name in ("north", "east", "south", "west"))
    assert not re.search(r'(src|href)="(?!#|data:)', page)  # nothing from elsewhere


def test_without_spark_it_shows_what_it_does_and_says_first_what_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("nearcast.pipeline.session.find_spec", lambda _: None)
    said = run_demo(tmp_path / "demo")
    lines = said.splitlines()
    assert lines[0] == f"Learning will be left out: {INSTALL_SPARK}"
    assert "   Ana is  63 m away and gets it." in lines
    assert "   Ben is 647 m away and does not." in lines
    assert "courier5 (33 m), courier3 (205 m), courier7 (235 m)" in said
    assert "This is wrong" not in said
    assert f"Left out: learning: {INSTALL_SPARK}" in lines


def test_the_city_lives_on_while_what_learning_needs_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log = tmp_path / "arriving"
    log.write_text("Installing PySpark ....")

    def missing(_: Needs) -> str:
        assert not log.exists()  # nobody asks before the installation has ended
        return INSTALL_SPARK

    def progress(_: Needs) -> str:
        text = log.read_text()
        log.unlink()
        return text

    monkeypatch.setattr(Needs, "missing", missing)
    monkeypatch.setattr(Needs, "progress", progress)
    said = run_demo(tmp_path / "demo", "--wait-for", str(log))
    assert "Learning will be left out" not in said
    assert "the city lives on meanwhile" in said
    assert "   Installing PySpark ....\n" in said
    assert "3. Learning is left out: PySpark is not installed." in said
