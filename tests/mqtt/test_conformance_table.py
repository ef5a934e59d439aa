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


def test_every_statement_stands_once_and_has_an_answer() -> None:
    for part in TABLE.split("\n## ")[1:]:
        rows = re.findall(r"^\| \[(MQTT-[\d.-]+)\] \| (.+) \| (.*) \|$", part, re.MULTILINE)
        counts = Counter(number for number, _, _ in rows)
        assert len(rows) > 130
        assert [number for number, count in counts.items() if count > 1] == []
        assert [number for number, _, answer in rows if not answer.strip()] == []
