"""Plants plausible mistakes in the source, one at a time, and tells which of them no test notices.

    python scripts/mutants.py --each 30 --seed 1 broker cluster server locality

Mistakes are chosen at random, by a seed: a call or an assignment left out, a condition negated, a
bound moved by one, `and` for `or`, a branch skipped, a return too early. Each is planted in a copy
of the tree, and the tests run that enter its function: first those of this process, quickest first,
then files of tests whose broker processes enter it. Which these are is found out once, by running
the tests under a profile (`build/mutants/reach.json`), and what was noticed once is not tried
again; `--fresh` forgets both.

Mistakes that change nothing anybody could notice stand in `scripts/equivalent_mutants.toml`, each
with the reason; they are counted apart.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import hashlib
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "mutants"
PACKAGES = ("broker", "cluster", "server", "locality")
QUICK, SLOW = "not spark and not server", "server"
FOLDERS = ("broker", "cluster", "locality", "server", "http", "security")
EQUIVALENT = ROOT / "scripts" / "equivalent_mutants.toml"
_MOVED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_SIGNS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_QUICK_S = 60.0  # so long run the tests of this process, by their times under the profile
_SLOW_S = 120.0  # so long run those that start processes
_LIMIT_S = 600.0
_MOST_TESTS = 150
_NOTHING: Mapping[str, str] = {}
_LOADED = (
    "pytest",
    "hypothesis.stateful",
    "numpy",
    "numba",
    "msgspec",
    "shapely",
    "pydantic",
    "nats",
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake: where it is planted, what it is, and the text that is replaced."""

    path: str
    line: int
    kind: str
    start: int
    end: int
    text: str
    function: str

    def planted(self, source: bytes) -> bytes:
        """Return the source with the mistake in it."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def difference(self, source: bytes) -> str:
        """Return the lines that differ."""
        before, after = source.decode(), self.planted(source).decode()
        lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
        return "\n".join(line for line in lines if line[:3] not in ("---", "+++", "@@ "))

    def identity(self, source: bytes) -> str:
        """Return a name that other changes leave as it is; alike ones of a function share it."""
        before = source[self.start : self.end].decode()
        told = "\n".join((self.path, self.function, self.kind, before, self.text))
        return hashlib.sha256(told.encode()).hexdigest()[:12]


# --- mistakes -----------------------------------------------------------------------------------


class Finder(ast.NodeVisitor):
    """Finds all places of a module where a mistake could be made."""

    def __init__(self, path: str, source: bytes) -> None:
        self.found: list[Mutant] = []
        self._path = path
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._names: list[str] = []

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._at(node.lineno, node.col_offset)
        return start, self._at(node.end_lineno, node.end_col_offset)

    def _text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _plant(self, node: ast.expr | ast.stmt, kind: str, text: str) -> None:
        if self._names:
            name = ".".join(self._names)
            self.found.append(Mutant(self._path, node.lineno, kind, *self._span(node), text, name))

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        is_compiled = any("jit" in ast.unparse(one) for one in node.decorator_list)
        if is_compiled or node.name in ("warm_up", "__repr__"):
            return
        self._names.append(node.name)
        for one in node.body:
            self.visit(one)
        self._names.pop()

    visit_FunctionDef = _visit_function  # noqa: N815 - the names that `ast` calls
    visit_AsyncFunctionDef = _visit_function  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        for one in node.body:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                self.visit(one)
        self._names.pop()

    def visit_Assert(self, node: ast.Assert) -> None:  # it is a check of ours
        pass

    def visit_Raise(self, node: ast.Raise) -> None:  # its words are no behaviour
        pass

    def visit_Expr(self, node: ast.Expr) -> None:
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(value, ast.Call) and not self._text(node).startswith(("log.", "super(")):
            self._plant(node, "call left out", "pass")
            self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._plant(node, "assignment left out", "pass")
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._plant(node, "deletion left out", "pass")

    def visit_Assign(self, node: ast.Assign) -> None:
        is_state = all(isinstance(one, ast.Attribute | ast.Subscript) for one in node.targets)
        if is_state and self._names[-1:] != ["__init__"]:
            self._plant(node, "assignment left out", "pass")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if not self._text(node.test).endswith((" is None", " is not None")):  # it would crash
            self._plant(node.test, "condition negated", f"not ({self._text(node.test)})")
        self._plant(node.test, "branch skipped", "False")
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._plant(node.test, "branch skipped", "False")
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self._plant(node.body[0], "return too early", "break")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._plant(node.test, "condition negated", f"(not ({self._text(node.test)}))")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = " or " if isinstance(node.op, ast.And) else " and "
        text = other.join(f"({self._text(one)})" for one in node.values)
        self._plant(node, "and for or", f"({text})")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        sign = _SIGNS.get(type(node.ops[0]))
        if sign is not None and len(node.ops) == 1:
            left, right = self._text(node.left), self._text(node.comparators[0])
            self._plant(node, "bound moved", f"{left} {_MOVED[sign]} {right}")
        self.generic_visit(node)


def find_mutants(package: str) -> list[Mutant]:
    """Return all mistakes that could be planted in a package and still compile."""
    found: list[Mutant] = []
    for path in sorted((ROOT / "src" / "nearcast" / package).rglob("*.py")):
        source = path.read_bytes()
        if b"jit" in source:  # its kernels would be compiled again for each mistake
            continue
        finder = Finder(str(path.relative_to(ROOT)), source)
        finder.visit(ast.parse(source))
        found += [one for one in finder.found if _compiles(one.planted(source))]
    return found


def _compiles(source: bytes) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


# --- which tests enter which function -----------------------------------------------------------

_PROFILE = """
import atexit, os, sys, threading
_out, _root = os.environ.get("MUTANTS_REACH"), os.environ.get("MUTANTS_ROOT", "")
if _out:
    _seen, _file = set(), open(f"{_out}.{os.getpid()}", "a", buffering=1)
    def _called(frame, event, _):
        code = frame.f_code
        if event == "call" and code not in _seen:
            _seen.add(code)
            if code.co_filename.startswith(_root):
                _file.write(f"{code.co_filename[len(_root):]}::{code.co_qualname}\\n")
    sys.setprofile(_called)
    threading.setprofile(_called)
