"""Areas beside places sampled on the sphere, with the poles and the antimeridian."""

import math
import pickle
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model import (
    EARTH_RADIUS_M,
    BoundingBox,
    Circle,
    LimitError,
    MisuseError,
    NearcastError,
    OutOfRangeError,
    Polygon,
    Shape,
    ShapeError,
    decode_level,
    distance_m,
    parse_shape,
    polygon_of,
)
from nearcast.model.sphere import HALF_TURN_M, distance_to_box_m

lons = st.one_of(
    st.sampled_from([-180.0, -179.5, -90.0, 0.0, 90.0, 179.5, 180.0]), st.floats(-180, 180)
)
lats = st.one_of(st.sampled_from([-90.0, -89.5, 0.0, 45.0, 89.5, 90.0]), st.floats(-90, 90))
radii = st.one_of(
    st.sampled_from([1.0, 500.0, 60_000.0, 5_000_000.0, 10_007_543.0, 20_015_000.0]),
    st.floats(0.5, HALF_TURN_M),
)
circles = st.builds(Circle, lons, lats, radii)


@st.composite
def bboxes(draw: st.DrawFn) -> BoundingBox:
    south, north = sorted((draw(lats), draw(lats)))
    return BoundingBox(draw(lons), south, draw(lons), north)


def vector(lon: float, lat: float) -> Any:
    """Oracle: a place as a unit vector, in which seam and poles are nothing special."""
    a, b = math.radians(lon), math.radians(lat)
    return np.array([math.cos(b) * math.cos(a), math.cos(b) * math.sin(a), math.sin(b)])


def angle_m(lon1: float, lat1: float, lon2: float, lat2: float) -> float:
    """Oracle: the angle between two vectors, from their chord."""
    chord = float(np.linalg.norm(vector(lon1, lat1) - vector(lon2, lat2)))
    return 2 * EARTH_RADIUS_M * math.asin(min(1.0, chord / 2))


def destination(lon: float, lat: float, bearing: float, length_m: float) -> tuple[float, float]:
    """Oracle: the place at the end of a great-circle walk."""
    start, angle = vector(lon, lat), length_m / EARTH_RADIUS_M
    a, b = math.radians(lon), math.radians(lat)
    east = np.array([-math.sin(a), math.cos(a), 0])
    north = np.array([-math.sin(b) * math.cos(a), -math.sin(b) * math.sin(a), math.cos(b)])
    heading = math.sin(bearing) * east + math.cos(bearing) * north
    x, y, z = math.cos(angle) * start + math.sin(angle) * heading
    return math.degrees(math.atan2(y, x)), math.degrees(math.asin(max(-1, min(1, z))))


def spellings(lon: float, lat: float) -> list[tuple[float, float]]:
    """All ways to write one place that a flat map tells apart."""
    if abs(lat) == 90:
        return [(each, lat) for each in (-180, -33, 0, 77, 180)]
    return [(-180, lat), (180, lat)] if abs(lon) == 180 else [(lon, lat)]


def covered(shape: Shape, lon: float, lat: float) -> bool:
    return any(box.contains((lon, lat)) for box in shape.boxes())


@given(lons, lats, lons, lats)
def test_distance_is_the_angle_between_the_places(
    lon1: float, lat1: float, lon2: float, lat2: float
) -> None:
    found = distance_m(lon1, lat1, lon2, lat2)
    # The chord loses digits near the far side: there it is good to centimetres only.
    assert found == pytest.approx(angle_m(lon1, lat1, lon2, lat2), rel=1e-9, abs=0.3)
    assert found == distance_m(lon2, lat2, lon1, lat1)
    assert 0 <= found <= HALF_TURN_M * (1 + 1e-12)


def test_distances_that_are_known() -> None:
    degree = EARTH_RADIUS_M * math.pi / 180
    assert distance_m(0, 0, 0, 90) == pytest.approx(90 * degree)
    assert distance_m(0, 0, 180, 0) == pytest.approx(180 * degree, rel=1e-15)
    assert distance_m(179, 0, -179, 0) == pytest.approx(2 * degree)
    assert distance_m(10, 90, -120, 90) == pytest.approx(0, abs=1e-6)
    assert distance_m(0, 0, 180, 1e-9) == pytest.approx(180 * degree - degree * 1e-9, rel=1e-15)
    assert distance_m(2, 48, 2, 48) == 0


