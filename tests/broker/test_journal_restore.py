"""What a node's journal brings back (the property test is in test_model)."""

from __future__ import annotations

import contextlib
from struct import error as StructError  # noqa: N812
from typing import Any

import pytest

from nearcast.broker import Broker
from nearcast.broker.persistence.journal import HEADER, Journal, RecordKind, split_records
from nearcast.broker.persistence.replay import Replay
from nearcast.broker.persistence.unapplied_records import _detail
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.session.lifecycle import Lifecycle
from nearcast.broker.session.session import WillMessage
from nearcast.model.errors import FileFormatError
from nearcast.mqtt import (
    Connack,
    PacketType,
    Properties,
    ProtocolVersion,
    Publish,
    PublishAnswer,
    Will,
    encode_packet,
)
from nearcast.mqtt.wire import encode_string

LASTING = {"session_expiry_interval": 3600}
V311 = ProtocolVersion.V311


def returned(world: Any, name: str, **rest: Any) -> Any:
    return world.client(name, clean_start=False, props=LASTING, **rest)


def test_queued_in_flight_and_released_messages_come_back(make_world: Any) -> None:
    world = make_world(with_journal=True)
    receiver = world.welcome("r", answers=False, props={**LASTING, "receive_maximum": 3})
    receiver.subscribe("a", 2)
    sender = world.welcome("s")
    for number in range(5):
        sender.publish("a", b"%d" % number, 1 + number % 2)
    receiver.send(PublishAnswer(PacketType.PUBREC, 2))
    world.crash_and_restart()
    again = returned(world, "r", answers=False)

    rest = again.take()[1:]
    assert rest[0] == PublishAnswer(PacketType.PUBREL, 2)
    assert [(one.payload, one.duplicate, one.qos) for one in rest[1:]] == [
        (b"0", True, 1),
        (b"2", True, 1),
        (b"3", False, 2),
        (b"4", False, 1),
    ]


def test_an_identifier_that_was_refused_at_exactly_once_is_free_for_others_after_a_crash(
    make_world: Any,
) -> None:
    world = make_world(with_journal=True)
    receiver = world.welcome("r", answers=False, props=LASTING)
    receiver.subscribe("a", 2)
    sender = world.welcome("s")
    sender.publish("a", b"x", 2)
    receiver.send(PublishAnswer(PacketType.PUBREC, 1, 0x97))
    world.crash_and_restart()

    session = world.node.state.sessions["r"]
    assert (session.in_flight, session.exact, session.released) == ({}, set(), {})


def test_an_exactly_once_message_is_not_taken_twice_over_a_crash(make_world: Any) -> None:
    world = make_world(with_journal=True)
    receiver = world.welcome("r", props=LASTING)
    receiver.subscribe("a", 2)
    receiver.take()
    sender = world.welcome("s", answers=False, props=LASTING)
    sender.send(Publish("a", b"x", 2, packet_id=7))
    assert receiver.payloads() == [b"x"]
    world.crash_and_restart()
    receiver, sender = returned(world, "r"), returned(world, "s", answers=False)
    sender.send(Publish("a", b"x", 2, duplicate=True, packet_id=7))

    assert receiver.payloads() == []
    assert PublishAnswer(PacketType.PUBREC, 7) in sender.take()


def test_a_session_without_expiry_does_not_come_back(make_world: Any) -> None:
    world = make_world(with_journal=True)
    world.welcome("r").subscribe("a", 1)
    world.crash_and_restart()

    assert not world.node.state.sessions
    assert world.node.state.router.subscription_count == 0


def test_the_expiry_goes_on_while_the_broker_is_away(make_world: Any) -> None:
    world = make_world(with_journal=True)
    world.welcome("r", props=LASTING).lose()
    world.crash_and_restart(after_ms=3_600_000)
    world.wait(1)

    assert not world.node.state.sessions


def test_wills_are_executed_after_a_crash(make_world: Any) -> None:
    world = make_world(with_journal=True)
    heir = world.welcome("heir", props=LASTING)
    heir.subscribe("w", 1)
    world.welcome("c", V311, will=Will("w", b"at once", 1))
    late = Will("w", b"later", 1, properties=Properties(will_delay_interval=5))
    world.welcome("d", will=late, props=LASTING)
    world.crash_and_restart()

    assert returned(world, "heir").payloads() == [b"at once"]
    world.wait(5_000)
    assert world.clients[-1].payloads() == [b"later"]


