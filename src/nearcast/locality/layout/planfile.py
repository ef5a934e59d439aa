"""A plan as a file: JSON, documented here, checked when read.

    {
      "format": "nearcast-plan",      always
      "format_version": 2,            of this description; 1 if neither nodes nor flows are known
      "version": 7,                   of the plan; a network moves from n to n + 1
      "layout": "qr",                 "qr", "q" or "r"
      "space": [west, south, east, north],
      "depth": 10,                    of the fine grid: borders lie on 2^depth steps per axis
      "fanout": 8,                    of the R part's inner nodes
      "leaves": [
        {"key": "r0", "rect": [west, south, east, north], "load": 120},   R leaf: region 0
        {"key": "q031", "load": 80}                                       Q leaf: path 0, 3, 1
      ],
      "brokers": [0, 0, 1],           which broker serves each leaf; null: one broker per leaf
      "nodes": ["east", "north"],     optional: the name of each broker
      "flows": [[0, 2, 31]]           optional: 31 moves between leaves 0 and 2 in the record
    }

A file of version 1 has neither nodes nor flows; a plan that knows neither is still written as one,
so that older releases can read it.

R leaves come first, in order; Q leaves follow, sorted by key, and tile the space. Numbers are
written so that reading them gives the same float64.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from nearcast.locality.layout.plan import Plan
from nearcast.locality.layout.rect import Rect, checked_rect
from nearcast.model.errors import FileFormatError, MisuseError

FORMAT = "nearcast-plan"
PLAIN_VERSION, FORMAT_VERSION = 1, 2
_KEY = re.compile(r"q[0-3]*|r[0-9]+(\.[0-3]+)?")


def plan_to_json(plan: Plan) -> str:
    """Return the file's text; the same plan gives the same text."""
    leaves: list[dict[str, Any]] = []
    for leaf in plan.leaves:
        row: dict[str, Any] = {"key": leaf.key}
        if leaf.kind == "r":
            row["rect"] = list(leaf.rect)
        leaves.append({**row, "load": leaf.load})
    flows = sorted([*pair, moves] for pair, moves in plan.flows.items())
    known = {"nodes": plan.nodes and list(plan.nodes), "flows": flows}
    more = {name: value for name, value in known.items() if value}
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION if more else PLAIN_VERSION,
        "version": plan.version,
        "layout": plan.layout,
        "space": list(plan.space),
        "depth": plan.grid.depth,
        "fanout": plan.fanout,
        "leaves": leaves,
        "brokers": None if plan.brokers is None else list(plan.brokers),
    }
    return json.dumps(content | more, indent=1)


def plan_from_json(text: str, where: str = "plan") -> Plan:
    """Return the plan of a file's text; FileFormatError for anything wrong with it."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise FileFormatError(
            f"text that is no JSON ({error})",
            where=where,
            expected="a plan file",
            todo="It may have been cut short; make it again with `nearcast plan build`",
        ) from None
    _check_head(content, where)
    try:
        return _plan_of(content)
    except FileFormatError as error:
        raise FileFormatError(
            error.found, where=f"{where}: {error.where}", expected=error.expected
        ) from None
    except (KeyError, TypeError, AttributeError, MisuseError, OverflowError) as error:
        problem = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise FileFormatError(problem, where=where, expected="a whole plan file") from None


def _check_head(content: Any, where: str) -> None:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FileFormatError("something else", where=where, expected=f'"format": "{FORMAT}"')
    found = content.get("format_version")
    if found not in (PLAIN_VERSION, FORMAT_VERSION) or isinstance(found, bool):
        raise FileFormatError(
            f"format version {found!r}",
            where=where,
            expected=f"format version {PLAIN_VERSION} or {FORMAT_VERSION}",
            todo="Make the plan again with this version of Nearcast",
        )


def _plan_of(content: dict[str, Any]) -> Plan:
    space = checked_rect(content["space"], "space")
    leaves = [
        (_key(row), _rect(row, space), _whole(row["load"], "load")) for row in content["leaves"]
    ]
    if content["layout"] not in ("qr", "q", "r"):
        raise FileFormatError(repr(content["layout"]), where="layout", expected="qr, q or r")
    brokers, is_plain = content["brokers"], content["format_version"] == PLAIN_VERSION
    plan = Plan(
        space,
        leaves,
        layout=content["layout"],
        depth=_whole(content["depth"], "depth"),
        fanout=max(2, _whole(content["fanout"], "fanout")),
        version=_whole(content["version"], "version"),
        brokers=None if brokers is None else [_whole(broker, "brokers") for broker in brokers],
        nodes=None if is_plain else _nodes(content.get("nodes")),
        flows={} if is_plain else _flows(content.get("flows")),
    )
    if [leaf.key for leaf in plan.leaves] != [leaf[0] for leaf in leaves]:
        raise FileFormatError(
            "leaves in another order", where="leaves", expected="R leaves, then Q leaves by key"
        )
    return plan


def _key(row: dict[str, Any]) -> str:
    key = row["key"]
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise FileFormatError(repr(key), where="leaves", expected='a key such as "q031" or "r5"')
    return key


def _rect(row: dict[str, Any], space: Rect) -> Rect:
    if row["key"].startswith("q"):
        return space  # computed from the path
    rect = checked_rect(row["rect"], row["key"])
    if not space.covers(rect):
        raise FileFormatError(f"{tuple(rect)}", where=row["key"], expected=f"inside {tuple(space)}")
    return rect


def _whole(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise FileFormatError(repr(value), where=where, expected="a whole number from 0")
    return value


def _nodes(names: Any) -> list[str] | None:
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FileFormatError(repr(names), where="nodes", expected="a list of names")
    return names


def _flows(rows: Any) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for row in rows or []:
        if not isinstance(row, list) or len(row) != 3 or (row[0], row[1]) in found:
            raise FileFormatError(
                repr(row), where="flows", expected="[leaf, leaf, moves], each pair once"
            )
        one, other, moves = (_whole(value, "flows") for value in row)
        found[one, other] = moves
    return found


def save_plan(plan: Plan, path: Path) -> None:
    """Write a plan atomically: a reader sees the old file or the new one, never a part."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(plan_to_json(plan), encoding="utf-8")
    partial.replace(path)


def load_plan(path: Path) -> Plan:
    """Return a file's plan; FileFormatError if it is damaged, cut short or of another version."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise FileFormatError("bytes that are no text", where=str(path), expected="JSON") from None
    return plan_from_json(text, str(path))
