"""The journal is written before memory changes: what cannot be written has not happened."""

from __future__ import annotations

from typing import Any

import pytest

from nearcast.broker import SpaceSettings
from nearcast.broker.persistence.journal import Journal
from nearcast.model import Attribute, Space
from nearcast.mqtt import (
    FilterRequest,
    PacketType,
    Properties,
    ProtocolVersion,
    Publish,
    PublishAnswer,
    ReasonCode,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
SPACE = SpaceSettings(
    space=Space(
        name="shops", topic_filter="shops/#", attributes=(Attribute.number("price", 0, 100),)
    )
)
LASTING = {"session_expiry_interval": 600}
FAILED = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR


class FailingJournal(Journal):
    """Makes no records of some kinds."""

    __slots__ = ("kinds",)

    def __init__(self, journal: Journal, *kinds: str) -> None:
        super().__init__(journal._next_message, keeps_ages=journal.keeps_ages)
        self._parts, self.kinds = journal._parts, kinds

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name in object.__getattribute__(self, "kinds"):
            raise OverflowError(name)
        return super().__getattribute__(name)


def break_journal(world: Any, *kinds: str) -> list[str]:
    """Let records of some kinds fail from now on; return where failures are told."""
    told: list[str] = []
    state = world.node.state
    state.failures.listener = lambda _fingerprint, doing, _problem: told.append(doing)
    state.journal = FailingJournal(state.journal, *kinds)
    return told


def lasting(world: Any, name: str, version: ProtocolVersion = V5, **rest: Any) -> Any:
    props = LASTING if version is V5 else {}
    return world.welcome(name, version, clean_start=False, props=props, **rest)


def texts(world: Any, name: str) -> list[str]:
    return list(world.node.state.sessions[name].subscriptions)


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("spaces", [[], [SPACE]])
def test_a_subscription_whose_record_fails_is_refused_and_not_there(
    make_world: Any, version: ProtocolVersion, spaces: list[SpaceSettings]
) -> None:
    world = make_world(with_journal=True, spaces=spaces)
    client, passing = lasting(world, "c", version), world.welcome("passing")
    client.subscribe("before", 1)
    client.take()
    told = break_journal(world, "subscribed")
    client.send(Subscribe(9, (FilterRequest("a", 1), FilterRequest("before", 0))))
    passing.subscribe("a")  # nothing of it is stored

    (answer,) = client.take()
    assert isinstance(answer, Suback)
    assert answer.reasons == ((FAILED, FAILED) if version is V5 else (0x80, 0x80))
    assert told == ["changing a subscription"]
    assert texts(world, "c") == ["before"]
    assert world.node.state.subscriptions == 2
    assert world.node.state.sessions["c"].subscriptions["before"].qos == 1
    passing.publish("a", b"for itself", 1)
    passing.publish("before", b"for both", 1)
    assert client.payloads() == [b"for both"]
    assert not client.is_closed
    world.crash_and_restart()
    assert texts(world, "c") == ["before"]


def test_a_selection_whose_record_fails_is_not_there(make_world: Any) -> None:
    world = make_world(with_journal=True, spaces=[SPACE])
    client = lasting(world, "c")
    break_journal(world, "subscribed")
    wish = Properties(user_properties=(("$where", "price < 5"),))
    client.send(Subscribe(1, (FilterRequest("shops/#", 1),), wish))
    (suback,) = client.take()
    assert suback.reasons == (FAILED,)
    world.welcome("p").publish("shops/a", b'{"price": 1}', 1)
    assert client.take() == []
    assert not world.node.state.selections.by_number
    assert world.node.state.subscriptions == 0


@pytest.mark.plain
def test_a_subscription_that_does_not_take_effect_leaves_no_record(
    make_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(with_journal=True)
    client = lasting(world, "c")
    told = break_journal(world)

    def fail(*_given: Any) -> None:
        raise OverflowError

    monkeypatch.setattr(world.node.state.router, "add", fail)
    client.subscribe("a", 1)
    monkeypatch.undo()
    client.subscribe("b", 1)
    assert told
    assert texts(world, "c") == ["b"]
    world.crash_and_restart()
    assert texts(world, "c") == ["b"]


def test_a_subscription_whose_end_cannot_be_written_stays(make_world: Any) -> None:
    world = make_world(with_journal=True)
    client = lasting(world, "c")
    client.send(Subscribe(1, (FilterRequest("a", 1),)))
    client.take()
    told = break_journal(world, "unsubscribed")
    client.send(Unsubscribe(2, ("a", "b")))

    (answer,) = client.take()
    assert isinstance(answer, Unsuback)
    assert answer.reasons == (FAILED, ReasonCode.NO_SUBSCRIPTION_EXISTED)
    assert told == ["changing a subscription"]
    assert texts(world, "c") == ["a"]
    world.welcome("p").publish("a", b"still", 1)
    assert client.payloads() == [b"still"]


@pytest.mark.plain
def test_where_an_unsuback_has_no_reasons_the_failure_ends_the_connection(make_world: Any) -> None:
    world = make_world(with_journal=True)
    client = lasting(world, "c", V311)
    client.subscribe("a", 1)
    client.take()
    break_journal(world, "unsubscribed")
    client.unsubscribe("a")
    assert client.is_closed
    assert client.take() == []
    assert texts(world, "c") == ["a"]


@pytest.mark.parametrize(
    ("kind", "answers", "left"),
    [
        ("settled", [PacketType.PUBACK], ([1], [], [])),
        ("recorded", [PacketType.PUBREC], ([1], [1], [])),
        ("settled", [PacketType.PUBREC, PacketType.PUBCOMP], ([], [], [1])),
    ],
)
@pytest.mark.plain
def test_an_answer_whose_record_fails_has_not_come(
    make_world: Any, kind: str, answers: list[PacketType], left: tuple[list[int], ...]
) -> None:
    world = make_world(with_journal=True)
    qos = 1 if PacketType.PUBACK in answers else 2
    client = lasting(world, "c", answers=False)
    client.subscribe("a", qos)
    world.welcome("p").publish("a", b"x", qos)
    break_journal(world, kind)
    for each in answers:
        client.send(PublishAnswer(each, 1))
    session = world.node.state.sessions["c"]
    assert (list(session.in_flight), list(session.exact), list(session.released)) == left
    assert world.node.state.held_bytes == session.held_bytes
    assert bool(session.held_bytes) == bool(left[0])


@pytest.mark.parametrize(("kind", "left"), [("incoming", []), ("released", [7])])
@pytest.mark.plain
def test_an_identifier_whose_record_fails_is_as_before(
    make_world: Any, kind: str, left: list[int]
) -> None:
    world = make_world(with_journal=True)
    client = lasting(world, "c", answers=False)
    break_journal(world, kind)
    client.send(Publish("a", b"x", 2, packet_id=7))
    client.send(PublishAnswer(PacketType.PUBREL, 7))
    assert client.is_closed
    assert list(world.node.state.sessions["c"].incoming) == left


def test_a_note_whose_record_fails_is_not_there(make_world: Any) -> None:
    world = make_world(with_journal=True)
    state = world.node.state
    state.set_note(b"old", b"1", world.now_ms + 1_000)
    break_journal(world, "note")
    for key, until_ms in ((b"new", world.now_ms + 1_000), (b"old", 0)):
        with pytest.raises(OverflowError):
            state.set_note(key, b"2", until_ms)
    assert list(state.notes) == [b"old"]
    assert state.notes[b"old"][1] == b"1"


@pytest.mark.plain
def test_such_a_failure_in_a_later_slice_ends_the_connection_too(make_world: Any) -> None:
    world = make_world(with_journal=True)
    client = lasting(world, "c", V311)
    client.subscribe("a", 1)
    break_journal(world, "unsubscribed")
    world.node.slices.is_spent = lambda: True
    client.send(Unsubscribe(2, ("b", "a")))
    assert not client.is_closed
    while world.node.slices.backlog:
        world.node.serve_backlog(world.now_ms)
        world.settle()
    assert client.is_closed
    assert texts(world, "c") == ["a"]
