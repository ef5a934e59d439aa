"""Cluster, server and simulator ask the broker through its interface, not through its state."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "nearcast"
STILL_INSIDE = {
    "server/metrics/declared.py",  # gauges of all that the state holds
    "server/storage/journal_report.py",  # replays a journal into an empty state
}
"""Files that use the state of a broker; a file that no longer does is taken off the list."""


def uses_of_state(text: str) -> list[int]:
    """Return the lines that read an attribute `state` of a broker."""
    return sorted(
        one.lineno
        for one in ast.walk(ast.parse(text))
        if isinstance(one, ast.Attribute)
        and one.attr == "state"
        and ast.unparse(one.value).endswith(("node", "Broker()"))
    )


def test_the_broker_is_asked_through_its_interface():
    found = {
        str(file.relative_to(SOURCE)): lines
        for folder in ("cluster", "server", "simulator")
        for file in sorted((SOURCE / folder).rglob("*.py"))
        if (lines := uses_of_state(file.read_text(encoding="utf-8")))
    }
    assert {name: lines for name, lines in found.items() if name not in STILL_INSIDE} == {}
    assert found.keys() >= STILL_INSIDE


def test_uses_are_found():
    text = "a = self.node.state.x\nb = told.state.y\nc = self._node.state\nd = Broker().state"
    assert uses_of_state(text) == [1, 3, 4]
