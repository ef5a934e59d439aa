"""The conformance table names tests that exist, and no statement twice."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs" / "mqtt-conformance.md").read_text(encoding="utf-8")


def test_every_test_that_the_table_names_exists() -> None:
    named = set(re.findall(r"`([\w/]+\.py)::(\w+)`", TABLE))
    missing = [
        f"{file}::{name}"
        for file, name in sorted(named)
        if f"def {name}(" not in (ROOT / "tests" / file).read_text(encoding="utf-8")
    ]

    assert len(named) > 50
    assert missing == []
    assert all(name.startswith("test_") for _, name in named)


def test_every_row_that_speaks_of_a_test_names_it_in_full() -> None:
    """A name in another form would not be looked for."""
    assert TABLE.count("::") == len(re.findall(r"`[\w/]+\.py::\w+`", TABLE))


def test_every_statement_stands_once_and_has_an_answer() -> None:
    for part in TABLE.split("\n## ")[1:]:
        rows = re.findall(r"^\| \[(MQTT-[\d.-]+)\] \| (.+) \| (.*) \|$", part, re.MULTILINE)
        counts = Counter(number for number, _, _ in rows)
        assert len(rows) > 130
        assert [number for number, count in counts.items() if count > 1] == []
        assert [number for number, _, answer in rows if not answer.strip()] == []


def test_the_statements_of_each_section_are_numbered_without_a_gap() -> None:
    """A row too many shifts all numbers behind it."""
    five = TABLE.split("\n## ")[1]
    last = {
        "3.1.2": 30,
        "3.1.3": 12,
        "3.1.4": 6,
        "3.2.2": 22,
        "3.3.2": 20,
        "3.14.2": 4,
        "3.15.2": 3,
    }
    for section, count in last.items():
        found = re.findall(rf"^\| \[MQTT-{re.escape(section)}-(\d+)\]", five, re.MULTILINE)
        assert [int(one) for one in found] == list(range(1, count + 1)), section


def test_the_counts_above_the_tables_are_those_of_the_tables() -> None:
    for part in TABLE.split("\n## ")[1:]:
        rows = re.findall(r"^\| \[MQTT-.*$", part, re.MULTILINE)
        shown = sum("::" in row for row in rows)
        told = f"{len(rows)} statements: {shown} shown by tests, {len(rows) - shown} explained."
        assert told in part
