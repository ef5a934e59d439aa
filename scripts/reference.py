"""Write the reference tables of settings and metrics into `docs/` from their declarations.

    python scripts/reference.py

A test compares the pages with what this would write. Text outside of the two marks is kept.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BeforeValidator

from nearcast.broker.counters import DROPS, Counters
from nearcast.config import Configuration, Section, Setting, all_settings
from nearcast.config.declaration import inner_section, sections_of, settings_of
from nearcast.config.values import written
from nearcast.server.metrics.declared import (
    PROCESS_METRICS,
    Metric,
    broker_metrics,
    cluster_metrics,
    peer_metrics,
)

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEGIN = "<!-- written by scripts/reference.py: change the declarations, then run it -->"
END = "<!-- end -->"
_WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text", Path: "path"}


def settings_reference(whole: type[Section] = Configuration) -> str:
    """Return a table of keys for each section."""
    reloads = {one.path: one.reload for one in all_settings(whole)}
    lines: list[str] = []
    for prefix, section in sections_of(whole):
        of_whole = reloads.get(prefix.removesuffix(".").removesuffix("[]"), False)
        lines += _section(prefix, section, of_whole=of_whole)
    return "\n".join(lines).strip()


def _section(prefix: str, section: type[Section], *, of_whole: bool | str) -> Iterator[str]:
    keys = list(settings_of(section, prefix))
    if not keys:
        return
    yield f"### {_header(prefix)}"
    yield ""
    yield inspect.getdoc(section) or ""
    yield ""
    yield "| key | value | default | on SIGHUP | meaning |"
    yield "|---|---|---|---|---|"
    for one in keys:
        if inner_section(one.field)[0] is None:
            yield _row(
                f"`{one.key}`", _kind(one), _default(one), _reload(one.reload or of_whole), one.help
            )
    yield ""


def _header(prefix: str) -> str:
    """Return a prefix of keys as the header in the file.

    >>> _header("listener[]."), _header("space[].attributes.NAME.")
    ('`[[listener]]`', '`[space.attributes]`')
    """
    path = prefix.removesuffix(".")
    if path.endswith("[]"):
        return f"`[[{path[:-2]}]]`"
    return f"`[{path.removesuffix('.NAME').replace('[]', '')}]`"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(one: Setting) -> str:
    if one.field.is_required():
        return "required"
    return "" if one.field.default is None else f"`{written(one.field.default, one.field)}`"


def _reload(reload: bool | str) -> str:
    return reload if isinstance(reload, str) else "at once" if reload else ""


def _kind(one: Setting) -> str:
    words = _type_words(one.field.annotation, one.field.metadata)
    bounds = {type(each): each for each in one.field.metadata}
    most = bounds[Le].le if Le in bounds else None
    least = bounds[Ge].ge if Ge in bounds else bounds[Gt].gt if Gt in bounds else None
    if words not in ("number", "whole number") or least is None:
        return words
    above = " above" if Ge not in bounds else ", at least" if most is None else " from"
    return f"{words}{above} {least}{'' if most is None else f' to {most}'}"


def _type_words(kind: Any, metadata: Iterable[Any] = ()) -> str:
    readers = {each.func.__name__ for each in metadata if isinstance(each, BeforeValidator)}
    if readers & {"_bytes", "_seconds"}:
        return "size" if "_bytes" in readers else "duration"
    if get_origin(kind) is Literal:
        return ", ".join(f"`{each}`" for each in get_args(kind))
    if get_origin(kind) is types.UnionType or str(get_origin(kind)) == "typing.Union":
        parts = [_type_words(each) for each in get_args(kind) if each is not type(None)]
        return " or ".join(parts)
    if hasattr(kind, "__metadata__"):
        return _type_words(kind.__origin__, kind.__metadata__)
    return "list" if get_origin(kind) is list else _WORDS[kind]


def metrics_reference() -> str:
    """Return a table of metrics for each part of a node, and the reasons of drops."""
    parts = {
        "The broker": broker_metrics(),
        "In a cluster": cluster_metrics(),
        "A peer of an overlay": peer_metrics(),
        "The process": PROCESS_METRICS,
    }
    lines = [line for title, metrics in parts.items() for line in _metrics(title, metrics)]
    helps = {one.name: one.metadata["help"] for one in fields(Counters)}
    reasons = [_row(f"`{reason}`", helps[name]) for reason, name in DROPS.items()]
    heading = ["### Reasons of `nearcast_dropped_total`", "", "| reason | a message is dropped |"]
    return "\n".join([*lines, *heading, "|---|---|", *reasons])


def _metrics(title: str, metrics: tuple[Metric, ...]) -> Iterator[str]:
    yield f"### {title}"
    yield ""
    yield "| on `/metrics` | kind | below `$SYS/broker/` | meaning |"
    yield "|---|---|---|---|"
    for one in metrics:
        label = f"{{{one.label}=…}}" if one.label else ""
        name = f"`{one.name}{label}`" if one.name else ""
        topics = ", ".join(f"`{topic}`" for topic in one.topics)
        yield _row(name, one.kind, topics, one.help)
    yield ""


PAGES = {"configuration.md": settings_reference, "metrics.md": metrics_reference}


def page(name: str) -> str:
    """Return a page of `docs` with its tables as they should be."""
    before, _, rest = (DOCS / name).read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{PAGES[name]()}\n\n{END}{after}"


if __name__ == "__main__":
    for each in PAGES:
        (DOCS / each).write_text(page(each), encoding="utf-8")
        sys.stdout.write(f"docs/{each}\n")
