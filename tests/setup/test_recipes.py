"""The recipes of `CONTRIBUTING.md` lead to files, commands and names that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PART = TEXT.partition("## Recipes\n")[2].partition("\n## ")[0]
RECIPES = dict(re.findall(r"^### (Add [^\n]+)\n(.*?)(?=^### |\Z)", PART, re.MULTILINE | re.DOTALL))
PATH = re.compile(r"\b(?:src|tests|scripts|docs)/[\w/.-]*\.\w+")
SOURCE = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py"))
DEFINED = r"\b(?:def|class) {0}\b|^{0}\b|\"{0}\""


def missing(recipe: str) -> list[str]:
    """Return the files, golden files and names of a recipe that are not there."""
    named = [ROOT / name for name in PATH.findall(recipe)]
    files = [str(file.relative_to(ROOT)) for file in named if not file.is_file()]
    golden = re.findall(r"golden/make\.py (\w+)/", recipe)
    folders = [name for name in golden if not (ROOT / "tests/golden/files" / name).is_dir()]
    code = SOURCE + "".join(file.read_text(encoding="utf-8") for file in named if file.is_file())
    words = re.findall(r"`(?:\w+\.)?((?!Your)[A-Za-z_]{4,})`", recipe)  # but for `YourJob`
    names = [one for one in words if not re.search(DEFINED.format(one), code, re.MULTILINE)]
    return files + folders + names


def test_there_is_a_recipe_for_each_typical_change():
    things = ("a setting", "a metric", "a rank", "a message between nodes", "a pipeline job")
    assert {f"Add {thing}" for thing in things} == set(RECIPES)


@pytest.mark.parametrize("title", RECIPES)
def test_what_a_recipe_names_exists(title: str):
    assert PATH.findall(RECIPES[title])
    assert missing(RECIPES[title]) == []


def test_a_file_or_a_name_that_is_gone_is_found():
    assert missing("in `src/nearcast/no.py`, `python tests/golden/make.py no/`, `NoSuchName`") == [
        "src/nearcast/no.py",
        "no",
        "NoSuchName",
    ]
