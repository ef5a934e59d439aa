"""Retained copies held back for newcomers: who waits, what ends it, and that nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from nearcast.broker import RetainedSettings, SpaceSettings
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.retained.deferred_routes import DeferredRoute
from nearcast.eventlog.records import Recorder, RetainedChoice
from nearcast.model import Attribute, Space
from nearcast.mqtt import Disconnect, Properties, ProtocolVersion, Subscribe
from nearcast.mqtt.packets import FilterRequest
from nearcast.mqtt.wire import encode_string
from nearcast.retained import Policies

V311 = ProtocolVersion.V311
SETTINGS = (
    RetainedSettings(topics="quick/off", mode="immediate"),
    RetainedSettings(topics="quick/#", mode="learned", omega=0.3),
    RetainedSettings(topics="wait/#", mode="wait", hold_max_s=2.0),
    RetainedSettings(topics="long/#", mode="wait", hold_max_s=60.0),
)


@pytest.fixture
def held(make_world: Any) -> Any:
    return make_world(retained=SETTINGS, with_journal=True)


def steady(world: Any, topic: str, times: int = 20, qos: int = 0, every_ms: int = 500) -> Any:
    """Publish a topic at steady intervals; return the publisher."""
    source = world.welcome(f"source of {topic}")
    for number in range(times):
        world.wait(every_ms)
        source.publish(topic, b"%d" % number, qos, retain=True)
    return source


def test_on_a_quick_topic_the_next_message_serves_the_newcomer(held: Any) -> None:
    source = steady(held, "quick/a")
    ann = held.welcome("ann")
    ann.subscribe("quick/+")
    held.wait(200)
    assert ann.publications() == []

    source.publish("quick/a", b"new", retain=True)
    assert ann.payloads() == [b"new"]
    assert not isinstance(held.node.state.router.routes[encode_string("quick/a")], DeferredRoute)
    held.wait(60_000)
    assert ann.payloads() == []
    counters = held.node.counters
    assert (counters.retained_held, counters.retained_replaced) == (1, 1)
    assert counters.retained_released == 0


def test_when_a_topic_falls_silent_the_copy_comes_long_before_dmax(held: Any) -> None:
    steady(held, "quick/a")
    ann = held.welcome("ann")
    ann.subscribe("quick/a")
    held.wait(4_000)
    assert [(one.payload, one.retain) for one in ann.publications()] == [(b"19", True)]

    bob = held.welcome("bob")
    bob.subscribe("quick/a")
    assert bob.payloads() == [b"19"]


def test_nobody_waits_longer_than_dmax(held: Any) -> None:
    source = steady(held, "wait/a", times=3, every_ms=1_900)
    source.subscribe("wait/a", retain_handling=2)
    held.wait(1_000)
    ann = held.welcome("ann")
    ann.subscribe("wait/a")
    held.wait(1_999)
    assert ann.payloads() == []
    held.wait(1)
    assert ann.payloads() == [b"2"]


def test_topics_without_evidence_or_without_a_setting_are_plain_mqtt(held: Any) -> None:
    for topic in ("quick/few", "other", "quick/off"):
        steady(held, topic, times=3 if topic == "quick/few" else 20)
    ann = held.welcome("ann")
    ann.subscribe("#")
    assert sorted(one.topic for one in ann.publications()) == ["other", "quick/few", "quick/off"]


@pytest.mark.parametrize("handling", [1, 2])
def test_retain_handling_comes_before_the_policy(held: Any, handling: int) -> None:
    steady(held, "quick/a")
    ann = held.welcome("ann")
    ann.subscribe("quick/a", retain_handling=handling)
    assert ann.payloads() == ([b"19"] if handling == 1 else [])
    ann.subscribe("quick/a", retain_handling=handling)
    held.wait(60_000)
    assert ann.payloads() == []


def test_a_subscriber_who_wants_it_now_gets_it_now(held: Any) -> None:
    steady(held, "quick/a")
    ann, bob = held.welcome("ann"), held.welcome("bob", V311)
    wish = Properties(user_properties=(("$retained", "now"),))
    ann.send(Subscribe(7, (FilterRequest("quick/a", 0),), wish))
    assert ann.payloads() == [b"19"]

    bob.subscribe("$retained/now/quick/a")
    assert bob.payloads() == [b"19"]
    assert list(held.node.state.sessions["bob"].subscriptions) == ["quick/a"]
    bob.unsubscribe("$retained/now/quick/a")
    assert held.node.state.sessions["bob"].subscriptions == {}


def test_share_groups_get_nothing_and_nobody_waits(held: Any) -> None:
    steady(held, "quick/a")
    ann = held.welcome("ann")
    ann.subscribe("$share/g/quick/a")
    held.wait(60_000)
    assert ann.payloads() == []
    assert held.node.counters.retained_held == 0


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_without_the_retain_flag_lets_the_copy_go_first(held: Any, qos: int) -> None:
    """Also in runs of packets, which otherwise pass without a look at each."""
    source = steady(held, "quick/a")
    source.publish("quick/a", b"before", qos)
    ann = held.welcome("ann")
    ann.subscribe("quick/a", 2)
    source.publish("quick/a", b"live", qos)
    source.publish("quick/a", b"more", qos)
    assert ann.payloads() == [b"19", b"live", b"more"]


def test_the_same_read_again_does_not_slip_past_those_who_wait(held: Any) -> None:
    source = steady(held, "quick/a")
    eve = held.welcome("eve")
    eve.subscribe("quick/+", retain_handling=2)
    source.publish("quick/a", b"x1")
    source.publish("quick/a", b"x2")
    ann = held.welcome("ann")
    ann.subscribe("quick/a")
    eve.subscribe("more/+")  # the whole table of routes is compiled anew
    source.publish("quick/a", b"x3")
    assert ann.payloads() == [b"19", b"x3"]
    assert eve.payloads() == [b"x1", b"x2", b"x3"]


def test_a_message_of_lower_qos_does_not_stand_in(held: Any) -> None:
    source = steady(held, "quick/a", qos=1)
    ann, bob = held.welcome("ann"), held.welcome("bob")
    ann.subscribe("quick/a", 1)
    bob.subscribe("quick/a", 0)
    source.publish("quick/a", b"live", 0, retain=True)
    assert ann.payloads() == [b"19", b"live"]
    assert bob.payloads() == [b"live"]


def test_ones_own_message_does_not_stand_in_with_no_local(held: Any) -> None:
    source = steady(held, "quick/a")
    source.subscribe("quick/a", no_local=True)
    source.publish("quick/a", b"own", retain=True)
    assert source.payloads() == [b"19"]


def test_who_has_no_room_for_the_live_message_gets_the_copy(held: Any) -> None:
    source = steady(held, "quick/a", qos=1)
    ann = held.welcome("ann", props={"maximum_packet_size": 200})
    ann.subscribe("quick/a", 1)
    source.publish("quick/a", b"x" * 300, 1, retain=True)
    assert ann.payloads() == [b"19"]


def test_deleting_the_retained_message_ends_the_waiting(held: Any) -> None:
    source = steady(held, "quick/a")
    ann = held.welcome("ann")
    ann.subscribe("quick/a")
    source.publish("quick/a", b"", retain=True)
    assert held.node.deferred_retained._core.estimate("quick/a", 1e9) is None  # nothing remains
    held.wait(60_000)
    assert ann.payloads() == [b""]


def test_unsubscribing_ends_the_waiting(held: Any) -> None:
    source = steady(held, "quick/a")
    ann = held.welcome("ann")
    ann.subscribe("quick/a", 1)
    ann.unsubscribe("quick/a")
    assert held.node.deferred_retained.waiting == 0
    source.publish("quick/a", b"live")
    held.wait(60_000)
    assert ann.payloads() == []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_session_that_lives_on_gets_its_copy_of_qos_1_and_2(held: Any, qos: int) -> None:
    source = steady(held, "quick/a", qos=2)
    ann = held.welcome("ann", props={"session_expiry_interval": 600})
    ann.subscribe("quick/a", qos)
    ann.lose()
    source.publish("quick/a", b"lossy", 0, retain=True)
    source.publish("quick/a", b"sure", 2, retain=True)
    again = held.welcome("ann", clean_start=False)
    assert again.payloads() == ([b"19", b"sure"] if qos else [])


def test_a_goodbye_and_a_takeover_keep_the_copy_too(held: Any) -> None:
    steady(held, "quick/a", qos=1)
    ann = held.welcome("ann", props={"session_expiry_interval": 600})
    ann.subscribe("quick/a", 1)
    ann.send(Disconnect(0))
    again = held.welcome("ann", clean_start=False, props={"session_expiry_interval": 600})
    assert again.payloads() == [b"19"]

    again.subscribe("quick/+", 1)
    assert again.payloads() == []
    third = held.welcome("ann", clean_start=False)
    assert third.payloads() == [b"19"]


def test_a_copy_held_back_survives_the_loss_of_the_node(held: Any) -> None:
    steady(held, "quick/a", qos=1)
    for name, qos in (("ann", 1), ("bob", 0)):
        client = held.welcome(name, props={"session_expiry_interval": 600})
        client.subscribe("quick/a", qos)
        assert client.payloads() == []
    held.crash_and_restart()
    assert held.welcome("ann", clean_start=False).payloads() == [b"19"]
    assert held.welcome("bob", clean_start=False).payloads() == []
    assert not held.node.state.notes


def test_what_was_replaced_does_not_come_back_after_the_loss_of_the_node(held: Any) -> None:
    source = steady(held, "quick/a", qos=1)
    ann = held.welcome("ann", props={"session_expiry_interval": 600})
    ann.subscribe("quick/a", 1)
    source.publish("quick/a", b"live", 1, retain=True)
    assert ann.payloads() == [b"live"]
    held.crash_and_restart()
    assert held.welcome("ann", clean_start=False).payloads() == []


def test_other_policies_let_those_go_who_need_not_wait(held: Any) -> None:
    steady(held, "quick/a")
    ann = held.welcome("ann")
    ann.subscribe("quick/a")
    held.node.load_policies(Policies(), held.now_ms)
    held.settle()
    assert ann.payloads() == [b"19"]


def test_a_message_that_would_expire_meanwhile_is_not_held_back(held: Any) -> None:
    source = steady(held, "quick/a")
    source.publish(
        "quick/a", b"mortal", retain=True, properties=Properties(message_expiry_interval=5)
    )
    ann = held.welcome("ann")
    ann.subscribe("quick/a")
    assert ann.payloads() == [b"mortal"]


def test_each_subscription_waits_for_itself_and_the_live_message_comes_once(held: Any) -> None:
    source = steady(held, "quick/a")
    ann = held.welcome("ann")
    ann.subscribe("quick/a", identifier=1)
    ann.subscribe("quick/+", identifier=2)
    assert held.node.deferred_retained.waiting == 2
    source.publish("quick/a", b"live", retain=True)
    (only,) = ann.publications()
    assert only.properties.subscription_identifiers == (1, 2)

    ann.subscribe("quick/a", identifier=3)
    held.wait(10_000)
    (copy,) = ann.publications()
    assert (copy.payload, copy.properties.subscription_identifiers) == (b"live", (3,))


def test_a_will_ends_the_waiting_like_any_message(held: Any) -> None:
    from nearcast.mqtt.packets import Will

    steady(held, "quick/a")
    eve = held.welcome("eve", will=Will("quick/a", b"will", retain=True))
    ann = held.welcome("ann")
    ann.subscribe("quick/a")
    eve.lose()
    assert ann.payloads() == [b"will"]


def test_what_another_node_keeps_lets_the_old_copy_go(held: Any) -> None:
    steady(held, "quick/a")
    ann = held.welcome("ann")
    ann.subscribe("quick/a")
    message = Message(MessageHead(encode_string("quick/a"), 4, 0), b"else")
    held.node.keep(message, held.now_ms)
    held.node.arrive(message, held.now_ms)
    held.settle()
    assert ann.payloads() == [b"19", b"else"]


def test_what_another_node_sent_ends_the_waiting_and_is_no_evidence(held: Any) -> None:
    steady(held, "quick/a")
    core = held.node.deferred_retained._core
    for retain in (False, True):
        before = core.estimate("quick/a", held.now_ms / 1000).publishes_seen
        ann = held.welcome("ann")
        ann.subscribe("quick/a")
        message = Message(MessageHead(encode_string("quick/a"), 4, 0), b"else")
        route = held.node.state.router.arrivals.find(message.head.topic)
        held.node._peer_intake.publish(route, message, None, retain=retain)
        held.settle()
        assert ann.payloads() == ([b"else"] if retain else [b"19", b"else"])
        after = core.estimate("quick/a", held.now_ms / 1000).publishes_seen
        assert after == pytest.approx(before)


def test_a_later_newcomer_with_less_patience_is_not_forgotten(held: Any) -> None:
    steady(held, "long/a", times=3, every_ms=10_000)
    steady(held, "wait/a", times=5, every_ms=1_900)
    ann = held.welcome("ann")
    ann.subscribe("long/a")
    ann.subscribe("wait/a")
    held.wait(1_999)
    assert "wait/a" not in [one.topic for one in ann.publications()]
    held.wait(1)
    assert "wait/a" in [one.topic for one in ann.publications()]


@pytest.mark.parametrize("ends", [False, True])
def test_who_leaves_is_counted(held: Any, ends: bool) -> None:
    steady(held, "quick/a")
    ann = held.welcome("ann")
    ann.subscribe("quick/+")
    if ends:
        ann.lose()
    else:
        ann.unsubscribe("quick/+")
    held.wait(1_000)
    estimate = held.node.deferred_retained._core.estimate("quick/a", held.now_ms / 1000)
    assert estimate.subscribe_per_s > 0
    assert estimate.leave_per_s > 0


def test_who_subscribes_again_while_waiting_gets_its_copy_at_the_new_qos(held: Any) -> None:
    source = steady(held, "quick/a", qos=1)
    ann = held.welcome("ann")
    ann.subscribe("quick/a", 0)
    ann.subscribe("quick/a", 1, retain_handling=2)
    source.publish("quick/a", b"live", 0, retain=True)
    assert [(one.payload, one.qos) for one in ann.publications()] == [(b"19", 1), (b"live", 0)]


def test_evidence_is_forgotten_with_a_message_that_has_expired(held: Any) -> None:
    source = steady(held, "quick/a")
    source.publish(
        "quick/a", b"mortal", retain=True, properties=Properties(message_expiry_interval=20)
    )
    held.wait(21_000)
    ann = held.welcome("ann")
    ann.subscribe("quick/a")
    assert ann.payloads() == []
    assert held.node.deferred_retained._core.estimate("quick/a", 1e9) is None


SHOPS = SpaceSettings(
    space=Space(
        name="shops",
        topic_filter="quick/shops/#",
        attributes=(
            Attribute.number("lon", -180, 180),
            Attribute.number("lat", -90, 90),
            Attribute.number("price", 0, 100),
        ),
        longitude="lon",
        latitude="lat",
    )
)


def offer(price: int) -> bytes:
    return b'{"lon": 13.4, "lat": 52.5, "price": %d}' % price


def offers(world: Any) -> Any:
    source = world.welcome("shop")
    for price in range(20):
        world.wait(500)
        source.publish("quick/shops/a", offer(price), retain=True)
    return source


def test_in_a_space_a_plain_subscriber_waits_and_a_selective_one_does_not(make_world: Any) -> None:
    world = make_world(retained=SETTINGS, spaces=[SHOPS])
    source = offers(world)
    ann, bob, cyd = (world.welcome(name) for name in ("ann", "bob", "cyd"))
    cyd.publish("$position", b'{"lon": 13.4, "lat": 52.5}')
    ann.subscribe("quick/shops/a")
    bob.subscribe("$where/price < 50/quick/shops/#")
    cyd.subscribe("$near/500m/quick/shops/#")
    assert [len(one.publications()) for one in (ann, bob, cyd)] == [0, 1, 1]

    source.publish("quick/shops/a", offer(60), retain=True)
    assert ann.payloads() == [offer(60)]
    assert bob.payloads() == []
    assert cyd.payloads() == [offer(60)]
    cyd.publish("$position", b'{"lon": 0, "lat": 0}')
    cyd.publish("$position", b'{"lon": 13.4, "lat": 52.5}')
    assert cyd.payloads() == [offer(60)]  # it has come near again


@pytest.mark.parametrize("retain", [False, True])
def test_in_a_space_the_copy_goes_first_where_the_message_may_not_come(
    make_world: Any, retain: bool
) -> None:
    world = make_world(retained=SETTINGS, spaces=[SHOPS])
    source = offers(world)
    ann, bob = world.welcome("ann"), world.welcome("bob")
    ann.subscribe("quick/shops/a")
    bob.subscribe("quick/shops/a")
    topic = "$top/1/quick/shops/a" if retain else "quick/shops/a"
    source.publish(topic, offer(60), retain=retain)
    first, second = ann.payloads(), bob.payloads()
    assert first[0] == second[0] == offer(19)
    assert len(first) + len(second) == (3 if retain else 4)


def test_the_event_log_hears_every_decision(held: Any) -> None:
    source = steady(held, "quick/a")
    seen: list[tuple[str, str, int, str, str]] = []

    class Listening(Recorder):
        def retained_decision(self, client: str, topic: str, choice: Any, now_ms: int, **more: Any):
            seen.append((client, topic, choice, more["policy"], more["reason"]))
            assert more["rates"].publish_per_s > 0
            super().retained_decision(client, topic, choice, now_ms, **more)

    held.node.state.log = Listening()
    ann, bob = held.welcome("ann"), held.welcome("bob")
    ann.subscribe("quick/a")
    source.publish("quick/a", b"live", retain=True)
    bob.subscribe("quick/a")
    held.wait(20_000)
    ann.subscribe("quick/a", retain_handling=2)
    assert seen == [
        ("ann", "quick/a", RetainedChoice.HELD_BACK, "learned", ""),
        ("ann", "quick/a", RetainedChoice.REPLACED, "learned", "live message"),
        ("bob", "quick/a", RetainedChoice.HELD_BACK, "learned", ""),
        ("bob", "quick/a", RetainedChoice.RELEASED, "learned", "quiet"),
        ("ann", "quick/a", RetainedChoice.NOT_SENT, "learned", "as asked for"),
    ]


def test_a_node_without_such_topics_knows_nothing_of_policies() -> None:
    program = """
import sys
from nearcast.broker import Broker, RetainedSettings
node = Broker(retained=[RetainedSettings(topics="#", mode="immediate")])
assert node.deferred_retained is None
assert not [name for name in sys.modules if name.startswith("nearcast.retained")]
assert "nearcast.broker.retained.deferred" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
