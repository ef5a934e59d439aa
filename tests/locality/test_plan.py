"""The plan answers as its definition does, on borders and overlaps above all."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import small_plans
from tests.support.small_plans import MARKS, SPACE, rects

from nearcast.locality import CellCounts, Plan, Rect
from nearcast.locality.layout.grid import Grid, region_cells
from nearcast.locality.layout.rect import is_covered
from nearcast.model.errors import (
    LimitError,
    MisuseError,
    OutOfRangeError,
    ShapeError,
    UnknownNameError,
)

LAYOUTS = st.sampled_from(["qr", "q", "r"])


def plans() -> st.SearchStrategy[Plan]:
    return small_plans.plans(
        layout=LAYOUTS,
        capacity=st.integers(1, 4),
        fanout=st.integers(2, 4),
        region_capacity=st.sampled_from([None, 2]),
    )


def in_block(plan: Plan, leaf: int, x: float, y: float) -> bool:
    """Oracle: half-open, except at the space's own east and north edge."""
    west, south, east, north = plan.leaves[leaf].rect
    return (west <= x < east or x == east == plan.space.east) and (
        south <= y < north or y == north == plan.space.north
    )


def leaves_of_point(plan: Plan, x: float, y: float) -> list[int]:
    """Oracle: all R leaves that contain the point, or else the Q leaf that does."""
    r = [n for n in range(plan.r_count) if plan.leaves[n].rect.contains(x, y)]
    q = [n for n in range(plan.r_count, len(plan.leaves)) if in_block(plan, n, x, y)]
    assert len(q) == 1, "blocks tile the space"
    return r or q


def sample_points(rect: Rect) -> list[tuple[float, float]]:
    """Points at which anything on half numbers can change: marks, their neighbours, and between."""

    def along(low: float, high: float) -> list[float]:
        values = set()
        for half in range(math.floor(low * 2), math.ceil(high * 2) + 1):
            mark = half / 2
            values |= {mark, math.nextafter(mark, -1), math.nextafter(mark, 9), mark + 0.25}
        return [value for value in sorted(values) if low <= value <= high]

    return [(x, y) for x in along(rect.west, rect.east) for y in along(rect.south, rect.north)]


@given(plans(), MARKS, MARKS)
def test_a_point_has_the_leaves_that_the_definition_gives_it(
    plan: Plan, x: float, y: float
) -> None:
    expected = leaves_of_point(plan, x, y)

    assert list(plan.leaves_for_event((x, y))) == expected
    assert plan.leaf_at(x, y).number == expected[0]


@given(plans(), rects())
def test_an_area_has_every_leaf_of_each_of_its_points_and_no_other(plan: Plan, area: Rect) -> None:
    expected = {n for x, y in sample_points(area) for n in leaves_of_point(plan, x, y)}

    assert set(plan.leaves_for_subscription(area)) == expected
    assert plan.leaves_for_event(area) == plan.leaves_for_subscription(area)


@given(plans(), st.lists(st.tuples(MARKS, MARKS), min_size=1, max_size=30))
def test_the_compiled_lookup_agrees_with_the_single_one(
    plan: Plan, points: list[tuple[float, float]]
) -> None:
    near = [
        (math.nextafter(x, to), math.nextafter(y, to)) for x, y in points for to in (-1.0, x, 9.0)
    ]
    inside = [point for point in near if SPACE.contains(*point)]
    numbers = plan.leaf_numbers_at([p[0] for p in inside], [p[1] for p in inside])

    assert numbers.tolist() == [plan.leaf_at(x, y).number for x, y in inside]


