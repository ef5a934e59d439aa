"""Polygons read in bulk are those that `parse_shape` reads one by one, and no other."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.polygons import polygons, star

from nearcast.matching.polygon_texts import read_polygons
from nearcast.matching.subscription_compiler import middle_of
from nearcast.model import NearcastError, Polygon, parse_shape

SQUARE = [[0, 0], [4, 0], [4, 4], [0, 4], [0, 0]]
HOLE = [[1, 1], [2, 1], [2, 2], [1, 2], [1, 1]]


WRITTEN_OTHERWISE = [  # polygons all the same
    json.dumps({"coordinates": [SQUARE], "type": "Polygon"}),
    json.dumps({"type": "Polygon", "coordinates": [SQUARE], "bbox": [0, 0, 4, 4]}),
    json.dumps({"type": "Polygon", "coordinates": [[[x, y, 7] for x, y in SQUARE]]}),
    json.dumps({"type": "Polygon", "coordinates": [[[str(x), y] for x, y in SQUARE]]}),
    json.dumps({"type": "MultiPolygon", "coordinates": [[SQUARE]]}),
    json.dumps(
        {
            "type": "Polygon",
            "coordinates": [[[n / 100, n * n / 10_000] for n in range(1_500)] + [[0, 0]]],
        }
    ),
]


def geojson(*rings: object) -> str:
    return f"geojson({json.dumps({'type': 'Polygon', 'coordinates': rings})})"


def is_simple(text: str | None) -> Polygon | None:
    """Return the polygon of a text if it has one outline, away from seam and poles."""
    try:
        shape = parse_shape(text or "")
    except NearcastError:
        return None
    if not isinstance(shape, Polygon) or len(shape.parts) > 1 or len(shape.bounds()) > 1:
        return None
    ((west, south, east, north),) = shape.bounds()
    return shape if west > -180 and east < 180 and south > -90 and north < 90 else None


def assert_read(texts: list[str | None], may_be_left: set[int]) -> None:
    found = read_polygons(texts)
    simple = {row: shape for row, text in enumerate(texts) if (shape := is_simple(text))}
    left = simple.keys() - set(found.rows.tolist())
    assert left <= may_be_left
    simple = {row: shape for row, shape in simple.items() if row not in left}
    assert found.rows.tolist() == list(simple)
    assert [tuple(each) for each in found.bounds.tolist()] == [
        shape.bounds()[0] for shape in simple.values()
    ]
    assert [tuple(each) for each in found.middles.tolist()] == [
        middle_of(shape) for shape in simple.values()
    ]
    edges = [
        [[*a, *b] for ring in shape.parts[0] for a, b in pairwise(ring)]
        for shape in simple.values()
    ]
    assert found.edges.tolist() == [edge for of_one in edges for edge in of_one]
    assert found.edge_counts.tolist() == list(map(len, edges))


@given(st.lists(polygons.map(str), max_size=8))
def test_valid_polygons_are_read_as_one_by_one(texts):
    assert_read(texts, set())


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "circle(8,47,500m)",
        "bbox(0,0,1,1)",
        geojson(SQUARE),
        "  geojson ( " + json.dumps({"type": "Polygon", "coordinates": [SQUARE]}, indent=1) + " )",
        json.dumps({"type": "Polygon", "coordinates": [SQUARE, HOLE]}),
        *WRITTEN_OTHERWISE,
        geojson(HOLE, SQUARE),
        geojson(),
        geojson([]),
        geojson(SQUARE, []),
        geojson(SQUARE[:-1]),
        geojson(SQUARE[:2] + SQUARE[:1]),
        geojson([[0, 0], [4, 4], [4, 0], [0, 4], [0, 0]]),
        geojson([[0, 0, 1], [4], *SQUARE[2:]]),
        geojson([[0, 0], [181, 0], [4, 4], [0, 0]]),
        geojson([[0, 0], [4, 91], [4, 4], [0, 0]]),
        geojson([[-100, 0], [100, 0], [4, 4], [-100, 0]]),
        geojson([[170, 0], [180, 0], [180, 4], [170, 0]]),
        geojson([[0, 80], [4, 90], [4, 80], [0, 80]]),
        geojson([[-0.0, 0], [4, -0.0], [4, 4], [0, 4], [0, 0]]),
        geojson([[True, False], *SQUARE]),
        geojson([SQUARE]),
        geojson(5),
        '{"type":"Polygon","coordinates":[[[0,0],[4,0],[4,4],[0,0]]],[1]}',
        '{"type":"Polygon","coordinates":[[[0,0],[1e400,0],[4,4],[0,0]]]}',
        '{"type":"Polygon","coordinates":[[[0,0],[NaN,0],[4,4],[0,0]]]}',
        f'{{"type":"Polygon","coordinates":[[[0,0],[{"9" * 400},0],[4,4],[0,0]]]}}',
        f'{{"type":"Polygon","coordinates":{"[" * 2000}1{"]" * 2000}}}',
        '{"type":"Polygon","coordinates":[[[0,0],[4,0],[4,4]]',
        'geojson({"type":"Polygon","coordinates":[[[0,0],[4,0],[4,4],[0,0]]]}',
        geojson([[1.5 * n, 1] for n in range(70)] + [[0, 0], [0, 1]]),
        " " * 70_000 + geojson(SQUARE),
    ],
)  # fmt: skip
def test_whatever_is_said_between_two_good_ones_is_read_or_left_as_one_by_one(text):
    texts = [geojson(SQUARE, HOLE), text, str(star(8, 47, 1, 40))]
    assert_read(texts, {1} if text in WRITTEN_OTHERWISE else set())


def test_some_of_the_polygons_can_be_left_out():
    found = read_polygons([geojson(SQUARE), None, geojson(SQUARE, HOLE), str(star(8, 47, 1, 8))])
    kept = found.of_rows(found.rows != 2)
    assert kept.rows.tolist() == [0, 3]
    assert kept.edge_counts.tolist() == [4, 8]
    assert len(kept.edges) == 12
    assert kept.edges[4:].tolist() == read_polygons([str(star(8, 47, 1, 8))]).edges.tolist()
