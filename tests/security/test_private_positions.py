"""Where somebody is cannot be found out: each attack is run, and what it learns is measured.

The measure: the attacker's answers are a transcript. The same attack on a victim elsewhere gives
the same transcript, so the attacker cannot tell the places apart: 0 bits. In a space whose
positions are open the same attacks find the victim to a metre, which shows that they work.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.support.cluster_writer import Writer
from tests.support.rules import KnownUsers, allow
from tests.support.shop_space import SHOPS
from tests.support.simulated_city import SimulatedCity

from nearcast.broker import BrokerSettings, SpaceSettings
from nearcast.model import distance_m
from nearcast.model.grid import coarse_place
from nearcast.mqtt import (
    FilterRequest,
    Properties,
    ProtocolVersion,
    Publish,
    PublishAnswer,
    Subscribe,
)
from nearcast.mqtt.packets import Will
from nearcast.server.metrics.exposition import sys_topics

Place = tuple[float, float]
KEPT = {"session_expiry_interval": 1_000}


@dataclass
class Attack:
    """A stranger who may publish to the space and nothing else, and a victim somewhere."""

    world: Any
    stranger: Any
    victim: Any
    asked: int = 0

    @classmethod
    def on(cls, make_world: Any, place: Place, positions: str, **options: Any) -> Attack:
        settings = options.pop("settings", None)
        near = options.pop("near", "500m")
        pairs = options.pop("pairs", ())
        space = SpaceSettings(space=SHOPS, positions=positions)  # type: ignore[arg-type]
        world = make_world(settings, spaces=[space], **options)
        victim = world.welcome("victim", props=KEPT)
        victim.publish("$position", json.dumps({"lon": place[0], "lat": place[1]}).encode())
        properties = Properties(user_properties=(("$near", near), *pairs))
        victim.send(Subscribe(1, (FilterRequest("shops/#", 1),), properties))
        stranger = world.welcome("stranger")
        stranger.subscribe("answers")
        stranger.take()
        return cls(world, stranger, victim)

    def publish(self, values: Mapping[str, object], **wish: str) -> tuple[int, list[Any]]:
        """Publish, and return what the stranger gets to see: the code, and what is delivered."""
        self.asked += 1
        pairs = tuple((f"${name}", value) for name, value in wish.items())
        properties = Properties(user_properties=pairs, response_topic="answers")
        payload = json.dumps({"price": 3, "kind": "food", **values}).encode()
        self.stranger.publish("shops/1", payload, qos=1, properties=properties)
        seen = self.stranger.take()
        code = next(one.reason for one in seen if isinstance(one, PublishAnswer))
        return code, [one.payload for one in seen if isinstance(one, Publish)]

    def ask(self, question: dict[str, object]) -> dict[str, Any]:
        self.asked += 1
        properties = Properties(response_topic="answers")
        payload = json.dumps(question).encode()
        self.stranger.publish("$nearcast/explain", payload, qos=1, properties=properties)
        found = [one.payload for one in self.stranger.take() if isinstance(one, Publish)]
        return json.loads(found[0]) if found else {}


Oracle = Callable[[float, float, float, float], bool]
"""Whether somebody is within 500 m of a box: what each attack makes of an answer."""


def search(is_there: Oracle, start: tuple[float, float, float, float]) -> Place | None:
    """Halve boxes until the victim's box is a metre wide; None where no half answers."""
    if not is_there(*start):
        return None
    west, south, east, north = start
    for _ in range(60):
        if (east - west) > (north - south):
            middle = (west + east) / 2
            west, east = (west, middle) if is_there(west, south, middle, north) else (middle, east)
        else:
            middle = (south + north) / 2
            south, north = (
                (south, middle) if is_there(west, south, east, middle) else (middle, north)
            )
    return (west + east) / 2, (south + north) / 2


def by_reason(attack: Attack) -> Oracle:
    def is_there(west: float, south: float, east: float, north: float) -> bool:
        area = f"bbox({west!r},{south!r},{east!r},{north!r})"
        return attack.publish({"lon": west, "lat": south}, area=area)[0] == 0

    return is_there