"""
_PLUGIN = """
import json, os, sys, time, pytest
OUT, ROOT = os.environ["MUTANTS_OUT"], os.environ["MUTANTS_ROOT"]
CLOCK = getattr(time, os.environ["MUTANTS_CLOCK"])
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    if (yield).get_result().failed:
        item.has_failed = True
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    name = item.path.stem
    os.environ["MUTANTS_REACH"] = os.path.join(OUT, name)
    seen, began = set(), CLOCK()
    add = seen.add
    def called(frame, event, _):
        if event == "call":
            add(frame.f_code)
    sys.setprofile(called)
    yield
    sys.setprofile(None)
    if getattr(item, "has_failed", False):  # it would notice everything
        return
    mine = sorted({f"{c.co_filename[len(ROOT):]}::{c.co_qualname}" for c in seen
                   if c.co_filename.startswith(ROOT)})
    path = str(item.path.relative_to(os.getcwd()))
    with open(os.path.join(OUT, "reach.jsonl"), "a") as file:
        file.write(json.dumps([path, item.nodeid, CLOCK() - began, mine]) + "\\n")
"""


@dataclass
class Reach:
    """By function: the tests that enter it in this process, and the files whose processes do."""

    quick: dict[str, list[tuple[float, str]]]
    slow: dict[str, list[str]]
    times: dict[str, float]


def find_reach(*, fresh: bool) -> Reach:
    """Return which tests enter which functions; found out by running them, if not known."""
    path = OUT / "reach.json"
    known = {} if fresh or not path.exists() else json.loads(path.read_text())
    wanted = [(f"tests/{folder}", QUICK) for folder in FOLDERS]
    files = [
        one
        for folder in ("server", "http", "security")
        for one in sorted((ROOT / "tests" / folder).glob("test_*.py"))
    ]
    wanted += [(str(one.relative_to(ROOT)), SLOW) for one in files if SLOW in one.read_text()]
    for tests, marker in wanted:
        if f"{tests} {marker}" not in known:
            print(f"finding out what {tests} enters ...", flush=True)
            known[f"{tests} {marker}"] = _profile(tests, marker)
            OUT.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(known))
    return _reach_of(known)


def _profile(tests: str, marker: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as directory, Copy() as copy:
        plugins = Path(directory)
        (plugins / "sitecustomize.py").write_text(_PROFILE)
        (plugins / "reach_plugin.py").write_text(_PLUGIN)
        (plugins / "out").mkdir()
        options = ["-p", "reach_plugin", "--timeout=0", "-m", marker, tests]
        extra = {
            "MUTANTS_OUT": str(plugins / "out"),
            "MUTANTS_ROOT": f"{copy.directory}/src/nearcast/",
            "MUTANTS_CLOCK": "perf_counter" if marker == SLOW else "process_time",  # busy machines
            "NEARCAST_HYPOTHESIS": "brief",
        }
        copy.test([], options, _LIMIT_S * 6, extra, directory)
        told = plugins / "out" / "reach.jsonl"
        lines = told.read_text().splitlines() if told.exists() else []
        inside = [json.loads(line) for line in lines]
        processes: dict[str, set[str]] = defaultdict(set)
        for one in (plugins / "out").glob("*.*"):
            if one.suffix != ".jsonl":
                processes[one.stem].update(one.read_text().splitlines())
    return {"inside": inside, "processes": {k: sorted(v) for k, v in processes.items()}}


def _reach_of(known: dict[str, dict[str, object]]) -> Reach:
    reach = Reach(defaultdict(list), defaultdict(list), defaultdict(float))
    for told in known.values():
        stems = {}
        for path, name, seconds, functions in told["inside"]:  # type: ignore[attr-defined]
            stems[Path(path).stem] = path
            reach.times[path] += seconds
            for one in functions:
                reach.quick[one].append((seconds, name))
        for stem, functions in told["processes"].items():  # type: ignore[attr-defined]
            for one in functions:
                if stem in stems:
                    reach.slow[one].append(stems[stem])
    return reach


def tests_for(mutant: Mutant, reach: Reach) -> list[list[str]]:
    """Return what to run for a mutant: quick tests first, then files that start processes."""
    key = f"{mutant.path.removeprefix('src/nearcast/')}::{mutant.function}"
    keys = [one for one in (key, f"{key}.<locals>") if one in reach.quick or one in reach.slow]
    stem = Path(mutant.path).stem
    quick: list[str] = []
    left_s = _QUICK_S
    found = {name: seconds for one in keys for seconds, name in reach.quick[one]}
    for name, seconds in sorted(found.items(), key=lambda one: (stem not in one[0], one[1])):
        if left_s > 0 and len(quick) < _MOST_TESTS:
            quick.append(name)
            left_s -= seconds
    slow: list[str] = []
    left_s = _SLOW_S
    files = sorted(
        set(reach.slow.get(key, [])), key=lambda one: (stem not in one, reach.times[one])
    )
    for path in files:
        if left_s > 0:
            slow.append(path)
            left_s -= reach.times[path]
    return [some for some in (quick, slow) if some] or [_named_like(stem)]


def _named_like(stem: str) -> list[str]:
    """Return test files named after a module, or its first word: the profile may be older."""
    for part in (stem, stem.partition("_")[0]):
        found = sorted((ROOT / "tests").glob(f"*/test_*{part}*.py"))
        if found:
            return [str(one.relative_to(ROOT)) for one in found]
    return []


# --- runs ---------------------------------------------------------------------------------------


def _load() -> None:
    """Import what tests import, without anything of ours."""
    for name in _LOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


class Chosen:
    """Lets pytest run some tests alone, in a given order; those that are gone are left out."""

    def __init__(self, names: Iterable[str]) -> None:
        self._order = {name: number for number, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep those that were chosen, with any parameters, or whose file was."""
        places = {id(one): self._place(one.nodeid) for one in items}
        items[:] = [one for one in items if places[id(one)] is not None]
        items.sort(key=lambda one: places[id(one)] or 0)

    def _place(self, name: str) -> int | None:
        names = (name, name.partition("[")[0], name.partition("::")[0])
        return next((self._order[one] for one in names if one in self._order), None)


