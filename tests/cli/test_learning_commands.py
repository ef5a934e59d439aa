"""The learning commands explain themselves, and refuse what cannot be before Spark is started."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from nearcast.cli import app
from nearcast.model.errors import EnvironmentProblem, FileFormatError, NearcastError

COMMANDS = ("plan", "histogram", "train", "run")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str):
    done = CliRunner().invoke(app, ["pipeline", command, "--help"])
    assert done.exit_code == 0
    assert f"Example: nearcast pipeline {command}" in " ".join(done.stdout.split())


def refuse(*words: str) -> NearcastError:
    with pytest.raises(NearcastError) as caught:
        CliRunner().invoke(app, ["pipeline", *words, "--master", "none"], catch_exceptions=False)
    return caught.value


def test_a_plan_of_another_version_is_refused_before_spark_is_started(tmp_path: Path):
    (tmp_path / "plan.json").write_text('{"format": "nearcast-plan", "format_version": 9}')
    here = ("--output", str(tmp_path))
    problem = refuse("plan", "--input", "positions", *here)
    assert isinstance(problem, FileFormatError)
    assert "format version 9" in str(problem)
    assert "move it away" in str(problem)
    assert "9}" in (tmp_path / "plan.json").read_text()


def test_policies_of_another_version_are_refused_before_spark_is_started(tmp_path: Path):
    config = tmp_path / "nearcast.toml"
    config.write_text('[[retained]]\ntopics = "a/#"\n')
    (tmp_path / "policies.json").write_text("{}")
    asked = ("--input", "log", "--output", str(tmp_path), "--config", str(config))
    assert "another kind of file" in str(refuse("train", *asked))
    (tmp_path / "policies.json").unlink()
    assert "no event log" in str(refuse("train", *asked))


@pytest.mark.parametrize("bounds", ["1,2,3", "a,b,c,d", "3,0,1,1", "1,2,3,nan"])
def test_bounds_that_are_none_are_refused(bounds: str, tmp_path: Path):
    for command in ("plan", "run"):
        asked = ("--input", "x", "--output", str(tmp_path), "--bounds", bounds)
        assert "--bounds" in str(refuse(command, *asked))


def test_a_space_that_is_not_declared_is_named(tmp_path: Path):
    config = tmp_path / "nearcast.toml"
    config.write_text("")
    asked = ("--input", "x", "--output", str(tmp_path), "--config", str(config))
    assert "'shops'" in str(refuse("histogram", "--space", "shops", *asked))


def test_a_cluster_is_looked_for_before_a_run_that_shares(tmp_path: Path):
    asked = ("run", "--input", "x", "--output", str(tmp_path), "--join", "nats://127.0.0.1:1")
    assert "--share" in str(refuse(*asked))
    problem = refuse(*asked, "--share")
    assert isinstance(problem, EnvironmentProblem)
    assert "nats-server" in str(problem)
    assert not list(tmp_path.iterdir())
