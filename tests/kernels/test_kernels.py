"""Kernels: in Python until they are compiled, kept on the disk, compiled once for all processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nearcast import kernel_files, warming

ROOT = Path(__file__).parents[2]


def python(code: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **more}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


PLAIN = """
import sys
from nearcast import kernels
kernels.interpret()
import pytest
code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *sys.argv[1:]])
assert not kernels.is_switched()
assert "numba" not in sys.modules, "something was compiled"
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("file", "which"),
    [
        (
            "tests/matching/test_matcher.py",
            "not file and not saved and not mapped and not opened and not at_once",
        ),
        ("tests/ordering/test_delta_causal.py", ""),
        ("tests/ordering/test_messages.py", ""),
    ],
)
def test_without_a_compiler_the_answers_are_the_same(file: str, which: str) -> None:
    done = python(PLAIN, str(ROOT / file), "-k", which, NEARCAST_HYPOTHESIS="brief")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


WORDS = """
from random import Random
from nearcast import kernels
kernels.interpret()
from nearcast.ordering import bits
plain = {name: getattr(bits, name) for name in
         ("lowest_one", "ones", "highest_one", "bit_at", "without_lowest", "load_word")}
kernels.load([])
kernels.switch_on()
from numba import njit
random = Random(1)
words = [1, -1, 1 << 62, -1 << 63, (-1 << 63) + 1, *(random.getrandbits(64) - (1 << 63)
                                                    for _ in range(200))]
for name in ("lowest_one", "ones", "highest_one", "without_lowest"):
    one = getattr(bits, name)
    compiled = njit(lambda word: one(word))
    for word in words:
        assert plain[name](word) == compiled(word), (name, word)
one = bits.bit_at
compiled = njit(lambda number: one(number))
assert [plain["bit_at"](n) for n in range(64)] == [compiled(n) for n in range(64)]
three = bits.load_word
compiled = njit(lambda data: three(data, 1))
for word in words:
    data = b"x" + (word & (1 << 64) - 1).to_bytes(8, "little")
    assert plain["load_word"](data, 1) == compiled(data) == word
"""


def test_words_of_64_bits_are_the_same_in_python_up_to_the_highest_bit() -> None:
    done = python(WORDS)
    assert done.returncode == 0, done.stderr[-2000:]


SWITCH = """
import sys
from nearcast import kernels
kernels.interpret()
from nearcast.matching import Matcher
from nearcast.model import Attribute, Event, Space, Subscription
from nearcast.ordering import DeltaCausal
axes = (Attribute.number("lon", -180, 180), Attribute.number("lat", -90, 90))
space = Space(name="city", topic_filter="#", attributes=axes, longitude="lon", latitude="lat")
matcher = Matcher([space])
for key in range(300):
    place = (key % 20 * 0.01, key // 20 * 0.01)
    matcher.add(key, Subscription(topic_filter="#", near_m=3000.0), position=place)
events = [Event.of(space, "a", {"lon": 0.003 * i, "lat": 0.002 * i}) for i in range(60)]
a, b = DeltaCausal("a", 1.0), DeltaCausal("b", 1.0)
first, second = a.send({"b"}, b"1", 1.0)["b"], a.send({"b"}, b"2", 1.1)["b"]
assert b.receive(second, 1.2) == []  # it overtook the first
def answers():
    found = [sorted(matcher.match(one)) for one in events]
    ranks = ("narrowest", "nearest", "centre", "weight")
    return found, [[m.key for m in matcher.top(one, 3, rank)] for one in events for rank in ranks]
before = answers()
assert "numba" not in sys.modules
kernels.load(["matching", "ordering"])
assert answers() == before
kernels.switch_on()
assert answers() == before
assert type(matcher._trees["city"].match("a")[0]._index.ranked).__name__ == "BoxIndex"
assert [one.message.payload for one in b.receive(first, 1.3)] == [b"1", b"2"]
assert a.counters.sent == 2 and b.counters.delivered == 2
matcher.move(5, (1.0, 1.0))
assert 5 in matcher.match(Event.of(space, "a", {"lon": 1.0, "lat": 1.0}))
"""


@pytest.mark.timeout(600)
def test_compiled_kernels_take_over_where_python_stopped() -> None:
    assert warming.main(["matching", "ordering"]) == 0
    done = python(SWITCH)
    assert done.returncode == 0, done.stderr[-2000:]


