"""Every attribute of the central state classes says what it is, and who writes it when."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from nearcast.broker import Connection, Session
from nearcast.broker.state import BrokerState

SRC = Path(inspect.getfile(BrokerState)).parents[1]


def blocks(kind: type) -> list[tuple[str, list[str]]]:
    """Return the blocks of attributes: the leading comment, and the lines behind it."""
    source = inspect.getsource(kind).partition("\n    def ")[0]
    found = []
    for block in source.split("\n\n"):
        lines = [line.strip() for line in block.splitlines()]
        heading = []
        while lines and lines[0].startswith("# "):
            heading.append(lines.pop(0)[2:])
        found.append((" ".join(heading), lines))
    return found


@pytest.mark.parametrize("kind", [Session, Connection])
@pytest.mark.plain
def test_every_attribute_stands_in_a_block_that_says_who_writes_it(kind: type) -> None:
    seen = []
    for heading, lines in blocks(kind):
        for before, line in zip(["", *lines], lines, strict=False):
            if match := re.match(r"(\w+): [\w\[]", line):
                seen.append(match[1])
                assert "Written by" in heading or "Written once" in heading, match[1]
                is_first = line == lines[0] and len(heading.split(". ")) > 1
                assert "  # " in line or before.startswith("# ") or is_first, match[1]
    assert sorted(seen) == sorted(kind.__slots__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [Session, Connection])
@pytest.mark.plain
def test_the_modules_that_are_named_as_writers_exist(kind: type) -> None:
    folders = (SRC / "broker", SRC / "broker" / "session", SRC / "broker" / "persistence", SRC)
    for heading, _ in blocks(kind):
        for name in re.findall(r"`([\w/]+\.py)`", heading):
            assert any((folder / name).exists() for folder in folders), name


@pytest.mark.plain
def test_every_attribute_of_the_state_of_a_broker_has_its_contract() -> None:
    source = inspect.getsource(BrokerState)
    fields = re.findall(r'^    (\w+): .*\n(?=    """)', source, re.MULTILINE)
    assert fields == list(BrokerState.__dataclass_fields__)