def test_retained_messages_come_back_and_forgotten_ones_do_not(make_world: Any) -> None:
    world = make_world(with_journal=True)
    sender = world.welcome("s")
    for topic, payload in (("a", b"1"), ("b", b"2"), ("b", b""), ("c", b"3"), ("c", b"4")):
        sender.publish(topic, payload, 1, retain=True)
    world.node.publish("$SYS/x", b"5", now_ms=world.now_ms, retain=True)
    world.crash_and_restart()

    found = {one.topic_text(): one.payload for one in world.node.state.retained.all()}
    assert found == {"a": b"1", "c": b"4"}


def picture(node: Broker) -> dict[str, Any]:
    """Return everything of a node that must survive."""
    state = node.state
    return {
        "sessions": {
            one.client_id: {
                "number": one.number,
                "version": one.version,
                "user": one.user_name,
                "expiry": one.expiry_s,
                "durable": one.is_durable,
                "came": one.came_ms,
                "position": one.position,
                "will": None
                if one.will is None
                else (
                    one.will.message.topic_text(),
                    one.will.message.payload,
                    one.will.message.head.qos,
                    one.will.message.head.retain,
                    one.will.message.head.properties,
                    one.will.delay_s,
                    one.will.expiry_s,
                ),
                "in flight": [
                    (p, m.payload, m.topic_text(), m.expires_at_ms, p in one.exact)
                    for p, m in one.in_flight.items()
                ],
                "released": list(one.released),
                "incoming": sorted(one.incoming),
                "queue": [(m.payload, m.topic_text(), m.expires_at_ms, q) for m, q in one.queue],
                "subscriptions": {
                    text: (s.qos, s.identifier, s.no_local, s.retain_as_published, s.group)
                    for text, s in one.subscriptions.items()
                },
                "held": one.held_bytes,
            }
            for one in sorted(state.sessions.values(), key=lambda one: one.client_id)
            if one.is_durable or one.will is not None
        },
        "retained": sorted(
            (m.topic_text(), m.payload, m.head.qos, m.head.properties, m.expires_at_ms)
            for m in state.retained.all()
            if not m.topic_text().startswith("$SYS/")
        ),
        "notes": dict(state.notes),
        "held": state.held_bytes,
    }


def replayed(batches: list[bytes]) -> dict[str, Any]:
    """Return the picture that records alone make, before any clock is set."""
    node = Broker(with_journal=True)
    node.state.now_ms = 1
    replay = Replay(node.state)
    for batch in batches:
        replay.apply(batch)
    replay.finish()
    assert replay.aside == []
    return picture(node)


def test_journal_and_snapshot_tell_everything_that_must_survive(make_world: Any) -> None:
    world = make_world(with_journal=True)
    receiver = world.welcome(
        "r", answers=False, user_name="ann", props={**LASTING, "receive_maximum": 2}
    )
    receiver.subscribe("a", 2, identifier=4, no_local=True, retain_as_published=True)
    receiver.subscribe("$share/g/b", 1)
    receiver.publish("$position", b'{"lon": 13.4, "lat": 52.5}', 1)
    world.now_ms += 7
    mourned = Properties(will_delay_interval=9, message_expiry_interval=60, content_type="x")
    will = Will("w", b"x", 1, retain=True, properties=mourned)
    sender = world.welcome("s", props=LASTING, answers=False, will=will)
    world.welcome("brief", V311, will=Will("w", b"of one that does not last", 2))
    mortal = Properties(message_expiry_interval=50, response_topic="answers")
    for number in range(6):
        sender.publish("a", b"%d" % number, 2, retain=number == 3, properties=mortal)
    receiver.send(PublishAnswer(PacketType.PUBREC, 1))
    world.node.state.set_note(b"key", b"value", world.now_ms + 1_000)
    world.node.state.set_note(b"gone", b"value", world.now_ms + 1_000)
    world.node.state.set_note(b"gone", b"", 0)
    world.settle()
    there = picture(world.node)
    short = b"".join(world.node.snapshot())

    ours = there["sessions"]["r"]
    assert set(there["sessions"]) == {"r", "s", "brief"}
    assert ours["position"] == (13.4, 52.5)
    assert ours["came"] == 1_000_000
    assert all(ours[key] for key in ("in flight", "released", "queue", "subscriptions", "held"))
    assert all(there[key] for key in ("retained", "notes", "held"))
    assert there["sessions"]["s"]["incoming"]
    assert replayed(world.stored) == there
    assert replayed([short]) == there
    assert len(short) < sum(map(len, world.stored))


