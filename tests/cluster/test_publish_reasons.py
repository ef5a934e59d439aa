"""What a publisher is told: that nobody wants a message is said only where a node can know it."""

from tests.support.cluster_writer import Writer
from tests.support.simulated_city import SimulatedCity
from tests.support.town import SPACE, town_plan

from nearcast.broker import SpaceSettings
from nearcast.mqtt import Publish, ReasonCode
from nearcast.simulator.mqtt_node import SimulatedClient

HERE, ELSEWHERE = b'{"lon": 0.1, "lat": 0.1}', b'{"lon": -0.9, "lat": -0.9}'
OUTSIDE = b'{"lon": 0.995, "lat": 0.995}'  # of every leaf of the plan
NOBODY = ReasonCode.NO_MATCHING_SUBSCRIBERS


def city_with_writer(nodes: int, *, order: str | None = None) -> tuple[SimulatedCity, Writer]:
    settings = SpaceSettings(space=SPACE, lifetime_ms=1_000, order=order, positions="publishers")
    city, writer = SimulatedCity(nodes, spaces=[settings]), Writer()
    city.homes[writer.name] = "n0"
    city.admit(writer)
    city.turn(writer)
    city.run(100)
    return city, writer


def told(city: SimulatedCity, writer: Writer, topic: str, payload: bytes) -> ReasonCode:
    writer.reasons.clear()
    writer.publish(Publish(topic, payload, 1))
    city.turn(writer)
    city.run(200)
    (reason,) = writer.reasons
    return reason


def walker_at(city: SimulatedCity, name: str, place: bytes) -> SimulatedClient:
    walker = city.client("walker", name)
    city.run(100)
    city.publish(walker, "$position", place, 1)
    walker.subscribe("$near/500m/city/#")
    city.turn(walker)
    city.run(500)
    return walker


def test_what_has_a_place_may_be_wanted_at_another_node_inside_a_plan_and_outside_it():
    city, writer = city_with_writer(3)
    plan = town_plan(city.names, 1, 1)
    for name in city.names:
        city.at(name, lambda node, now: node.use_plan(plan, now))
    city.run(2_000)
    for place in (HERE, OUTSIDE):
        walker = walker_at(city, "n1", place)
        walker.received.clear()
        assert told(city, writer, "city/x", place) is ReasonCode.SUCCESS
        assert [one.payload for one in walker.received] == [place]
    assert told(city, writer, "city/x", ELSEWHERE) is ReasonCode.SUCCESS  # nobody here can know


def test_a_node_that_knows_no_other_says_that_nobody_wants_it():
    city, writer = city_with_writer(1)
    assert told(city, writer, "city/x", HERE) is NOBODY
    walker_at(city, "n0", HERE)
    assert told(city, writer, "city/x", HERE) is ReasonCode.SUCCESS


def test_what_has_no_place_is_wanted_where_other_nodes_have_said_so():
    city, writer = city_with_writer(2)
    assert told(city, writer, "village/x", b"") is NOBODY
    assert told(city, writer, "city/x", b"no place") is NOBODY
    city.client("reader", "n1", "village/#", "city/#")
    city.run(500)
    assert told(city, writer, "village/x", b"") is ReasonCode.SUCCESS
    assert told(city, writer, "city/x", b"no place") is not NOBODY


def test_what_goes_to_other_nodes_in_causal_order_is_wanted_where_they_have_said_so():
    city, writer = city_with_writer(2, order="causal")
    city.run(2_000)  # until the node may speak in its group
    assert told(city, writer, "city/x", HERE) is NOBODY
    reader = city.client("reader", "n1", "city/#")
    city.run(500)
    assert told(city, writer, "city/x", HERE) is ReasonCode.SUCCESS
    assert [one.payload for one in reader.received] == [HERE]