@given(circles, st.lists(st.tuples(st.floats(0, 7), st.floats(0, 1.2)), min_size=1, max_size=8))
def test_a_circle_holds_what_is_within_its_radius_and_its_boxes_cover_it(
    circle: Circle, walks: list[tuple[float, float]]
) -> None:
    for bearing, part in walks:
        length_m = min(part * circle.radius_m, HALF_TURN_M)
        lon, lat = destination(circle.lon, circle.lat, bearing, length_m)
        if abs(part - 1) * circle.radius_m > 1:
            assert circle.contains(lon, lat) == (part < 1)
        for spelling in spellings(lon, lat):
            if circle.contains(*spelling):
                assert covered(circle, *spelling)


@given(circles, st.floats(0, 7))
def test_a_circles_boxes_cover_its_very_edge(circle: Circle, bearing: float) -> None:
    lon, lat = destination(circle.lon, circle.lat, bearing, circle.radius_m * (1 - 1e-12))
    assert not circle.contains(lon, lat) or covered(circle, lon, lat)


@given(circles)
def test_a_circles_boxes_are_no_bigger_than_needed(circle: Circle) -> None:
    """Each of the four sides of a cover that is no polar cap is met by the circle."""
    boxes = circle.boxes()
    south = min(box.lows[1] for box in boxes)
    north = max(box.highs[1] for box in boxes)
    for latitude, bearing in ((south, math.pi), (north, 0.0)):
        if abs(latitude) < 90:
            _, reached = destination(circle.lon, circle.lat, bearing, circle.radius_m)
            assert latitude == pytest.approx(reached, abs=1e-6)
    whole = any((box.lows[0], box.highs[0]) == (-180, 180) for box in boxes)
    if not whole:
        reach_m = min(
            distance_m(circle.lon, circle.lat, edge, latitude / 1000)
            for box in boxes
            for edge in (box.lows[0], box.highs[0])
            if abs(edge) < 180 or len(boxes) == 1
            for latitude in range(int(south * 1000), int(north * 1000) + 1, 50)
        )
        assert reach_m <= circle.radius_m * 1.01 + 2_000


@pytest.mark.parametrize(
    ("circle", "boxes"),
    [
        (Circle(179.9, 0, 20_000), 2),
        (Circle(-180, 0, 20_000), 2),
        (Circle(0, 89.9, 20_000), 1),
        (Circle(0, -90, 20_000), 1),
        (Circle(0, 0, 20_000), 1),
        (Circle(0, 0, HALF_TURN_M), 1),
    ],
)
def test_a_circle_has_as_many_boxes_as_it_needs(circle: Circle, boxes: int) -> None:
    assert len(circle.boxes()) == boxes


@given(bboxes(), lons, lats)
def test_a_bounding_box_holds_a_place_however_it_is_written(
    bbox: BoundingBox, lon: float, lat: float
) -> None:
    def between(at: float) -> bool:
        if bbox.west <= bbox.east:
            return bbox.west <= at <= bbox.east
        return at >= bbox.west or at <= bbox.east

    wanted = any(between(x) and bbox.south <= lat <= bbox.north for x, _ in spellings(lon, lat))
    if abs(lat) == 90:
        wanted = lat in (bbox.south, bbox.north)
    for spelling in spellings(lon, lat):
        assert bbox.contains(*spelling) == wanted
        assert covered(bbox, *spelling) == wanted


shapes = st.one_of(
    circles,
    bboxes(),
    st.sampled_from(
        [
            Polygon(
                ((((0, 0), (4, 0), (4, 4), (0, 4), (0, 0)), ((1, 1), (2, 1), (2, 2), (1, 1))),)
            ),
            Polygon(((((170, 80), (180, 80), (180, 90), (170, 90), (170, 80)),),)),
        ]
    ),
)


