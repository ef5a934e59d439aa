"""Two shapes share a place: beside sampling, and symmetric."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model import BoundingBox, Circle, Polygon, Shape, distance_m

coordinate = st.integers(-6, 6)


@st.composite
def small_boxes(draw: st.DrawFn) -> BoundingBox:
    west, east = sorted((draw(coordinate), draw(coordinate)))
    south, north = sorted((draw(coordinate), draw(coordinate)))
    return BoundingBox(west, south, east, north)


@st.composite
def triangles(draw: st.DrawFn) -> Polygon:
    a, b, c = draw(
        st.lists(st.tuples(coordinate, coordinate), min_size=3, max_size=3).filter(_area)
    )
    return Polygon((((a, b, c, a),),))


def _area(points: list[tuple[int, int]]) -> bool:
    (ax, ay), (bx, by), (cx, cy) = points
    return (bx - ax) * (cy - ay) != (cx - ax) * (by - ay)


small_circles = st.builds(Circle, coordinate, coordinate, st.floats(20_000, 600_000))
shapes = st.one_of(small_boxes(), triangles(), small_circles)

GRID = np.linspace(-7, 7, 57)  # quarters of a degree, whole degrees among them
LONS, LATS = (each.ravel() for each in np.meshgrid(GRID, GRID))


@given(shapes, shapes)
def test_shapes_that_share_a_sampled_place_touch(ours: Shape, theirs: Shape) -> None:
    shared = ours.contains_many(LONS, LATS) & theirs.contains_many(LONS, LATS)
    assert ours.touches(theirs) == theirs.touches(ours)
    if shared.any():
        assert ours.touches(theirs)


@given(small_boxes(), small_boxes())
def test_boxes_touch_as_their_sides_do(ours: BoundingBox, theirs: BoundingBox) -> None:
    wanted = (
        ours.west <= theirs.east
        and theirs.west <= ours.east
        and ours.south <= theirs.north
        and theirs.south <= ours.north
    )
    assert ours.touches(theirs) == wanted


@given(triangles(), small_circles)
def test_a_circle_touches_a_polygon_if_some_place_of_its_edge_is_within_the_radius(
    polygon: Polygon, circle: Circle
) -> None:
    ring = polygon.parts[0][0]
    steps = np.linspace(0, 1, 400)
    nearest_m = min(
        distance_m(circle.lon, circle.lat, x1 + t * (x2 - x1), y1 + t * (y2 - y1))
        for (x1, y1), (x2, y2) in pairwise(ring)
        for t in steps.tolist()
    )
    wanted = polygon.contains(circle.lon, circle.lat) or nearest_m <= circle.radius_m
    if abs(nearest_m - circle.radius_m) > 10_000 or wanted:
        assert polygon.touches(circle) == wanted


def square(west: float, south: float, east: float, north: float) -> Polygon:
    ring = ((west, south), (east, south), (east, north), (west, north), (west, south))
    return Polygon(((ring,),))


@pytest.mark.parametrize(
    ("ours", "theirs", "touch"),
    [
        (Circle(179.9, 0, 20_000), Circle(-179.9, 0, 20_000), True),
        (Circle(179.9, 0, 10_000), Circle(-179.9, 0, 10_000), False),
        (Circle(179.9, 0, 20_000), BoundingBox(-180, -1, -179, 1), True),
        (Circle(179.9, 0, 10_000), BoundingBox(-180, -1, -179, 1), False),
        (Circle(0, 89.9, 20_000), BoundingBox(179, 80, 180, 89.95), True),
        (Circle(0, 89.9, 20_000), BoundingBox(179, 80, 180, 89.9), False),
        (Circle(0, 89.9, 20_000), BoundingBox(90, 85, 91, 90), True),
        (BoundingBox(170, 0, 180, 5), BoundingBox(-180, 5, -170, 9), True),
        (BoundingBox(170, 0, 180, 5), BoundingBox(-180, 6, -170, 9), False),
        (BoundingBox(170, 0, -170, 5), BoundingBox(-175, 1, -174, 2), True),
        (BoundingBox(0, 80, 10, 90), BoundingBox(100, 85, 110, 90), True),
        (BoundingBox(0, 80, 10, 89), BoundingBox(100, 85, 110, 90), False),
        (square(170, 0, 180, 5), BoundingBox(-180, 1, -170, 2), True),
        (square(170, 0, 180, 5), BoundingBox(-180, 6, -170, 7), False),
        (square(-180, 0, -170, 5), BoundingBox(170, 1, 180, 2), True),
        (square(170, 0, 180, 5), square(-180, 5, -170, 9), True),
        (square(170, 0, 180, 5), square(-180, 6, -170, 9), False),
        (square(0, 80, 10, 90), square(100, 80, 110, 90), True),
        (square(0, 80, 10, 90), BoundingBox(100, 80, 110, 90), True),
        (square(0, 80, 10, 89), square(100, 80, 110, 90), False),
        (square(170, 0, 180, 5), Circle(-179.9, 2, 20_000), True),
        (square(170, 0, 180, 5), Circle(-179.9, 2, 10_000), False),
        (square(0, 80, 10, 90), Circle(100, 89.99, 2_000), True),
        (square(0, 0, 10, 10), Circle(5, 5, 1), True),
        (square(0, 0, 10, 10), BoundingBox(4, 4, 4, 4), True),
        (square(0, 0, 10, 10), BoundingBox(10, 10, 12, 12), True),
        (square(0, 0, 10, 10), BoundingBox(-5, 4, 15, 4), True),
        (square(0, 0, 10, 10), BoundingBox(11, -5, 11, 15), False),
        (Circle(0, 0, 20_000_000), Circle(180, 0, 20_000_000), True),
    ],
)
def test_shapes_touch_over_the_seam_and_the_poles(ours: Shape, theirs: Shape, touch: bool) -> None:
    assert ours.touches(theirs) is touch
    assert theirs.touches(ours) is touch


def test_an_event_inside_a_hole_touches_nothing() -> None:
    ring = ((0, 0), (10, 0), (10, 10), (0, 10), (0, 0))
    hole = ((2, 2), (8, 2), (8, 8), (2, 8), (2, 2))
    frame = Polygon(((ring, hole),))
    assert not frame.touches(BoundingBox(4, 4, 6, 6))
    assert not frame.touches(Circle(5, 5, 100_000))
    assert frame.touches(Circle(5, 5, 400_000))
    assert frame.touches(BoundingBox(4, 4, 8, 6))


@pytest.mark.timeout(60)
def test_an_edge_that_follows_the_circle_does_not_take_for_ever() -> None:
    ring = ((-90, 80), (0, 80), (90, 80.0000001), (90, 70), (0, 70), (-90, 70), (-90, 80))
    polygon = Polygon(((ring,),))
    for radius_m in (distance_m(0, 80, 0, 90) + d for d in (-1e-3, -1e-6, 0, 1e-6, 1e-3)):
        assert polygon.touches(Circle(0, 90, radius_m)) in (True, False)
