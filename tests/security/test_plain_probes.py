"""Plain events as questions: a stranger who sees how long the broker works, and a limit by place.

The stranger here is stronger than any: after each event it knows whether the broker has delivered.
Real ones measure time, and are right in 67 to 91 of 100 cases (`docs/privacy.md`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from random import Random
from statistics import median
from typing import Any

import pytest
from tests.security.test_private_positions import HOME, NEAR, Attack, Place, fitted_circle
from tests.support.rules import KnownUsers, allow

from nearcast.broker import BrokerSettings
from nearcast.model import distance_m
from nearcast.mqtt import Properties, ProtocolVersion, Publish
from nearcast.mqtt.packets import Will

PER_LAT = 111_195.0
DIRECTIONS, HALVINGS, REACH_M = 6, 12, 2_000.0
LIMITED = 0x97


def is_told(attack: Attack, at: Place) -> bool | None:
    """Publish; return whether the broker has delivered, None if it has refused."""
    before = attack.world.node.counters.publish_sent
    code, _ = attack.publish({"lon": at[0], "lat": at[1]})
    sent = attack.world.node.counters.publish_sent - before
    if code == LIMITED:
        assert not sent
        return None
    return bool(sent)


def found_place(ask: Callable[[Place], bool | None], start: Place) -> Place:
    """Find the edge of a circle by halvings in some directions, as far as answers come."""
    per_lon = PER_LAT * math.cos(math.radians(start[1]))
    ways = [(0.0, REACH_M)] * DIRECTIONS
    for _ in range(HALVINGS):  # of all directions by turns, so that the limit takes of each
        for heading, (low, high) in enumerate(ways):
            middle, angle = (low + high) / 2, math.tau * heading / DIRECTIONS
            x, y = middle * math.sin(angle), middle * math.cos(angle)
            is_inside = ask((start[0] + x / per_lon, start[1] + y / PER_LAT))
            if is_inside is not None:
                ways[heading] = (middle, high) if is_inside else (low, middle)
    edge = []
    for heading, (low, high) in enumerate(ways):
        middle, angle = (low + high) / 2, math.tau * heading / DIRECTIONS
        edge.append((middle * math.sin(angle), middle * math.cos(angle)))
    x, y = fitted_circle(edge)
    return start[0] + x / per_lon, start[1] + y / PER_LAT


def errors_m(make_world: Any, publications: int) -> list[float]:
    """Return how far off the attack is, for some places of the victim; the start is 200 m off."""
    random, found = Random(5), []
    for _ in range(9):
        start = (HOME[0] + random.uniform(-0.02, 0.02), HOME[1] + random.uniform(-0.02, 0.02))
        angle = random.uniform(0, math.tau)
        victim = (
            start[0] + 200 * math.sin(angle) / (PER_LAT * math.cos(math.radians(start[1]))),
            start[1] + 200 * math.cos(angle) / PER_LAT,
        )
        settings = BrokerSettings(position_publications=publications)
        attack = Attack.on(make_world, victim, "private", settings=settings)
        place = found_place(partial(is_told, attack), start)
        found.append(distance_m(*place, *victim))
        assert attack.asked <= DIRECTIONS * HALVINGS
    return found


def test_who_sees_the_broker_work_finds_the_victim_and_with_the_limit_gains_little(
    make_world: Any,
) -> None:
    """Gained about a victim 200 m from where the attack begins, in bits: 2 log2(200 m / error)."""
    gained = {
        publications: 2 * math.log2(200 / median(errors_m(make_world, publications)))
        for publications in (0, 12, 6, 2)
    }
    assert gained[0] > 20  # 15 cm
    assert 6 < gained[12] < 12
    assert 3 < gained[6] < 6
    assert gained[2] < 3


def test_plain_events_about_one_place_are_limited(make_world: Any) -> None:
    settings = BrokerSettings(position_publications=10)
    attack = Attack.on(make_world, HOME, "private", settings=settings)
    codes = [attack.publish(NEAR)[0] for _ in range(15)]
    assert codes == [0] * 10 + [LIMITED] * 5
    assert len(attack.victim.publications()) == 10
    assert attack.publish({"lon": 100.0, "lat": -40.0})[0] == 0
    assert attack.publish({})[0] == 0x10  # about no place
    assert attack.publish(NEAR, top="1")[0] == 0  # a question: `probes` counts it
    assert attack.world.node.counters.dropped_probing == 5
    attack.world.wait(6_000)
    assert [attack.publish(NEAR)[0] for _ in range(2)] == [0, LIMITED]


@pytest.mark.parametrize("positions", ["publishers", "public"])
def test_where_positions_are_open_nothing_is_limited(make_world: Any, positions: str) -> None:
    settings = BrokerSettings(position_publications=1)
    attack = Attack.on(make_world, HOME, positions, settings=settings)
    assert {attack.publish(NEAR)[0] for _ in range(5)} == {0}


def test_without_anybody_near_nothing_is_limited(make_world: Any) -> None:
    settings = BrokerSettings(position_publications=1)
    attack = Attack.on(make_world, HOME, "private", settings=settings)
    attack.victim.unsubscribe("shops/#")
    assert {attack.publish(NEAR)[0] for _ in range(5)} == {0}


@pytest.mark.parametrize("version", [ProtocolVersion.V311, ProtocolVersion.V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_way_of_a_packet_is_counted(
    make_world: Any, qos: int, version: ProtocolVersion
) -> None:
    """Runs of QoS 0 take the fast path of a space where nothing is limited."""
    settings = BrokerSettings(position_publications=3)
    attack = Attack.on(make_world, HOME, "private", settings=settings)
    stranger = attack.world.welcome("other", version=version)
    payload = json.dumps({"price": 3, "kind": "food", **NEAR}).encode()
    numbers = range(1, 10) if qos else [0] * 9
    stranger.send(*(Publish("shops/1", payload, qos, packet_id=one) for one in numbers))
    assert len(attack.victim.publications()) == 3
    assert attack.world.node.counters.dropped_probing == 6


def test_whoever_may_learn_positions_is_not_limited(make_world: Any) -> None:
    settings = BrokerSettings(position_publications=2)
    users = KnownUsers(["spy", "root"], [allow("#", "root"), allow("shops/#"), allow("answers")])
    attack = Attack.on(make_world, HOME, "private", settings=settings, access=users)
    codes = []
    for number in range(4):
        attack.stranger = attack.world.welcome(f"s{number}", user_name="spy")
        codes.append(attack.publish(NEAR)[0])
    assert codes == [0, 0, LIMITED, LIMITED]
    attack.stranger = attack.world.welcome("op", user_name="root")
    assert {attack.publish(NEAR)[0] for _ in range(5)} == {0}


@pytest.mark.parametrize("top", [True, False])
def test_a_will_is_counted_whoever_leaves_it(make_world: Any, top: bool) -> None:
    """Wills were no questions: a rival learned by `$top` in a will as often as it liked."""
    settings = BrokerSettings(position_probes=4, position_publications=4)
    attack = Attack.on(make_world, HOME, "private", settings=settings)
    payload = json.dumps({"price": 3, "kind": "food", **NEAR}).encode()
    pairs = Properties(user_properties=(("$top", "1"),) if top else ())
    for number in range(10):
        will = Will("shops/1", payload, 1, properties=pairs)
        attack.world.welcome(f"w{number}", will=will).lose()
    assert len(attack.victim.publications()) == 4
    assert attack.world.node.counters.dropped_probing == 6
