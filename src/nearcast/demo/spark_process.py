"""A process with one Spark session, in which commands of `nearcast pipeline` run.

Java and Spark take seconds to start. The demonstration starts this process before its nodes, so
that Spark is ready when the city has lived, and both learning and the audit run in it.

    demonstration ──► ["pipeline", "run", …, "--json"]       a line of JSON for each command
                  ◄── {"found": {…}} or {"problem": "…"}     the first line says that Spark is ready
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from nearcast.model.errors import EnvironmentProblem, NearcastError

# A short job runs much code once: Java's second compiler costs it more than it saves.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_CODE = "from nearcast.cli import app; from nearcast.demo.spark_process import serve; serve(app)"
_NICER = 5  # than the nodes and the clients, which people look at
_MOST_BYTES = 1 << 24  # of an answer

Command = Callable[..., Any]


class SparkProcess:
    """The process as the demonstration sees it; it ends with the body."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._ready: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()
        if self._ready is not None:
            self._ready.cancel()

    @property
    def is_started(self) -> bool:
        """Whether the process was started."""
        return self._process is not None

    @property
    def is_ready(self) -> bool:
        """Whether Spark is up, or has failed to come up."""
        return self._ready is not None and self._ready.done()

    async def start(self) -> None:
        """Start the process; Spark comes up meanwhile."""
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _CODE,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env={"SPARK_SUBMIT_OPTS": _JAVA, **os.environ},
                limit=_MOST_BYTES, start_new_session=True,  # Ctrl-C is for the demonstration
            )  # fmt: skip
        self._ready = asyncio.create_task(self._answer())

    async def ready(self) -> None:
        """Wait until Spark is up."""
        assert self._ready is not None
        await self._ready

    async def run(self, *words: str) -> dict[str, Any]:
        """Run a command and return what it prints as JSON."""
        await self.ready()
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        found: dict[str, Any] = await self._answer()
        return found

    async def _answer(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        answer = json.loads(line) if line else {"problem": self._last_words()}
        if "problem" in answer:
            raise EnvironmentProblem(
                f"the pipeline failed: {answer['problem']}", todo=f"See {self._log}."
            )
        return answer["found"]

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it ended without a message"


def serve(command: Command) -> None:
    """Start Spark and run each command that standard input asks for, until it ends."""
    from nearcast.pipeline.session import spark_session

    os.nice(_NICER)
    answers = sys.stdout
    try:
        spark = spark_session()
        spark.range(1).mapInArrow(lambda rows: rows, "id bigint").collect()  # starts a worker
        _say(answers, {"found": "ready"})
    except NearcastError as problem:
        _say(answers, {"problem": str(problem)})
    for line in sys.stdin:
        _say(answers, _outcome(command, json.loads(line)))


def _outcome(command: Command, words: list[str]) -> dict[str, Any]:
    """Return what a command prints, or why it failed; an audit that finds faults has not failed."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            command(words, standalone_mode=False)
    except NearcastError as problem:
        return {"problem": str(problem)}
    return {"found": json.loads(printed.getvalue())}


def _say(answers: io.TextIOBase | Any, answer: dict[str, Any]) -> None:
    print(json.dumps(answer), file=answers, flush=True)