def test_a_retained_message_that_was_sent_before_a_compaction_survives_being_sent_again(
    make_world: Any,
) -> None:
    world = make_world(with_journal=True)
    world.welcome("s").publish("a", b"x", 1, retain=True)
    world.welcome("first", props=LASTING).subscribe("a", 1)
    world.stored[:] = world.node.snapshot()
    world.welcome("second", answers=False, props=LASTING).subscribe("a", 1)
    world.crash_and_restart()
    again = returned(world, "second", answers=False)

    assert world.set_aside == []
    assert [(one.payload, one.duplicate) for one in again.publications()] == [(b"x", True)]


def test_a_message_that_expired_in_a_queue_does_not_come_between_journal_and_queue(
    make_world: Any,
) -> None:
    """A record of it missing, what was sent behind it would be queued still after a crash."""
    world = make_world(with_journal=True)
    world.welcome("r", props=LASTING).subscribe("a", 1)
    world.clients[-1].lose()
    sender = world.welcome("s")
    sender.publish("a", b"short", 1, properties=Properties(message_expiry_interval=1))
    sender.publish("a", b"lasting", 1)
    world.now_ms += 2_000
    assert returned(world, "r").payloads() == [b"lasting"]
    world.crash_and_restart()

    assert returned(world, "r").payloads() == []


def test_an_exchange_that_is_complete_is_not_taken_up_again_after_a_crash(make_world: Any) -> None:
    world = make_world(with_journal=True)
    receiver = world.welcome("r", props=LASTING)
    receiver.subscribe("a", 2)
    world.welcome("s").publish("a", b"x", 2)
    assert receiver.payloads() == [b"x"]
    world.crash_and_restart()
    again = returned(world, "r", answers=False)

    assert [type(one) for one in again.take()] == [Connack]
    assert not world.node.state.sessions["r"].released


def test_the_will_of_a_session_that_does_not_last_is_in_the_snapshot(make_world: Any) -> None:
    world = make_world(with_journal=True)
    world.welcome("heir", props=LASTING).subscribe("w", 1)
    world.welcome("c", V311, will=Will("w", b"gone", 1))
    world.stored = list(world.node.snapshot())
    world.crash_and_restart()

    assert returned(world, "heir").payloads() == [b"gone"]


def test_a_message_for_many_counts_once_in_the_quota_after_a_crash_too(make_world: Any) -> None:
    world = make_world(with_journal=True)
    for number in range(5):
        world.welcome(f"r{number}", answers=False, props=LASTING).subscribe("a", 1)
    world.clients[0].lose()
    world.welcome("s").publish("a", bytes(1_000), 1)
    held = world.node.state.held_bytes
    for stored in (world.stored, list(world.node.snapshot())):
        world.stored = list(stored)
        world.crash_and_restart()
        assert world.node.state.held_bytes == held
        assert world.node.state.sessions["r4"].held_bytes == held


def test_the_brokers_own_topics_are_not_stored(make_world: Any) -> None:
    world = make_world(with_journal=True)
    world.node.publish("$SYS/x", b"5", now_ms=world.now_ms, retain=True)

    assert b"".join(world.node.snapshot()) == b""


def told(world: Any) -> list[tuple[int, bytes]]:
    return [(kind, body) for batch in world.stored for _, kind, body in split_records(batch)]


def joined(some: list[tuple[int, bytes]]) -> bytes:
    return b"".join(HEADER.pack(kind, len(body)) + body for kind, body in some)


def test_a_record_that_cannot_be_applied_is_set_aside_by_name_and_the_others_count(
    make_world: Any,
) -> None:
    world = make_world(with_journal=True)
    world.welcome("r", answers=False, props=LASTING).subscribe("a/#", 1)
    sender = world.welcome("s")
    sender.publish("a/1", b"one", 1)
    sender.publish("a/2", b"two", 1)
    first = next(body for kind, body in told(world) if kind == RecordKind.MESSAGE)
    world.stored = [joined([one for one in told(world) if one != (RecordKind.MESSAGE, first)])]
    world.crash_and_restart()

    (aside,) = world.set_aside
    assert (aside.batch, aside.kind, aside.about) == (1, "SENT", "client 'r', message 1")
    assert "message 1; expected one that an earlier record tells" in aside.reason
    assert world.stored[0][aside.offset :].startswith(aside.record)
    assert world.node.counters.journal_records_set_aside == 1
    assert returned(world, "r").payloads() == [b"two"]