RECORD = """
import sys
from pathlib import Path
from numba.core.event import install_recorder
from nearcast import warming
with install_recorder("numba:compile") as seen:
    warming.work(Path(sys.argv[1]), ["retained"])
for _, event in seen.buffer:
    one = event.data["dispatcher"].py_func
    if event.is_start and one.__module__.startswith("nearcast"):
        print(one.__module__, one.__name__, event.data["args"])
"""


def test_two_processes_compile_each_kernel_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RECORD, str(tmp_path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    lines = [line for one in both for line in one.communicate(timeout=300)[0].splitlines()]
    assert [one.returncode for one in both] == [0, 0]
    assert lines
    assert len(lines) == len(set(lines))
    assert (tmp_path / "retained.done").exists()
    third = subprocess.run(command, capture_output=True, text=True, check=True)
    assert third.stdout == ""


LINKED = """
import sys
import numpy as np
from nearcast.kernels import compile_entry, entry_point, inner

@inner
def lowest(x):
    return x + 1 if x < 100 else x * 3

@inner
def middle(x):
    total = 0
    for i in range(x):
        total += lowest(np.int32(i)) + lowest(7)
    return total

@entry_point("int64")
def highest(x):
    return middle(x) + lowest(x)

compile_entry(highest)
assert highest(200) == sum(i + 1 if i < 100 else 3 * i for i in range(200)) + 200 * 8 + 600
whole, = (one.library for one in highest.overloads.values())
for part in (lowest, middle):
    print(part.py_func.__name__, len(part.signatures))
    for one in part.overloads.values():
        assert not whole.codegen._engine.is_symbol_defined(one.fndesc.llvm_func_name)
"""


def test_a_kernel_that_only_kernels_call_is_optimised_with_its_caller_alone(
    tmp_path: Path,
) -> None:
    first, second = (python(LINKED, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert first.returncode == 0, first.stderr[-2000:]
    assert first.stdout.split() == ["lowest", "1", "middle", "1"]  # for all sizes of numbers
    assert second.returncode == 0, second.stderr[-2000:]
    assert second.stdout.split() == ["lowest", "0", "middle", "0"]  # the whole is on disk


def test_a_change_in_a_module_that_kernels_import_makes_another_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = kernel_files._sources()
    assert {"ordering.layout", "index.boxes.pools", "model.sphere"} <= set(sources)
    before = kernel_files.key.__wrapped__()
    monkeypatch.setattr(
        kernel_files, "_sources", lambda: {**sources, "ordering.layout": "HEADER = 73"}
    )
    assert kernel_files.key.__wrapped__() != before


def test_the_directory_is_the_first_with_kernels_or_the_first_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = tmp_path / "file"
    nowhere.write_text("no directory can be made in here")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(nowhere))
    monkeypatch.setattr(kernel_files, "BESIDE_THE_PACKAGE", nowhere / "package")
    monkeypatch.setattr(kernel_files, "_chosen", None)
    key = kernel_files.key()
    assert kernel_files.choose(["matching"], tmp_path / "data") == tmp_path / "data/kernels" / key
    warm = tmp_path / "package"
    monkeypatch.setattr(kernel_files, "BESIDE_THE_PACKAGE", warm)
    (warm / key).mkdir(parents=True)
    (warm / key / "matching.done").touch()
    monkeypatch.setattr(kernel_files, "_can_be_written", lambda one: one != warm)
    assert kernel_files.choose(["matching"], tmp_path / "data") == warm / key
    assert kernel_files.choose(["ordering"], tmp_path / "data") == tmp_path / "data/kernels" / key
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "named"))
    assert kernel_files.choose(["matching"], tmp_path / "data") == tmp_path / "named" / key


def test_warming_tells_of_its_progress_and_of_parts_that_it_does_not_know(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert warming.main(["nonsense"]) == 2
    assert "known parts: matching, ordering" in capsys.readouterr().out
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernel_files, "_chosen", None)
    monkeypatch.setattr(warming, "_PROGRESS_S", 0.2)
    assert warming.main(["retained"]) == 0
    said = capsys.readouterr().out
    assert "Compiling 6 kernels" in said
    assert "of 6 after" in said
    assert "Compiled 6 kernels" in said
    assert warming.main(["retained"]) == 0
    assert "All kernels are compiled" in capsys.readouterr().out
