"""Commands in one process with Spark: what they print comes back, and how they fail is said."""

import json
import sys
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from nearcast.demo import spark_process
from nearcast.demo.spark_process import SparkProcess, serve
from nearcast.model.errors import EnvironmentProblem, MisuseError

ECHO = """
import json, sys
print(json.dumps({"found": "ready"}), flush=True)
for line in sys.stdin:
    print(json.dumps({"found": {"words": json.loads(line)}}), flush=True)
"""
DYING = "import sys; sys.exit('Java is broken')"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "pipeline.log"


async def test_commands_are_run_one_after_the_other(log: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spark_process, "_CODE", ECHO)
    async with SparkProcess(log) as spark:
        assert not spark.is_started
        await spark.start()
        await spark.ready()
        assert spark.is_ready
        assert await spark.run("pipeline", "run") == {"words": ["pipeline", "run"]}
        assert await spark.run("pipeline", "audit") == {"words": ["pipeline", "audit"]}
        process = spark._process
    assert process is not None
    assert process.returncode is not None  # it has ended with the body


async def test_a_process_that_dies_is_reported_with_its_last_words(
    log: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spark_process, "_CODE", DYING)
    async with SparkProcess(log) as spark:
        await spark.start()
        with pytest.raises(EnvironmentProblem, match="the pipeline failed: Java is broken"):
            await spark.run("pipeline", "run")


def test_what_a_command_prints_or_raises_is_the_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def command(words: list[str], **_: Any) -> None:
        if words == ["bad"]:
            raise MisuseError("no log")
        sys.stdout.write('{"steps":\n []}')

    monkeypatch.setattr("nearcast.pipeline.session.spark_session", Mock())
    monkeypatch.setattr("os.nice", lambda _: 0)
    monkeypatch.setattr(sys, "stdin", StringIO('["good"]\n["bad"]\n["good"]\n'))
    serve(command)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"found": "ready"},
        {"found": {"steps": []}},
        {"problem": "no log"},
        {"found": {"steps": []}},
    ]
