"""Every command's failure: JSON where that is asked for, before anything slow is started."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from nearcast.cli import app, main

SPACE = """
[[space]]
name = "shops"
topics = "shops/#"
[space.attributes]
price = { low = 0, high = 1000 }
"""

FAILURES = {
    "serve": "--config nowhere.toml",
    "up": "--config nowhere.toml",
    "nodes": "--leave a --forget b",
    "peer": "--listen nowhere",
    "peers": "--contact 127.0.0.1:1",
    "pub": "-t a -m x -p 1",
    "sub": "-t a -p 1",
    "status": "-p 1",
    "explain": "bob -t a -p 1",
    "passwd": "users.txt a:b --delete",
    "init": "there.toml",
    "config check": "nowhere.toml",
    "ban add": "address nowhere",
    "ban list": "--quik",
    "ban remove": "user nobody",
    "keys new": "x.key",
    "keys show": "nowhere.key",
    "journal check": "nowhere",
    "journal repair": "nowhere",
    "demo": "--people 1",
    "reproduce": "--paper 9",
    "bench match": "--quik",
    "bench order": "--quik",
    "bench broker": "--quik",
    "bench selective": "--quik",
    "bench retained": "--quik",
    "bench plan": "--quik",
    "bench overlay": "--quik",
    "bench network": "--quik",
    "bench pipeline": "--quik",
    "bench learning": "--quik",
    "bench dashboard": "--quik",
    "bench workers": "--quik",
    "pipeline ingest": "--input nowhere.csv --output out",
    "pipeline regions": "--input nowhere --output out",
    "pipeline match": "--input nowhere --subscriptions x --output out --space shops",
    "pipeline stream": (
        "--input nowhere --subscriptions x --output out --checkpoint c --space shops"
    ),
    "pipeline plan": "--input nowhere --output out",
    "pipeline histogram": "--input nowhere --output out --space shops",
    "pipeline train": "--input nowhere --output out",
    "pipeline run": "--input nowhere --output out",
    "pipeline audit": "--input nowhere --output out",
    "pipeline whatif": "--input nowhere --plan plan.json",
    "plan show": "nowhere.json",
    "plan diff": "nowhere.json nowhere.json",
    "policy show": "nowhere.json",
    "policy explain": "plant/7/heat -p 1",
}
ANSWERED_ON_STDOUT = {"config check"}  # its answer is a list of problems


def commands(group: typer.Typer = app, before: str = "") -> Iterator[str]:
    for one in group.registered_commands:
        assert one.callback is not None
        yield f"{before}{one.name or one.callback.__name__}"
    for some in group.registered_groups:
        assert some.typer_instance is not None
        yield from commands(some.typer_instance, f"{before}{some.name} ")


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["nearcast", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nearcast.toml").write_text(SPACE)
    (tmp_path / "there.toml").write_text("")


@pytest.fixture
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("nearcast.pipeline.session.spark_session", refuse)


def test_every_command_is_made_to_fail():
    assert set(FAILURES) == set(commands())


@pytest.mark.usefixtures("_no_spark")
@pytest.mark.parametrize("command", FAILURES)
def test_a_failure_under_json_is_one_json_object(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    code = run(monkeypatch, *command.split(), *FAILURES[command].split(), "--json")
    told = capsys.readouterr()
    if command in ANSWERED_ON_STDOUT:
        assert (code, json.loads(told.out)["ok"]) == (1, False)
        return
    answer = json.loads(told.err)
    assert told.out == ""
    assert code == (5 if answer["error"] == "EnvironmentProblem" else 2)
    assert answer["error"] != "AssertionError"
    assert answer["message"]


def test_a_bug_under_json_is_one_json_object_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def break_down(*_: object) -> None:
        raise RuntimeError("the wheel came off")

    monkeypatch.setattr("nearcast.config.read_file", break_down)
    assert run(monkeypatch, "config", "check", "--json") == 6
    answer = json.loads(capsys.readouterr().err)
    assert (answer["error"], answer["message"]) == ("RuntimeError", "the wheel came off")
    assert "break_down" in answer["traceback"]


def test_parts_of_an_error_have_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run(monkeypatch, "pub", "-t", "a", "-m", "x", "-V", "4", "--json")
    answer = json.loads(capsys.readouterr().err)
    assert answer == {
        "error": "MisuseError",
        "message": "--version: found '4'; expected 5 or 3.1.1",
        "found": "'4'",
        "where": "--version",
        "expected": "5 or 3.1.1",
    }


SPARK_JOBS = {
    "pipeline ingest": "--input rows.csv --output out",
    "pipeline match": "--input rows.csv --subscriptions rows.csv --output out --space shops",
    "reproduce": "--quick --out papers",
}


@pytest.mark.parametrize("command", SPARK_JOBS)
def test_without_spark_the_first_thing_said_is_what_to_install(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    Path("rows.csv").write_text("t,user_id,lon,lat\n")
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert run(monkeypatch, *command.split(), *SPARK_JOBS[command].split()) == 5
    told = capsys.readouterr()
    assert told.err == "error: PySpark is not installed. pip install 'nearcast[spark]'\n"
    assert told.out == ""


def test_a_column_that_is_missing_is_said_before_spark_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    Path("cabs.csv").write_text("time,cab,lon,lat\n")
    words = ("pipeline", "ingest", "--input", "cabs.csv", "--output", "out")
    assert run(monkeypatch, *words, "--columns", "t=time") == 2
    told = capsys.readouterr().err
    assert "found no column 'user_id'; expected one of its columns: time, cab, lon, lat" in told


# --- what help shows --------------------------------------------------------------------------


@pytest.mark.parametrize("command", FAILURES)
def test_h_is_help_and_json_a_flag_of_every_command(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert run(monkeypatch, *command.split(), "-h") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "--json <bool> Print JSON for machines instead of text." in told.replace("│ ", "")


def test_help_shows_brackets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    run(monkeypatch, "reproduce", "--help")
    told = " ".join(capsys.readouterr().out.split())
    assert "'nearcast[spark]' and 'nearcast[research]'" in told
    assert "local[*]" in told


def test_no_bracket_of_a_help_text_is_taken_for_markup():
    from rich.text import Text

    for text in help_texts(typer.main.get_command(app)):
        assert Text.from_markup(text).plain == text.replace("\\[", "[")


def help_texts(command: Any) -> Iterator[str]:
    yield command.help or ""
    yield from (getattr(one, "help", "") or "" for one in command.params)
    for one in getattr(command, "commands", {}).values():
        yield from help_texts(one)


def test_help_closes_with_the_command_to_begin_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run(monkeypatch, "--help")
    told = " ".join(capsys.readouterr().out.split())
    assert told.rpartition("╯")[2].strip().startswith("Start with: nearcast serve;")
