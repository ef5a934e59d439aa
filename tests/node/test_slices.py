"""Work in slices: what takes long is interrupted, loses nothing, and others are served."""

from __future__ import annotations

from typing import Any

from nearcast.mqtt import (
    Connack,
    FilterRequest,
    Publish,
    PublishAnswer,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    encode_packet,
)
from nearcast.node import Node, NodeSettings

PINGREQ, PINGRESP = b"\xc0\0", b"\xd0\0"


class Budget:
    """Says that a slice is spent after a number of questions."""

    def __init__(self, node: Node, steps: int) -> None:
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
    world = make_world(NodeSettings())
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
