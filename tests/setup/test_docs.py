"""The documentation leads somewhere: links, ids of claims and traps, sections of papers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAPERS = {int(page.name[0]): page for page in (ROOT / "docs" / "papers").glob("[0-9]-*.md")}
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
FOLDERS = ("src", "tests", "benchmarks", "scripts", "examples", "fuzz")
CODE = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]

DEFINED = re.compile(r"\*\*([CT]\d\.\d+)\b")
CITED = re.compile(r"\b([CT][0-4]\.\d+)\b")
NAMED = re.compile(r"\bdef test_t([0-4])_(\d+)_")
SECTION = re.compile(r'\b[Pp]aper ([0-4]), "([^"]+)"')
LINK = re.compile(r"\]\(([^()\s]+)\)")
MENTION = re.compile(r"\bdocs/[\w/.-]+\.(?:md|svg)\b")


def read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def prose(page: Path) -> str:
    """Return a page without its fenced blocks: what looks like a link in a program is none."""
    return re.sub(r"^```.*?^```", "", read(page), flags=re.DOTALL | re.MULTILINE)


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)


def anchor(heading: str) -> str:
    """Return what a heading is called in a link, as GitHub and most tools make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def where(file: Path) -> str:
    return str(file.relative_to(ROOT))


def dangling(page: Path) -> Iterator[str]:
    """Yield the links of a page to files or headings that are not there."""
    for link in LINK.findall(prose(page)):
        path, _, name = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (name and name not in map(anchor, headings(file))):
            yield f"{where(page)}: {link}"


def test_every_paper_has_a_page_and_the_index_lists_it():
    index = read(ROOT / "docs" / "papers" / "README.md")
    assert sorted(PAPERS) == [0, 1, 2, 3, 4]
    assert [page.name for page in PAPERS.values() if f"({page.name})" not in index] == []


@pytest.mark.parametrize("number", sorted(PAPERS))
def test_a_page_defines_claims_and_traps_of_its_own_paper_each_once(number: int):
    ids = DEFINED.findall(read(PAPERS[number]))
    for kind in "CT":
        numbers = sorted(int(one.split(".")[1]) for one in ids if one[0] == kind)
        assert numbers == list(range(1, len(numbers) + 1)), (kind, numbers)
    assert {one[1] for one in ids} == {str(number)}


def test_every_id_that_is_cited_is_defined_in_a_page_of_its_paper():
    defined = {one for page in PAPERS.values() for one in DEFINED.findall(read(page))}
    cited = {(one, where(file)) for file in [*CODE, *PAGES] for one in CITED.findall(read(file))}
    for file in CODE:
        cited |= {(f"T{paper}.{one}", where(file)) for paper, one in NAMED.findall(read(file))}
    assert len({one for one, _ in cited}) > 40
    assert sorted(each for each in cited if each[0] not in defined) == []


def test_every_section_of_a_paper_that_is_cited_is_a_heading_of_its_page():
    cited = {
        (int(paper), heading, where(file))
        for file in CODE
        for paper, heading in SECTION.findall(read(file))
    }
    assert len(cited) > 10
    assert [each for each in sorted(cited) if each[1] not in headings(PAPERS[each[0]])] == []


def test_links_between_pages_lead_to_files_and_headings_that_exist():
    assert [link for page in PAGES for link in dangling(page)] == []


def test_pages_that_the_code_names_exist():
    named = {(name, where(file)) for file in CODE for name in MENTION.findall(read(file))}
    assert sorted(each for each in named if not (ROOT / each[0]).exists()) == []


SHORTCUTS = ROOT / "docs" / "shortcuts.md"


def test_every_shortcut_names_a_file_and_a_test_that_exist():
    text = read(SHORTCUTS)
    rows = [line for line in text.splitlines() if line.startswith("| ") and "`src/" in line]
    assert len(rows) >= 10
    for row in rows:
        assert re.search(r"`src/[\w/]+\.py`", row), row
        assert re.search(r"`tests/[\w/]+\.py::test_\w+`", row), row
    for name in re.findall(r"`((?:src|tests)/[\w/]+\.py)`", text):
        assert (ROOT / name).exists(), name
    for name, test in re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text):
        assert f"def {test}(" in read(ROOT / name), test


def test_every_shortcut_of_the_page_is_measured_and_every_measurement_is_on_the_page():
    script = read(ROOT / "benchmarks" / "shortcuts.py")
    measured = re.findall(r'^    Shortcut\(\s*"([^",]+)', script, re.MULTILINE)
    named = re.findall(r"\*\*([^*,]+?)(?:, [^*]+)?\.\*\*", read(SHORTCUTS))
    assert {one.lower() for one in measured} == {one.lower() for one in named}