def by_reply(attack: Attack) -> Oracle:
    def is_there(west: float, south: float, east: float, north: float) -> bool:
        area = f"bbox({west!r},{south!r},{east!r},{north!r})"
        _, answers = attack.publish({"lon": west, "lat": south}, area=area, reply="matches")
        return bool(json.loads(answers[0])["matches"])

    return is_there


def by_explain(attack: Attack) -> Oracle:
    def is_there(west: float, south: float, east: float, north: float) -> bool:
        area = f"bbox({west!r},{south!r},{east!r},{north!r})"
        event = {"price": 3, "kind": "food", "lon": west, "lat": south}
        properties = {"$area": area}
        return bool(
            attack.ask(
                {"client": "victim", "topic": "shops/1", "payload": event, "properties": properties}
            )["delivered"]
        )

    return is_there


WORLD = (-180.0, -90.0, 180.0, 90.0)
ATTACKS = {"reason": by_reason, "reply": by_reply, "explain": by_explain}
LABELLED = (("$label", "Ann"),)
HOME = (8.5417, 47.3769)
UNLIMITED = BrokerSettings(position_probes=0)


@pytest.mark.parametrize("way", ATTACKS)
def test_where_positions_are_open_the_attacks_find_the_victim(make_world: Any, way: str) -> None:
    attack = Attack.on(make_world, HOME, "publishers", pairs=LABELLED)
    found = search(ATTACKS[way](attack), WORLD)
    assert found is not None
    # The box is within 500 m of the victim: 33 of the 49 bits of a metre on the earth.
    assert distance_m(*found, *HOME) <= 501
    assert attack.asked == 61


@pytest.mark.parametrize("way", ATTACKS)
def test_in_a_private_space_they_learn_nothing(make_world: Any, way: str) -> None:
    """All places of the victim give one transcript: the information gained is 0 bits."""
    random, transcripts = Random(1), set()
    for _ in range(5):
        place = (random.uniform(-180, 180), random.uniform(-85, 85))
        attack = Attack.on(make_world, place, "private", settings=UNLIMITED, pairs=LABELLED)
        told: list[bool] = []
        oracle = ATTACKS[way](attack)
        for _ in range(30):
            west, south = place[0] - random.random(), place[1] - random.random()
            is_around = random.random() < 0.5
            box = (west, south, west + 2, south + 2) if is_around else WORLD
            told.append(oracle(*(box if -178 < west < 176 else WORLD)))
        transcripts.add(tuple(told))
        assert len(set(told)) == 1
    assert math.log2(len(transcripts)) == 0


def boxes_of_the_earth() -> list[tuple[float, float, float, float]]:
    """Return 325 boxes over the whole earth: 25 by 13."""
    wide, high = 360 / 25, 180 / 13
    return [
        (-180 + i * wide, -90 + j * high, -180 + (i + 1) * wide, -90 + (j + 1) * high)
        for i in range(25)
        for j in range(13)
    ]


@pytest.mark.parametrize(("positions", "bits"), [("publishers", 8.3), ("private", 0.0)])
def test_the_boxes_over_the_whole_earth(make_world: Any, positions: str, bits: float) -> None:
    """What 325 questions tell, in bits: the entropy of the answers over random places."""
    random, seen = Random(2), []
    for _ in range(12):
        place = (random.uniform(-175, 175), random.uniform(-80, 80))
        attack = Attack.on(make_world, place, positions, settings=UNLIMITED)
        oracle = by_reason(attack)
        answers = tuple(oracle(*box) for box in boxes_of_the_earth())
        seen.append(answers)
        assert attack.asked == 325
    distinct = len(set(seen))
    assert (distinct == 1) is (bits == 0)
    told = sum(map(sum, seen)) / len(seen)
    gained = math.log2(325 / told)  # of the boxes, so many remain on average
    assert gained == pytest.approx(bits, abs=0.1)


