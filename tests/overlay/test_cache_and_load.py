"""The cache at branching peers, elections by measured rates, and hosts that take turns."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from nearcast.model.errors import OutOfRangeError
from nearcast.overlay import Extent, Method, OverlayEvent, Settings, violations

MakeTown = Callable[..., Any]


def scattered(make_town: MakeTown, count: int = 16, **given: Any) -> Any:
    town = make_town(least=2, most=4, **given)
    random = Random(11)
    for _ in range(count):
        x, y = random.randrange(90), random.randrange(90)
        town.join((x, y), (x + 6, y + 6))
        town.net.run(60)
    town.net.rest()
    assert violations(town.net.peers.values()) == []
    town.net.reset()
    return town


def total(town: Any, measure: str) -> int:
    return sum(getattr(s.tally, measure) for p in town.net.peers.values() for s in p.seats.values())


def somewhere_in_vain(town: Any) -> tuple[float, float]:
    """Return a point that some group below the root contains and nobody wants."""
    random = Random(1)
    seats = [s for p in town.net.peers.values() for s in p.seats.values()]
    groups = [s.groups[1].box() for s in seats if s.parent is not None and s.top >= 1]
    for _ in range(10_000):
        point = (random.uniform(0, 100), random.uniform(0, 100))
        inside = [
            all(a <= v <= b for a, v, b in zip(g[0], point, g[1], strict=True)) for g in groups
        ]
        if any(inside) and not town.meant(point, point):
            return point
    raise AssertionError("no such point")


def test_with_a_cache_an_identical_event_is_spared_the_way_in_vain(make_town: MakeTown) -> None:
    plain = scattered(make_town)
    point = somewhere_in_vain(plain)
    costs = {}
    for size in (0, 10):
        town = scattered(make_town, cache_size=size)
        town.publish("p1", point)
        first = total(town, "forwarded")
        for publisher in ("p2", "p3", "p4"):  # it learns one level at a time
            before = total(town, "forwarded")
            town.publish(publisher, point)
        last = total(town, "forwarded") - before
        costs[size] = (first, last, total(town, "acknowledged"))
    assert costs[0][0] == costs[0][1] == costs[10][0]
    assert costs[10][1] < costs[10][0]
    assert (costs[0][2], costs[10][2] > 0) == (0, True)


def test_somebody_who_joins_later_gets_what_nobody_wanted_before(make_town: MakeTown) -> None:
    plain = scattered(make_town)
    x, y = somewhere_in_vain(plain)
    town = scattered(make_town, cache_size=10)
    for _ in range(3):
        town.publish("p1", (x, y))
    newcomer = town.join((x - 1, y - 1), (x + 1, y + 1))
    town.net.run(200)

    got, meant = town.publish("p1", (x, y))

    assert got == meant == [newcomer]


def test_a_change_of_box_is_not_hidden_by_the_cache(make_town: MakeTown) -> None:
    plain = scattered(make_town)
    x, y = somewhere_in_vain(plain)
    town = scattered(make_town, cache_size=10)
    for _ in range(3):
        town.publish("p1", (x, y))
    town.change("p5", (x - 1, y - 1), (x + 1, y + 1))
    town.net.rest()

    got, meant = town.publish("p1", (x, y))

    assert got == meant == ["p5"]


def test_a_cache_forgets_the_oldest_beyond_its_size(make_town: MakeTown) -> None:
    town = scattered(make_town, cache_size=3)
    for number in range(40):
        town.publish("p1", (number * 2.3, number * 2.1))
    kept = [
        len(known)
        for p in town.net.peers.values()
        for s in p.seats.values()
        for known in s.barren.values()
    ]
    assert kept
    assert max(kept) <= 3


def busy_corner(town: Any, rounds: int) -> None:
    """Publish where a small box lies, again and again."""
    for number in range(rounds):
        town.net.publish(
            "p0", [OverlayEvent.point(("busy", town.net.world.now, number), (3.0, 3.0))]
        )
        town.net.run(40)


def test_by_measured_rates_the_busy_member_becomes_the_host(make_town: MakeTown) -> None:
    hosts = {}
    for method in (Method.EXACT, Method.MEASURED):
        town = make_town(least=2, most=4, method=method)
        town.join((0, 0), (6, 6))
        town.net.run(60)
        town.join((20, 20), (60, 60))
        town.net.run(60)
        town.net.rest()
        busy_corner(town, 150)
        town.net.run(10_000)
        assert violations(town.net.peers.values()) == []
        hosts[method] = next(n for n, p in town.net.peers.items() if p.seats[0].parent is None)
    assert hosts == {Method.EXACT: "p1", Method.MEASURED: "p0"}


def test_with_spread_hosts_take_turns_and_nobody_misses_an_event(make_town: MakeTown) -> None:
    """Without it the same few peers bear all overhead, for ever."""

    def borne(spread: float) -> list[float]:
        town = make_town(5, most=4, spread=spread, spread_beats=20, method=Method.EXACT)
        for number in range(12):
            low = 8.0 * number
            town.join((low, 0.0), (low + 6.0, 100.0))
            town.net.run(200)
        town.net.rest()
        town.net.reset()
        for number in range(240):
            got, meant = town.publish(f"p{number % 12}", (town.random.uniform(0, 100), 50.0))
            assert got == meant
        return sorted(
            sum(seat.overhead() for seat in peer.seats.values()) for peer in town.net.peers.values()
        )

    alone, spread = borne(0.0), borne(1.5)
    assert alone[-1] / sum(alone) > 1.5 * spread[-1] / sum(spread)
    assert sum(one > 0 for one in spread) > sum(one > 0 for one in alone)


@pytest.mark.parametrize("spread", [-1.0, 0.5, 1.0, float("nan")])
def test_a_spread_that_is_no_factor_is_refused(spread: float) -> None:
    with pytest.raises(OutOfRangeError, match="more than 1"):
        Settings(Extent((0.0,), (1.0,)), spread=spread)
