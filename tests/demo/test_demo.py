"""The demonstration as a user runs it: nodes, clients and Spark for real, and nothing left over."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nearcast.cli import app
from nearcast.demo.page import rows
from nearcast.demo.story import Chapter, Story

CHAPTERS = ("before", "after")
pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.java]


@pytest.mark.timeout(1200)
def test_a_small_city_lives_learns_and_lives_on(tmp_path: Path):
    out = tmp_path / "demo"
    run = CliRunner().invoke(
        app, ["demo", "--people", "24", "--seconds", "6", "--out", str(out), "--json"]
    )
    assert run.exit_code == 0, run.output
    story = json.loads(run.stdout)
    assert story["before"]["events"] > 50
    assert story["before"]["deliveries"] > story["before"]["events"]
    assert [step["name"] for step in story["steps"]] == [
        "ingest",
        "regions",
        "plan",
        "histogram",
        "train",
        "audit",
    ]
    assert story["audit"]["clean"]
    assert story["leaves"] > 4
    page = (out / "demo.html").read_text()
    assert "<svg" in page
    assert "nothing lost, doubled or late" in page
    assert not re.search(r'(src|href)="(?!#|data:)', page)  # nothing from elsewhere
    if not story["missing"]:
        assert story["nodes"] == 4
        before, after = (story[name]["messages"] / story[name]["events"] for name in CHAPTERS)
        assert after < before


def test_figures_are_compared_for_each_event():
    story = Story(before=Chapter(events=100, messages=50), after=Chapter(events=200, messages=50))
    (change,) = [row[3] for row in rows(story) if row[0] == "messages between nodes"]
    assert change == "-50 %"
