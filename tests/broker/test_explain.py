"""Why a client gets a message, or not: the step that decides."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.shop_space import PLACED_OFFER

from nearcast.broker import OpenAccess, SpaceSettings
from nearcast.broker.content.explain import ExplainQuestion, explain
from nearcast.model import Space
from nearcast.mqtt import FilterRequest, Properties, Publish, PublishAnswer, Subscribe

SPACE = Space(
    name="s",
    topic_filter="s/#",
    attributes=PLACED_OFFER,
    longitude="lon",
    latitude="lat",
    missing="none",
)
EVENT = b'{"price": 3, "lon": 8.5, "lat": 47.5}'


@pytest.fixture
def world(make_world: Any) -> Any:
    """A world in which ann wants cheap things, bob what is near, and cyd is away."""
    world = make_world(spaces=[SpaceSettings(space=SPACE)])
    for name, text in (("ann", "$where/price<5/s/#"), ("bob", "$near/500m/s/a"), ("cyd", "#")):
        client = world.welcome(name, props={"session_expiry_interval": 60})
        client.send(Subscribe(1, (FilterRequest(text, 1),)))
        if name == "cyd":
            client.lose()
    return world


def because(world: Any, client: str, payload: bytes) -> str:
    return str(explain(world.node.state, ExplainQuestion(client, "s/a", payload))["because"])


def test_a_missing_value_is_named(world: Any) -> None:
    told = because(world, "ann", b'{"prise": 3, "lon": 8.5, "lat": 47.5}')
    assert told == "conditions: price < 5 is not true of the event: it has no value for price"
    question = ExplainQuestion("ann", "s/a", b'{"prise": 3, "lon": 8.5, "lat": 47.5}')
    steps: Any = explain(world.node.state, question)["steps"]
    values = next(one["detail"] for one in steps if one["step"] == "values")
    assert "no value for price, which fits no condition" in values
    assert "Did you mean price?" in values
    told = because(world, "ann", b'{"price": 3, "lat": 47.5}')
    assert told.startswith("values: no place in space s: payload: found no lon among price, lat;")


def test_a_place_that_looks_swapped_is_named(world: Any) -> None:
    bob = next(one for one in world.node.state.sessions.values() if one.client_id == "bob")
    world.node.state.selections.move(bob, (8.5, 47.5))
    told = because(world, "bob", b'{"lon": 47.5, "lat": 8.5}')
    assert told.endswith("m away); with its longitude and latitude swapped it would be")


CASES = [
    (ExplainQuestion("ann", "s/a", EVENT), True, "queue"),
    (ExplainQuestion("nobody", "s/a", EVENT), False, "client"),
    (ExplainQuestion("ann", "t", EVENT), False, "topic"),
    (ExplainQuestion("bob", "s/b", EVENT), False, "topic"),
    (ExplainQuestion("ann", "s/a", b"x"), False, "values"),
    (ExplainQuestion("ann", "s/a", b'{"price": 50, "lon": 1, "lat": 1}'), False, "conditions"),
    (ExplainQuestion("bob", "s/a", EVENT), False, "position"),
    (ExplainQuestion("ann", "s/+", EVENT), False, "message"),
    (ExplainQuestion("ann", "$top/0/s/a", EVENT), False, "message"),
    (ExplainQuestion("ann", "s/a", EVENT, (("$rank", "foo"),)), False, "message"),
    (ExplainQuestion("ann", "s/a", EVENT, (("$reply", "matches"),)), False, "message"),
    (ExplainQuestion("ann", "$top/1/s/a", EVENT), True, "queue"),
    (ExplainQuestion("cyd", "$top/1/s/a", EVENT, (), 1), False, "rank"),
    (ExplainQuestion("cyd", "s/a", EVENT, (), 1), True, "queue"),
    (ExplainQuestion("cyd", "s/a", EVENT, (), 0), False, "queue"),
    (ExplainQuestion("cyd", "s/a", b"x", (), 1), True, "queue"),
]


@pytest.mark.parametrize(("question", "delivered", "step"), CASES)
def test_the_step_that_decides_is_named(
    world: Any, question: ExplainQuestion, delivered: bool, step: str
) -> None:
    verdict = explain(world.node.state, question)
    assert (verdict["delivered"], str(verdict["because"]).partition(":")[0]) == (delivered, step)


@pytest.mark.parametrize(("question", "delivered", "_step"), CASES)
def test_the_verdict_is_what_happens(
    world: Any, question: ExplainQuestion, delivered: bool, _step: str
) -> None:
    if question.topic == "s/+":
        return
    publisher = world.welcome("publisher")
    packet_id = 1 if question.qos else 0
    properties = Properties(user_properties=question.pairs)
    publisher.send(
        Publish(
            question.topic,
            question.payload,
            question.qos,
            packet_id=packet_id,
            properties=properties,
        )
    )
    client = next((c for c in world.clients if c.link.session is not None
                   and c.link.session.client_id == question.client_id), None)  # fmt: skip
    if question.client_id == "cyd":
        client = world.welcome("cyd", clean_start=False, props={"session_expiry_interval": 60})
    got = [] if client is None else client.payloads()
    assert bool(got) == delivered


def test_a_question_over_mqtt_is_answered_on_its_response_topic(world: Any) -> None:
    asker = world.welcome("asker")
    asker.subscribe("me/why")
    asker.take()
    question = {"client": "ann", "topic": "s/a", "payload": json.loads(EVENT), "qos": 1}

    properties = Properties(response_topic="me/why", correlation_data=b"1")
    asker.publish("$nearcast/explain", json.dumps(question).encode(), 1, properties=properties)

    answer = next(one for one in asker.take() if isinstance(one, Publish))
    assert json.loads(answer.payload)["delivered"] is True
    assert answer.properties.correlation_data == b"1"


@pytest.mark.parametrize(
    "payload",
    [
        b"x",
        b"[]",
        b"{}",
        b'{"client": 1, "topic": "a"}',
        b'{"client": "a", "topic": "b", "qos": 7}',
        b'{"client": "a", "topic": "b", "properties": 5}',
    ],
)
def test_a_bad_question_is_answered_with_its_problem(world: Any, payload: bytes) -> None:
    asker = world.welcome("asker")
    asker.subscribe("me/why")
    asker.take()
    asker.publish("$nearcast/explain", payload, properties=Properties(response_topic="me/why"))
    (answer,) = asker.publications()
    assert json.loads(answer.payload)["problem"]


class Strict(OpenAccess):
    """Nobody may ask."""

    def is_restricted(self, _connection: object) -> bool:
        return True

    def may_publish(self, _user_name: str | None, _client_id: str, topic: str) -> bool:
        return not topic.startswith("$nearcast")


def test_those_who_may_not_ask_get_no_answer(make_world: Any) -> None:
    for access, peer, code in (
        (Strict(), "127.0.0.1:5", 0x87),
        (OpenAccess(), "192.0.2.1:5", 0x87),
        (OpenAccess(), "127.0.0.1:5", 0),
    ):
        world = make_world(access=access)
        asker = world.welcome("asker")
        asker.link.address = peer
        asker.subscribe("me/why")
        asker.take()
        question = b'{"client": "asker", "topic": "me/why"}'
        properties = Properties(response_topic="me/why")
        asker.publish("$nearcast/explain", question, 1, properties=properties)
        answer = next(one for one in asker.take() if isinstance(one, PublishAnswer))
        assert answer.reason == code
