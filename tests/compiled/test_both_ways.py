"""The compiled core of the broker and its Python modules, which are its oracle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

from nearcast import compiled_core

ROOT = Path(__file__).parents[2]
# Some packages install a package `tests` of their own: ours is named here.
_HISTORIES = """
import sys, types
tests = types.ModuleType("tests")
tests.__path__ = ["tests"]
sys.modules["tests"] = tests
from tests.support.core_histories import main
main()
"""
_COMPILED = compiled_core.extensions(compiled_core.DIRECTORY / compiled_core.key())
needs_core = pytest.mark.skipif(not _COMPILED, reason="the core is not compiled (make compiled)")


def outcomes(plain: str, first: int, count: int) -> list[dict[str, Any]]:
    environment = {**os.environ, compiled_core.PLAIN: plain, "PYTHONPATH": "src"}
    done = subprocess.run(
        [sys.executable, "-c", _HISTORIES, str(first), str(count)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@needs_core
@pytest.mark.server
def test_both_ways_send_and_store_the_same_bytes() -> None:
    plain, compiled = outcomes("1", 1, 25), outcomes("", 1, 25)
    assert (plain[0]["compiled"], compiled[0]["compiled"]) == (False, True)
    assert compiled[1:] == plain[1:]
    assert len({one["got"] for one in plain[1:]}) == 25  # the seeds differ
    assert sum(one["counters"]["publish_sent"] for one in plain[1:]) > 250


def test_a_core_of_other_sources_is_not_used(tmp_path: Path, monkeypatch: Any) -> None:
    suffix = EXTENSION_SUFFIXES[0]
    package = tmp_path / "nearcast"
    (package / "mqtt").mkdir(parents=True)
    (package / "server").mkdir()
    for name in ("mqtt/wire.py", "server/loop_batches.py", "server/clock.py"):
        (package / name).write_text("A = 1\n")
    monkeypatch.setattr(compiled_core, "PACKAGE", package)
    key = compiled_core.key()
    made = package / "_compiled" / key / "nearcast" / "mqtt"
    made.mkdir(parents=True)
    (made / f"wire{suffix}").write_bytes(b"")
    found = compiled_core.extensions(package / "_compiled" / key)
    assert found == {"nearcast.mqtt.wire": made / f"wire{suffix}"}
    (package / "mqtt" / "wire.py").write_text("A = 2\n")
    assert compiled_core.key() != key
    assert compiled_core.extensions(package / "_compiled" / compiled_core.key()) == {}


def test_the_finder_finds_the_core_and_nothing_else(tmp_path: Path) -> None:
    finder = compiled_core.CompiledCore({"nearcast.mqtt.wire": tmp_path / "wire.so"})
    spec = finder.find_spec("nearcast.mqtt.wire")
    assert spec is not None
    assert spec.origin == str(tmp_path / "wire.so")
    assert finder.find_spec("nearcast.mqtt.topics") is None
