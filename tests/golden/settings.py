"""Configuration: every key with type and default, what `nearcast init` writes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.golden.golden import Maker
from typer.testing import CliRunner

from nearcast.cli import app
from nearcast.config import Configuration, read
from nearcast.server.config_reload import AT_ONCE

_BOUNDS = frozenset(
    {
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern", "minLength"),
        *("enum", "const", "format", "minProperties"),
    }
)
PROBES = ('"2s"', '"20ms"', '"2KiB"', "0", "-1", "0.5", "3", "300000000", "true", '"a"', '["a/+"]')
EXAMPLE_SPACES = """\
[[space]]
name = "shops"
topics = "shops/#"
longitude = "lon"
latitude = "lat"
top = 3
lifetime = "250ms"
[space.attributes]
lon = { low = -1, high = 1 }
lat = { low = -1, high = 1, path = "at.lat" }
kind = { categories = ["food", "tools"] }

[[space]]
name = "talk"
topics = "talk/#"
order = "causal"
attributes = { x = { low = 0, high = 9 } }
"""


def _forms(schema: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in which what it refers to stands in its place."""
    while "$ref" in schema:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        schema = whole["$defs"][schema["$ref"].rpartition("/")[2]] | rest
    return schema


def _told(schema: dict[str, Any], whole: dict[str, Any]) -> str:
    """Return type and bounds of a value in one line."""
    schema = _forms(schema, whole)
    parts = [_told(one, whole) for one in schema.get("anyOf", [])]
    kind = (
        " or ".join(parts) if parts else schema.get("type", "const" if "const" in schema else "any")
    )
    bounds = [f"{key} {json.dumps(schema[key])}" for key in sorted(_BOUNDS & schema.keys())]
    return ", ".join([kind, *bounds])


def keys(schema: dict[str, Any], whole: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield every key below a section: path, type, default."""
    for name, given in schema["properties"].items():
        one = _forms(given, whole)
        inner = _forms(one.get("items", one.get("additionalProperties", one)) or one, whole)
        full = f"{path}{name}"
        mark = {"array": "[].", "object": ".NAME."}.get(str(one.get("type")), ".")
        if "properties" in inner:
            mark = "." if inner is one or "properties" in one else mark
            yield from keys(inner, whole, f"{full}{mark}")
            continue
        needed = name in schema.get("required", ())
        default = "needed" if needed else f"= {json.dumps(given.get('default'))}"
        item = f" of {_told(inner, whole)}" if inner is not one else ""
        yield f"{full}: {_told(one, whole)}{item}; {default}"


def all_keys() -> str:
    """Return every key of the configuration, and which take effect without a restart."""
    whole = Configuration.model_json_schema(mode="validation")
    at_once = sorted(f"at once: {key}" for key in AT_ONCE)
    return "\n".join([*keys(whole, whole), *at_once]) + "\n"


def taken() -> str:
    """Return which of some values the keys of plain sections take: text forms and bounds."""
    whole = Configuration.model_json_schema(mode="validation")
    names = [one.partition(":")[0] for one in keys(whole, whole)]
    lines = []
    for name in (one for one in names if one.count(".") == 1 and "[" not in one):
        section, _, key = name.partition(".")
        tried = (f"[{section}]\n{key} = {value}\n" for value in PROBES)
        found = [read(text, {}, file="golden").configuration is not None for text in tried]
        marks = [value if is_taken else "-" for value, is_taken in zip(PROBES, found, strict=True)]
        lines.append(f"{name}: {'  '.join(marks)}")
    return "\n".join(lines) + "\n"


def init() -> str:
    """Return the file that `nearcast init` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nearcast.toml"
        done = CliRunner().invoke(app, ["init", str(path)])
        assert done.exit_code == 0, done.output
        return path.read_text(encoding="utf-8")


INIT = "settings/nearcast.toml"
FILES: dict[str, Maker] = {
    "settings/keys.txt": all_keys,
    "settings/values.txt": taken,
    INIT: init,
}
