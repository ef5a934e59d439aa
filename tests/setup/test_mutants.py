"""The script that plants mistakes: what it finds in a module, and how it counts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = b'''
def keep(self, one, most):
    """Keep one."""
    log.info("kept")
    self.write(one)
    if one.size > most and self.is_open:
        self.count += 1
    for key in self.old:
        self.drop(key)
    return one if most else None
'''


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module
    spec.loader.exec_module(module)
    return module


def test_mistakes_of_each_kind_are_found_and_each_changes_what_it_says(mutants: ModuleType):
    finder = mutants.Finder("keep.py", SOURCE)
    finder.visit(mutants.ast.parse(SOURCE))

    condition = "-    if one.size > most and self.is_open:\n+    if "
    assert {(one.kind, one.difference(SOURCE)) for one in finder.found} == {
        ("call left out", "-    self.write(one)\n+    pass"),
        ("call left out", "-        self.drop(key)\n+        pass"),
        ("return too early", "-        self.drop(key)\n+        break"),
        ("assignment left out", "-        self.count += 1\n+        pass"),
        ("condition negated", f"{condition}not (one.size > most and self.is_open):"),
        ("branch skipped", f"{condition}False:"),
        ("and for or", f"{condition}((one.size > most) or (self.is_open)):"),
        ("bound moved", f"{condition}one.size >= most and self.is_open:"),
        (
            "condition negated",
            "-    return one if most else None\n+    return one if (not (most)) else None",
        ),
    }


def test_the_choice_of_a_seed_stays_the_same_when_other_lines_change(mutants: ModuleType):
    names = []
    for source in (SOURCE, b"import os\n" + SOURCE):
        finder = mutants.Finder("keep.py", source)
        finder.visit(mutants.ast.parse(source))
        names.append([one.identity(source) for one in finder.found])

    assert names[0] == names[1]
    assert len(set(names[0])) == len(names[0])


def test_what_no_test_enters_is_told_and_what_is_equivalent_is_counted_apart(mutants: ModuleType):
    base = {"path": "a.py", "line": 1, "function": "f", "name": "n", "difference": "-a\n+b"}
    results = [
        base | {"package": "node", "verdict": verdict}
        for verdict in ("killed", "killed", "killed", "not reached", "equivalent")
    ]
    lines = mutants.report(results).splitlines()

    assert lines[2] == "| node | 5 | 3 | 0 | 0 | 1 | 1 | 75% |"
    assert lines[5:] == ["not reached: a.py:1 in f (n)", "-a", "+b"]
