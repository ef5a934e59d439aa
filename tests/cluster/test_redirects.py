"""Offers of another node: to which clients, to which nodes, at which moments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tests.support.simulated_city import SimulatedCity
from tests.support.town import SPACE, town_plan

from nearcast.broker import SpaceSettings
from nearcast.broker.observer import ClientObserver
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.session.session import WillMessage
from nearcast.cluster import NamedPlan
from nearcast.locality.registration.redirect_policy import RedirectRules
from nearcast.model import Attribute, Space
from nearcast.mqtt import FilterRequest, ProtocolVersion, Publish
from nearcast.simulator.mqtt_node import SimulatedClient

RULES = RedirectRules(crossings_per_min=6, dwell_ms=20_000)
HERE = b'{"lon": 0.1, "lat": 0.1}'
TALK = Space(
    name="talk",
    topic_filter="talk/#",
    attributes=(Attribute.number("lon", -1, 1), Attribute.number("lat", -1, 1)),
    longitude="lon",
    latitude="lat",
)


def city_at(
    holder: str,
    *,
    rules: RedirectRules | None = RULES,
    more_spaces: Sequence[SpaceSettings] = (),
) -> SimulatedCity:
    """Return three nodes, one of which holds everything; nobody is there yet."""
    spaces = [SpaceSettings(space=SPACE), *more_spaces]
    city = SimulatedCity(3, redirect=rules, spaces=spaces)
    plan = town_plan(city.names, 1, 1).plan
    brokers = [city.names.index(holder)] * len(plan.leaves)
    named = NamedPlan(plan.with_brokers(brokers), tuple(city.names))
    for name in city.names:
        city.at(name, lambda node, now: node.use_plan(named, now))
    city.run(2_000)
    return city


def far_client(
    city: SimulatedCity, *filters: str, version: ProtocolVersion = ProtocolVersion.V5
) -> tuple[SimulatedClient, SimulatedClient]:
    """Return a client at n0 that wants what is near it, and a writer at n1."""
    ann = city.client("ann", "n0", version=version)
    writer = city.client("writer", "n1", version=ProtocolVersion.V311)  # it stays
    city.run(100)
    city.publish(ann, "$position", HERE, 1)
    for text in filters or ("$near/50000m/city/#",):
        ann.subscribe(text)
    city.turn(ann)
    city.run(500)
    return ann, writer


def live(city: SimulatedCity, writer: SimulatedClient, seconds: int, every_ms: int = 3_000) -> None:
    """Let the writer tell what happens near the client, until it is offered another node."""
    for at in range(0, seconds * 1_000, every_ms):
        city.publish(writer, "city/news", HERE[:-1] + b', "id": %d}' % at, 1)
        city.run(every_ms)
        if not city.nodes["n0"].node.session_of("ann").link:  # type: ignore[union-attr]
            return


def offers(city: SimulatedCity) -> int:
    return sum(node.mesh.counts.redirects_offered for node in city.nodes.values())


def test_a_far_client_is_offered_the_holder_of_its_place_and_goes_there():
    city = city_at("n2")
    ann, writer = far_client(city)
    began = city.world.now
    live(city, writer, 120)
    assert ann.referred_to == "n2:1883"
    assert city.world.now - began >= RULES.dwell_ms
    city.admit(ann, "n2")
    city.run(500)
    assert city.nodes["n2"].node.session_of("ann") is not None
    assert city.nodes["n0"].node.session_of("ann") is None
    got = len(ann.received)
    before = city.nodes["n0"].mesh.counts.messages_sent
    for _ in range(10):
        city.publish(writer, "city/news", HERE, 2)
        city.run(1_000)
    assert len(ann.received) == got + 10
    assert city.nodes["n0"].mesh.counts.messages_sent == before  # it has nothing to do with it
    counts = city.nodes["n0"].mesh.counts
    assert (counts.redirects_offered, counts.redirects_followed) == (1, 1)


def test_a_client_that_comes_back_is_served_and_not_asked_for_an_hour():
    city = city_at("n2")
    ann, writer = far_client(city)
    live(city, writer, 120)
    city.publish(writer, "city/news", HERE, 1)
    city.run(100)
    city.admit(ann, "n0")
    city.run(500)
    got = len(ann.received)
    assert ann.is_connected
    for minute in range(58):
        live(city, writer, 60)
        assert ann.is_connected, minute
    assert offers(city) == 1
    assert len(ann.received) == got + 58 * 20
    live(city, writer, 300)
    assert offers(city) == 2


def test_a_far_publisher_is_offered_the_holder_as_well():
    city = city_at("n2")
    bob = city.client("bob", "n0")
    for _ in range(60):
        if bob.is_connected:
            city.publish(bob, "city/news", HERE, 1)
        city.run(2_000)
    assert bob.referred_to == "n2:1883"


def no_offer(city: SimulatedCity, client: SimulatedClient, writer: SimulatedClient) -> bool:
    live(city, writer, 120)
    return client.referred_to is None and client.is_connected and not offers(city)


def test_without_rules_nothing_is_offered():
    city = city_at("n2", rules=None)
    assert no_offer(city, *far_client(city))


def test_a_client_at_the_holder_of_its_place_stays():
    city = city_at("n0")
    assert no_offer(city, *far_client(city))


def test_a_client_of_mqtt_311_stays():
    city = city_at("n2")
    assert no_offer(city, *far_client(city, version=ProtocolVersion.V311))


def test_a_client_with_a_subscription_without_a_place_stays():
    city = city_at("n2")
    assert no_offer(city, *far_client(city, "$near/50000m/city/#", "news/#"))


def test_a_client_with_a_subscription_in_causal_order_stays():
    talk = SpaceSettings(space=TALK, order="causal", lifetime_ms=2_000)
    city = city_at("n2", more_spaces=[talk])
    assert no_offer(city, *far_client(city, "$near/50000m/city/#", "$near/50000m/talk/#"))


def test_a_client_that_spoke_in_causal_order_stays_until_that_has_expired():
    talk = SpaceSettings(space=TALK, order="causal", lifetime_ms=8_000)
    city = city_at("n2", more_spaces=[talk])
    ann, writer = far_client(city)
    for _ in range(15):
        city.publish(ann, "talk/a", HERE)
        live(city, writer, 6)
    assert ann.is_connected
    assert not offers(city)
    city.run(10_000)
    assert ann.referred_to == "n2:1883"


def test_a_client_that_is_relayed_stays():
    city = city_at("n2")
    ann, writer = far_client(city)
    city.at("n0", lambda node, now: node.drop(ann, now))
    city.admit(ann, "n1")
    city.run(500)
    assert no_offer(city, ann, writer)


def has_a_will(delay_s: int) -> Callable[[SimulatedCity], None]:
    def bequeath(city: SimulatedCity) -> None:
        session = city.nodes["n0"].node.session_of("ann")
        assert session is not None
        message = Message(MessageHead(b"\0\4will", 4, 1), b"dead")
        session.will = WillMessage(message, delay_s, -1)

    return bequeath


def test_a_client_whose_will_would_be_published_stays():
    city = city_at("n2")
    ann, writer = far_client(city)
    has_a_will(29)(city)
    assert no_offer(city, ann, writer)


def test_a_will_that_is_delayed_does_not_hinder_and_is_not_published():
    city = city_at("n2")
    ann, writer = far_client(city)
    mourner = city.client("mourner", "n1", "will")
    has_a_will(60)(city)
    live(city, writer, 120)
    city.admit(ann, "n2")
    city.run(120_000)
    assert city.nodes["n2"].node.session_of("ann") is not None
    assert mourner.received == []


def test_clients_of_other_listeners_stay():
    city = city_at("n2", rules=replace(RULES, listeners=frozenset("0")))
    assert no_offer(city, *far_client(city))  # simulated connections have no listener


def test_a_client_that_has_moved_is_not_asked_again_at_its_new_home(
    monkeypatch: pytest.MonkeyPatch,
):
    city = city_at("n2")
    ann, writer = far_client(city)
    live(city, writer, 120)
    city.admit(ann, "n2")
    city.run(500)
    redirects = city.nodes["n2"].mesh._redirects
    assert redirects.policy is not None
    monkeypatch.setattr(redirects, "_place_of", lambda _: "n1")
    for _ in range(60):  # now it is far from there
        redirects.policy.crossed("ann", "n1", city.world.now)
        city.run(1_000)
    assert ann.is_connected
    assert offers(city) == 1


def leaves(city: SimulatedCity) -> None:
    city.at("n2", lambda node, now: node.leave(now))


def drains(city: SimulatedCity) -> None:
    def drain(node, now):
        node.mesh.drain(now)
        return node.turn(now)

    city.at("n2", drain)


def has_left(city: SimulatedCity) -> None:
    city.world.remove("n2")
    del city.nodes["n2"]
    for name in ("n0", "n1"):
        city.at(name, lambda node, now: node.part("n2", now))


def is_away(city: SimulatedCity) -> None:
    city.crash("n2")


def has_no_address(city: SimulatedCity) -> None:
    city.nodes["n0"].mesh.peers["n2"].client_address = ""


def is_older(city: SimulatedCity) -> None:
    city.nodes["n0"].mesh.peers["n2"].version = 3


@pytest.mark.parametrize("end", [leaves, drains, has_left, is_away, has_no_address, is_older])
def test_no_client_is_sent_to_a_node_that_cannot_take_it(end: Callable[[SimulatedCity], None]):
    city = city_at("n2")
    ann, writer = far_client(city)
    for _ in range(4):  # nearly ready
        city.publish(writer, "city/news", HERE, 1)
        city.run(3_000)
    end(city)
    if "n2" in city.nodes and end not in (has_left, is_away):
        assert no_offer(city, ann, writer)
    else:  # another node stands in; it may be offered instead
        live(city, writer, 120)
        assert ann.referred_to != "n2:1883"


def test_a_node_that_has_come_back_is_offered_again():
    city = city_at("n2")
    ann, writer = far_client(city)
    drains(city)
    city.crash("n2")
    city.run(500)
    city.restart("n2")
    city.run(3_000)
    live(city, writer, 120)
    assert ann.referred_to == "n2:1883"


def test_a_node_without_an_address_is_reported_once():
    seen: list[str] = []

    class Observer(ClientObserver):
        def not_redirected(self, node: str) -> None:
            seen.append(node)

    city = city_at("n2")
    city.nodes["n0"].node.observe(Observer())
    ann, writer = far_client(city)
    has_no_address(city)
    assert no_offer(city, ann, writer)
    assert seen == ["n2"]


def test_an_offer_waits_until_nothing_is_in_flight():
    city = city_at("n2")
    ann, writer = far_client(city)
    node = city.nodes["n0"]
    session = node.node.session_of("ann")
    assert session is not None
    for at in range(30):
        city.publish(writer, "city/news", HERE, 1)
        city.run(2_000)
        session.incoming.add(7)  # it has yet to release a message of its own
        assert ann.is_connected, at
    assert not offers(city)
    session.incoming.clear()
    city.run(2_000)
    assert ann.referred_to == "n2:1883"


def test_an_offer_waits_for_a_second_without_a_packet():
    city = city_at("n2")
    ann, writer = far_client(city)
    for at in range(80):  # 40 s
        if at % 4 == 0:
            city.publish(writer, "city/news", HERE, 1)
        ann.publish(Publish("elsewhere", b""))
        city.turn(ann)
        city.run(500)
    assert not offers(city)
    city.run(2_100)
    assert ann.referred_to == "n2:1883"


def test_a_busy_client_needs_a_shorter_pause_after_a_minute():
    city = city_at("n2")
    ann, writer = far_client(city)
    for at in range(400):  # 100 s
        if at % 8 == 0:
            city.publish(writer, "city/news", HERE, 1)
        if ann.is_connected:
            ann.publish(Publish("elsewhere", b""))
            city.turn(ann)
        city.run(250)
    assert ann.referred_to == "n2:1883"


def test_a_node_makes_so_many_offers_a_minute():
    rules = RedirectRules(crossings_per_min=6, dwell_ms=20_000, offers_per_min=2)
    city = city_at("n2", rules=rules)
    writer = city.client("writer", "n1", version=ProtocolVersion.V311)
    people = [city.client(f"c{number}", "n0") for number in range(5)]
    city.run(100)
    for one in people:
        city.publish(one, "$position", HERE, 1)
        one.ask(FilterRequest("$near/50000m/city/#", 2))
        city.turn(one)
    times: list[int] = []
    for _ in range(80):
        city.publish(writer, "city/news", HERE, 1)
        city.run(3_000)
        times += [city.world.now] * (offers(city) - len(times))
    assert len(times) == 5
    assert times[2] - times[0] >= 58_000
    assert times[4] - times[2] >= 58_000
