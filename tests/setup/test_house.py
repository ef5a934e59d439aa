"""The layout of the source: folders of a size, class names once, and files that pages name."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "nearcast").rglob("*.py"))
PAGES = [ROOT / "docs" / "architecture.md", ROOT / "docs" / "glossary.md"]
MOST_MODULES = 20  # of a folder, `__init__.py` included
FILE = re.compile(r"`(src/nearcast/[\w/]+\.py)`")


def public_classes(file: Path) -> list[str]:
    return re.findall(r"^class ([A-Za-z]\w*)", file.read_text(encoding="utf-8"), re.MULTILINE)


def test_a_public_class_name_exists_once():
    places: dict[str, list[str]] = defaultdict(list)
    for file in SOURCES:
        for name in public_classes(file):
            places[name].append(str(file.relative_to(ROOT)))
    assert len(places) > 300
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_folder_has_too_many_modules():
    counts = Counter(str(file.parent.relative_to(ROOT)) for file in SOURCES)
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}


@pytest.mark.parametrize(("folder", "most"), [("src", 500), ("tests", 600)])
def test_no_file_has_too_many_lines(folder: str, most: int):
    files = (ROOT / folder).rglob("*.py")
    lines = {str(file.relative_to(ROOT)): file.read_bytes().count(b"\n") for file in files}
    assert {name: count for name, count in lines.items() if count > most} == {}


def test_every_package_says_what_it_is():
    for file in SOURCES:
        if file.name == "__init__.py":
            assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))), file


def test_a_docstring_says_what_is_done_or_returned():
    """Not "Let it …" or "Say whether …", but "Make", "Return", "Record", "Send"."""
    opening = re.compile(r'"{3}(Let|Say|Tell|Note|Go on|Take note)\b.*')
    found = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in SOURCES
        for line in file.read_text(encoding="utf-8").splitlines()
        if opening.search(line)
    ]
    assert found == []


def test_files_that_architecture_and_glossary_name_exist():
    named = [name for page in PAGES for name in FILE.findall(page.read_text(encoding="utf-8"))]
    assert len(set(named)) > 40
    assert sorted({name for name in named if not (ROOT / name).exists()}) == []