@pytest.mark.parametrize("place", range(12))
def test_one_record_of_nonsense_never_keeps_the_others_away(make_world: Any, place: int) -> None:
    world = make_world(with_journal=True)
    world.welcome("r", answers=False, props=LASTING, will=Will("w", b"x", 1)).subscribe("a", 2)
    world.welcome("s").publish("a", b"x", 1, retain=True)
    records = told(world)
    whole = records[place % len(records)]
    for nonsense in (
        (whole[0], whole[1][: len(whole[1]) // 2]),
        (whole[0], b""),
        (99, b"of a later version"),
        (whole[0], b"\xff" * len(whole[1])),
    ):
        node = Broker(with_journal=True)
        aside = node.restore([joined([*records, nonsense])], world.now_ms)
        assert {one.client_id for one in node.state.sessions.values()} == {"r"}
        assert list(node.state.sessions["r"].subscriptions) == ["a"]
        assert len(aside) <= 1
        if nonsense[0] == 99:
            assert aside[0].kind == "kind 99"


def test_the_rest_of_a_batch_behind_a_record_that_is_too_long_is_set_aside(make_world: Any) -> None:
    world = make_world(with_journal=True)
    world.welcome("r", props=LASTING)
    whole = joined(told(world))
    node = Broker(with_journal=True)
    (aside,) = node.restore([whole + HEADER.pack(RecordKind.NOTE, 1_000) + b"short"], world.now_ms)

    assert (aside.offset, aside.record[-5:]) == (len(whole), b"short")
    assert list(node.state.sessions) == ["r"]


def test_messages_for_a_session_that_no_record_tells_of_are_set_aside_not_passed_over(
    make_world: Any,
) -> None:
    world = make_world(with_journal=True)
    world.welcome("r", answers=False, props=LASTING).subscribe("a", 1)
    world.welcome("s").publish("a", b"x", 1)
    world.stored = [joined([one for one in told(world) if one[0] != RecordKind.SESSION])]
    world.crash_and_restart()

    assert [one.kind for one in world.set_aside] == ["CAME", "SUBSCRIBED", "SENT"]
    assert all("session 1" in one.about for one in world.set_aside)


def test_a_will_that_cannot_be_published_does_not_keep_a_node_from_starting(
    make_world: Any,
) -> None:
    """Journals of earlier versions may hold one; what is deeper than any route raises."""
    world = make_world(with_journal=True)
    world.welcome("heir", props=LASTING).subscribe("#", 1)
    world.welcome("c", V311, will=Will("a", b"deep", 1))
    deep = "/".join("x" * 200)
    head = MessageHead(encode_string(deep), 4, 1)
    journal = Journal()
    journal.will(world.node.state.sessions["c"], WillMessage(Message(head, b"deep"), 0, -1))
    world.stored.append(journal.take())
    world.crash_and_restart()

    (aside,) = world.set_aside
    assert aside.kind == "WILL"
    assert aside.about == f"client 'c', topic {deep!r}"
    assert list(world.node.state.sessions) == ["heir"]
    world.crash_and_restart()
    assert "c" not in world.node.state.sessions


@pytest.mark.plain
def test_a_session_that_cannot_be_set_up_does_not_keep_a_node_from_starting(
    make_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(with_journal=True)
    for name in ("a", "b", "c"):
        world.welcome(name, props=LASTING).subscribe(name, 1)
    set_up = Lifecycle.restore
    told: list[str] = []

    def fails_for_b(self: Any, session: Any, *, was_connected: bool) -> None:
        if session.client_id == "b":
            raise ZeroDivisionError
        set_up(self, session, was_connected=was_connected)

    monkeypatch.setattr(Lifecycle, "restore", fails_for_b)
    node = Broker(world.settings, **world.options)
    node.state.failures.listener = lambda _name, doing, _problem: told.append(doing)
    node.restore(world.stored, world.now_ms)

    assert told == ["restoring a session"]
    assert list(node.state.sessions) == ["a", "b", "c"]


def test_a_record_longer_than_its_batch_is_named() -> None:
    for damage in (b"\x01\x00", b"\x05\xff\x00\x00\x00"):
        with pytest.raises(FileFormatError):
            list(split_records(damage))


# --- lengths --------------------------------------------------------------------------------

LONGEST = 65_535
"""Bytes of a topic, a filter, a client identifier or a user name."""


@pytest.mark.parametrize("size", [LONGEST - 2, LONGEST - 1, LONGEST])
def test_the_longest_topics_survive_queued_in_flight_retained_and_as_wills(
    make_world: Any, size: int
) -> None:
    topic = "t" * size
    world = make_world(with_journal=True)
    world.welcome("away", props=LASTING).subscribe(topic, 1)
    world.clients[-1].lose()
    world.welcome("there", answers=False, props=LASTING).subscribe(topic, 1)
    world.welcome("w", props={"session_expiry_interval": 0}, will=Will(topic, b"will", 1))
    world.welcome("s").publish(topic, b"x", 1, retain=True)
    snapshot = list(world.node.snapshot())
    for stored in (world.stored, snapshot):
        world.stored = list(stored)
        world.crash_and_restart()
        assert world.set_aside == []
        assert returned(world, "away").payloads() == [b"x", b"will"]
        assert returned(world, "there").payloads() == [b"x", b"will"]
        kept = world.node.state.retained.get(topic)
        assert kept is not None
        assert kept.payload == b"x"


def test_the_longest_client_identifier_user_name_and_filter_survive(make_world: Any) -> None:
    world = make_world(with_journal=True)
    name = "n" * LONGEST
    client = world.welcome(name, props=LASTING, user_name="u" * LONGEST)
    client.subscribe("f" * LONGEST, 1, identifier=268_435_455)
    world.crash_and_restart()

    (session,) = world.node.state.sessions.values()
    assert session.client_id == name
    assert list(session.subscriptions) == ["f" * LONGEST]


def test_a_note_with_a_key_longer_than_a_topic_survives() -> None:
    """A copy held back is noted under its filter and its topic, which may both be long."""
    before = Broker(with_journal=True)
    before.state.set_note(b"k" * 200_000, b"value", 1 << 40)
    for stored in ([before.take_journal()], list(before.snapshot())):
        after = Broker(with_journal=True)
        assert after.restore(stored, 1) == []
        assert after.state.notes == {b"k" * 200_000: (1 << 40, b"value")}


# --- memory and journal ---------------------------------------------------------------------


class Refusing(Journal):
    """A journal that cannot make records of one kind."""

    kind = RecordKind.MESSAGE

    def _add(self, kind: int, body: bytes) -> None:
        if kind == self.kind:
            raise OverflowError
        super()._add(kind, body)


@pytest.mark.parametrize(
    "kind", [RecordKind.MESSAGE, RecordKind.QUEUED, RecordKind.SENT, RecordKind.RETAINED]
)
@pytest.mark.plain
def test_memory_does_not_change_where_a_record_cannot_be_made(
    make_world: Any, kind: RecordKind
) -> None:
    world = make_world(with_journal=True)
    world.welcome("there", answers=False, props=LASTING).subscribe("a", 1)
    world.welcome("away", props=LASTING).subscribe("a", 1)
    world.clients[-1].lose()
    sender = world.welcome("s")
    world.node.state.journal = refusing = Refusing()
    refusing.kind = kind
    data = encode_packet(Publish("a", b"x", 1, retain=kind is RecordKind.RETAINED, packet_id=1))
    with contextlib.suppress(OverflowError):
        world.node.receive(sender.link, data, world.now_ms)
    world.stored.append(refusing.take())
    before = {
        one.client_id: (len(one.queue), len(one.in_flight), one.held_bytes)
        for one in world.node.state.sessions.values()
        if one.is_durable
    }
    retained = world.node.state.retained.count
    world.crash_and_restart()

    assert before == {
        one.client_id: (len(one.queue), len(one.in_flight), one.held_bytes)
        for one in world.node.state.sessions.values()
    }
    assert world.node.state.retained.count == retained
    assert world.set_aside == []


@pytest.mark.plain
def test_a_snapshot_that_is_given_up_half_way_tells_nothing_as_news(make_world: Any) -> None:
    world = make_world(with_journal=True)
    for name in ("a", "b", "c"):
        world.welcome(name, answers=False, props={**LASTING, "receive_maximum": 1})
        world.clients[-1].subscribe("t", 1)
    sender = world.welcome("s")
    sender.publish("t", b"1", 1)
    sender.publish("t", b"2", 1)
    world.node.state.sessions["c"].position = ("no", "place")
    with pytest.raises(StructError):
        list(world.node.snapshot())
    assert world.node.take_journal() == b""


def test_a_message_whose_record_cannot_be_made_has_no_number_that_others_could_name() -> None:
    journal = Refusing()
    message = Message(MessageHead(encode_string("a"), 1, 1), b"x")
    with pytest.raises(OverflowError):
        journal.queued(1, message, 1)
    assert message.number == 0


def test_a_record_of_a_session_is_told_with_its_filter_if_it_has_one() -> None:
    session = (7).to_bytes(4, "little")

    assert _detail(RecordKind.UNSUBSCRIBED, session + b"a/b", str) == "filter 'a/b'"
    assert _detail(RecordKind.ENDED, session, str) == ""
