"""E(x) from a file: the counts of `nearcast pipeline histogram` from a node's event log.

    {"format": "nearcast-density", "format_version": 1,
     "space": "shops", "attributes": ["price", "kind"],
     "lows": [0.0, -0.5], "highs": [100.0, 1.5], "events": 12345,
     "kind": "histogram", "shape": [64, 2], "counts": [...]}       row by row, or
     "kind": "marginals", "samples": [[...], ...]}                 sorted values of each attribute

Read next: `cover.py`.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from nearcast.model import Space
from nearcast.model.errors import FileFormatError, NearcastError
from nearcast.overlay.bounds import Extent
from nearcast.overlay.density import Density, GridDensity, MarginalDensity

FORMAT, FORMAT_VERSION = "nearcast-density", 1


def read_density(text: str, space: Space, *, where: str) -> Density:
    """Return the density of a space's events; O(size of the text).

    Raises FileFormatError where the text is damaged, of another version, or of another space: one
    whose attributes or their ranges have changed since.
    """
    content = content_of(text, where=where)
    try:
        _check_space(content, space, where)
        return _density_of(content, Extent(space.extent.lows, space.extent.highs))
    except FileFormatError:
        raise
    except (KeyError, TypeError, ValueError, NearcastError) as problem:
        raise FileFormatError(
            f"a damaged file ({problem})", where=where, expected=f"a whole {FORMAT} file"
        ) from None


def content_of(text: str, *, where: str, todo: str = "") -> dict[str, Any]:
    """Return the content of a density file; FileFormatError for other files and versions."""
    try:
        content = json.loads(text)
    except ValueError as problem:
        raise FileFormatError(f"no JSON ({problem})", where=where, expected=FORMAT) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FileFormatError("another kind of file", where=where, expected=f'"format": "{FORMAT}"')
    version, expected = content.get("format_version"), f"format version {FORMAT_VERSION}"
    if version != FORMAT_VERSION:
        raise FileFormatError(
            f"format version {version!r}", where=where, expected=expected, todo=todo
        )
    return content


def _check_space(content: dict[str, Any], space: Space, where: str) -> None:
    names = [attribute.name for attribute in space.attributes]
    counted = (content["space"], content["attributes"], content["lows"], content["highs"])
    declared = (space.name, names, list(space.extent.lows), list(space.extent.highs))
    if counted != declared:
        shape = "events of {!r} with {} from {} to {}"
        found, expected = (shape.format(*values) for values in (counted, declared))
        raise FileFormatError(
            found,
            where=where,
            expected=f"{expected}, as configured",
            todo="Count its events again with 'nearcast pipeline histogram'.",
        )


def _density_of(content: dict[str, Any], extent: Extent) -> Density:
    if content["kind"] == "histogram":
        counts = np.array(content["counts"], dtype=np.float64).reshape(content["shape"])
        return GridDensity(extent, counts)
    samples = np.array(content["samples"], dtype=np.float64).T
    if not np.isfinite(samples).all():
        raise ValueError("a sample that is no number")
    return MarginalDensity(extent, samples)