def test_the_compiled_lookup_agrees_on_a_deep_plan_with_crooked_borders() -> None:
    random = np.random.default_rng(3)
    space = Rect(-122.5137, 37.7031, -122.3549, 37.8324)
    xs = random.normal(-122.42, 0.01, 4000).clip(space.west, space.east)
    ys = random.normal(37.77, 0.01, 4000).clip(space.south, space.north)
    corners = random.uniform(
        (space.west, space.south), (space.east - 0.01, space.north - 0.01), (40, 2)
    )
    regions = [(x, y, x + 0.01, y + 0.005) for x, y in corners.tolist()]
    plan = Plan.build(
        space, regions, CellCounts.from_positions(space, regions, xs, ys, depth=12), capacity=3
    )
    borders = plan.grid.xs[::97]
    px = np.concatenate([xs, borders, np.nextafter(borders, -200), borders])
    py = np.concatenate(
        [ys, plan.grid.ys[::97], plan.grid.ys[::97], np.nextafter(plan.grid.ys[::97], 0)]
    )
    keep = (px >= space.west) & (py >= space.south)
    numbers = plan.leaf_numbers_at(px[keep], py[keep])

    assert plan.height > 9
    expected = [plan.leaf_at(x, y).number for x, y in zip(px[keep], py[keep], strict=True)]
    assert numbers.tolist() == expected
    for x, y, n in list(zip(px[keep], py[keep], numbers.tolist(), strict=True))[::50]:
        assert n == leaves_of_point(plan, x, y)[0]


def test_positions_that_are_nowhere_have_no_leaf(make_plan: Callable[..., Plan]) -> None:
    plan = make_plan([(4, 4, 6, 6)])
    numbers = plan.leaf_numbers_at([math.nan, 9, -0.1, 5, math.inf], [1, 1, 1, 5, 1])

    assert numbers.tolist() == [-1, -1, -1, 0, -1]


@given(plans())
def test_cross_links_join_every_r_leaf_with_every_q_leaf_that_it_overlaps(plan: Plan) -> None:
    for q, linked in enumerate(plan.links, start=plan.r_count):
        points = sample_points(plan.leaves[q].closed)
        expected = {
            n
            for n in range(plan.r_count)
            if any(plan.leaves[n].rect.contains(x, y) for x, y in points)
        }
        assert set(linked) == expected


@given(st.lists(st.tuples(MARKS, MARKS), max_size=40), st.lists(rects(), max_size=4))
def test_counts_tell_inside_from_outside_and_miss_nobody(
    points: list[tuple[float, float]], regions: list[Rect]
) -> None:
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    counts = CellCounts.from_positions(SPACE, regions, xs, ys, depth=3)
    inside = [p for p in points if any(region.contains(*p) for region in regions)]
    firsts = [next(i for i, r in enumerate(regions) if r.contains(*p)) for p in inside]

    assert counts.outside.sum() == len(points) - len(inside)
    assert counts.inside.sum() == len(inside)
    assert counts.per_region.tolist() == [firsts.count(i) for i in range(len(regions))]
    for x, y in points:
        column, row = min(int(x), 7), min(int(y), 7)
        assert counts.everyone[row, column] >= 1


@given(st.lists(st.tuples(MARKS, MARKS), max_size=30), st.integers(1, 4))
def test_a_block_is_a_leaf_exactly_when_it_is_small_enough_or_at_the_depth_limit(
    points: list[tuple[float, float]], capacity: int
) -> None:
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    plan = Plan.build(
        SPACE, [], CellCounts.from_positions(SPACE, [], xs, ys, depth=3), capacity=capacity
    )
    keys = {leaf.key for leaf in plan.leaves}
    for leaf in plan.leaves:
        users = sum(in_block(plan, leaf.number, x, y) for x, y in points)
        siblings = [leaf.key[:-1] + digit for digit in "0123"]
        assert leaf.load == users
        assert users <= capacity or leaf.depth == 3
        if leaf.key != "q" and set(siblings) <= keys:
            total = sum(one.load for one in plan.leaves if one.key in siblings)
            assert total > capacity


def test_only_users_outside_slow_regions_split_the_q_part(make_plan: Callable[..., Plan]) -> None:
    crowd = [0.5, 1.0, 1.5, 1.2]
    covered = CellCounts.from_positions(SPACE, [(0, 0, 2, 2)], crowd, crowd, depth=3)

    with_region = Plan.build(SPACE, [(0, 0, 2, 2)], covered, capacity=2)
    q_only = Plan.build(SPACE, [(0, 0, 2, 2)], covered, capacity=2, layout="q")

    assert [leaf.key for leaf in with_region.leaves] == ["r0", "q"]
    assert with_region.leaves[0].load == 4
    assert q_only.r_count == 0
    assert q_only.height == 3