def _test_and_end(
    directory: Path, paths: list[str], options: list[str], names: list[str]
) -> NoReturn:
    """Run tests in a process group of its own, in silence."""
    os.setsid()
    os.chdir(directory)
    sys.path[:0] = paths
    nothing = os.open(os.devnull, os.O_RDWR)
    for one in (0, 1, 2):
        os.dup2(nothing, one)
    code = 3
    with contextlib.suppress(BaseException):
        import pytest

        calm = ["-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        files = list(dict.fromkeys(name.partition("::")[0] for name in names))
        files = [one for one in files if Path(one).exists()]
        code = int(
            pytest.main(["-q", *calm, *options, *files], plugins=[Chosen(names)] if names else [])
        )
    os._exit(code)


class Copy:
    """A copy of the tree, for mistakes."""

    def __enter__(self) -> Copy:
        self._temporary = tempfile.TemporaryDirectory(prefix="mutants-")
        self.directory = Path(self._temporary.name) / "tree"
        left_out = shutil.ignore_patterns(".git", ".venv", "build", ".*_cache", ".hypothesis")
        shutil.copytree(ROOT, self.directory, ignore=left_out, symlinks=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._temporary.cleanup()

    def test(
        self,
        names: list[str],
        options: list[str],
        limit_s: float = _LIMIT_S,
        extra: Mapping[str, str] = _NOTHING,
        path: str = "",
    ) -> int | None:
        """Run tests; return pytest's code, None if they took too long.

        They run in a fork of this process, which has loaded what takes long to load.
        """
        process = os.fork()
        if process == 0:
            paths = [str(self.directory / "src"), *([path] if path else [])]
            os.environ.update({"PYTHONPATH": os.pathsep.join(paths), **extra})
            _test_and_end(self.directory, paths, options, names)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.1)
        os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)
        return None

    def judge(self, mutant: Mutant, batches: list[list[str]]) -> str:
        """Plant a mistake, run its tests, and take it out again."""
        path = self.directory / mutant.path
        source, times = path.read_bytes(), path.stat()
        path.write_bytes(mutant.planted(source))
        _forget_byte_code(path)
        try:
            for batch in filter(None, batches):
                code = self.test(batch, ["-x", "--timeout=120"])
                if code is None:
                    return "timeout"
                if code in (1, 2):  # a test failed, or a module could not be imported
                    return "killed"
                if code not in (0, 5):
                    raise RuntimeError(f"pytest ended with {code} for {batch}")
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            _forget_byte_code(path)
        return "survived" if any(batches) else "not reached"


