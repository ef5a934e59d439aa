"""`$where` over several nodes: few messages for nobody, nothing lost under faults."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.content_spaces import JOB, SHOP, city, drop_client, payloads, selection_of
from tests.support.simulated_city import SimulatedCity

from nearcast.broker import SpaceSettings
from nearcast.cluster.filter_aggregation import FilterAggregation, box_filter
from nearcast.cluster.messages import Interest, encode
from nearcast.cluster.subscription_gossip import SubscriptionGossip
from nearcast.model import Attribute, Space, parse_where
from nearcast.model import Subscription as Selection
from nearcast.model.errors import PeerProtocolError
from nearcast.mqtt import FilterRequest, Properties, Publish
from nearcast.overlay import Extent, GridDensity
from nearcast.simulator.mqtt_node import SimulatedClient
from nearcast.simulator.network import SimulatedLink, uniform

assert settings.default is not None
FAULTS = max(2, settings.default.max_examples // 10)


def prices(client: SimulatedClient) -> list[float]:
    return [json.loads(one)["price"] for one in payloads(client)]


def tell(
    town: SimulatedCity, writer: SimulatedClient, *told: float, topic: str = "shop/a", top: int = 0
):
    wish = Properties(user_properties=(("$top", str(top)),)) if top else Properties()
    for price in told:
        payload = json.dumps({"price": price}).encode()
        writer.publish(Publish(topic, payload, 1, properties=wish))
        town.turn(writer)
        town.run(50)
    town.run(100)


@pytest.mark.parametrize("topic", ["shop/a", "talk/a"])
def test_whoever_wants_an_event_gets_it_once_and_it_never_travels_on(topic: str):
    town = city(3)
    space = topic.partition("/")[0]
    readers = [town.client(f"r{n}", n, f"$where/price<5/{space}/#") for n in town.names]
    plain = town.client("plain", "n2", f"{space}/#")
    writer = town.client("w", "n0")
    town.run(100)
    tell(town, writer, 1, 4, 7, topic=topic)
    assert [prices(one) for one in readers] == [[1, 4]] * 3
    assert prices(plain) == [1, 4, 7]
    town.run(1_000)
    assert [node.node.counters.unwanted for node in town.nodes.values()] == [0, 0, 0]


def test_a_team_gets_each_event_once_where_a_member_wants_it():
    town = city(3)
    low = town.client("low", "n1", "$share/team/$where/price<3/shop/#")
    high = town.client("high", "n2", "$share/team/$where/price>=7/shop/#")
    writer = town.client("w", "n0")
    town.run(100)
    tell(town, writer, 1, 8, 5, 2, 9, 0, 7)
    assert (prices(low), prices(high)) == ([1, 2, 0], [8, 9, 7])


def test_what_crosses_for_others_is_not_given_to_a_team_as_well():
    town = city(3)
    team = [town.client(f"t{n}", n, "$share/team/$where/price<3/shop/#") for n in ("n1", "n2")]
    for name in ("n1", "n2"):
        town.client(f"p{name}", name, "shop/#")
    writer = town.client("w", "n0")
    town.run(100)
    tell(town, writer, 0, 1, 2, 0.5, 1.5, 2.5)
    assert sorted(price for one in team for price in prices(one)) == [0, 0.5, 1, 1.5, 2, 2.5]


def test_boxes_of_other_nodes_are_not_among_the_best():
    town = city(3)
    narrow = town.client("narrow", "n0", "$where/price<3/shop/#")
    wider = town.client("wider", "n1", "$where/price<5/shop/#")
    widest = town.client("widest", "n1", "$where/price<9/shop/#")
    writer = town.client("w", "n2")
    town.run(100)
    tell(town, writer, 1, top=2)
    assert [len(one.received) for one in (narrow, wider, widest)] == [1, 1, 0]


def test_a_team_that_is_among_the_best_gets_it_though_its_member_is_away():
    town = city(3)
    away = town.client("away", "n0", "$share/team/$where/price<3/shop/#")
    there = town.client("there", "n1", "$share/team/$where/price<3/shop/#")
    writer = town.client("w", "n2")
    town.run(100)
    town.at("n0", partial(drop_client, away))
    tell(town, writer, 1, top=1)
    town.admit(away)
    town.run(100)
    assert len(away.received) + len(there.received) == 1


# --- what travels -----------------------------------------------------------------------------


def crossings(one: SimulatedCity, name: str) -> int:
    """Return how many publications of clients elsewhere a node has had."""
    node = one.nodes[name].node
    clients = sum(not s.client_id.startswith("$node/") for s in node.state.sessions.values())
    assert clients  # else nothing here could want anything
    return node.state.counters.publish_received


def test_an_event_stays_where_it_was_published_unless_a_box_elsewhere_has_it():
    town = city(3)
    reader = town.client("r", "n1", "$where/price<3/shop/#", "$where/price=8..9/shop/#")
    writer = town.client("w", "n0")
    town.run(50)
    for price in (0, 2, 3, 5, 8, 9, 10):
        town.publish(writer, "shop/a", b'{"price": %d}' % price, 1)
    town.publish(writer, "shop/a", b"no event", 1)
    town.run(50)
    assert [json.loads(one)["price"] for one in payloads(reader)] == [0, 2, 8, 9]
    assert crossings(town, "n1") == 4
    assert town.nodes["n1"].node.state.counters.unwanted == 0
    assert town.nodes["n2"].node.state.counters.publish_received == 0


def test_events_that_come_for_nobody_are_counted():
    town = city(2)
    reader = town.client("r", "n1", "$where/price=0..4/shop/#", "$where/price=5..9/shop/#")
    writer = town.client("w", "n0")
    town.run(50)
    for price in (2, 4.5, 4.9, 6, 9.5):  # one box from 0 to 9 is told, it is loose enough
        town.publish(writer, "shop/a", b'{"price": %a}' % price, 1)
    town.run(50)
    assert [json.loads(one)["price"] for one in payloads(reader)] == [2, 6]
    assert crossings(town, "n1") == 4
    assert town.nodes["n1"].node.state.counters.unwanted == 2


def test_what_is_unsubscribed_is_sent_no_more_and_what_was_in_its_box_still_is():
    town = city(2)
    wide = town.client("wide", "n1", "$where/price>=0/shop/#")
    narrow = town.client("narrow", "n1", "$where/price=2/shop/#", "$where/price=8/shop/#")
    writer = town.client("w", "n0")
    town.run(50)
    wide.unsubscribe("$where/price>=0/shop/#")
    town.turn(wide)
    town.run(50)
    for price in (2, 5, 8):
        town.publish(writer, "shop/a", b'{"price": %d}' % price, 1)
    town.run(50)
    assert payloads(wide) == []
    assert [json.loads(one)["price"] for one in payloads(narrow)] == [2, 8]
    assert crossings(town, "n1") == 2


def test_a_subscription_in_a_box_that_is_known_is_acknowledged_at_once_and_no_other():
    town = city(2, link=SimulatedLink(delay=uniform(20, 20)))
    reader = town.client("r", "n1")
    town.run(100)
    for text, is_known in [
        ("$where/price<5/shop/#", False),
        ("$where/price=1..2/shop/#", True),
        ("$where/price=4..9/shop/#", False),
    ]:
        before = len(reader.subacks)
        reader.subscribe(text)
        town.turn(reader)
        assert (len(reader.subacks) > before) == is_known
        town.run(50)
        assert len(reader.subacks) == before + 1


def test_many_subscriptions_of_a_turn_are_told_in_one_message():
    town = city(2)
    reader = town.client("r", "n1")
    town.run(50)
    before = town.nodes["n1"].mesh.counts.messages_sent
    for number in range(200):
        reader.subscribe(f"$where/price={number / 20};kind=x/shop/#")
    town.turn(reader)
    assert town.nodes["n1"].mesh.counts.messages_sent == before + 1
    town.run(50)
    before = town.nodes["n1"].mesh.counts.messages_sent
    for number in range(200):
        reader.unsubscribe(f"$where/price={number / 20};kind=x/shop/#")
    town.turn(reader)
    assert town.nodes["n1"].mesh.counts.messages_sent == before + 1
    town.run(50)
    session = town.nodes["n0"].node.state.sessions["$node/n1"]
    assert session.subscriptions == {}
    assert town.nodes["n1"].mesh._gossip._summaries._covers == {}


def test_boxes_that_have_become_too_loose_are_made_anew_without_anybody_asking():
    town = city(2)
    wide = town.client("wide", "n1", "$where/price>=0/shop/#")
    many = town.client("many", "n1")
    for number in range(100):
        many.subscribe(f"$where/price={number / 10}/shop/#")
    town.turn(many)
    town.run(50)
    session = town.nodes["n0"].node.state.sessions["$node/n1"]
    assert len(session.subscriptions) == 1
    wide.unsubscribe("$where/price>=0/shop/#")
    town.turn(wide)
    wake_at = town.nodes["n1"].mesh.wake_at()
    assert wake_at is not None
    assert wake_at <= town.world.now + 1
    town.run(200)
    assert len(session.subscriptions) == 100
    assert town.nodes["n1"].mesh._gossip.is_settled


@pytest.mark.parametrize("qos", [1, 2])
def test_for_a_node_that_is_away_only_what_it_wants_waits(qos: int):
    town = city(2)
    reader = town.client("r", "n1", "$where/price<3/shop/#")
    town.run(50)
    writer = town.client("w", "n0")
    town.crash("n1")
    town.run(5_000)
    for price in range(10):
        town.publish(writer, "shop/a", b'{"price": %d}' % price, qos)
    town.run(1_000)
    assert writer.unsettled == 0
    assert len(town.nodes["n0"].node.state.sessions["$node/n1"].queue) == 3
    town.crash("n0")
    town.run(1_000)
    town.restart("n0")  # it remembers what the other one wanted
    town.run(1_000)
    town.admit(writer)
    town.publish(writer, "shop/a", b'{"price": 1.5}', qos)
    town.publish(writer, "shop/a", b'{"price": 7.5}', qos)
    town.run(1_000)
    town.restart("n1")
    town.admit(reader)
    town.run(5_000)
    assert [json.loads(one)["price"] for one in payloads(reader)] == [0, 1, 2, 1.5]


def test_a_retained_event_keeps_its_flag_for_those_who_asked():
    town = city(2)
    reader = town.client("r", "n1")
    assert reader._talk is not None
    request = FilterRequest("$where/price<3/shop/#", 1, retain_as_published=True)
    reader._talk.subscribe(request)
    town.turn(reader)
    writer = town.client("w", "n0")
    town.run(50)
    town.publish(writer, "shop/a", b'{"price": 1}', 1, retain=True)
    town.publish(writer, "shop/a", b'{"price": 2}', 1)
    town.run(50)
    assert [one.retain for one in reader.received] == [True, False]


@pytest.mark.parametrize("other", ["walk/#", "$where/price<5/walk/#"])
def test_a_client_near_an_event_gets_it_once_whoever_else_wants_it_there(other: str):
    town = city(2)
    near = town.client("near", "n1")
    town.publish(near, "$position", b'{"lon": 0, "lat": 0}')
    both = town.client("both", "n1", other)
    town.publish(both, "$position", b'{"lon": 0, "lat": 0}')
    for one in (near, both):
        one.subscribe("$near/1000m/walk/#")
        town.turn(one)
    writer = town.client("w", "n0")
    town.run(200)
    town.publish(writer, "walk/a", b'{"lon": 0, "lat": 0, "price": 1}', 1)
    town.run(500)
    assert (len(near.received), len(both.received)) == (1, 1)


def test_a_team_near_places_is_asked_once_and_nothing_goes_round_in_circles():
    place = [Attribute.number("lon", -180, 180), Attribute.number("lat", -90, 90)]
    walk = Space(
        name="walk", topic_filter="walk/#", attributes=place, longitude="lon", latitude="lat"
    )
    town = SimulatedCity(2, spaces=[SpaceSettings(space=walk)])
    for name in town.names:
        member = town.client(f"m{name}", name, "$share/team/$near/1000m/walk/#")
        town.publish(member, "$position", b'{"lon": 50, "lat": 50}')
    writer = town.client("w", "n0")
    town.run(50)
    town.publish(writer, "walk/a", b'{"lon": 0, "lat": 0}', 1)
    town.run(100)
    received = [town.nodes[name].node.state.counters.publish_received for name in town.names]
    assert sum(received) <= 2 + 1 + 1  # positions, the event, and once across


# --- faults -----------------------------------------------------------------------------------


def trouble(town: SimulatedCity, random: Random, clients: list[SimulatedClient]) -> None:
    """Let a node crash, or two lose sight of each other, and let that be over some time later."""
    name = random.choice(town.names)
    if random.random() < 0.6:
        town.crash(name)
        town.run(random.randint(1, 4_000))
        town.restart(name)
        for one in clients:
            if town.homes[one.name] == name:
                town.admit(one)
    else:
        other = random.choice([one for one in town.names if one != name])
        town.world.network.cut(name, other)
        town.world.network.cut(other, name)
        town.run(random.randint(1, 5_000))
        town.world.network.heal()


@settings(max_examples=FAULTS)
@given(st.integers(0, 100_000), st.sampled_from([0.0, 0.1, 0.3]))
def test_faults_lose_nothing_acknowledged_that_a_summary_admits(seed: int, loss: float):
    random = Random(seed)
    link = SimulatedLink(delay=uniform(1, 10), loss=loss, duplication=loss / 3)
    town = city(random.randint(2, 4), seed=seed, link=link)
    town.run(3_000)
    wishes = [f"$where/price={low}..{low + 2}/shop/#" for low in (0, 3, 6)]
    readers = [town.client(f"r{n}", random.choice(town.names), wishes[n]) for n in range(3)]
    writer = town.client("w", "n0")
    town.run(6_000)
    sent: dict[bytes, tuple[float, int]] = {}
    for number in range(30):
        if random.random() < 0.2 and (one := random.choice(readers)).is_connected:
            extra = f"$where/price={random.choice([1, 4, 9])};kind=z/shop/#"
            one.subscribe(extra)
            town.turn(one)
        if writer.is_connected:
            price, qos = random.choice([0.5, 2, 2.5, 4, 7, 9.5]), random.choice([1, 2])
            payload = json.dumps({"price": price, "kind": "x", "n": number}).encode()
            town.publish(writer, "shop/a", payload, qos)
            sent[payload] = price, qos
        town.run(random.randint(1, 60))
        if random.random() < 0.15:
            trouble(town, random, [*readers, writer])
    town.world.network.link = SimulatedLink(delay=uniform(1, 3))
    town.run(80_000)
    assert writer.unsettled == 0
    for number, reader in enumerate(readers):
        got = Counter(payloads(reader))
        due = {one for one, (price, _) in sent.items() if 3 * number <= price <= 3 * number + 2}
        assert set(got) == due, f"{reader.name} at {town.homes[reader.name]}"
        assert all(got[one] == 1 for one in due if sent[one][1] == 2)


# --- texts ------------------------------------------------------------------------------------

numbers = st.floats(0, 10, allow_nan=False).map(lambda value: value + 0.0)


@given(
    st.tuples(numbers, numbers).map(sorted),
    st.tuples(st.integers(0, 2), st.integers(0, 2)).map(sorted),
)
def test_a_box_told_as_text_is_the_same_box_over_there(prices: Any, kinds: Any):
    box = ((prices[0], kinds[0] - 0.5), (prices[1], kinds[1] + 0.5))
    read = selection_of(box_filter("shop/#", SHOP, box)).boxes(SHOP)
    assert [(one.lows, one.highs) for one in read] == [box]


def test_a_side_that_was_left_out_is_left_out_of_the_text():
    everything = float("inf")
    assert (
        box_filter("+/a", SHOP, ((-everything, 0.5), (everything, 1.5)))
        == "$where/kind%20in(y)/+/a"
    )
    assert box_filter("a", SHOP, ((-everything,) * 2, (everything,) * 2)) == "a"


def test_a_filter_over_several_spaces_is_told_as_it_is():
    summaries = FilterAggregation([SHOP, JOB])
    wide = Selection(topic_filter="#", where=parse_where("price < 3"), retained="now")
    assert summaries.came(wide) == [("$where/price<3/#", 1)]
    assert summaries.came(wide) == [("$where/price<3/#", 1)]
    assert summaries.went(wide) == [("$where/price<3/#", -1)]
    one = Selection(topic_filter="shop/#", where=parse_where("price < 3"), retained="now")
    assert summaries.came(one) == [("$where/price=0..2.9999999999999996/shop/#", 1)]
    assert summaries.came(one) == []
    assert summaries.went(one) == []
    assert summaries.went(one) == [("$where/price=0..2.9999999999999996/shop/#", -1)]


def test_boxes_are_told_anew_when_another_histogram_comes():
    extent = Extent(SHOP.extent.lows, SHOP.extent.highs)
    counts = np.ones((10, 3))
    counts[3:6] = 0.0  # no price from 3 to 6
    town = city(2)
    for number, where in enumerate(("price=2..3", "price=6..7")):
        town.client(f"r{number}", "n1", f"$where/{where}/shop/#")
    town.run(200)
    told = town.nodes["n0"].node.state.sessions["$node/n1"].subscriptions
    assert set(told) == {"$where/price=2..3/shop/#", "$where/price=6..7/shop/#"}

    def use(densities: dict[str, GridDensity]) -> None:
        town.nodes["n1"].mesh.use_densities(densities, town.world.now)
        town.at("n1", lambda node, now: node.advance(now))
        town.run(200)

    use({"shop": GridDensity(extent, counts)})
    assert set(told) == {"$where/price=2..7/shop/#"}
    use({})
    assert set(told) == {"$where/price=2..3/shop/#", "$where/price=6..7/shop/#"}


def test_a_condition_that_nothing_can_meet_is_not_told():
    summaries = FilterAggregation([SHOP])
    never = Selection(topic_filter="shop/#", where=parse_where("price < 3 and price > 4"))
    assert summaries.came(never) == summaries.went(never) == []
    assert SubscriptionGossip(summaries).take_change() is None


@pytest.mark.parametrize(
    "text",
    [
        "$where/price</shop/#",
        "$where/cost<3/shop/#",
        "$where/price<3/nowhere",
        "$where/price=0..11/shop/#",
        "$near/shop",
    ],
)
def test_what_another_node_wants_without_sense_is_refused_and_changes_nothing(text: str):
    town = city(2)
    town.client("r", "n1", "shop/#")
    town.run(50)
    node = town.nodes["n0"].node
    held = dict(node.state.sessions["$node/n1"].subscriptions)
    assert held
    with pytest.raises(PeerProtocolError, match="n1"):
        node.peering.wants("n1", [("good", 0), (text, 0)], ["shop/#"])
    assert node.state.sessions["$node/n1"].subscriptions == held
    mesh = town.nodes["n0"].mesh
    refused = mesh.counts.refused
    mesh.take_part(mesh.peers["n1"], b"T", encode(Interest(99, [(text, 0)], [])))
    assert mesh.counts.refused == refused + 1
    assert "n1" in mesh.peers["n1"].problem