@given(shapes, st.lists(st.tuples(lons, lats), max_size=10))
def test_many_places_are_answered_as_one_by_one(
    shape: Shape, places: list[tuple[float, float]]
) -> None:
    found = shape.contains_many([lon for lon, _ in places], [lat for _, lat in places])
    assert found.dtype == np.bool_
    assert found.tolist() == [shape.contains(*place) for place in places]


@given(circles, st.floats(0, 7))
def test_many_places_on_the_edge_are_answered_as_one_by_one(circle: Circle, turn: float) -> None:
    places = [destination(circle.lon, circle.lat, turn + n, circle.radius_m) for n in range(6)]
    found = circle.contains_many([lon for lon, _ in places], [lat for _, lat in places])
    assert found.tolist() == [circle.contains(*place) for place in places]


@given(shapes)
def test_a_shape_prints_and_reads_back(shape: Shape) -> None:
    assert parse_shape(str(shape)) == shape
    assert parse_shape(decode_level(shape.level())) == shape
    assert str(parse_shape(str(shape))) == str(shape)
    assert not set(shape.level()) & set("/+# ")
    assert pickle.loads(pickle.dumps(shape)) == shape


POLYGON = '{"type":"Polygon","coordinates":[[[0,0],[1,0],[0,1],[0,0]]]}'
MULTIPOLYGON = (
    '{"type":"MultiPolygon","coordinates":'
    "[[[[0,0],[1,0],[0,1],[0,0]]],[[[5,5],[6,5],[5,6],[5,5]]]]}"
)
FEATURE = (
    '{"type":"Feature","properties":{"a":["b"]},"geometry":'
    '{"type":"Polygon","coordinates":[[[0,0,7],[1.0,0],[0,1],[0,0]]]}}'
)
COLLECTION = (
    'geojson({"type":"FeatureCollection","features":['
    f'{{"type":"Feature","geometry":{MULTIPOLYGON}}}]}})'
)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("bbox(2.1, 48.8, 2.5, 48.9)", "bbox(2.1,48.8,2.5,48.9)"),
        (" BBOX ( 170 , -20.0 , -170 , -10 ) ", "bbox(170,-20,-170,-10)"),
        ("2.1,48.8,2.5,48.9", "bbox(2.1,48.8,2.5,48.9)"),
        ("circle(2.35,48.85,0.5km)", "circle(2.35,48.85,500m)"),
        ("2.35,48.85,500m", "circle(2.35,48.85,500m)"),
        (FEATURE, f"geojson({POLYGON})"),
        (COLLECTION, f"geojson({MULTIPOLYGON})"),
    ],
)
def test_a_shape_is_read_and_printed_like_this(text: str, canonical: str) -> None:
    assert str(parse_shape(text)) == canonical
    assert str(parse_shape(text.encode())) == canonical


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected bbox"),
        ("bbox", "expected bbox"),
        ("sqare(1,2)", "found 'sqare'; expected bbox"),
        ("cirle(1,2,3m)", "Did you mean circle"),
        ("bbox(1,2,3)", "3 values; expected 4: west, south, east, north"),
        ("bbox(1,2,3,x)", "found 'x'; expected a number"),
        ("bbox(nan,0,1,1)", "expected a number"),
        ("bbox(1e999,0,1,1)", "a finite number"),
        ("bbox(0,10,1,5)", "south 10 above north 5"),
        ("bbox(0,0,181,1)", "longitude 181"),
        ("bbox(48.8,102.1,48.9,102.5)", "latitude 102.1.*swapped"),
        ("circle(48.85,-122,500m)", "latitude -122.*swapped"),
        ("circle(190,95,500m)", r"latitude 95; expected degrees from -90 to 90$"),
        ("circle(0,0,0m)", "circle: radius: found '0m'; expected a length above 0"),
        ("circle(0,0,-5m)", "a length above 0"),
        ("circle(0,0,500)", "no unit in '500'"),
        ("circle(0,0,5parsec)", "the unit 'parsec'"),
        ("circle(0,0,1e999m)", "finite"),
        ("circle(0,0,20016km)", "at most 20015km"),
        ("circle(0,0)", "2 values; expected 3"),
        ("geojson()", "JSON"),
        ("geojson({)", "JSON"),
        ("geojson([])", "expected Polygon, MultiPolygon"),
        ('{"type":"Point","coordinates":[0,0]}', "found 'Point'; expected Polygon"),
        ('{"type":"Feature","geometry":null}', "found None"),
        ('{"type":"Polygon"}', "expected a list"),
        ('{"type":"Polygon","coordinates":[]}', "without points"),
        ('{"type":"Polygon","coordinates":[[]]}', "0 points; expected 4"),
        ('{"type":"Polygon","coordinates":[[1,2,3,4]]}', "longitude and latitude"),
        ('{"type":"Polygon","coordinates":[[[0,0],[1,0],[1,1],[0,1]]]}', "Repeat the first point"),
        ('{"type":"Polygon","coordinates":[[[0,0],[1,0],[0,0]]]}', "3 points; expected 4"),
        ('{"type":"Polygon","coordinates":[[[0,0],[1,true],[0,1],[0,0]]]}', "point 1.*a number"),
        ('{"type":"Polygon","coordinates":[[[0,0],[1,NaN],[0,1],[0,0]]]}', "found NaN"),
        ('{"type":"Polygon","coordinates":[[[0,0],[1,1e999],[0,1],[0,0]]]}', "finite"),
        ('{"type":"Polygon","coordinates":[[[0,0],[1,1' + "0" * 5000 + '],[0,1],[0,0]]]}', "JSON"),
        ('{"type":"Polygon","coordinates":[[[48,100],[49,100],[48,101],[48,100]]]}', "swapped"),
        ('{"type":"Polygon","coordinates":[[[0,0],[4,4],[4,0],[0,4],[0,0]]]}', r"at \[2 2\]"),
        ('{"type":"Polygon","coordinates":[[[0,0],[1,0],[2,0],[0,0]]]}', "polygon: found"),
        (
            '{"type":"Polygon","coordinates":[[[170,0],[-170,0],[-170,5],[170,5],[170,0]]]}',
            "from longitude 170 to -170.*Cut a polygon that crosses the antimeridian",
        ),
        (
            '{"type":"Polygon","coordinates":[[[0,0],[9,0],[9,9],[0,9],[0,0]],[[20,20],[21,20],[20,21],[20,20]]]}',
            "hole lies outside shell",
        ),
        (b"bbox(\xff)", "UTF-8"),
        ("bbox(\ud800)", "surrogate"),
        (None, "as text"),
    ],
)  # fmt: skip
def test_a_shape_that_is_none_is_refused_with_a_reason(text: Any, says: str) -> None:
    with pytest.raises(MisuseError, match=says):
        parse_shape(text)