def _forget_byte_code(path: Path) -> None:
    """Remove what was compiled: it is told from new source by second and size alone."""
    for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        cached.unlink()


def choose(package: str, each: int, seed: int) -> Iterator[tuple[Mutant, str, str]]:
    """Yield mistakes for a package, with their names and what differs.

    A change elsewhere in the package does not change the choice.
    """
    found = find_mutants(package)
    sources = {one.path: (ROOT / one.path).read_bytes() for one in found}
    named = {one.identity(sources[one.path]): one for one in found}
    chosen = sorted(named, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest())
    for name in chosen[:each]:
        one = named[name]
        yield one, name, one.difference(sources[one.path])


def run(packages: list[str], each: int, seed: int, *, fresh: bool) -> list[dict[str, Any]]:
    """Plant the mistakes of a seed that are not known to be noticed; return what became of all."""
    _load()
    reach = find_reach(fresh=fresh)
    equivalent = tomllib.loads(EQUIVALENT.read_text()) if EQUIVALENT.exists() else {}
    kept = OUT / f"killed-{seed}.txt"
    killed = set(kept.read_text().split()) if kept.exists() and not fresh else set()
    results: list[dict[str, Any]] = []
    with Copy() as copy:
        for package in packages:
            for mutant, name, difference in choose(package, each, seed):
                began = time.monotonic()
                if name in equivalent:
                    verdict = "equivalent"
                elif name in killed:
                    verdict = "killed"
                else:
                    verdict = copy.judge(mutant, tests_for(mutant, reach))
                    took_s = round(time.monotonic() - began)
                    place = f"{mutant.path}:{mutant.line} {mutant.kind}"
                    print(f"{name} {place}: {verdict} ({took_s} s)", flush=True)
                told = {"package": package, "name": name, "verdict": verdict}
                results.append(asdict(mutant) | told | {"difference": difference})
                if verdict == "killed":
                    with kept.open("a") as file:
                        file.write(f"{name}\n")
    return results


def report(results: list[dict[str, Any]]) -> str:
    """Return the table by package, and what survived."""
    verdicts = ("killed", "timeout", "survived", "not reached", "equivalent")
    lines = [f"| package | mistakes | {' | '.join(verdicts)} | noticed |", "|---|" + "---:|" * 7]
    for package in [*dict.fromkeys(one["package"] for one in results), "all"]:
        mine = [one for one in results if package in (one["package"], "all")]
        counts = Counter(one["verdict"] for one in mine)
        judged = len(mine) - counts["equivalent"]
        noticed = counts["killed"] + counts["timeout"]
        cells = " | ".join(str(counts[one]) for one in verdicts)
        share = f"{noticed / judged:.0%}" if judged else "–"
        lines.append(f"| {package} | {len(mine)} | {cells} | {share} |")
    for one in results:
        if one["verdict"] in ("survived", "not reached", "timeout"):
            place = f"{one['path']}:{one['line']} in {one['function']}"
            lines += ["", f"{one['verdict']}: {place} ({one['name']})", one["difference"]]
    return "\n".join(lines)


def main() -> None:
    """Run, and print the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("packages", nargs="*", default=PACKAGES)
    parser.add_argument("--each", type=int, default=30, help="mistakes in each package")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="forget what is known")
    given = parser.parse_args()
    results = run(list(given.packages), given.each, given.seed, fresh=given.fresh)
    text = report(results)
    (OUT / f"report-{given.seed}.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
