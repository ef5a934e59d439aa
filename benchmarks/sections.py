"""What benchmarks of several sections share: running some of them, and doing so by hand."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Row = dict[str, Any]
Section = Callable[[bool], Iterable[Row]]


def rows_of(sections: Mapping[str, Section], quick: bool, only: str) -> list[Row]:
    """Return the rows of all sections whose name starts with `only`."""
    return [
        row for name, section in sections.items() if name.startswith(only) for row in section(quick)
    ]


def by_hand(doc: str | None, run: Callable[[bool, str], dict[str, Any]]) -> None:
    """Run as a command: `--quick`, `--only SECTION`; print a line a row."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    for row in run(arguments.quick, arguments.only)["rows"]:
        print(_line(row))


def _line(row: Row) -> str:
    known = ("name", "ours", "peer", "ratio", "target", "holds")
    figures = [f"{row[one]:>12,.2f}" if one in row else " " * 12 for one in known[1:4]]
    more = {key: value for key, value in row.items() if key not in known}
    words = [f"{row['name']:<75}", *figures, f"{row.get('target', ''):>10}", str(row.get("holds"))]
    return " ".join([*words, str(more)] if more else words)
