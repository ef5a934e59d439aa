"""The line of each key of a TOML file, so that an error can name it.

The standard library's parser drops positions. This scan knows headers and `key = value` lines;
anything deeper (inside an inline table or a list) gets the line of its container.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(
    r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_QUOTES = ('"""', "'''")


def key_lines(text: str) -> dict[KeyPath, int]:
    r"""Map each key path of a valid TOML text to its line, counted from 1.

    >>> key_lines('a = 1\n[[listener]]\nport = 1883\n')
    {('a',): 1, ('listener',): 2, ('listener', 0): 2, ('listener', 0, 'port'): 3}
    """
    found: dict[KeyPath, int] = {}
    elements: Counter[KeyPath] = Counter()
    table: KeyPath = ()
    quote = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if quote:
            quote = "" if quote in line else quote
            continue
        quote = _opened_quote(line)
        if header := _HEADER.match(line):
            table = _table_path(header[2], elements, is_element=header[1] == "[[")
            for depth in range(1, len(table) + 1):
                found.setdefault(table[:depth], number)
        elif key := _KEY.match(line):
            path = table + _parts(key[1])
            for depth in range(len(table) + 1, len(path) + 1):
                found.setdefault(path[:depth], number)
    return found


def line_of(path: KeyPath, lines: dict[KeyPath, int]) -> int | None:
    """Return the line of `path`, or of its nearest container that has one."""
    for depth in range(len(path), 0, -1):
        if path[:depth] in lines:
            return lines[path[:depth]]
    return None


def _opened_quote(line: str) -> str:
    """Return the multi-line quote that `line` leaves open, if any."""
    for quote in _QUOTES:
        if line.count(quote) % 2:
            return quote
    return ""


def _parts(dotted: str) -> KeyPath:
    """Split a dotted key by TOML's own parser."""
    try:
        node: object = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return (dotted,)
    parts: list[str | int] = []
    while isinstance(node, dict):
        (name, node) = next(iter(node.items()))
        parts.append(name)
    return tuple(parts)


def _table_path(dotted: str, elements: Counter[KeyPath], *, is_element: bool) -> KeyPath:
    """Return the path of a header; a list of tables in it means its latest element."""
    path: KeyPath = ()
    names = _parts(dotted)
    for depth, name in enumerate(names, start=1):
        path = (*path, name)
        if depth == len(names) and is_element:
            elements[path] += 1
        if elements[path]:
            path = (*path, elements[path] - 1)
    return path