def test_layout_r_packs_the_users_outside_regions_and_leaves_the_rest_to_the_root() -> None:
    xs, ys = [0.5, 1.5, 6.5, 7.5, 3.5], [0.5, 1.5, 6.5, 7.5, 3.5]
    counts = CellCounts.from_positions(SPACE, [(3, 3, 4, 4)], xs, ys, depth=3)
    plan = Plan.build(SPACE, [(3, 3, 4, 4)], counts, layout="r", capacity=2)

    assert [leaf.key for leaf in plan.leaves] == ["r0", "r1", "r2", "q"]
    assert [leaf.load for leaf in plan.leaves] == [1, 2, 2, 0]
    assert plan.leaves[1].rect == Rect(0, 0, 2, 2)
    assert plan.leaf_at(0.1, 7.9).key == "q"


def test_positions_are_counted_by_cell_and_region() -> None:
    regions = [(2.0, 2.0, 4.0, 4.0)]
    whole = CellCounts.from_positions(SPACE, regions, [1, 3, 3, 7.5], [1, 3, 3, 7.5], depth=3)

    assert np.argwhere(whole.outside).tolist() == [[1, 1], [7, 7]]
    assert np.argwhere(whole.inside).tolist() == [[3, 3]]
    assert (whole.outside.sum(), whole.inside.sum(), whole.per_region.tolist()) == (2, 2, [2])


# --- bad input ----------------------------------------------------------------------------------


def test_no_regions_at_all_gives_a_q_part_alone() -> None:
    plan = Plan.build(SPACE, [], CellCounts.empty(3))

    assert [leaf.key for leaf in plan.leaves] == ["q"]
    assert plan.leaf_at(8, 8).key == "q"


def test_one_region_covering_everything_takes_every_event() -> None:
    counts = CellCounts.from_positions(SPACE, [SPACE], [1, 2, 3], [1, 2, 3], depth=3)
    plan = Plan.build(SPACE, [SPACE], counts, capacity=1)

    assert plan.leaves_for_event(SPACE) == (0,)
    assert plan.leaves_for_event((8.0, 8.0)) == (0,)
    assert plan.leaves[0].load == 3


def test_a_region_outside_the_space_is_refused_and_one_across_its_edge_is_clipped() -> None:
    with pytest.raises(OutOfRangeError, match="slow region 1"):
        Plan.build(SPACE, [(1, 1, 2, 2), (9, 9, 10, 10)], CellCounts.empty(3))
    plan = Plan.build(SPACE, [(7, 7, 12, 12)], CellCounts.empty(3))
    assert plan.leaves[0].rect == Rect(7, 7, 8, 8)


def test_a_million_users_on_one_point_stop_at_the_depth_limit() -> None:
    crowd = np.full(1_000_000, 1.01)
    plan = Plan.build(
        SPACE, [], CellCounts.from_positions(SPACE, [], crowd, crowd, depth=10), capacity=10
    )
    shallow = Plan.build(
        SPACE,
        [],
        CellCounts.from_positions(SPACE, [], crowd, crowd, depth=10),
        capacity=10,
        max_depth=4,
    )

    assert plan.height == 10
    assert len(plan.leaves) == 31
    assert plan.leaf_at(1.01, 1.01).load == 1_000_000
    assert shallow.height == 4


def test_nan_positions_are_left_out_and_counted() -> None:
    counts = CellCounts.from_positions(SPACE, [], [math.nan, 1, 9, math.inf], [1, 1, 1, 1], depth=3)

    assert counts.left_out == 3
    assert counts.outside.sum() == 1


@pytest.mark.parametrize("place", [(math.nan, 1), (9, 1), (1, -0.001), (math.inf, 1)])
def test_a_place_outside_the_space_is_a_clear_error(
    make_plan: Callable[..., Plan], place: tuple[float, float]
) -> None:
    plan = make_plan([(4, 4, 6, 6)])
    with pytest.raises(OutOfRangeError):
        plan.leaf_at(*place)
    with pytest.raises(OutOfRangeError):
        plan.leaves_for_event(place)


