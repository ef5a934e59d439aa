"""Crashes, silent leaves, partitions, nonsense: the tree repairs itself (trap T3.1)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import settings

from nearcast.overlay import Address, Envelope, OverlayEvent, violations
from nearcast.overlay.messages import (
    Adopt,
    Answer,
    Grant,
    GroupHandover,
    Join,
    MemberEntry,
    MemberLeft,
    MemberReport,
    Replace,
    Returned,
)
from nearcast.simulator import SimulatedLink, uniform

MakeTown = Callable[..., Any]
SOAK = settings.default is not None and settings.default.max_examples > 1000
RUNS = 2_000 if SOAK else 80
SHARDS = 8


def grown(make_town: MakeTown, count: int = 14, **given: Any) -> Any:
    town = make_town(**given)
    random = Random(5)
    for _ in range(count):
        x, y = random.randrange(80), random.randrange(80)
        town.join((x, y), (x + 15, y + 15))
        town.net.run(60)
    town.net.rest()
    assert violations(town.net.peers.values()) == []
    return town


def assert_serves_all(town: Any) -> None:
    assert violations(town.net.peers.values()) == []
    for name in sorted(town.boxes):
        got, meant = town.publish(min(town.boxes), town.boxes[name][0])
        assert got == meant
        assert name in got


def seat_named(town: Any, name: str) -> Any:
    return town.net.peers[name].seats[0]


@pytest.mark.parametrize("goodbye", ["leave", "crash"])
def test_t3_1_when_the_root_goes_another_takes_its_place(make_town: MakeTown, goodbye: str) -> None:
    town = grown(make_town)
    root = next(n for n in town.boxes if seat_named(town, n).parent is None)

    getattr(town, goodbye)(root)
    town.net.rest(60)

    assert_serves_all(town)


@pytest.mark.parametrize("goodbye", ["leave", "crash"])
def test_t3_1_when_an_inner_host_goes_its_orphans_find_another_parent(
    make_town: MakeTown, goodbye: str
) -> None:
    town = grown(make_town)
    inner = [n for n in town.boxes if seat_named(town, n).top > 0 and seat_named(town, n).parent]

    for name in inner[:2]:
        getattr(town, goodbye)(name)
    town.net.rest(60)

    assert_serves_all(town)


def test_half_the_peers_crashing_at_once_leave_a_tree_of_the_others(make_town: MakeTown) -> None:
    town = grown(make_town, 20)
    for name in Random(2).sample(sorted(town.boxes), 10):
        town.crash(name)
    town.calm()
    town.net.rest(120)
    assert_serves_all(town)


def test_a_partition_heals_into_one_tree(make_town: MakeTown) -> None:
    town = grown(make_town, 12)
    names = sorted(town.boxes)
    town.net.world.network.partition([names[::2]])
    town.net.run(30_000)
    roots = [n for n in names if seat_named(town, n).parent is None]
    assert len(roots) >= 2

    town.net.world.network.heal()
    town.net.rest(120)

    assert_serves_all(town)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_after_any_history_of_churn_and_faults_every_live_subscriber_is_served(
    make_town: MakeTown, draw_settings: Callable[[Random], dict[str, object]], shard: int
) -> None:
    for seed in range(shard, RUNS, SHARDS):
        _live_through(make_town, draw_settings, seed)


def _live_through(make_town: MakeTown, draw_settings: Any, seed: int) -> None:
    random = Random(seed)
    faulty = SimulatedLink(
        uniform(1, 60),
        loss=random.choice([0.0, 0.0, 0.02, 0.1]),
        duplication=random.choice([0.0, 0.05]),
        reordering=random.choice([0.0, 0.5, 1.0]),
    )
    town = make_town(seed=seed, link=faulty, **draw_settings(random))
    for _ in range(random.randrange(3, 20)):
        _newcomer(town, random)
        town.net.run(random.choice([0, 5, 100]))
    for _ in range(random.randrange(25)):
        _something_happens(town, random)
        town.net.run(random.choice([0, 10, 300, 3_000]))
    town.calm()
    town.net.rest(240)

    assert violations(town.net.peers.values()) == [], f"seed {seed}"
    for name in sorted(town.boxes):
        got, meant = town.publish(name, (random.randrange(100), random.randrange(100)))
        assert got == meant, f"seed {seed}"
    twice = [e for e, names in town.net.delivered.items() if len(set(names)) < len(names)]
    assert twice == [], f"seed {seed}"


def _newcomer(town: Any, random: Random) -> None:
    if town.boxes and random.random() < 0.2:
        lows, highs = random.choice(sorted(town.boxes.values()))
    else:
        lows = (float(random.randrange(80)), float(random.randrange(80)))
        highs = (lows[0] + random.choice([0, 5, 10, 20]), lows[1] + random.choice([0, 5, 20]))
    town.join(lows, highs)


def _something_happens(town: Any, random: Random) -> None:
    what, names = random.random(), sorted(town.boxes)
    if what < 0.3 or len(names) < 3:
        _newcomer(town, random)
    elif what < 0.45:
        town.leave(random.choice(names))
    elif what < 0.6:
        town.crash(random.choice(names))
    elif what < 0.72:
        x, y = random.randrange(80), random.randrange(80)
        town.change(random.choice(names), (x, y), (x + 10, y + 10))
    elif what < 0.8:
        town.net.world.network.partition([[n for n in names if random.random() < 0.5]])
        town.net.run(random.choice([500, 5_000, 20_000]))
    elif what < 0.85:
        town.net.world.network.heal()
    else:
        point = (float(random.randrange(100)), float(random.randrange(100)))
        town.published += 1
        town.net.publish(
            random.choice(names), [OverlayEvent.point(("under way", town.published), point)]
        )


# --- nonsense from other peers -------------------------------------------------------------------

STRANGER = Address("stranger", 0)
BOX = ((1.0, 1.0), (2.0, 2.0))
ENTRY = MemberEntry(STRANGER, BOX)


@pytest.mark.parametrize(
    "body",
    [
        Join(STRANGER, MemberEntry(STRANGER, ((5.0, 5.0), (1.0, 1.0))), 0, 7),
        Join(STRANGER, MemberEntry(STRANGER, "no box"), 0, 7),  # type: ignore[arg-type]
        Join(STRANGER, ENTRY, -3, 7),
        Join(STRANGER, ENTRY, 0, 7, hops=10_000),
        MemberReport(1, ENTRY, 99),
        MemberReport(-7, ENTRY, 99),
        MemberReport(1, MemberEntry(Address("p3", 0), BOX), 99),
        Replace(1, ENTRY, 99),
        MemberLeft(1),
        MemberLeft(-1),
        GroupHandover((Grant(1, (ENTRY,)),), None, 99, 99),
        GroupHandover((), None, 99, 99),
        Returned(GroupHandover((Grant(1, (ENTRY,)),), None, 99, 99)),
        Adopt(1, 0, (), (STRANGER,), ()),
        Adopt(5, 99, (), (STRANGER,), ()),
        Answer(12345, -5.0, twin=True),
    ],
)
def test_nonsense_from_a_stranger_harms_nobody(make_town: MakeTown, body: Any) -> None:
    town = grown(make_town, 10)
    for name in sorted(town.boxes):
        town.net.world.post(name, Envelope(Address(name, 0), STRANGER, body))
    town.net.run(10_000)
    town.net.rest(60)

    assert_serves_all(town)


def test_a_peer_that_claims_to_be_its_own_ancestor_does_not_make_a_loop(
    make_town: MakeTown,
) -> None:
    town = grown(make_town, 12)
    victim = next(n for n in sorted(town.boxes) if seat_named(town, n).top == 0)
    seat = seat_named(town, victim)
    liar = seat.parent
    before = dict(town.net.sent)
    for _ in range(30):
        path = (Address(victim, 0), liar)
        claim = Adopt(seat.top + 1, seat.parent_term, (), path, ())
        town.net.world.post(victim, Envelope(Address(victim, 0), liar, claim))
        town.net.run(100)
    town.net.rest(60)

    assert_serves_all(town)
    assert town.net.sent["Join"] - before["Join"] < 1_000


def test_two_parents_that_claim_each_other_come_apart(make_town: MakeTown) -> None:
    """A true cycle: A is B's parent and B is A's."""
    town = grown(make_town, 12)
    hosts = [n for n in sorted(town.boxes) if seat_named(town, n).top == 1]
    first, second = (seat_named(town, n) for n in hosts[:2])
    first.parent, second.parent = second.address, first.address
    first.path, second.path = (second.address,), (first.address,)
    town.net.run(60_000)
    town.net.rest(120)
    assert_serves_all(town)


def test_a_second_peer_with_the_same_name_cannot_speak_for_the_first(make_town: MakeTown) -> None:
    town = grown(make_town, 8)
    before = town.net.peers["p2"].strangers
    town.net.world.post(
        "p2", Envelope(Address("p2", 0), Address("p2", 0), Join(Address("p2", 0), ENTRY, 0, 3))
    )
    town.net.run(5_000)

    assert town.net.peers["p2"].strangers == before + 1
    assert_serves_all(town)


def test_a_restarted_peer_replaces_what_is_left_of_it(make_town: MakeTown) -> None:
    town = grown(make_town, 10)
    town.crash("p4")
    town.join((1, 1), (9, 9), "p4")
    town.net.rest(120)
    assert_serves_all(town)


def test_a_copy_of_an_event_is_dropped(make_town: MakeTown) -> None:
    town = grown(make_town, 10, link=SimulatedLink(uniform(1, 9), duplication=1.0))
    for point in ((20, 20), (50, 50)):
        got, meant = town.publish("p0", point)
        assert got == meant
