"""The demonstration's city: the same from the same seed, half of it three times as fast."""

from nearcast.demo.city import (
    DRIVE_M_S,
    EAST,
    NORTH,
    SOUTH,
    WALK_M_S,
    WEST,
    DemoCity,
    News,
    Place,
    draw_map,
    quarter,
)
from nearcast.model.sphere import distance_m

MARGIN = 0.003


def places(city: DemoCity) -> list[Place]:
    return [one.place for one in city.movers]


def test_one_seed_makes_one_city():
    one, two, other = DemoCity(20, seed=5), DemoCity(20, seed=5), DemoCity(20, seed=6)
    for city in (one, two, other):
        for _ in range(50):
            city.step(0.5)
    assert places(one) == places(two) != places(other)
    assert list(one.news(9)) == list(two.news(9))


def test_nobody_goes_faster_than_they_can_and_nobody_leaves():
    city = DemoCity(40)
    furthest = {"car": 0.0, "walker": 0.0}
    for _ in range(100):
        before = places(city)
        city.step(1.0)
        for was, one in zip(before, city.movers, strict=True):
            kind = "car" if one.drives else "walker"
            furthest[kind] = max(furthest[kind], distance_m(*was, *one.place))
            assert WEST - MARGIN < one.place[0] < EAST + MARGIN
            assert SOUTH - MARGIN < one.place[1] < NORTH + MARGIN
    assert abs(furthest["car"] - DRIVE_M_S) < 0.1
    assert abs(furthest["walker"] - WALK_M_S) < 0.1


def test_every_eighth_piece_of_news_is_for_the_nearest():
    news = list(DemoCity(10).news(16))
    assert [one.top for one in news] == ([0] * 7 + [3]) * 2
    assert all(one.topic.startswith("city/") for one in news)


def test_stops_are_where_people_pass():
    city = DemoCity(60)
    found = {city.stop_near(place) for place in places(city)}
    assert len(found) > 6
    assert found <= set(range(12))


def test_quarters_are_named_like_the_nodes():
    middle = ((WEST + EAST) / 2, (SOUTH + NORTH) / 2)
    ends = [(middle[0], NORTH), (EAST, middle[1]), (middle[0], SOUTH), (WEST, middle[1])]
    assert [quarter(place) for place in ends] == [0, 1, 2, 3]


def test_the_map_shows_who_is_where_with_north_above():
    city = DemoCity(2)
    walker, car = city.movers
    walker.place, car.place = (WEST, NORTH), (EAST, SOUTH)
    rows = draw_map(city, [News("city/news", (WEST, SOUTH), 1.0)], width=8, height=3).split("\n")
    assert rows == ["  ·", "  ", "  *      o"]
