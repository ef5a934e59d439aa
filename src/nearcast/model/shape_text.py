"""Shapes from text: `bbox(…)`, `circle(…)`, `geojson({…})`, and the short forms of a level."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from nearcast.model.errors import ExpressionError, LimitError, NearcastError, ShapeError
from nearcast.model.polygon import Polygon
from nearcast.model.quantities import as_number, parse_length
from nearcast.model.shapes import BoundingBox, Circle
from nearcast.model.where.tokens import checked_text
from nearcast.model.wording import did_you_mean, shown

Shape: TypeAlias = BoundingBox | Circle | Polygon

_FORMS = "bbox(w,s,e,n), circle(lon,lat,500m) or geojson({…})"
_CALL = re.compile(r"([^\W\d]+)\s*\((.*)\)", re.DOTALL)
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_DEPTH_LIMIT = 64


def parse_shape(text: str | bytes) -> Shape:
    """Return the shape of a text; `str(shape)` reads back as an equal shape.

    Raises ShapeError, OutOfRangeError (a place that is not on earth, an invalid radius) or
    LimitError. O(length), plus Shapely's check of a polygon.

    >>> parse_shape("circle(2.35, 48.85, 0.5km)")
    Circle(lon=2.35, lat=48.85, radius_m=500.0)
    >>> parse_shape("2.2,48.8,2.5,48.9")
    BoundingBox(west=2.2, south=48.8, east=2.5, north=48.9)
    """
    plain = _checked(text).strip()
    if plain.startswith("{"):
        return polygon_of(plain)
    call = _CALL.fullmatch(plain)
    if call is None:
        return _short_form(plain)
    readers: dict[str, Callable[[str], Shape]] = {
        "bbox": _bbox,
        "circle": _circle,
        "geojson": polygon_of,
    }
    name = call.group(1).lower()
    if name not in readers:
        hint = did_you_mean(name, readers)
        raise ShapeError(shown(call.group(1)), where="a shape", expected=_FORMS, todo=hint)
    return readers[name](call.group(2))


def polygon_of(document: object) -> Polygon:
    """Return the polygon of a GeoJSON document, as text or as `json.loads` returns it."""
    loaded = _load(document) if isinstance(document, str) else document
    return Polygon(tuple(_parts(loaded)))


def _checked(text: str | bytes) -> str:
    try:
        return checked_text(text, "a shape")
    except ExpressionError as problem:
        raise ShapeError(problem.found, where=problem.where, expected=problem.expected) from None


def _short_form(text: str) -> Shape:
    pieces = text.split(",")
    if len(pieces) == 4:
        return _bbox(text)
    if len(pieces) == 3:
        return _circle(text)
    raise ShapeError(shown(text), where="a shape", expected=_FORMS)


def _bbox(body: str) -> BoundingBox:
    pieces = _pieces(body, 4, "bbox", "west, south, east, north")
    return BoundingBox(*(_number(piece, "bbox") for piece in pieces))


def _circle(body: str) -> Circle:
    lon, lat, radius = _pieces(body, 3, "circle", "longitude, latitude, radius")
    try:
        radius_m = parse_length(radius)
    except NearcastError as problem:
        raise type(problem)(
            problem.found, where="circle: radius", expected=problem.expected
        ) from None
    return Circle(_number(lon, "circle"), _number(lat, "circle"), radius_m)


def _pieces(body: str, number: int, where: str, expected: str) -> list[str]:
    pieces = [piece.strip() for piece in body.split(",")]
    if len(pieces) != number:
        raise ShapeError(f"{len(pieces)} values", where=where, expected=f"{number}: {expected}")
    return pieces


def _number(piece: str, where: str) -> float:
    try:
        return as_number(piece, where)
    except NearcastError as problem:
        raise ShapeError(problem.found, where=where, expected=problem.expected) from None


def _load(text: str) -> Any:
    """Return the JSON after checking its depth, since the reader would run out of stack."""
    depth = deepest = 0
    for bracket in _BRACKET.findall(text):
        depth += (bracket in "[{") - (bracket in "]}")
        deepest = max(deepest, depth)
    if deepest > _DEPTH_LIMIT:
        raise LimitError(
            f"JSON nested {deepest} deep", where="geojson", expected=f"at most {_DEPTH_LIMIT}"
        )
    import json

    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError as problem:
        raise ShapeError(shown(text), where="geojson", expected=f"JSON ({problem})") from None


def _no_constant(name: str) -> float:
    raise ShapeError(name, where="geojson", expected="finite numbers")


def _parts(document: Any) -> Iterator[Any]:
    """Yield the outlines with their holes; Polygon checks the numbers in them."""
    kind = document.get("type") if isinstance(document, dict) else None
    if kind == "Polygon":
        yield _rings(document.get("coordinates"))
    elif kind == "MultiPolygon":
        yield from map(_rings, _list(document.get("coordinates")))
    elif kind == "Feature":
        yield from _parts(document.get("geometry"))
    elif kind == "FeatureCollection":
        for feature in _list(document.get("features")):
            yield from _parts(feature)
    else:
        raise ShapeError(
            shown(kind if isinstance(document, dict) else document),
            where="geojson: type",
            expected="Polygon, MultiPolygon, Feature or FeatureCollection",
        )


def _rings(value: Any) -> tuple[list[Any], ...]:
    return tuple(_list(ring) for ring in _list(value))


def _list(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return list(value)
    raise ShapeError(shown(value), where="geojson: coordinates", expected="a list")