@pytest.mark.parametrize(
    "text", ["x" * 10_000_000, "{" * 10_000, "geojson(" + "[" * 30_000, '{"a":' * 10_000]
)
@pytest.mark.timeout(60)
def test_a_long_or_deep_shape_is_refused(text: str) -> None:
    with pytest.raises((LimitError, ShapeError)):
        parse_shape(text)


@given(
    st.lists(
        st.sampled_from(
            ["bbox", "circle", "geojson", "(", ")", ",", "1", "-95", "500m", "{", "}", "[", "]",
             '"type"', ":", '"Polygon"', '"coordinates"', "null", "1e999", "[0,0]", "km", " "]
        ),
        max_size=14,
    ).map("".join)
)  # fmt: skip
def test_any_text_is_a_shape_or_refused_in_our_own_words(text: str) -> None:
    with suppress(NearcastError):
        shape = parse_shape(text)
        assert str(parse_shape(str(shape))) == str(shape)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Circle(0, 0, float("nan")),
        lambda: Circle(0, 0, -1),
        lambda: Circle(float("inf"), 0, 1),
        lambda: BoundingBox(0, 0, 1, float("nan")),
        lambda: BoundingBox(0, 0, 1, None),  # type: ignore[arg-type]
        lambda: Circle(0, 0, 1).contains(0, 91),
        lambda: BoundingBox(0, 0, 1, 1).contains(float("nan"), 0),
        lambda: Circle(0, 0, 1).contains_many([0, 200], [0, 0]),
        lambda: Circle(0, 0, 1).contains_many([0, 0], [0]),
        lambda: Circle(0, 0, 1).contains_many([[0]], [[0]]),
        lambda: Circle(0, 0, 1).contains_many(["a"], [0]),
        lambda: BoundingBox(0, 0, 1, 1).contains_many([0, float("nan")], [0, 0]),
        lambda: Circle(0, 0, 1).touches("here"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_place_or_radius_is_refused(make: Any) -> None:
    with pytest.raises(MisuseError):
        make()


def test_the_first_bad_place_of_many_is_named() -> None:
    with pytest.raises(OutOfRangeError, match="place 1: found longitude 200"):
        Circle(0, 0, 1).contains_many([0, 200], [0, 0])


@given(lons, lats, bboxes())
def test_the_distance_to_a_box_is_the_least_to_any_of_its_places(
    lon: float, lat: float, bbox: BoundingBox
) -> None:
    box = bbox.boxes()[0]
    (west, south), (east, north) = box.lows, box.highs
    found = distance_to_box_m(lon, lat, (west, south, east, north))
    across, up = np.linspace(west, east, 41), np.linspace(south, north, 41)
    sampled = min(distance_m(lon, lat, float(x), float(y)) for x in across for y in up)
    spacing_m = EARTH_RADIUS_M * math.radians(math.hypot(east - west, north - south) / 40)
    assert sampled - spacing_m <= found <= sampled + 1e-6


RING = ((0, 0), (10, 0), (10, 10), (0, 10), (0, 0))
HOLE = ((4, 4), (6, 4), (6, 6), (4, 6), (4, 4))


def test_a_polygon_has_holes_and_edges() -> None:
    polygon = Polygon(((RING, HOLE),))
    assert polygon.contains(2, 2)
    assert not polygon.contains(5, 5)
    assert polygon.contains(4, 5), "the edge of a hole belongs to the polygon"
    assert polygon.contains(10, 10)
    assert not polygon.contains(10.0001, 10)


def test_a_polygon_on_the_seam_holds_both_ways_to_write_it() -> None:
    east = Polygon(((((170, 0), (180, 0), (180, 5), (170, 5), (170, 0)),),))
    for lon in (180, -180):
        assert east.contains(lon, 3)
        assert covered(east, lon, 3)
        assert not east.contains(lon, 6)
    assert not east.contains(-179.9, 3)


def test_a_polygon_at_the_pole_holds_it_at_every_longitude() -> None:
    wedge = Polygon(((((0, 80), (20, 80), (20, 90), (0, 90), (0, 80)),),))
    for lon in (-180, -50, 10, 99):
        assert wedge.contains(lon, 90)
        assert covered(wedge, lon, 90)
    assert not wedge.contains(50, 89)
    assert not wedge.contains(50, -90)


def test_a_polygon_that_was_cut_at_the_antimeridian_has_a_box_on_each_side() -> None:
    fiji = polygon_of(
        {
            "type": "MultiPolygon",
            "coordinates": [
                [[[177, -20], [180, -20], [180, -15], [177, -15], [177, -20]]],
                [[[-180, -20], [-178, -20], [-178, -15], [-180, -15], [-180, -20]]],
            ],
        }
    )
    assert max(box.highs[0] - box.lows[0] for box in fiji.boxes()) == 3
    assert fiji.contains(-179, -17)
    assert not fiji.contains(0, -17)


def test_many_parts_share_boxes() -> None:
    parts = tuple(
        (tuple((x + 3 * n, y) for x, y in ((0, 0), (1, 0), (0, 1), (0, 0))),) for n in range(40)
    )
    polygon = Polygon(parts)
    assert len(polygon.boxes()) == 8
    assert all(covered(polygon, 3 * n + 0.2, 0.2) for n in range(40))


def test_too_many_points_are_refused() -> None:
    ring = [(math.cos(n / 5000), math.sin(n / 5000)) for n in range(30_000)]
    with pytest.raises(LimitError, match="points"):
        Polygon((((*ring, ring[0]),),))
