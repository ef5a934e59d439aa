"""A matcher in files, which many workers memory-map at once.

    matcher/
    ├── manifest.json      format, spaces, and for each filter index: its filter and exact shapes
    ├── 0.rows.npy         key, birth number, accuracy and place of each box (`rows.py`)
    ├── 0.boxes/           the BoxIndex of the filter index
    ├── 0.polygons/        its polygons, if it has any (`polygon_table.py`)
    └── …

An opened matcher is read-only: a worker matches; the owner of the matcher changes it and saves it
again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from nearcast.matching.exact_shapes import ShapesFromText
from nearcast.matching.filter_index import FilterIndex
from nearcast.matching.polygon_table import PolygonTable
from nearcast.matching.rows import ROW, Rows
from nearcast.matching.view import MatcherView
from nearcast.model import (
    Attribute,
    FileFormatError,
    MisuseError,
    NearcastError,
    Space,
)

FORMAT = 2


def save_matcher(matcher: MatcherView, path: str | Path) -> None:
    """Write the matcher to a new or empty directory; the manifest is written last."""
    root = Path(path)
    if root.exists() and any(root.iterdir()):
        raise MisuseError("the directory is not empty", where=str(root), expected="a new one")
    root.mkdir(parents=True, exist_ok=True)
    shelves = []
    for number, (space, topic_filter, shelf) in enumerate(matcher.shelves()):
        rows, index, shapes, polygons = shelf.contents()
        np.save(root / f"{number}.rows.npy", rows)
        index.save(root / f"{number}.boxes")
        if shapes:
            polygons.save(root / f"{number}.polygons")
        shelves.append({"space": space.name, "filter": topic_filter, "shapes": shapes})
    spaces = [_space_fields(space) for space in matcher.spaces.values()]
    manifest = {"format": FORMAT, "spaces": spaces, "shelves": shelves}
    (root / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def open_matcher(path: str | Path) -> MatcherView:
    """Open the files of `save_matcher`; the arrays stay on disk until they are needed."""
    from nearcast.index.boxes.box_index import BoxIndex

    root = Path(path)
    manifest = _manifest(root)
    try:
        view = MatcherView([_space(fields) for fields in manifest["spaces"]])
        for number, fields in enumerate(manifest["shelves"]):
            space = view.spaces[fields["space"]]
            table = np.load(root / f"{number}.rows.npy", mmap_mode="r")
            if table.dtype != ROW:
                raise FileFormatError("rows of another form", where=str(root), todo="Save it anew")
            polygons = root / f"{number}.polygons"
            shelf = FilterIndex.of(
                space,
                Rows(table),
                BoxIndex.open(root / f"{number}.boxes"),
                ShapesFromText({int(each): texts for each, texts in fields["shapes"].items()}),
                PolygonTable.open(polygons) if fields["shapes"] else PolygonTable(),
            )
            view.put_shelf(space, fields["filter"], shelf)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, NearcastError):
            raise
        raise FileFormatError(f"damaged ({error})", where=str(root), todo="Save it anew") from None
    return view


def parts_of(matcher: MatcherView) -> list[tuple[Any, ...]]:
    """Return what a matcher consists of as plain arrays and texts, for `matcher_of_parts`."""
    found = []
    for space, topic_filter, shelf in matcher.shelves():
        rows, index, shapes, polygons = shelf.contents()
        found.append((space.name, topic_filter, rows, index.arrays(), shapes, polygons.arrays()))
    return found


def matcher_of_parts(parts: list[tuple[Any, ...]], spaces: list[Space]) -> MatcherView:
    """Return the matcher of `parts_of`, read-only; the arrays are used as they are."""
    from nearcast.index.boxes.box_index import BoxIndex

    view = MatcherView(spaces)
    for name, topic_filter, rows, boxes, shapes, polygons in parts:
        shelf = FilterIndex.of(
            view.spaces[name],
            Rows(rows),
            BoxIndex.restored(boxes),
            ShapesFromText(shapes),
            PolygonTable.restored(polygons),
        )
        view.put_shelf(view.spaces[name], topic_filter, shelf)
    return view


def _manifest(root: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((root / "manifest.json").read_text(encoding="utf-8"))
        found = manifest["format"]
    except (OSError, ValueError, KeyError, TypeError):
        raise FileFormatError(
            "no readable manifest", where=str(root), expected="a saved matcher", todo="Save it anew"
        ) from None
    if found != FORMAT:
        raise FileFormatError(f"format {found}", where=str(root), expected=f"format {FORMAT}")
    return manifest  # type: ignore[no-any-return]


def _space_fields(space: Space) -> dict[str, Any]:
    return {
        "name": space.name,
        "topic_filter": space.topic_filter,
        "attributes": [
            {"name": a.name, "categories": list(a.categories)}
            if a.is_category
            else {"name": a.name, "low": a.low, "high": a.high}
            for a in space.attributes
        ],
        "longitude": space.longitude,
        "latitude": space.latitude,
        "missing": space.missing,
        "required": sorted(space.required or ()),
    }


def _space(fields: dict[str, Any]) -> Space:
    attributes = tuple(
        Attribute.category(each["name"], each["categories"])
        if "categories" in each
        else Attribute.number(each["name"], each["low"], each["high"])
        for each in fields["attributes"]
    )
    required = frozenset(fields["required"])
    return Space(**{**fields, "attributes": attributes, "required": required})
