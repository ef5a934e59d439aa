"""Decisions have one numbered scheme, one form, and an index that lists them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "decisions"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.name != "README.md")
HEADINGS = ["Context", "Decision", "Refused", "Consequences", "Test"]
STATUS = re.compile(r"^Status: (in force|superseded by \[\d{4}\]\([^)]+\))", re.MULTILINE)
ROW = re.compile(r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+) \| (.+) \|$", re.MULTILINE)


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def title(page: Path) -> str:
    return read(page).split("\n", 1)[0].removeprefix(f"# {page.name[:4]} ")


def status(page: Path) -> str:
    found = STATUS.search(read(page))
    assert found, f"{page.name} has no line such as 'Status: in force.'"
    return found[1]


def test_numbers_begin_at_1_and_have_no_gaps_and_no_doubles():
    numbers = [page.name.split("-", 1)[0] for page in PAGES]
    assert numbers == [f"{number:04}" for number in range(1, len(PAGES) + 1)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name[:4])
def test_a_page_has_its_number_and_all_five_sections_with_text(page: Path):
    text = read(page)
    assert text.startswith(f"# {page.name[:4]} ")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert [section.split("\n", 1)[0] for section in sections] == HEADINGS
    assert all(section.split("\n", 1)[1].strip() for section in sections)


def test_the_index_has_one_row_for_each_decision_with_its_title_and_status():
    rows = ROW.findall(read(FOLDER / "README.md"))
    assert rows == [(page.name[:4], page.name, title(page), status(page)) for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name[:4])
def test_the_tests_that_a_page_names_exist(page: Path):
    section = read(page).split("\n## Test\n")[1]
    files = re.findall(r"`((?:tests|benchmarks)/[\w/]+\.py)`", section)
    assert [file for file in files if not (ROOT / file).exists()] == []
    names = re.findall(r"`(test_\w+)`", section)
    written = "".join(map(read, (ROOT / "tests").rglob("test_*.py"))) if names else ""
    assert [name for name in names if f"def {name}(" not in written] == []
