"""Work in slices: what takes long is interrupted, loses nothing, and others are served."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from nearcast.broker import Broker, BrokerSettings, Connection
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.retained.store import RetainedStore
from nearcast.broker.slices import Slices
from nearcast.mqtt import (
    Connack,
    Connect,
    FilterRequest,
    PacketType,
    Publish,
    PublishAnswer,
    ReasonCode,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    encode_packet,
)
from nearcast.mqtt.wire import encode_string

PINGREQ, PINGRESP = b"\xc0\0", b"\xd0\0"


class Budget:
    """Says that a slice is spent after a number of questions."""

    def __init__(self, node: Broker, steps: int) -> None:
        self.steps, self.left = steps, steps
        node.slices.is_spent = self.is_spent

    def is_spent(self) -> bool:
        self.left -= 1
        return self.left < 0


def serve(world: Any, budget: Budget) -> int:
    """Serve the backlog until it is empty; return in how many slices."""
    slices = 0
    while world.node.slices.backlog:
        budget.left = budget.steps
        world.node.serve_backlog(world.now_ms)
        world.settle()
        slices += 1
    return slices


def test_the_rest_of_a_read_waits_and_others_are_served_first(make_world: Any) -> None:
    world = make_world()
    flood, other = world.welcome("flood"), world.welcome("other")
    budget = Budget(world.node, 10)
    flood.send_bytes(PINGREQ * 100)
    assert flood.all_bytes.count(PINGRESP) == 11
    budget.left = budget.steps
    other.send_bytes(PINGREQ)
    assert other.all_bytes.endswith(PINGRESP)
    assert serve(world, budget) == 9
    assert flood.all_bytes.count(PINGRESP) == 100


def test_what_comes_while_a_connection_waits_is_taken_in_order(make_world: Any) -> None:
    world = make_world()
    listener, flood = world.welcome("listener"), world.welcome("flood")
    listener.subscribe("#", 1)
    listener.take()
    budget = Budget(world.node, 3)
    payloads = [str(one).encode() for one in range(60)]
    packets = [
        encode_packet(Publish(f"t/{place}", one, 1, packet_id=place + 1))
        for place, one in enumerate(payloads)
    ]
    data = b"".join(packets)
    for start in range(0, len(data), 97):
        flood.send_bytes(data[start : start + 97])
    assert serve(world, budget)
    assert listener.payloads() == payloads
    assert [one.packet_id for one in flood.take() if isinstance(one, PublishAnswer)] == [
        *range(1, 61)
    ]


def test_a_breach_in_what_waits_closes_the_connection(make_world: Any) -> None:
    world = make_world()
    flood = world.welcome("flood")
    budget = Budget(world.node, 2)
    flood.send_bytes(PINGREQ * 10 + b"\x00\x00" + PINGREQ)
    assert not flood.is_closed
    serve(world, budget)
    assert flood.is_closed
    assert flood.all_bytes.count(PINGRESP) == 10


def test_a_subscribe_with_many_filters_is_answered_once_all_are_taken(make_world: Any) -> None:
    world = make_world()
    flood, other = world.welcome("flood"), world.welcome("other")
    budget = Budget(world.node, 10)
    filters = tuple(FilterRequest(f"a/{one}", 1) for one in range(100))
    flood.send(Subscribe(7, filters), Publish("a/99", b"to myself", 1, packet_id=1))
    assert flood.take() == []
    budget.left = 10
    other.publish("a/0", b"early")
    assert serve(world, budget) >= 9
    taken = flood.take()
    suback = next(one for one in taken if isinstance(one, Suback))
    assert (suback.packet_id, suback.reasons) == (7, (1,) * 100)
    assert [one.payload for one in taken if isinstance(one, Publish)] == [b"early", b"to myself"]


def test_an_unsubscribe_with_many_filters_is_cut_likewise(make_world: Any) -> None:
    world = make_world()
    flood = world.welcome("flood")
    names = tuple(f"a/{one}" for one in range(100))
    flood.send(Subscribe(7, tuple(FilterRequest(one) for one in names)))
    flood.take()
    budget = Budget(world.node, 10)
    flood.send(Unsubscribe(8, names))
    assert flood.take() == []
    assert serve(world, budget) >= 9
    assert [type(one) for one in flood.take()] == [Unsuback]
    assert world.node.state.subscriptions == 0


def test_a_client_lost_in_the_middle_of_its_subscribe_hurts_nobody(make_world: Any) -> None:
    world = make_world()
    flood = world.welcome("flood")
    budget = Budget(world.node, 10)
    flood.send(Subscribe(7, tuple(FilterRequest(f"a/{one}") for one in range(100))))
    flood.lose()
    serve(world, budget)
    assert world.node.state.subscriptions == 0
    assert not world.node.state.connections


def _durable(world: Any, count: int) -> Any:
    client = world.welcome("much", clean_start=False, props={"session_expiry_interval": 60})
    client.send(Subscribe(1, tuple(FilterRequest(f"a/{one}", 1) for one in range(count))))
    client.take()
    return client


def test_a_session_with_many_subscriptions_ends_in_slices(make_world: Any) -> None:
    world = make_world()
    _durable(world, 100).lose()
    budget = Budget(world.node, 10)
    budget.left = 12
    world.wait(61_000)
    assert "much" not in world.node.state.sessions
    assert 80 <= world.node.state.subscriptions < 100
    budget.left = 1_000
    world.welcome("other").publish("a/99", b"for nobody", 1)
    assert serve(world, budget) >= 8
    assert world.node.state.subscriptions == 0
    assert world.node.state.held_bytes == 0
    assert not world.node.state.ending


def test_a_share_group_gives_no_turn_to_a_session_that_ends(make_world: Any) -> None:
    world = make_world()
    client = _durable(world, 100)
    client.subscribe("$share/g/work", 1)
    other = world.welcome("o", clean_start=False, props={"session_expiry_interval": 6_000})
    other.subscribe("$share/g/work", 1)
    other.lose()
    client.lose()
    budget = Budget(world.node, 10)
    budget.left = 12
    world.wait(61_000)
    assert world.node.state.ending
    budget.left = 1_000
    publisher = world.welcome("p")
    for number in range(4):
        publisher.publish("work", str(number).encode(), 1)
    budget.left = 10_000
    other = world.welcome("o", clean_start=False, props={"session_expiry_interval": 6_000})
    assert other.payloads() == [b"0", b"1", b"2", b"3"]


def test_a_client_that_comes_back_waits_for_the_end_of_its_old_session(make_world: Any) -> None:
    world = make_world()
    _durable(world, 100).lose()
    budget = Budget(world.node, 10)
    back = world.client("much", clean_start=True)
    assert back.packets == []
    back.send(Subscribe(2, (FilterRequest("a/5"),)))
    assert serve(world, budget) >= 4
    assert [type(one) for one in back.take()] == [Connack, Suback]
    budget.left = 1_000
    world.welcome("other").publish("a/5", b"once")
    world.node.state.slices.is_spent = lambda: False
    assert back.payloads() == [b"once"]
    assert world.node.state.subscriptions == 1


def test_a_client_that_does_not_wait_for_the_end_leaves_it_to_be_finished(make_world: Any) -> None:
    world = make_world()
    _durable(world, 100).lose()
    budget = Budget(world.node, 10)
    world.client("much", clean_start=True).lose()
    serve(world, budget)
    assert world.node.state.subscriptions == 0
    assert not world.node.state.ending


def test_a_durable_session_that_ends_in_slices_is_gone_after_a_crash(make_world: Any) -> None:
    world = make_world(with_journal=True)
    _durable(world, 100).lose()
    budget = Budget(world.node, 10)
    budget.left = 12
    world.wait(61_000)
    assert world.node.state.ending
    world.node.take_journal()
    world.crash_and_restart()
    assert "much" not in world.node.state.sessions
    assert world.node.state.subscriptions == 0


def test_without_a_budget_everything_is_done_at_once(make_world: Any) -> None:
    world = make_world(BrokerSettings())
    client = world.welcome("c")
    client.send(Subscribe(1, tuple(FilterRequest(f"a/{one}") for one in range(5_000))))
    client.lose()
    assert world.node.state.subscriptions == 0
    assert not world.node.slices.backlog


def test_of_two_connections_that_wait_for_the_same_end_one_stays(make_world: Any) -> None:
    world = make_world()
    _durable(world, 100).lose()
    budget = Budget(world.node, 10)
    first = world.client("much", clean_start=True)
    second = world.client("much", clean_start=True)
    serve(world, budget)
    assert first.is_closed != second.is_closed
    stays = second if first.is_closed else first
    assert isinstance(stays.take()[0], Connack)
    assert world.node.state.sessions["much"].link is stays.link


def test_sessions_that_expire_at_once_end_in_slices(make_world: Any) -> None:
    world = make_world()
    for one in range(50):
        world.welcome(f"c{one}", props={"session_expiry_interval": 60}).lose()
    budget = Budget(world.node, 10)
    world.now_ms += 61_000
    world.node.wake(world.now_ms)
    assert len(world.node.state.sessions) >= 30
    while world.node.state.sessions:
        assert world.node.wake_at() <= world.now_ms
        budget.left = budget.steps
        world.node.wake(world.now_ms)
    serve(world, budget)
    assert not world.node.state.ending


def test_the_connection_that_has_waited_longest_has_the_next_slice(make_world: Any) -> None:
    world = make_world()
    first, second = world.welcome("first"), world.welcome("second")
    budget = Budget(world.node, 10)
    for client in (first, second):
        budget.left = budget.steps
        client.send_bytes(PINGREQ * 100)
    before = second.all_bytes
    budget.left = budget.steps
    world.node.serve_backlog(world.now_ms)
    world.settle()
    assert first.all_bytes.count(PINGRESP) > 11
    assert second.all_bytes == before


def test_retained_messages_are_sent_to_a_new_subscriber_in_slices(make_world: Any) -> None:
    world = make_world()
    keeper, flood, other = world.welcome("keeper"), world.welcome("flood"), world.welcome("other")
    for one in range(100):
        keeper.publish(f"t/{one}", str(one).encode(), retain=True, qos=1)
    budget = Budget(world.node, 10)
    flood.subscribe("#", 1)
    assert 5 <= len(flood.publications()) <= 20
    budget.left = budget.steps
    other.send_bytes(PINGREQ)
    assert other.all_bytes.endswith(PINGRESP)
    keeper.publish("t/0", b"live", 1)
    first = flood.payloads()
    assert first == [b"live"]
    assert serve(world, budget) >= 8
    assert len(flood.payloads()) >= 80
    assert not world.node.state.sessions["flood"].is_pumped


def test_a_walk_that_finds_little_is_cut_too(make_world: Any) -> None:
    world = make_world()
    keeper, flood = world.welcome("keeper"), world.welcome("flood")
    for one in range(100):
        keeper.publish(f"t/{one}/x", b"x", retain=True)
    keeper.publish("t/99/y", b"wanted", retain=True)
    budget = Budget(world.node, 10)
    flood.subscribe("t/+/y", 1)
    assert flood.payloads() == []
    assert serve(world, budget) >= 8
    assert flood.payloads() == [b"wanted"]


def _away_with(world: Any, payloads: list[bytes]) -> None:
    lasting = {"session_expiry_interval": 600}
    client = world.welcome("away", clean_start=False, props=lasting, answers=False)
    client.subscribe("a", 1)
    client.lose()
    publisher = world.welcome("publisher")
    for payload in payloads:
        publisher.publish("a", payload, 1)


def _back(world: Any) -> Any:
    lasting = {"session_expiry_interval": 600}
    return world.client("away", clean_start=False, props=lasting, answers=False)


def test_a_queue_is_sent_to_a_client_that_comes_back_in_slices(make_world: Any) -> None:
    world = make_world()
    payloads = [str(one).encode() for one in range(100)]
    _away_with(world, payloads)
    publisher = world.welcome("publisher")
    budget = Budget(world.node, 10)
    back = _back(world)
    early = back.payloads()
    assert 5 <= len(early) <= 20
    publisher.publish("a", b"live", 1)
    assert serve(world, budget) >= 8
    assert early + back.payloads() == [*payloads, b"live"]


def test_what_is_sent_again_is_cut_likewise_and_comes_before_the_queue(make_world: Any) -> None:
    world = make_world()
    payloads = [str(one).encode() for one in range(100)]
    _away_with(world, payloads)
    _back(world).lose()  # all are in flight now
    publisher = world.welcome("publisher")
    budget = Budget(world.node, 10)
    back = _back(world)
    early = back.publications()
    assert 5 <= len(early) <= 20
    publisher.publish("a", b"live", 1)
    answered = early[-1].packet_id + 1  # before it is sent again
    back.send(PublishAnswer(PacketType.PUBACK, answered))
    assert serve(world, budget) >= 7
    taken = early + back.publications()
    expected = [*payloads[: answered - 1], *payloads[answered:]]
    assert [one.payload for one in taken if one.duplicate] == expected
    assert [one.payload for one in taken if not one.duplicate] == [b"live"]
    assert taken[-1].payload == b"live"


def test_what_is_sent_again_goes_as_the_client_reads(make_world: Any) -> None:
    world = make_world(BrokerSettings(outbox_window_bytes=100))
    _away_with(world, [b"x" * 50] * 20)
    assert len(_back(world).payloads()) == 20
    assert len(_back(world).payloads()) == 20  # again
    link = Connection()
    link.is_paused = True
    world.node.open(link, world.now_ms)
    connect = Connect("away", clean_start=False)
    world.node.receive(link, encode_packet(connect), world.now_ms)
    assert world.node.state.sessions["away"].link is link
    assert link.outbox_bytes < 100


def test_no_step_of_a_walk_makes_something_for_all_children_of_a_place() -> None:
    store = RetainedStore()
    count = 50_000
    for one in range(count):
        topic = f"r/{one}"
        store.put(topic, Message(MessageHead(encode_string(topic), 1, 0), b"x"))
    walk = store.walk("r/+", store.sequence)
    tracemalloc.start()
    try:
        assert [next(walk), next(walk) is None] == [None, False]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * count  # their names are listed once


def test_a_walk_goes_on_while_the_store_changes() -> None:
    store = RetainedStore()
    for one in range(4):
        store.put(f"r/{one}", Message(MessageHead(encode_string(f"r/{one}"), 1, 0), b"x"))
    walk = store.walk("#", store.sequence)
    seen = [next(walk), next(walk)]
    store.forget("r/1")
    store.put("r/2", Message(MessageHead(encode_string("r/2"), 1, 0), b"y"))
    store.put("r/9", Message(MessageHead(encode_string("r/9"), 1, 0), b"z"))
    seen += walk
    assert [one.topic_text() for one in seen if one is not None] == ["r/0", "r/3"]


def test_work_that_is_not_done_waits_behind_other_work() -> None:
    slices = Slices()
    slices.is_spent = lambda: True
    done: list[str] = []

    def work(name: str) -> Iterator[None]:
        for _ in range(2):
            done.append(name)
            yield

    slices.begin(work("a"))
    slices.begin(work("b"))
    while slices.backlog:
        slices.begin(slices.backlog.popleft())  # type: ignore[arg-type]
    assert done == ["a", "b", "a", "b"]


def test_a_connection_that_is_closed_while_it_waits_keeps_nothing(make_world: Any) -> None:
    world = make_world()
    flood = world.welcome("flood")
    budget = Budget(world.node, 10)
    flood.send(Subscribe(7, tuple(FilterRequest(f"a/{one}") for one in range(100))))
    flood.send_bytes(PINGREQ)
    assert flood.link.task is not None
    budget.left = budget.steps
    world.node.disconnect(flood.link, ReasonCode.ADMINISTRATIVE_ACTION, world.now_ms)
    world.node.serve_backlog(world.now_ms)  # it is closing, and its client is still there
    assert flood.link.task is None
    assert flood.link.pending == []
    assert not world.node.slices.backlog


def test_the_retained_bytes_for_each_filter_of_a_packet_are_a_step(make_world: Any) -> None:
    world = make_world()
    flood = world.welcome("flood")
    budget = Budget(world.node, 10)
    flood.send(Subscribe(7, tuple(FilterRequest(f"a/{one}") for one in range(100))))
    assert serve(world, budget) >= 18  # 100 filters are added, 100 are looked up


def _with_messages(world: Any, *, answers: bool, is_there: bool) -> Any:
    """Return the session of a client that is away, with 100 messages queued or in flight."""
    lasting = {"session_expiry_interval": 60}
    client = world.welcome("much", clean_start=False, props=lasting, answers=answers)
    client.subscribe("a", 1)
    if not is_there:
        client.lose()
    publisher = world.welcome("publisher")
    for one in range(100):
        publisher.publish("a", str(one).encode(), 1)
    publisher.lose()
    if is_there:
        client.lose()
    return world.node.state.sessions["much"]


@pytest.mark.parametrize("is_there", [False, True])
def test_a_session_with_many_messages_ends_in_slices(make_world: Any, is_there: bool) -> None:
    world = make_world()
    session = _with_messages(world, answers=False, is_there=is_there)
    held = session.in_flight if is_there else session.queue
    assert len(held) == 100
    budget = Budget(world.node, 10)
    budget.left = 12
    world.wait(61_000)
    assert 80 <= len(held) < 100
    assert serve(world, budget) >= 7
    assert world.node.state.held_bytes == 0
    assert not world.node.state.ending


def test_a_client_that_comes_too_late_does_not_stop_the_end_it_waits_for(make_world: Any) -> None:
    world = make_world()
    _durable(world, 100).lose()
    budget = Budget(world.node, 10)
    back = world.client("much", clean_start=True)
    for _ in range(4):  # its end and the client that waits for it take turns
        budget.left = 2
        world.node.serve_backlog(world.now_ms)
    assert world.node.state.subscriptions > 50
    budget.left = 5
    world.wait(11_000)  # no login in time
    assert back.is_closed
    serve(world, budget)
    gc.collect()
    assert world.node.state.subscriptions == 0
    assert not world.node.state.ending


# --- other nodes ----------------------------------------------------------------------------


def test_what_waits_for_another_node_and_what_it_sends_is_not_cut(make_world: Any) -> None:
    world = make_world()
    world.node.peering.session("other")
    world.node.peering.wants("other", [("a", 0)], [])
    publisher = world.welcome("publisher")
    for one in range(100):
        publisher.publish("a", str(one).encode(), 1)
    session = world.node.state.sessions["$node/other"]
    assert len(session.queue) == 100
    budget = Budget(world.node, 10)
    link = world.node.peering.attach("other", "generation", world.now_ms)
    assert len(session.in_flight) == 100
    assert not session.queue
    budget.left = 10
    answers = b"".join(b"\x40\x02" + number.to_bytes(2, "big") for number in session.in_flight)
    pings = PINGREQ * 100
    world.node.receive(link, pings + answers, world.now_ms)
    assert not session.in_flight
    assert not link.is_waiting


def test_the_session_of_another_node_ends_at_once(make_world: Any) -> None:
    world = make_world()
    world.node.peering.wants("other", [(f"a/{one}", 0) for one in range(100)], [])
    Budget(world.node, 10)
    world.node.peering.forget("other", world.now_ms)
    assert not world.node.slices.backlog
    assert world.node.state.router.find(b"\0\3a/1").is_empty