def test_an_area_that_is_none_is_a_clear_error(make_plan: Callable[..., Plan]) -> None:
    plan = make_plan([])
    with pytest.raises(ShapeError):
        plan.leaves_for_event((3, 3, 2, 4))
    with pytest.raises(ShapeError):
        plan.leaves_for_event((3, 3, 2))
    with pytest.raises(ShapeError):
        plan.leaves_for_event(("a", "b"))  # type: ignore[arg-type]
    with pytest.raises(OutOfRangeError):
        plan.leaves_for_subscription((3, math.nan, 4, 4))
    with pytest.raises(OutOfRangeError):
        plan.leaves_for_subscription(Rect(3, math.nan, 4, 4))


def test_shapes_of_the_model_have_the_leaves_of_the_rectangles_that_cover_them() -> None:
    from nearcast.model import BoundingBox, Circle

    world = Rect(-180.0, -90.0, 180.0, 90.0)
    xs, ys = [-179.0, 179.0, 0.0, 10.0], [-17.0, -17.0, 10.0, 10.0]
    counts = CellCounts.from_positions(world, [], xs, ys, depth=4)
    plan = Plan.build(
        world,
        [(-2, -2, 2, 2)],
        CellCounts(4, counts.outside, counts.inside, np.zeros(0, np.int64)),
        capacity=1,
    )
    fiji = BoundingBox(177, -20, -178, -15)
    circle = Circle(0.0, 0.0, 100_000)

    both = {
        *plan.leaves_for_event((177, -20, 180, -15)),
        *plan.leaves_for_event((-180, -20, -178, -15)),
    }
    assert set(plan.leaves_for_subscription(fiji)) == set(plan.leaves_for_event(fiji)) == both
    assert len(both) > 1
    assert plan.leaves_for_event(circle) == plan.leaves_for_event(circle.bounds()[0]) == (0,)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"layout": "x"}, UnknownNameError),
        ({"capacity": 0}, OutOfRangeError),
        ({"fanout": 1}, OutOfRangeError),
        ({"max_depth": 13}, LimitError),
    ],
)
def test_bad_parameters_are_named(options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        Plan.build(SPACE, [], CellCounts.empty(3), **options)  # type: ignore[arg-type]


def test_counts_made_with_other_regions_are_refused() -> None:
    counts = CellCounts.from_positions(SPACE, [(1, 1, 2, 2)], [1.5], [1.5], depth=3)
    with pytest.raises(MisuseError, match="counts of 1 regions"):
        Plan.build(SPACE, [(1, 1, 2, 2), (3, 3, 4, 4)], counts)


def test_bad_counts_and_bad_spaces_are_refused() -> None:
    with pytest.raises(MisuseError):
        CellCounts(3, np.zeros((4, 4), np.int64), np.zeros((8, 8), np.int64), np.zeros(0, np.int64))
    zeros = np.zeros((8, 8), np.int64)
    with pytest.raises(OutOfRangeError):
        CellCounts(3, np.full((8, 8), -1, np.int64), zeros, np.zeros(0, np.int64))
    with pytest.raises(MisuseError):
        CellCounts.from_positions(SPACE, [], [1, 2], [1])
    with pytest.raises(LimitError):
        Grid.over(SPACE, 13)
    with pytest.raises(ShapeError):
        Grid.over((1, 1, 1, 2), 3)
    with pytest.raises(OutOfRangeError, match="room for"):
        Grid.over((1.0, 0.0, math.nextafter(1.0, 2.0), 1.0), 3)


def test_a_plan_serves_the_coordinates_of_a_space() -> None:
    from nearcast.model import Attribute, Space

    space = Space(
        name="city",
        topic_filter="city/#",
        attributes=(
            Attribute.number("price", 0, 9),
            Attribute.number("lat", 0, 4),
            Attribute.number("lon", 0, 8),
        ),
        longitude="lon",
        latitude="lat",
    )
    bare = Space(name="bare", topic_filter="b/#", attributes=(Attribute.number("price", 0, 9),))

    assert Plan.build(space, [], CellCounts.empty(3)).space == Rect(0, 0, 8, 4)
    with pytest.raises(MisuseError, match="without coordinates"):
        Plan.build(bare, [], CellCounts.empty(3))


def test_many_large_regions_do_not_blow_up_the_index() -> None:
    regions = np.tile([0.0, 0.0, 8.0, 8.0], (300, 1))
    level, starts, items = region_cells(Grid.over(SPACE, 10), regions)

    assert len(items) <= 1 << 21
    assert len(starts) == 4**level + 1


@given(rects(), st.lists(rects(), max_size=5))
def test_a_rectangle_is_covered_exactly_when_each_of_its_points_is(
    rect: Rect, covers: list[Rect]
) -> None:
    expected = all(any(c.contains(x, y) for c in covers) for x, y in sample_points(rect))

    assert is_covered(rect, covers) == expected


def test_a_cover_that_begins_at_the_very_next_number_leaves_no_gap() -> None:
    after_one = math.nextafter(1.0, 2.0)
    before_one = math.nextafter(1.0, 0.0)

    assert is_covered(Rect(0, 0, 2, 1), [Rect(0, 0, 1, 1), Rect(after_one, 0, 2, 1)])
    assert is_covered(Rect(0, 0, 2, 1), [Rect(1, 0, 2, 1), Rect(0, 0, before_one, 1)])
    assert is_covered(Rect(0, 0, 1, 2), [Rect(0, 0, 1, 1), Rect(0, after_one, 1, 2)])
    assert is_covered(Rect(0, 0, 1, 2), [Rect(0, 1, 1, 2), Rect(0, 0, 1, before_one)])
    assert not is_covered(
        Rect(0, 0, 2, 1), [Rect(0, 0, 1, 1), Rect(math.nextafter(after_one, 2), 0, 2, 1)]
    )


@given(plans())
def test_the_exact_points_of_a_leaf_end_where_the_next_leaf_begins(plan: Plan) -> None:
    for leaf in plan.leaves[plan.r_count :]:
        west, south, east, north = leaf.closed
        for x, y in ((west, south), (east, south), (west, north), (east, north)):
            assert in_block(plan, leaf.number, x, y)
        if leaf.rect.east < plan.space.east:
            assert math.nextafter(east, 9.0) == leaf.rect.east
        if leaf.rect.north < plan.space.north:
            assert math.nextafter(north, 9.0) == leaf.rect.north


@pytest.mark.parametrize("west", [-122.5137, 0.1, -1e6 / 3])
def test_a_position_on_any_border_is_counted_in_the_cell_that_begins_there(west: float) -> None:
    """Arithmetic alone puts some borders into the cell before."""
    space = Rect(west, 0.0, west + 0.1588, 1.0)
    grid = Grid.over(space, 10)
    below = np.nextafter(grid.xs[1:], -np.inf)
    on_borders = CellCounts.from_positions(space, [], grid.xs[:-1], np.full(1024, 0.5), depth=10)
    before_borders = CellCounts.from_positions(space, [], below, np.full(1024, 0.5), depth=10)

    for counts in (on_borders, before_borders):
        assert (counts.outside.sum(axis=0) == 1).all()
    guessed = ((grid.xs[:-1] - space.west) * (1024 / (grid.xs[-1] - grid.xs[0]))).astype(int)
    assert west == 0.1 or (guessed != np.arange(1024)).any()


def test_positions_are_two_equal_columns() -> None:
    counts = CellCounts.from_positions(SPACE, [], np.array([1.0]), np.array([1.0]), depth=3)
    plan = Plan.build(SPACE, [], counts, layout="q", capacity=9)
    with pytest.raises(MisuseError, match="two equal columns"):
        plan.leaf_numbers_at([1.0, 2.0], [1.0])
    with pytest.raises(MisuseError, match="two equal columns"):
        plan.leaf_numbers_at([[1.0], [2.0]], [[1.0], [2.0]])
