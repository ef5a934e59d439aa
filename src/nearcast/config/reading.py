"""From text and environment to a `Configuration`, or to errors that name file, key and line."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from nearcast.config.lines import KeyPath, key_lines, line_of
from nearcast.config.schema import Configuration
from nearcast.config.values import FORMS
from nearcast.model import ConfigurationError, NearcastError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_PREFIX = "NEARCAST_"
_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a table",
    "model_type": "a table",
    "float_type": "a number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "list_type": "a list",
    "path_type": "a path in quotes",
    "string_type": "text in quotes",
    "string_too_short": "text that is not empty",
    "finite_number": "a finite number",
    "missing": "a value",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading: a configuration, or the problems found."""

    configuration: Configuration | None
    problems: tuple[ConfigurationError, ...] = ()


def load(path: Path | None, environ: Mapping[str, str]) -> Configuration:
    """Return the configuration of a file (the defaults without one), overridden by `environ`."""
    reading = read_file(path, environ) if path else read("", environ, file="defaults")
    if reading.configuration is not None:
        return reading.configuration
    first, *more = reading.problems
    if more:
        first.todo = f"{len(more)} more: see 'nearcast config check {path or ''}'".rstrip()
    raise first


def read_file(path: Path, environ: Mapping[str, str]) -> Reading:
    """Read a file as `read` reads a text."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        todo = f"'nearcast init {path}' writes an example"
        problem = ConfigurationError("there is no such file", where=str(path), todo=todo)
    except UnicodeDecodeError as error:
        problem = ConfigurationError(
            f"byte {error.start} is not UTF-8", where=str(path), todo="Save the file as UTF-8"
        )
    except OSError as error:
        problem = ConfigurationError(f"it cannot be read ({error.strerror})", where=str(path))
    else:
        return read(text, environ, file=str(path))
    return Reading(None, (problem,))


def read(text: str, environ: Mapping[str, str], *, file: str = "nearcast.toml") -> Reading:
    """Read a text and the overrides `NEARCAST_SECTION__KEY=value`; problems are returned."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return Reading(None, (_syntax_problem(error, file),))
    origin: dict[KeyPath, str] = {}
    problems = [
        problem
        for name, value in sorted(environ.items())
        if name.startswith(_PREFIX) and "__" in name
        for problem in _override(tree, name, value, origin)
    ]
    if problems:
        return Reading(None, tuple(problems))
    try:
        return Reading(Configuration.model_validate(tree))
    except ValidationError as error:
        lines = key_lines(text)
        found = [_problem(detail, lines, origin, file) for detail in error.errors()]
        return Reading(None, tuple(sorted(found, key=lambda p: p.line or 0)))


def _syntax_problem(error: tomllib.TOMLDecodeError, file: str) -> ConfigurationError:
    text = str(error)
    place = re.search(r" \(at line (\d+), column (\d+)\)$", text)
    line = int(place[1]) if place else None
    what = text[: place.start()] if place else text.removesuffix(" (at end of document)")
    where = f"{file}:{place[1]}:{place[2]}" if place else f"{file}, at its end"
    return ConfigurationError(
        f"this is not TOML: {what[:1].lower()}{what[1:]}", where=where, line=line
    )


def _override(
    tree: dict[str, Any], name: str, value: str, origin: dict[KeyPath, str]
) -> list[ConfigurationError]:
    """Put one environment variable into the tree; return the problems with it."""
    parts = [part.lower() for part in name.removeprefix(_PREFIX).split("__")]
    path = tuple(int(part) if part.isdigit() else part for part in parts)
    node: Any = tree
    try:
        for here, after in pairwise(path):
            node = _step(node, here, [] if isinstance(after, int) else {})
        _step(node, path[-1], None)
        node[path[-1]] = _toml_value(value)
    except (AttributeError, TypeError, IndexError, KeyError):
        expected = "NEARCAST_SECTION__KEY, with a number for an element of a list"
        return [ConfigurationError("no such place", where=f"environment {name}", expected=expected)]
    origin[path] = name
    return []


def _step(node: Any, key: str | int, default: Any) -> Any:
    """Return the node one level down; the element after a list's last one may be created."""
    if isinstance(key, int):
        if key == len(node):
            node.append(default)
        return node[key]
    return node.setdefault(key, default)


def _toml_value(text: str) -> object:
    """Return `text` as a TOML value, or as plain text where it is none."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _problem(
    detail: ErrorDetails,
    lines: dict[KeyPath, int],
    origin: dict[KeyPath, str],
    file: str,
) -> ConfigurationError:
    path = tuple(detail["loc"])
    line = line_of(path, lines)
    place = _origin_of(path, origin) or (f"{file}:{line}" if line else file)
    found, expected, todo = _explain(detail, path)
    return ConfigurationError(
        found, where=f"{place}: {_dotted(path)}", expected=expected, todo=todo, line=line
    )


def _origin_of(path: KeyPath, origin: dict[KeyPath, str]) -> str:
    names = [name for key, name in origin.items() if path[: len(key)] == key]
    return f"environment {names[0]}" if names else ""


def _dotted(path: KeyPath) -> str:
    """Return a path in the usual notation.

    >>> _dotted(("listener", 0, "port"))
    'listener[0].port'
    """
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).lstrip(".")


def _explain(detail: ErrorDetails, path: KeyPath) -> tuple[str, str, str]:
    """Return what was found, what was expected and what to do, for one of Pydantic's errors."""
    kind = detail["type"]
    context = detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _explain_unknown_key(path)
    if kind == "value_error":
        error = context.get("error")
        if isinstance(error, NearcastError):
            return error.found, error.expected, error.todo
        return str(error), "", ""
    if kind == "missing":
        return "no value", "one: this key is required", ""
    return _shown(detail["input"]), _expected(kind, context, detail["msg"]), ""


def _expected(kind: str, context: Mapping[str, Any], message: str) -> str:
    if kind in _EXPECTED:
        return _EXPECTED[kind]
    if kind == "literal_error":
        return str(context["expected"])
    for key, words in (
        ("ge", "at least"),
        ("gt", "more than"),
        ("le", "at most"),
        ("lt", "less than"),
    ):
        if key in context:
            return f"a number of {words} {context[key]}"
    if kind == "string_pattern_mismatch":
        return FORMS.get(context["pattern"], f"text that fits {context['pattern']}")
    return message.removeprefix("Input should be ").removeprefix("Value should ")


def _explain_unknown_key(path: KeyPath) -> tuple[str, str, str]:
    known = _keys_at(path[:-1])
    close = difflib.get_close_matches(str(path[-1]), known, n=1)
    todo = f"Did you mean '{close[0]}'?" if close else ""
    return f"unknown key '{path[-1]}'", f"one of {', '.join(known)}", todo


def _keys_at(path: KeyPath) -> list[str]:
    """Return the keys that the section at `path` may have."""
    kind: Any = Configuration
    is_free = False  # the next part is a name chosen by the user
    for part in path:
        if is_free or not isinstance(part, str):
            is_free = False
            continue
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = kind.model_fields[part].annotation
            is_free = get_origin(kind) is dict
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            sections = [
                a for a in get_args(kind) if isinstance(a, type) and issubclass(a, BaseModel)
            ]
            kind = sections[0] if sections else kind
    is_section = isinstance(kind, type) and issubclass(kind, BaseModel)
    return list(kind.model_fields) if is_section else []


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
