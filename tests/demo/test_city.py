"""The demonstration's town: the same from the same seed, its people where such people are."""

from itertools import pairwise
from random import Random

import pytest

from nearcast.demo.city import (
    DISTRICTS,
    EAST,
    NORTH,
    SOUTH,
    SPEED_M_S,
    WEST,
    DemoCity,
    News,
    Place,
    draw_map,
    quarter,
)
from nearcast.model.sphere import distance_m

SEEDS = range(1, 9)


def places(city: DemoCity) -> list[Place]:
    return [one.place for one in city.movers]


def after(city: DemoCity, steps: int) -> DemoCity:
    for _ in range(steps):
        city.step(10)
    return city


def test_one_seed_makes_one_town_and_one_day_the_same_moves():
    one, two = (after(DemoCity(20, seed=5), 50) for _ in "ab")
    other = after(DemoCity(20, seed=6), 50)
    assert places(one) == places(two) != places(other)
    assert list(one.news(9)) == list(two.news(9))


def test_another_day_has_the_same_town_and_people_but_other_moves_and_events():
    one, other = (after(DemoCity(40, day=day), 50) for day in (0, 1))
    assert one.districts == other.districts
    for was, now in zip(one.movers, other.movers, strict=True):
        assert (was.name, was.kind) == (now.name, now.kind)
        assert was.drives or was.district == now.district  # walkers keep to their district
    assert places(one) != places(other)
    assert list(one.news(9)) != list(other.news(9))


def test_what_happens_does_not_change_the_moves():
    quiet, loud = DemoCity(20), DemoCity(20)
    for _ in range(20):
        list(loud.news(5))
        quiet.step(10)
        loud.step(10)
    assert places(quiet) == places(loud)


@pytest.mark.parametrize("seed", SEEDS)
def test_districts_lie_apart_and_lines_pass_the_market_square(seed: int):
    city = DemoCity(80, seed)
    middles = city.districts
    assert len(middles) == DISTRICTS
    assert all(
        distance_m(*one, *other) > 990
        for number, one in enumerate(middles)
        for other in middles[:number]
    )
    buses = [one for one in city.movers if one.kind == "bus"]
    assert len(buses) == 10
    for bus in buses:
        assert sorted(bus.line).count(0) == 2
        assert len(set(bus.line)) == 3
        assert all((one == 0) != (next_one == 0) for one, next_one in pairwise(bus.line))


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_goes_faster_than_they_can_and_nobody_leaves(seed: int):
    city = DemoCity(40, seed)
    furthest = dict.fromkeys(SPEED_M_S, 0.0)
    for _ in range(300):
        before = places(city)
        city.step(1.0)
        for was, one in zip(before, city.movers, strict=True):
            furthest[one.kind] = max(furthest[one.kind], distance_m(*was, *one.place))
            assert WEST < one.place[0] < EAST
            assert SOUTH < one.place[1] < NORTH
            if one.kind == "walker":
                assert distance_m(*one.place, *city.districts[one.district]) < 225
    for kind, most in furthest.items():
        assert most == pytest.approx(SPEED_M_S[kind], rel=0.02)


@pytest.mark.parametrize("seed", range(20))
def test_a_day_in_long_steps_ends_as_in_short_ones(seed: int):
    """Stays and ways end within a step; only what is drawn on the way may differ, so: one mover."""
    random = Random(seed)
    long, short = DemoCity(1, seed), DemoCity(1, seed)
    for _ in range(20):
        parts = [random.uniform(0.1, 200) for _ in range(random.randint(1, 9))]
        long.step(sum(parts))
        for seconds in parts:
            short.step(seconds)
        assert distance_m(*long.movers[0].place, *short.movers[0].place) < 0.1


def test_every_sixteenth_event_is_for_the_nearest_and_happens_where_somebody_sees_it():
    city = DemoCity(10)
    news = list(city.news(32))
    assert [one.top for one in news] == ([0] * 15 + [3]) * 2
    assert all(one.topic.startswith("city/") for one in news)
    place_of = {one.name: one.place for one in city.movers}
    assert all(distance_m(*one.place, *place_of[one.by]) < 200 for one in news)


def test_the_stop_of_a_place_is_that_of_the_nearest_district():
    city = DemoCity(60)
    assert [city.stop_near(middle) for middle in city.districts] == list(range(DISTRICTS))
    for one in city.movers:
        if one.kind == "walker":
            assert city.stop_near(one.place) == one.district


def test_quarters_are_named_like_the_nodes():
    middle = ((WEST + EAST) / 2, (SOUTH + NORTH) / 2)
    ends = [(middle[0], NORTH), (EAST, middle[1]), (middle[0], SOUTH), (WEST, middle[1])]
    assert [quarter(place) for place in ends] == [0, 1, 2, 3]


def test_the_map_shows_who_is_where_with_north_above():
    city = DemoCity(2)
    walker, car = city.movers
    walker.place, car.place = (WEST, NORTH), (EAST, SOUTH)
    seen = [News("walker0", "city/news", (WEST, SOUTH), 1.0)]
    rows = draw_map(city, seen, width=8, height=3).split("\n")
    assert rows == ["  ·", "  ", "  *      o"]
