"""Subscriptions and retained messages: sections 3.8 - 3.11, 3.3.1.3, 4.7 and 4.8."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.shop_space import SHOPS
from tests.support.topic_rules import fits

from nearcast.broker import BrokerSettings, OpenAccess, SpaceSettings
from nearcast.broker.counters import DROPS
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.retained.store import RetainedStore
from nearcast.mqtt import (
    Disconnect,
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
from nearcast.mqtt.wire import encode_string

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
both = pytest.mark.parametrize("version", [V311, V5])


def test_each_filter_is_answered_on_its_own(world: Any) -> None:
    client, old = world.welcome("c"), world.welcome("o", V311)
    requests = tuple(FilterRequest(one, qos) for qos, one in enumerate(("a", "b#", "c")))
    client.send(Subscribe(9, requests))
    old.send(Subscribe(9, requests))

    (answer,) = client.take()
    assert answer.reasons == (0, ReasonCode.TOPIC_FILTER_INVALID, 2)
    assert "b#" in (answer.properties.reason_string or "")
    assert old.take() == [Suback(9, (0, 0x80, 2))]


def test_a_reason_string_is_left_out_where_the_packet_would_grow_too_large(world: Any) -> None:
    small = world.welcome("s", props={"maximum_packet_size": 30})
    silent = world.welcome("t", props={"request_problem_information": 0})
    for client in (small, silent):
        client.send(Subscribe(9, (FilterRequest("b#"),)))
        assert client.take() == [Suback(9, (ReasonCode.TOPIC_FILTER_INVALID,))]
    small.send_bytes(bytes.fromhex("c00100"))
    assert small.take() == [Disconnect(ReasonCode.MALFORMED_PACKET)]


def test_topics_are_compared_letter_by_letter(world: Any) -> None:
    client = world.welcome("c")
    client.subscribe("\ufeffa\u0301", 1)
    client.take()
    sender = world.welcome("s")
    for topic in ("\ufeffa\u0301", "a\u0301", "\ufeff\u00e1", "\ufeffA\u0301"):
        sender.publish(topic, b"x")

    assert [one.topic for one in client.publications()] == ["\ufeffa\u0301"]


def test_a_refused_message_goes_to_no_other_member(world: Any) -> None:
    members = [world.welcome(name, answers=False) for name in "xy"]
    for member in members:
        member.subscribe("$share/g/a", 2)
        member.take()
    sender = world.welcome("s")
    for qos, kind in ((1, PacketType.PUBACK), (2, PacketType.PUBREC)):
        sender.publish("a", b"%d" % qos, qos)
        chosen = next(one for one in members if any(type(p) is Publish for p in one.packets))
        (message,) = chosen.publications()
        chosen.send(PublishAnswer(kind, message.packet_id, 0x80))
        assert [one.publications() for one in members] == [[], []]
    assert world.node.state.held_bytes == 0


def test_unsubscribing_says_what_was_there(world: Any) -> None:
    client, old = world.welcome("c"), world.welcome("o", V311)
    for one in (client, old):
        one.subscribe("a")
        one.take()
        one.send(Unsubscribe(9, ("a", "b")))

    assert client.take() == [Unsuback(9, (0, ReasonCode.NO_SUBSCRIPTION_EXISTED))]
    assert old.take() == [Unsuback(9)]
    world.welcome("s").publish("a")
    assert client.take() == []


def test_unsubscribing_lets_what_is_in_flight_finish(world: Any) -> None:
    client = world.welcome("c", answers=False, props={"session_expiry_interval": 60})
    client.subscribe("a", 1)
    world.welcome("s").publish("a", b"x", 1)
    client.unsubscribe("a")
    client.lose()
    again = world.client("c", clean_start=False, props={"session_expiry_interval": 60})

    assert again.payloads() == [b"x"]


def test_a_second_subscription_to_the_same_filter_replaces_the_first(world: Any) -> None:
    client = world.welcome("c")
    client.subscribe("a", 0, identifier=1)
    client.subscribe("a", 1, identifier=2)
    client.take()
    world.welcome("s").publish("a", b"x", 2)

    (message,) = client.publications()
    assert message.qos == 1
    assert message.properties.subscription_identifiers == (2,)
    assert world.node.state.router.subscription_count == 1


def test_overlapping_subscriptions_deliver_once_with_all_identifiers(world: Any) -> None:
    client = world.welcome("c")
    client.subscribe("a/#", 1, identifier=5)
    client.subscribe("a/+", 2, identifier=300)
    client.subscribe("+/b", 0)
    client.take()
    world.welcome("s").publish("a/b", b"x", 2)

    (message,) = client.publications()
    assert message.qos == 2
    assert sorted(message.properties.subscription_identifiers) == [5, 300]


def test_no_local_keeps_ones_own_messages_away(world: Any) -> None:
    client = world.welcome("c")
    client.subscribe("a", 1, no_local=True)
    client.take()
    for qos in (0, 1, 2):
        client.publish("a", b"own", qos)
    world.welcome("s").publish("a", b"other", 1)

    assert client.payloads() == [b"other"]


def test_no_local_on_one_filter_does_not_silence_another(world: Any) -> None:
    client = world.welcome("c")
    client.subscribe("a", 1, no_local=True, identifier=1)
    client.subscribe("#", 1, identifier=2)
    client.take()
    client.publish("a", b"own", 1)

    (message,) = client.publications()
    assert message.properties.subscription_identifiers == (2,)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retain_as_published_keeps_the_flag(world: Any, keep: bool, qos: int) -> None:
    client = world.welcome("c")
    client.subscribe("a", qos, retain_as_published=keep)
    client.take()
    sender = world.welcome("s")
    sender.publish("a", b"kept", qos, retain=True)
    sender.publish("a", b"not", qos)

    seen = [(one.payload, one.retain, one.qos) for one in client.publications()]
    assert seen == [(b"kept", keep, qos), (b"not", False, qos)]


@both
def test_newcomers_get_the_last_retained_message(world: Any, version: ProtocolVersion) -> None:
    sender = world.welcome("s", version)
    sender.publish("a/b", b"old", 1, retain=True)
    sender.publish("a/b", b"new", 1, retain=True)
    sender.publish("a/c", b"live", 1)
    client = world.welcome("c", version)
    client.subscribe("a/#", 1)

    (message,) = client.publications()
    assert (message.payload, message.retain, message.qos) == (b"new", True, 1)


def test_every_newcomer_gets_what_is_retained_by_then(world: Any) -> None:
    sender = world.welcome("s")
    counts = []
    for number in range(3):
        sender.publish(f"r/{number}", b"x", retain=True)
        client = world.welcome(f"c{number}")
        client.subscribe("#")
        counts.append(len(client.publications()))
    sender.publish("r/0", b"", retain=True)
    client.subscribe("#")
    counts.append(len([one for one in client.publications() if one.retain]))

    assert counts == [1, 2, 3, 2]


def test_an_empty_payload_forgets_and_is_itself_delivered(world: Any) -> None:
    sender, live = world.welcome("s"), world.welcome("l")
    live.subscribe("a")
    live.take()
    sender.publish("a", b"x", retain=True)
    sender.publish("a", b"", retain=True)
    client = world.welcome("c")
    client.subscribe("a")

    assert live.payloads() == [b"x", b""]
    assert client.payloads() == []
    assert world.node.state.retained.count == 0


@pytest.mark.parametrize(("handling", "expected"), [(0, 2), (1, 1), (2, 0)])
def test_retain_handling_says_when_retained_messages_come(
    world: Any, handling: int, expected: int
) -> None:
    world.welcome("s").publish("a", b"x", retain=True)
    client = world.welcome("c")
    for _ in range(2):
        client.subscribe("a", retain_handling=handling)

    assert len(client.publications()) == expected


def test_a_shared_subscription_gets_no_retained_messages(world: Any) -> None:
    world.welcome("s").publish("a", b"x", retain=True)
    client = world.welcome("c")
    client.subscribe("$share/g/a")

    assert client.publications() == []


def test_retained_messages_expire(world: Any) -> None:
    world.welcome("s").publish(
        "a", b"x", retain=True, properties=Properties(message_expiry_interval=10)
    )
    world.wait(4_000)
    client = world.welcome("c")
    client.subscribe("a")
    (message,) = client.publications()
    assert message.properties.message_expiry_interval == 6

    world.wait(6_000)
    client.subscribe("a")
    assert client.publications() == []
    assert world.node.state.retained.count == 0


@both
@pytest.mark.parametrize("qos", [0, 1])
def test_a_newcomer_gets_all_retained_messages_however_many(
    make_world: Any, version: ProtocolVersion, qos: int
) -> None:
    world = make_world(BrokerSettings(session_queue_bytes=2000, outbox_window_bytes=500))
    sender = world.welcome("s")
    for number in range(200):
        sender.publish(f"r/{number}", b"x" * 50, 1, retain=True)
    client = world.welcome("c", version)
    client.subscribe("#", qos)

    assert len({one.topic for one in client.publications()}) == 200
    assert not any(getattr(world.node.counters, name) for name in DROPS.values())


def test_a_retained_message_never_follows_the_newer_one(make_world: Any) -> None:
    world = make_world(BrokerSettings(session_queue_bytes=2000, outbox_window_bytes=1))
    sender = world.welcome("s")
    for number in range(50):
        sender.publish(f"r/{number}", b"old", retain=True)
    client = world.welcome("c")
    client.link.is_paused = True
    client.subscribe("r/+", 1)
    for number in range(50):
        sender.publish(f"r/{number}", b"new", retain=True)
    world.resume(client)

    last = {one.topic: one.payload for one in client.publications()}
    assert set(last.values()) == {b"new"}
    assert len(last) == 50


topics = st.lists(st.sampled_from(["a", "b", "", "$c"]), min_size=1, max_size=3).map("/".join)
filters = st.lists(st.sampled_from(["a", "b", "", "$c", "+"]), min_size=1, max_size=3).map("/".join)


@given(
    st.lists(st.tuples(topics, st.booleans()), max_size=15),
    filters | filters.map(lambda text: text + "/#") | st.just("#"),
)
def test_the_store_finds_what_a_scan_finds(
    changes: list[tuple[str, bool]], topic_filter: str
) -> None:
    store, scan = RetainedStore(), {}
    for number, (topic, stays) in enumerate(changes):
        payload = b"%d" % number if stays else b""
        raw = topic.encode()
        head = MessageHead(len(raw).to_bytes(2, "big") + raw, len(payload), 0, retain=True)
        store.put(topic, Message(head, payload))
        if stays:
            scan[topic] = payload
        else:
            scan.pop(topic, None)

    expected = {topic: payload for topic, payload in scan.items() if fits(topic_filter, topic)}
    found = list(store.find(topic_filter))
    assert {one.topic_text(): one.payload for one in found} == expected
    assert len(found) == len(expected)
    assert store.count == len(scan) == len(list(store.all()))
    assert all((one := store.get(topic)) and one.payload == scan[topic] for topic in scan)
    assert store.chunk(topic_filter, 4) == store.chunk(topic_filter, 4)


# --- shared subscriptions --------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_group_shares_the_messages_evenly(world: Any, qos: int) -> None:
    members = [world.welcome(f"m{number}") for number in range(3)]
    for member in members:
        member.subscribe("$share/g/a/+", 2)
        member.take()
    plain = world.welcome("p")
    plain.subscribe("a/+", 2)
    plain.take()
    sender = world.welcome("s")
    for number in range(9):
        sender.publish("a/b", b"%d" % number, qos)

    shares = [member.payloads() for member in members]
    assert [len(share) for share in shares] == [3, 3, 3]
    assert (
        sorted(one for share in shares for one in share)
        == plain.payloads()
        == [b"%d" % n for n in range(9)]
    )


@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("sent", [0, 1, 2])
def test_a_member_of_a_group_gets_no_better_quality_than_it_was_granted(
    world: Any, granted: int, sent: int
) -> None:
    member = world.welcome("m")
    member.subscribe("$share/g/a", granted)
    member.take()
    world.welcome("s").publish("a", b"x", sent)

    assert [one.qos for one in member.publications()] == [min(granted, sent)]


def test_groups_are_independent_and_a_member_may_also_listen_alone(world: Any) -> None:
    client = world.welcome("c")
    for one in ("$share/g/a", "$share/h/a", "a"):
        client.subscribe(one)
    client.take()
    world.welcome("s").publish("a", b"x")

    assert client.payloads() == [b"x"] * 3


def test_members_who_are_away_are_passed_over_while_others_are_there(world: Any) -> None:
    props = {"session_expiry_interval": 60}
    away, here = world.welcome("away", props=props), world.welcome("here")
    for one in (away, here):
        one.subscribe("$share/g/a", 1)
        one.take()
    away.lose()
    sender = world.welcome("s")
    for number in range(4):
        sender.publish("a", b"%d" % number, 1)
    assert len(here.payloads()) == 4

    here.lose()
    sender.publish("a", b"kept", 1)
    assert world.client("away", clean_start=False, props=props).payloads() == [b"kept"]


def test_a_member_who_does_not_read_is_passed_over(world: Any) -> None:
    stuck, other = world.welcome("stuck"), world.welcome("other")
    for member in (stuck, other):
        member.subscribe("$share/g/a")
        member.take()
    stuck.link.is_paused = True
    sender = world.welcome("s")
    for _ in range(4):
        sender.publish("a")

    assert len(other.payloads()) == 4


def test_leaving_a_group_ends_ones_share(world: Any) -> None:
    clients = [world.welcome(name) for name in "xy"]
    for one in clients:
        one.subscribe("$share/g/a")
    clients[0].unsubscribe("$share/g/a")
    for one in clients:
        one.take()
    sender = world.welcome("s")
    for _ in range(4):
        sender.publish("a")

    assert Counter(len(one.payloads()) for one in clients) == Counter({0: 1, 4: 1})
    clients[1].lose()
    assert world.node.state.router.shared_count == 0


def test_a_shared_message_carries_the_members_identifier(world: Any) -> None:
    client = world.welcome("c")
    client.subscribe("$share/g/a", 1, identifier=9)
    client.take()
    world.welcome("s").publish("a", b"x", 1)

    assert [one.properties.subscription_identifiers for one in client.publications()] == [(9,)]


# --- rules -----------------------------------------------------------------------------------


class Restricted(OpenAccess):
    """Everybody may do everything under `free` only."""

    def is_restricted(self, _connection: object) -> bool:
        return True

    def may_publish(self, _user: str | None, _client: str, topic: str) -> bool:
        return topic.startswith("free/")

    def may_subscribe(self, _user: str | None, _client: str, topic_filter: str) -> bool:
        return topic_filter.startswith("free/")


class Explained(Restricted):
    """The same, and it says why."""

    def refusal(self, *_: object, **__: object) -> str:
        return "no rule allows this"


def test_reason_strings_of_other_answers_are_left_out_too(make_world: Any) -> None:
    """Of PUBACK, PUBREC and UNSUBACK; a client that takes longer packets gets them."""
    world = make_world(access=Explained(), spaces=[SpaceSettings(space=SHOPS)])
    for props, has_room in (({}, True), ({"maximum_packet_size": 20}, False)):
        client = world.welcome("c", props=props)
        for qos, kind in ((1, PacketType.PUBACK), (2, PacketType.PUBREC)):
            client.send(Publish("a", b"", qos, packet_id=qos))
            (answer,) = client.take()
            assert (answer.kind, answer.reason) == (kind, ReasonCode.NOT_AUTHORIZED)
            assert (answer.properties.reason_string is not None) == has_room
        client.send(Unsubscribe(9, ("$where/price</shops/#",)))
        (answer,) = client.take()
        assert answer.reasons[0] >= 0x80
        assert (answer.properties.reason_string is not None) == has_room


def test_rules_are_asked_before_anything_happens(make_world: Any) -> None:
    world = make_world(access=Restricted())
    client = world.welcome("c", answers=False)
    client.send(Subscribe(1, (FilterRequest("#"), FilterRequest("$share/g/secret"))))
    client.subscribe("free/#", 1)
    client.send(Subscribe(3, (FilterRequest("$share/g/free/a"),)))
    codes = [one.reasons for one in client.take()]
    assert codes == [(0x87, 0x87), (1,), (0,)]

    for qos in (0, 1, 2):
        client.publish("secret", b"x", qos)
        client.publish("secret", b"x", qos, retain=True)
    assert [one.reason for one in client.take()] == [0x87] * 4
    assert world.node.state.retained.count == 0
    assert world.node.counters.dropped_forbidden == 6
    client.publish("free/b", b"x", 0)
    assert client.payloads() == [b"x"]


def test_topics_with_the_same_receivers_share_what_is_known_of_them(world: Any) -> None:
    for name, text in (("ann", "a/+"), ("bob", "b")):
        world.welcome(name).subscribe(text)
    find = world.node.state.router.find
    one, other, third = (find(encode_string(topic)) for topic in ("a/1", "a/2", "b"))

    assert one is other
    assert one is not third
