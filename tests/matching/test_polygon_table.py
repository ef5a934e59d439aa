"""The compiled point in polygon beside `Polygon.contains`, whose predicates are exact."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.support.polygons import CITY, polygons, small, star

from nearcast.matching import Matcher
from nearcast.matching.polygon_table import (
    GENERAL,
    INSIDE,
    NONE,
    OUTSIDE,
    UNCERTAIN,
    PolygonTable,
    pairs_inside,
)
from nearcast.model import (
    MISSING,
    Circle,
    Event,
    Polygon,
    Subscription,
    parse_shape,
    parse_where,
)
from nearcast.model.shape_text import Shape


def verdicts(
    shapes: Mapping[int, tuple[Shape, ...]], points: Sequence[tuple[float, float]]
) -> list[bool]:
    """Return for each box and point whether the shapes contain it, by the table."""
    table = PolygonTable.of(shapes)
    ids = np.repeat(np.array(list(shapes), np.int64), len(points))
    events = np.tile(np.arange(len(points)), len(shapes))
    lons, lats = (np.array(axis, np.float64) for axis in zip(*points, strict=True))
    found: list[bool] = pairs_inside(table, shapes, events, ids, lons, lats).tolist()
    return found


def by_definition(
    shapes: Mapping[int, tuple[Shape, ...]], points: Sequence[tuple[float, float]]
) -> list[bool]:
    lons, lats = zip(*points, strict=True)
    return [
        bool(inside)
        for of_box in shapes.values()
        for inside in np.all([shape.contains_many(lons, lats) for shape in of_box], axis=0)
    ]


halves = st.integers(-8, 22).map(lambda n: n / 2)


GRID = [(x / 2, y / 2) for x in range(-7, 22) for y in range(-7, 8)]


@given(st.lists(polygons, min_size=1, max_size=4))
def test_the_table_answers_as_the_polygons_do(shapes):
    of_boxes = {3 * n: (shape,) for n, shape in enumerate(shapes)}
    assert verdicts(of_boxes, GRID) == by_definition(of_boxes, GRID)


@given(st.integers(5, 300), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_polygons_of_many_edges_have_slabs(corners, turn, seed):
    random = np.random.default_rng(seed)
    shape = star(8.5, 47.4, 0.1, 2 * (corners // 2), turn)
    vertices = list(shape.parts[0][0])
    middles = [((a + c) / 2, (b + d) / 2) for (a, b), (c, d) in pairwise(vertices)]
    spread = (np.array([8.5, 47.4]) + random.uniform(-0.12, 0.12, (50, 2))).tolist()
    level = [(x, vertices[0][1]) for x, _ in spread[:9]]
    points = [*vertices, *middles, *map(tuple, spread), *level]
    assert verdicts({0: (shape,)}, points) == by_definition({0: (shape,)}, points)


def test_most_points_are_decided_by_the_kernel_and_points_on_an_edge_are_not():
    table = PolygonTable.of({0: (star(0, 0, 1, 8),), 1: (star(0, 0, 1, 8), Circle(0, 0, 10))})
    lons, lats = np.random.default_rng(1).uniform(-1.1, 1.1, (2, 1000))
    found = table.verdicts(np.arange(1000), np.zeros(1000, np.int64), lons, lats)
    assert set(found.tolist()) == {INSIDE, OUTSIDE}
    several = table.verdicts(np.arange(1000), np.ones(1000, np.int64), lons, lats)
    assert set(several.tolist()) == {UNCERTAIN}
    assert table.slots[:3].tolist() == [0, GENERAL, NONE]
    third = Polygon(((((0, 0), (3, 1), (0, 1), (0, 0)),),))  # 0.3, 0.1 is not on the edge exactly
    table = PolygonTable.of({0: (third,)})
    zero = np.zeros(1, np.int64)
    assert table.verdicts(zero, zero, np.array([0.3]), np.array([0.1])).tolist() == [UNCERTAIN]


def test_a_box_without_shapes_needs_no_entry():
    table = PolygonTable.of({0: (star(0, 0, 1, 8),)})
    far = np.array([len(table.slots), 10**9, 0], np.int64)
    zeros = np.zeros(3)
    assert table.verdicts(np.arange(3), far, zeros, zeros).tolist() == [INSIDE] * 3


def test_seam_and_poles_are_left_to_the_polygon():
    east = Polygon(((((170, 60), (180, 60), (180, 90), (170, 90), (170, 60)),),))
    points = [(180, 70), (-180, 70), (10, 90), (175, 90), (175, 65), (-175, 65)]
    assert by_definition({0: (east,)}, points) == [True, True, True, True, True, False]
    assert verdicts({0: (east,)}, points) == by_definition({0: (east,)}, points)


def test_a_polygon_thinner_than_numbers_can_divide():
    below, above = [(n, 0.0) for n in range(12)], [(n, 5e-324) for n in range(11, -1, -1)]
    thin = Polygon((((*below, *above, below[0]),),))
    points = [(0.5, 0.0), (1.0, 5e-324), (0.5, 1e-300), (20.0, 0.0), (0.5, -1e-9)]
    assert verdicts({0: (thin,)}, points) == by_definition({0: (thin,)}, points)


def test_memory_of_removed_polygons_is_used_again():
    table = PolygonTable()
    shapes = {n: (star(n, n, 1, 64),) for n in range(40)}
    for n, of_box in shapes.items():
        table.put(n, of_box)
    room = table.edges.nbytes
    for _ in range(50):
        for n, of_box in shapes.items():
            table.drop(n)
            table.put(n, of_box)
    assert table.edges.nbytes <= 4 * room
    points = [(n + 0.3, n + 0.1) for n in range(40)]
    ids = np.repeat(np.arange(40), 40)
    events = np.tile(np.arange(40), 40)
    lons, lats = (np.array(axis) for axis in zip(*points, strict=True))
    found = pairs_inside(table, shapes, events, ids, lons, lats).tolist()
    assert found == by_definition(shapes, points)
    for n in shapes:
        table.drop(n)
        table.drop(n)  # a box without shapes
    assert set(table.slots.tolist()) == {NONE}


@given(st.data())
def test_filters_with_polygons_and_circles_answer_as_their_definition(data):
    matcher = Matcher([CITY])
    wanted = {}
    count = data.draw(st.integers(20, 40))  # from 24 on they are in the index
    for key in range(count):
        area = data.draw(st.one_of(polygons, st.builds(Circle, small, small, st.just(2e5))))
        limit = data.draw(st.integers(0, 9))
        where = parse_where(f"price <= {limit}")
        matcher.add(key, Subscription(topic_filter="city/#", where=where, area=area))
        wanted[key] = limit, area
    for key in data.draw(st.lists(st.integers(0, count - 1), unique=True, max_size=9)):
        matcher.remove(key)
        del wanted[key]
    rows = data.draw(
        st.lists(st.tuples(st.integers(0, 9).map(float), halves, halves), min_size=1, max_size=9)
    )
    offsets, keys = matcher.match_points("city", "city/x", rows)
    best = matcher.top_points("city", "city/x", rows, 3, "narrowest")
    for n, (price, lon, lat) in enumerate(rows):
        event = Event.of(CITY, "city/x", {"price": price, "lon": lon, "lat": lat})
        by_hand = {
            key
            for key, (limit, area) in wanted.items()
            if price <= limit and area.contains(lon, lat)
        }
        assert set(keys[offsets[n] : offsets[n + 1]].tolist()) == by_hand
        assert set(matcher.match(event)) == by_hand
        assert set(matcher.match_point("city", "city/x", (price, lon, lat))) == by_hand
        one_by_one = [match.key for match in matcher.top(event, 3, "narrowest")]
        assert [key for key in best[n].tolist() if key >= 0] == one_by_one


@given(st.lists(polygons, min_size=24, max_size=30), st.booleans())
def test_counts_are_those_of_the_pairs(shapes, has_circle):
    matcher = Matcher([replace(CITY, missing="none")])
    for key, shape in enumerate(shapes):
        where = None if key % 3 else parse_where(f"price <= {key % 9}")
        matcher.add(10 * key, Subscription(topic_filter="city/#", where=where, area=shape))
    bounds = parse_shape("bbox(0,0,5,5)")
    matcher.add(1, Subscription(topic_filter="city/x", area=bounds))  # a filter index of its own
    if has_circle:
        matcher.add(7, Subscription(topic_filter="city/#", area=Circle(3, 3, 2e5)))
    places = [*GRID[::3], (MISSING, MISSING)]
    rows = [(float(n % 10), *place) for n, place in enumerate(places)]
    _, keys = matcher.match_points("city", "city/x", rows)
    found, counts = matcher.count_points("city", "city/x", rows)
    assert dict(zip(found.tolist(), counts.tolist(), strict=True)) == Counter(keys.tolist())
    assert len(found) == len(set(found.tolist()))
    assert matcher.count_points("city", "town", rows)[0].size == 0


def test_points_that_the_kernel_leaves_open_count_where_the_polygon_has_them():
    triangle = Polygon(((((0, 0), (3, 1), (0, 1), (0, 0)),),))
    lats = [0.1, np.nextafter(0.1, 0), np.nextafter(0.1, 1), 0.1 - 5e-17, 0.1 - 1e-16]
    lons = np.full(len(lats), 0.3)
    here = np.arange(len(lats)), np.zeros(len(lats), np.int64)
    left_open = PolygonTable.of({0: (triangle,)}).verdicts(*here, lons, np.array(lats))
    inside = triangle.contains_many(lons, lats)
    open_inside = inside[left_open == UNCERTAIN]
    assert {*open_inside.tolist()} == {True, False}
    matcher = Matcher([replace(CITY, missing="none")])
    for key in range(30):
        matcher.add(key, Subscription(topic_filter="city/#", area=triangle))
    rows = [(1.0, 0.3, lat) for lat in lats]
    keys, counts = matcher.count_points("city", "city/x", rows)
    assert dict(zip(keys.tolist(), counts.tolist(), strict=True)) == dict.fromkeys(
        range(30), int(inside.sum())
    )


def test_saved_polygons_answer_as_before(tmp_path: Path):
    from nearcast.matching import open_matcher, save_matcher

    matcher = Matcher([CITY])
    for key in range(60):
        area = star(key % 8, key % 5, 1.5, 8, key)
        matcher.add(key, Subscription(topic_filter="city/#", area=area))
    for key in range(0, 60, 3):
        matcher.remove(key)
    save_matcher(matcher, tmp_path / "saved")
    opened = open_matcher(tmp_path / "saved")
    rows = np.random.default_rng(2).uniform(-1, 9, (200, 3))
    rows[0] = (1, *star(1, 1, 1.5, 8, 1).parts[0][0][0])  # a corner: the text is parsed for it
    offsets, keys = matcher.match_points("city", "city/x", rows)
    again, found = opened.match_points("city", "city/x", rows)
    assert offsets.tolist() == again.tolist()
    assert len(keys) > 100
    for n in range(len(rows)):
        assert set(keys[offsets[n] : offsets[n + 1]]) == set(found[offsets[n] : offsets[n + 1]])
    best = matcher.top_points("city", "city/x", rows, 3)
    assert best.tolist() == opened.top_points("city", "city/x", rows, 3).tolist()
