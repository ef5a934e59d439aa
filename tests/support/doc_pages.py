"""Blocks of code in the pages of the documentation."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "selective.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(kind: str, page: str = PAGE) -> list[str]:
    """Return the fenced blocks of a kind: every second piece between the fences."""
    fenced = re.split(r"^```", page, flags=re.MULTILINE)[1::2]
    parted = [text.split("\n", 1) for text in fenced]
    return [body for name, body in parted if name == kind]


def shell_lines(page: str, command: str) -> list[str]:
    """Return the lines of a page that run a command."""
    text = "".join(blocks("", page)).replace("\\\n", " ")
    lines = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
    return [line for line in lines if line.startswith(command)]