def circle_by_points(attack: Attack, start: Place) -> Place:
    """Find the edge of a victim's circle in 19 directions, 12 halvings each; return its centre."""
    per_lat, per_lon = 111_195.0, 111_195.0 * math.cos(math.radians(start[1]))
    edge: list[tuple[float, float]] = []
    for heading in range(19):
        angle, low, high = math.radians(heading * 360 / 19), 0.0, 2_000.0
        for _ in range(12):
            middle = (low + high) / 2
            x, y = middle * math.sin(angle), middle * math.cos(angle)
            values = {"lon": start[0] + x / per_lon, "lat": start[1] + y / per_lat}
            is_inside = attack.publish(values)[0] == 0
            low, high = (middle, high) if is_inside else (low, middle)
        edge.append((low * math.sin(angle), low * math.cos(angle)))
    x, y = fitted_circle(edge)
    return start[0] + x / per_lon, start[1] + y / per_lat


def fitted_circle(edge: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the middle of the circle that fits points of its edge best."""
    matrix = np.array([(2 * x, 2 * y, 1.0) for x, y in edge])
    squares = np.array([x * x + y * y for x, y in edge])
    x, y, _ = np.linalg.lstsq(matrix, squares, rcond=None)[0]
    return float(x), float(y)


def test_228_publications_by_their_reason_codes(make_world: Any) -> None:
    """They find the victim to a metre; in a private space they find where the stranger began."""
    start = (HOME[0] + 0.002, HOME[1] - 0.001)
    known = Attack.on(make_world, HOME, "publishers")
    assert distance_m(*circle_by_points(known, start), *HOME) < 1.5
    assert known.asked == 228
    found = set()
    for place in (HOME, (100.0, -40.0)):
        private = Attack.on(make_world, place, "private")
        found.add(circle_by_points(private, start))
    assert len(found) == 1
    assert distance_m(*found.pop(), *start) < 1


# --- what one question tells --------------------------------------------------------------------

NEAR, FAR = {"lon": HOME[0], "lat": HOME[1]}, {"lon": 100.0, "lat": -40.0}


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("retain", [True, False])
def test_the_answer_is_the_same_bytes_whether_it_matched_or_not(
    make_world: Any, qos: int, retain: bool
) -> None:
    attack = Attack.on(make_world, HOME, "private")
    sent: list[bytes] = []
    for values in (NEAR, FAR):
        before = len(attack.stranger.all_bytes)
        payload = json.dumps({"price": 3, "kind": "food", **values}).encode()
        attack.stranger._next_id = 0
        attack.stranger.publish("shops/1", payload, qos=qos, retain=retain)
        sent.append(attack.stranger.all_bytes[before:])
    assert sent[0] == sent[1]
    assert len(attack.victim.publications()) == 1


def test_a_full_queue_of_who_is_near_is_not_told(make_world: Any) -> None:
    """Fill the queue of a victim that is away, then ask by "quota exceeded"."""
    settings = BrokerSettings(session_queue_bytes=2_000)
    attack = Attack.on(make_world, HOME, "private", settings=settings)
    attack.victim.lose()
    codes = {attack.publish(NEAR)[0] for _ in range(30)} | {attack.publish(FAR)[0]}
    assert codes == {0}
    assert attack.world.node.counters.dropped_quota > 0


@pytest.mark.plain  # it replaces a method of the core
def test_the_stranger_is_written_to_before_who_is_near(make_world: Any) -> None:
    attack = Attack.on(make_world, HOME, "private")
    link, written = attack.stranger.link, list[list[Any]]()
    take = attack.world.node.take_dirty

    def kept() -> list[Any]:
        written.append(take())
        return written[-1]

    attack.world.node.take_dirty = kept
    attack.publish(NEAR)
    assert next(one for one in written if one)[0] is link


def test_the_distance_is_told_only_to_the_subscriber_and_to_those_it_agreed_to(
    make_world: Any,
) -> None:
    for pairs, expected in (
        (LABELLED, []),
        ((*LABELLED, ("$distance", "1km")), [("Ann", 1_000.0)]),
    ):
        attack = Attack.on(make_world, HOME, "private", pairs=pairs, near="3km")
        _, answers = attack.publish({"lon": HOME[0], "lat": HOME[1] + 0.01}, reply="matches")
        rows = json.loads(answers[0])["matches"]
        assert [(row["label"], row["distance_m"]) for row in rows] == expected


def test_whoever_agrees_is_found_to_the_cell_and_no_closer(make_world: Any) -> None:
    """Two places in one cell of the subscriber's steps give the same answers to all questions."""
    cell = coarse_place(HOME, 1_000)
    places = [HOME, cell, (cell[0] + 0.004, cell[1] - 0.003)]
    assert {coarse_place(one, 1_000) for one in places} == {cell}
    random, transcripts = Random(3), set()
    questions = [
        {"lon": HOME[0] + random.gauss(0, 0.02), "lat": HOME[1] + random.gauss(0, 0.02)}
        for _ in range(60)
    ]
    for place in places:
        pairs = (*LABELLED, ("$distance", "1km"))
        attack = Attack.on(
            make_world, place, "private", settings=UNLIMITED, pairs=pairs, near="2km"
        )
        told = [attack.publish(one, reply="matches")[1][0] for one in questions]
        transcripts.add(tuple(told))
    assert len(transcripts) == 1
    assert len(set(next(iter(transcripts)))) > 2  # it is found, to the cell


def test_an_agreement_survives_a_restart(make_world: Any) -> None:
    pairs = (*LABELLED, ("$distance", "1km"))
    attack = Attack.on(make_world, HOME, "private", pairs=pairs, near="3km", with_journal=True)
    attack.world.crash_and_restart()
    attack.stranger = attack.world.welcome("stranger")
    attack.stranger.subscribe("answers")
    _, answers = attack.publish(NEAR, reply="matches")
    assert [row["label"] for row in json.loads(answers[0])["matches"]] == ["Ann"]


def test_a_rank_counts_nobody_who_is_near(make_world: Any) -> None:
    """A stranger who subscribes as well is told its place: of those without a position."""
    attack = Attack.on(make_world, HOME, "private")
    stranger = attack.stranger
    properties = Properties(user_properties=(("$where", "price<99"), ("$explain", "true")))
    stranger.send(Subscribe(9, (FilterRequest("shops/#", 0),), properties))
    stranger.take()
    for wish in ({}, {"top": "5"}, {"top": "5", "rank": "nearest"}):
        told = set()
        for values in (NEAR, FAR):
            pairs = tuple((f"${name}", value) for name, value in wish.items())
            payload = json.dumps({"price": 3, "kind": "food", **values}).encode()
            properties = Properties(user_properties=pairs)
            stranger.publish("shops/1", payload, qos=1, properties=properties)
            (message,) = stranger.publications()
            told.add(dict(message.properties.user_properties)["$rank"])
        assert told == {"1"}


# --- explain ------------------------------------------------------------------------------------

QUESTION = {"client": "victim", "topic": "shops/1", "qos": 1}
OPERATOR = KnownUsers(
    ["root", "ann"],
    [allow("#", "root"), allow("$nearcast/explain"), allow("shops/#"), allow("answers")],
)


def explained(attack: Attack, values: Mapping[str, object], **more: object) -> dict[str, Any]:
    return attack.ask({**QUESTION, "payload": {"price": 3, "kind": "food", **values}, **more})


def test_explain_tells_a_stranger_nothing_of_a_position(make_world: Any) -> None:
    attack = Attack.on(make_world, HOME, "private")
    answers = [explained(attack, values) for values in (NEAR, FAR)]
    assert answers[0] == answers[1]
    assert answers[0]["because"].startswith("position: it depends on where clients are")


def test_explain_tells_nothing_by_the_length_of_a_queue(make_world: Any) -> None:
    attack = Attack.on(make_world, HOME, "private")
    attack.victim.subscribe("plain", 1)
    attack.victim.lose()
    told = []
    for values in (FAR, NEAR):
        attack.publish(values)
        told.append(attack.ask({**QUESTION, "topic": "plain"}))
    assert told[0] == told[1]


def test_explain_tells_nothing_by_the_rank_of_somebody_else(make_world: Any) -> None:
    attack = Attack.on(make_world, HOME, "private")
    other = attack.world.welcome("other")
    other.subscribe("$where/price<99/shops/#", 1)
    told = []
    for values in (NEAR, FAR):
        question = {"client": "other", "properties": {"$top": "1"}}
        told.append(explained(attack, values, **question))
    assert told[0] == told[1]


def test_a_client_may_ask_about_itself(make_world: Any) -> None:
    attack = Attack.on(make_world, HOME, "private")
    attack.victim.subscribe("answers")
    attack.stranger, attack.victim = attack.victim, attack.stranger
    assert explained(attack, NEAR)["delivered"]
    assert explained(attack, FAR)["because"].startswith("position: the event is not within 500 m")


@pytest.mark.parametrize(("user", "sees"), [("root", True), ("ann", False), (None, False)])
def test_a_right_shows_positions_not_the_machine(make_world: Any, user: Any, sees: bool) -> None:
    attack = Attack.on(make_world, HOME, "private", access=OPERATOR)
    attack.stranger = attack.world.welcome("asker", user_name=user)
    attack.stranger.subscribe("answers")
    answers = [explained(attack, values)["delivered"] for values in (NEAR, FAR)]
    assert answers == ([True, False] if sees else [False, False])


@pytest.mark.parametrize("version", [ProtocolVersion.V311, ProtocolVersion.V5])
@pytest.mark.parametrize("prefix", ["", "$top/1/"])
def test_no_will_asks_explain(make_world: Any, version: Any, prefix: str) -> None:
    attack = Attack.on(make_world, HOME, "publishers")
    will = Will(f"{prefix}$nearcast/explain", json.dumps({**QUESTION, "payload": NEAR}).encode(), 1)
    refused = attack.world.client("w", version, will=will)
    assert refused.is_closed


def test_a_will_that_asks_for_matches_is_answered_like_a_question(make_world: Any) -> None:
    attack = Attack.on(make_world, HOME, "private", pairs=LABELLED)
    properties = Properties(user_properties=(("$reply", "matches"),), response_topic="answers")
    payload = json.dumps({"price": 3, "kind": "food", **NEAR}).encode()
    attack.world.welcome("w", will=Will("shops/1", payload, 1, False, properties)).lose()
    (answer,) = attack.stranger.payloads()
    assert json.loads(answer) == {"matches": []}


# --- other ways ---------------------------------------------------------------------------------


def figures(attack: Attack) -> dict[str, str]:
    found = dict(sys_topics(attack.world.node, uptime_s=0))
    return {name: value for name, value in found.items() if name != "uptime"}


def test_sys_tells_nothing_of_what_was_delivered(make_world: Any) -> None:
    attack = Attack.on(make_world, HOME, "private")
    before = figures(attack)
    attack.publish(NEAR)
    assert figures(attack) == before
    assert "publish/messages/sent" not in before
    known = Attack.on(make_world, HOME, "publishers")
    before = figures(known)
    known.publish(NEAR)
    assert figures(known) != before


def test_questions_about_one_place_are_limited(make_world: Any) -> None:
    settings = BrokerSettings(position_probes=10)
    attack = Attack.on(make_world, HOME, "private", settings=settings)
    codes = [attack.publish(NEAR, top="1")[0] for _ in range(15)]
    assert codes == [0] * 10 + [0x97] * 5
    assert attack.publish(FAR, top="1")[0] == 0
    assert attack.publish(NEAR)[0] == 0  # it asks nothing
    assert attack.world.node.counters.dropped_probing == 5
    attack.world.wait(6_000)
    assert [attack.publish(NEAR, reply="matches")[0] for _ in range(2)] == [0, 0x97]


def test_other_identifiers_of_a_user_share_its_limit(make_world: Any) -> None:
    settings = BrokerSettings(position_probes=4)
    users = KnownUsers(["spy", "root"], [allow("#", "root"), allow("shops/#"), allow("answers")])
    attack = Attack.on(make_world, HOME, "private", settings=settings, access=users)
    codes = []
    for number in range(6):
        attack.stranger = attack.world.welcome(f"s{number}", user_name="spy")
        codes.append(attack.publish(NEAR, top="1")[0])
    assert codes == [0] * 4 + [0x97] * 2
    attack.stranger = attack.world.welcome("op", user_name="root")  # who may learn positions
    assert {attack.publish(NEAR, top="1")[0] for _ in range(9)} == {0}


@pytest.mark.parametrize("way", ["connect", "position", "restored"])
def test_positions_on_a_grid_are_matched_at_the_middle_of_their_cell(
    make_world: Any, way: str
) -> None:
    settings = BrokerSettings(position_grid_m=1_000)
    at = {"lon": str(HOME[0]), "lat": str(HOME[1])}
    world = make_world(
        BrokerSettings() if way == "restored" else settings,
        spaces=[SpaceSettings(space=SHOPS)],
        with_journal=True,
    )
    pairs = Properties(user_properties=tuple(at.items()), session_expiry_interval=1_000)
    ann = world.welcome(
        "ann", properties=Properties(session_expiry_interval=1_000) if way == "position" else pairs
    )
    if way == "position":
        ann.publish("$position", json.dumps(at).encode(), qos=1)
    if way == "restored":
        world.settings = settings
        world.crash_and_restart()
    kept = world.node.state.sessions["ann"].position
    cell = coarse_place(HOME, 1_000)
    assert kept == cell != HOME
    assert distance_m(*cell, *HOME) < 1_000


def test_on_a_grid_even_a_rival_learns_only_the_cell(make_world: Any) -> None:
    """What `$top` tells: a rival subscriber sees that somebody was preferred, at a coarse place."""
    cell = coarse_place(HOME, 1_000)
    transcripts = set()
    for place in (HOME, cell, (cell[0] - 0.004, cell[1] + 0.003)):
        settings = BrokerSettings(position_probes=0, position_grid_m=1_000)
        attack = Attack.on(make_world, place, "private", settings=settings)
        attack.stranger.subscribe("shops/#")
        told = []
        for step in range(40):
            values = {"lon": cell[0] + step / 2_000, "lat": cell[1]}
            told.append(len(attack.publish(values, top="1")[1]))
        transcripts.add(tuple(told))
    assert len(transcripts) == 1
    assert set(next(iter(transcripts))) == {0, 1}


# --- in a cluster ---------------------------------------------------------------------------------


def test_all_nodes_give_the_same_answers() -> None:
    """The victim is at one node, the stranger at each: no code depends on where the victim is."""
    codes = set()
    for place in (HOME, (100.0, -40.0)):
        city = SimulatedCity(2, spaces=[SpaceSettings(space=SHOPS)])
        victim = city.client("victim", "n0")
        at = json.dumps({"lon": place[0], "lat": place[1]})
        city.publish(victim, "$position", at.encode(), 1)
        victim.ask(FilterRequest("$near/500m/shops/#", 1))
        city.turn(victim)
        city.run(500)
        for node in ("n0", "n1"):
            stranger = Writer()
            stranger.name = f"stranger-{node}"
            city.homes[stranger.name] = node
            city.admit(stranger)
            city.turn(stranger)
            payload = json.dumps({"price": 3, "kind": "food", **NEAR}).encode()
            city.publish(stranger, "shops/1", payload, 1)
            city.run(500)
            codes.add((node, tuple(stranger.reasons)))
        received = 2 if place == HOME else 0
        assert len(victim.received) == received
    assert codes == {("n0", (0,)), ("n1", (0,))}
