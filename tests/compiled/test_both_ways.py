"""The compiled core of the broker and its Python modules, which are its oracle."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

from nearcast import compiled_core, compiling

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


@pytest.fixture(scope="module")
def core() -> Path:
    """Return the compiled core: set-up compiles it in the background, and this waits for it."""
    if not compiling.is_compiled() and compiling.missing():
        pytest.skip(f"the core cannot be compiled: {compiling.missing()}")
    return compiling.compile_core()


def outcomes(plain: str, first: int, count: int) -> list[dict[str, Any]]:
    environment = {**os.environ, compiled_core.PLAIN: plain, "PYTHONPATH": "src"}
    done = subprocess.run(
        [sys.executable, "-c", _HISTORIES, str(first), str(count)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.server
def test_both_ways_send_and_store_the_same_bytes(core: Path) -> None:
    plain, compiled = outcomes("1", 1, 25), outcomes("", 1, 25)
    assert (plain[0]["compiled"], compiled[0]["compiled"]) == (False, True)
    assert compiled[1:] == plain[1:]
    assert len({one["got"] for one in plain[1:]}) == 25  # the seeds differ
    assert sum(one["counters"]["publish_sent"] for one in plain[1:]) > 250


def small_package(root: Path) -> Path:
    """Return a package that has one module of everything that the key is made of."""
    package = root / "nearcast"
    names = ["mqtt/wire.py", "compiling.py", *compiled_core.IN_C, *compiled_core.IN_C.values()]
    names += [f"server/{name}" for name in compiled_core._SERVER]
    for name in names:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("A = 1\n")
    return package


def test_a_core_of_other_sources_is_not_used(tmp_path: Path, monkeypatch: Any) -> None:
    suffix = EXTENSION_SUFFIXES[0]
    package = small_package(tmp_path)
    monkeypatch.setattr(compiled_core, "PACKAGE", package)
    key = compiled_core.key()
    made = package / "_compiled" / key / "nearcast" / "mqtt"
    made.mkdir(parents=True)
    (made / f"wire{suffix}").write_bytes(b"")
    found = compiled_core.extensions(package / "_compiled" / key)
    assert found == {"nearcast.mqtt.wire": made / f"wire{suffix}"}
    for name in ("mqtt/wire.py", "server/sockets/calls.c", "server/sockets/calls.py"):
        (package / name).write_text("A = 2\n")
        assert compiled_core.key() != key, name
        assert compiled_core.extensions(package / "_compiled" / compiled_core.key()) == {}
        (package / name).write_text("A = 1\n")
    assert compiled_core.key() == key


def test_the_finder_finds_the_core_and_nothing_else(tmp_path: Path) -> None:
    finder = compiled_core.CompiledCore({"nearcast.mqtt.wire": tmp_path / "wire.so"})
    spec = finder.find_spec("nearcast.mqtt.wire")
    assert spec is not None
    assert spec.origin == str(tmp_path / "wire.so")
    assert finder.find_spec("nearcast.mqtt.topics") is None


_SAY = """
from nearcast import compiled_core
import nearcast.mqtt.wire as wire
print(compiled_core.described())
print(wire.__file__.endswith(".py"), compiled_core.is_in_use())
"""


def said(package_root: Path, **more: str) -> list[str]:
    """Return how the core runs in a process that finds the package there."""
    environment = {**os.environ, compiled_core.PLAIN: "", "PYTHONPATH": str(package_root), **more}
    done = subprocess.run(
        [sys.executable, "-c", _SAY], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def copied(root: Path) -> Path:
    """Copy the package, without anything compiled."""
    ignored = shutil.ignore_patterns("_kernels", "_compiled", "__pycache__")
    shutil.copytree(compiled_core.PACKAGE, root / "nearcast", ignore=ignored)
    return root / "nearcast"


def test_it_is_said_which_way_runs_and_why(tmp_path: Path) -> None:
    package = copied(tmp_path)
    advice = "(python -m nearcast.compiling)"
    assert said(tmp_path) == [f"as plain Python: it is not compiled {advice}", "True False"]
    set_plain = said(tmp_path, **{compiled_core.PLAIN: "1"})
    assert set_plain == [f"as plain Python: {compiled_core.PLAIN} is set", "True False"]
    (package / "_compiled" / ("0" * 16)).mkdir(parents=True)
    expected = f"as plain Python: it was compiled from other sources {advice}"
    assert said(tmp_path) == [expected, "True False"]


def test_a_core_that_cannot_be_loaded_is_not_used(tmp_path: Path) -> None:
    package = copied(tmp_path)
    suffix = EXTENSION_SUFFIXES[0]
    made = package / "_compiled" / compiled_core.key()
    (made / "nearcast" / "mqtt").mkdir(parents=True)
    for name in (f"{compiled_core.GROUP}__mypyc", "nearcast/mqtt/wire"):
        (made / f"{name}{suffix}").write_bytes(b"this is of another machine")
    told, ways = said(tmp_path)
    assert told.startswith("as plain Python: the compiled core cannot be loaded (")
    assert ways == "True False"


def test_the_newest_cores_are_kept_and_a_second_compiler_waits(
    tmp_path: Path, monkeypatch: Any
) -> None:
    package = small_package(tmp_path)
    monkeypatch.setattr(compiled_core, "PACKAGE", package)
    monkeypatch.setattr(compiled_core, "DIRECTORY", package / "_compiled")
    runs: list[Path] = []

    def compile_slowly(target: Path) -> None:
        runs.append(target)
        time.sleep(0.2)
        target.mkdir()
        (target / f"module{EXTENSION_SUFFIXES[0]}").write_bytes(b"")
        compiling._sweep(target)

    monkeypatch.setattr(compiling, "_compile", compile_slowly)
    with ThreadPoolExecutor() as pool:
        both = [pool.submit(compiling.compile_core) for _ in range(2)]
        assert {one.result() for one in both} == {package / "_compiled" / compiled_core.key()}
    assert len(runs) == 1
    keys = [compiled_core.key()]
    for number in range(2, 6):
        (package / "mqtt" / "wire.py").write_text(f"A = {number}\n")
        keys.append(compiled_core.key())
        compiling.compile_core()
    assert {one.name for one in compiled_core.cores()} == set(keys[-3:])
    assert compiling.is_compiled()
