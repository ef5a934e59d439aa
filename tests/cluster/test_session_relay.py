"""Clients that come to another node: one session in the whole network, nothing lost on the way."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.simulated_city import SimulatedCity

from nearcast.broker import Connection, Session
from nearcast.cluster.messages import TunnelOpened, TunnelPaused, encode
from nearcast.simulator.mqtt_node import SimulatedClient
from nearcast.simulator.network import SimulatedLink, uniform

assert settings.default is not None
RUNS = max(2, settings.default.max_examples // 5)


def payloads(client: SimulatedClient) -> list[bytes]:
    return [one.payload for one in client.received]


def homes_of(city: SimulatedCity, client_id: str) -> list[str]:
    return [name for name in city.names if session_at(city, name, client_id) is not None]


def session_at(city: SimulatedCity, name: str, client_id: str) -> Session | None:
    return city.nodes[name].node.state.sessions.get(client_id)


def go_to(city: SimulatedCity, client: SimulatedClient, name: str) -> None:
    """Let a client lose its connection and come to another node."""
    old = city.homes[client.name]
    city.at(old, lambda node, now: node.drop(client, now))
    city.admit(client, name)
    city.run(50)


def test_a_session_and_its_queue_are_found_from_another_node():
    city = SimulatedCity()
    anna = city.client("anna", "n0", "a/#")
    city.run(50)
    city.at("n0", lambda node, now: node.drop(anna, now))
    writer = city.client("w", "n2")
    for qos in (1, 2):
        city.publish(writer, "a/b", b"%d" % qos, qos)
    city.run(50)
    assert payloads(anna) == []
    city.admit(anna, "n1")
    city.run(50)
    assert payloads(anna) == [b"1", b"2"]
    assert homes_of(city, "anna") == ["n0"]
    assert city.nodes["n1"].mesh.relayed == 1
    city.publish(anna, "a/c", b"from afar", 2)
    city.run(50)
    assert payloads(anna) == [b"1", b"2", b"from afar"]
    assert anna.unsettled == 0


def test_a_client_that_is_connected_elsewhere_is_taken_over():
    city = SimulatedCity()
    first = city.client("anna", "n0", "a")
    city.run(50)
    second = city.client("anna", "n1")
    city.run(50)
    assert (first.is_connected, second.is_connected) == (False, True)
    writer = city.client("w", "n2")
    city.run(50)
    city.publish(writer, "a", b"x", 1)
    city.run(50)
    assert (payloads(first), payloads(second)) == ([], [b"x"])
    third = city.client("anna", "n2")
    city.run(50)
    assert (second.is_connected, third.is_connected) == (False, True)
    assert [city.nodes[name].mesh.relayed for name in city.names] == [0, 0, 1]
    fourth = city.client("anna", "n0")  # at home again
    city.run(50)
    assert (third.is_connected, fourth.is_connected) == (False, True)
    assert [city.nodes[name].mesh.relayed for name in city.names] == [0, 0, 0]


def test_what_a_client_says_before_it_is_welcome_reaches_its_home():
    city = SimulatedCity()
    city.client("anna", "n0", "a")
    city.run(50)
    again = city.client("anna", "n1", "b")  # CONNECT and SUBSCRIBE in one
    city.run(50)
    writer = city.client("w", "n2")
    city.run(50)
    for topic in ("a", "b"):
        city.publish(writer, topic, topic.encode(), 1)
    city.run(50)
    assert payloads(again) == [b"a", b"b"]


def test_the_home_hears_when_a_client_is_gone_and_when_its_gateway_is():
    city = SimulatedCity()
    anna = city.client("anna", "n0", "a")
    city.run(50)
    session = session_at(city, "n0", "anna")
    assert session is not None
    for is_crash in (False, True):
        go_to(city, anna, "n1")
        assert is_there(session)
        if is_crash:
            city.crash("n1")
        else:
            city.at("n1", lambda node, now: node.drop(anna, now))
        city.run(10_000)
        assert not is_there(session)
        assert not city.nodes["n0"].mesh._relay._ways_in


def is_there(session: Session) -> bool:
    return session.link is not None


def test_a_client_waits_for_a_node_that_is_lost_from_sight_for_a_moment():
    city = SimulatedCity(link=SimulatedLink(delay=uniform(20, 20)))
    anna = city.client("anna", "n0", "a")
    city.run(100)
    city.at("n0", lambda node, now: node.drop(anna, now))
    city.crash("n0")
    city.restart("n0")
    city.run(25)  # the others have heard that it began anew, and its answer is under way
    city.admit(anna, "n1")
    assert city.nodes["n1"].mesh.peers["n0"].connection is None
    city.run(500)
    assert anna.is_connected
    assert homes_of(city, "anna") == ["n0"]


def test_the_answer_of_a_node_that_is_lost_before_the_others_answer_does_not_count():
    city = SimulatedCity()
    anna = city.client("anna", "n1", "a")
    city.run(50)
    city.at("n1", lambda node, now: node.drop(anna, now))
    for pair in (("n0", "n2"), ("n2", "n0")):
        city.world.network.cut(*pair)
    city.admit(anna, "n0")  # n1 says that it has the session, n2 says nothing
    city.run(50)
    city.crash("n1")
    while city.nodes["n0"].mesh.peers["n1"].link.is_up:
        city.run(10)
    city.world.network.heal()
    city.run(6_000)

    assert city.nodes["n0"].mesh.peers["n2"].link.is_up
    assert anna.is_connected
    assert city.nodes["n0"].mesh.relayed == 0


def test_where_a_client_was_used_last_it_stays_whoever_comes_back():
    city = SimulatedCity()
    anna = city.client("anna", "n0", "a")
    city.run(50)
    city.world.network.partition([["n0"], ["n1", "n2"]])
    city.run(10_000)
    go_to(city, anna, "n1")
    assert homes_of(city, "anna") == ["n0", "n1"]
    go_to(city, anna, "n0")
    city.world.network.heal()
    city.run(5_000)
    assert homes_of(city, "anna") == ["n0"]
    assert anna.is_connected


@pytest.mark.parametrize("is_connected", [False, True])
def test_after_a_crash_the_client_stays_where_it_has_gone(is_connected: bool):
    """It was connected when its node died; the session there is older, whenever it comes back."""
    city = SimulatedCity(3)
    city.client("anna", "n0", "old")
    city.run(50)
    city.crash("n0")
    city.run(8_000)
    anna = city.client("anna", "n1")
    city.run(50)
    anna.subscribe("new")
    city.turn(anna)
    city.run(50)
    if not is_connected:
        city.at("n1", lambda node, now: node.drop(anna, now))
    writer = city.client("w", "n2")
    city.run(50)
    city.publish(writer, "new", b"1", 1)
    city.run(50)
    city.restart("n0")
    city.run(5_000)

    assert homes_of(city, "anna") == ["n1"]
    if not is_connected:
        city.admit(anna, "n2")
        city.run(100)
    city.publish(writer, "new", b"2", 1)
    city.run(50)
    assert payloads(anna) == [b"1", b"2"]


@pytest.mark.parametrize("comes_elsewhere", [False, True])
def test_a_node_that_had_left_for_good_comes_back_without_those_who_have_gone_elsewhere(
    comes_elsewhere: bool,
):
    city = SimulatedCity(3)
    for name in ("anna", "ben"):
        client = city.client(name, "n0", "a")
        city.run(50)
        drop(city, "n0", client)
    city.crash("n0")
    for name in ("n1", "n2"):
        city.at(name, lambda node, now: node.part("n0", now))
    city.run(5_000)
    if comes_elsewhere:
        city.client("anna", "n1", "a")
        city.run(500)
    city.restart("n0")
    for name in city.names:
        city.at(name, lambda node, now: node.meet(city.names, now))
    city.run(5_000)

    assert homes_of(city, "anna") == (["n1"] if comes_elsewhere else ["n0"])
    assert homes_of(city, "ben") == ["n0"]


def test_a_client_that_no_node_needs_to_be_asked_about_any_more_is_forgotten() -> None:
    city = SimulatedCity()
    city.crash("n2")
    city.run(10_000)
    homes = city.nodes["n0"].mesh._relay
    stays, goes = city.client("stays", "n0"), city.client("goes", "n0")
    city.run(100)
    assert stays.is_connected
    assert homes._unasked == {"stays": {"n2"}, "goes": {"n2"}}
    city.at("n0", lambda node, now: node.drop(goes, now))
    city.restart("n2")
    city.run(2_000)

    assert homes._unasked == {}


def test_a_third_node_that_finds_two_sessions_ends_the_older_one():
    city = SimulatedCity()
    for name in ("n0", "n1"):
        city.nodes[name].mesh.claim = lambda *_: False
        one = city.client("anna", name, "a")
        city.run(50)
        drop(city, name, one)
    assert homes_of(city, "anna") == ["n0", "n1"]
    last = city.client("anna", "n2")
    city.run(50)
    assert last.is_connected
    assert homes_of(city, "anna") == ["n1"]


def test_who_begins_anew_has_a_home_where_it_is():
    city = SimulatedCity()
    anna = city.client("anna", "n0", "a")
    city.run(50)
    city.at("n0", lambda node, now: node.drop(anna, now))
    anew = SimulatedClient("anna", is_clean=True)
    city.admit(anew, "n1")
    city.run(50)
    assert homes_of(city, "anna") == ["n1"]
    assert anew.is_connected
    writer = city.client("w", "n2")
    city.run(50)
    city.publish(writer, "a", b"x", 1)
    city.run(50)
    assert payloads(anew) == []


def test_a_client_that_comes_to_two_nodes_at_once_has_one_home():
    city = SimulatedCity(link=SimulatedLink(delay=uniform(5, 5)))
    for number in range(10):
        name = f"c{number}"
        one, two = city.client(name, "n0"), city.client(name, "n1")
        city.run(50)
        assert len(homes_of(city, name)) == 1
        assert one.is_connected != two.is_connected


def test_the_end_of_the_link_ends_the_connection_and_the_session_waits():
    city = SimulatedCity()
    anna = city.client("anna", "n0", "a")
    city.run(50)
    go_to(city, anna, "n1")
    assert len(relays(city, "n1")) == 1
    city.crash("n0")
    city.run(10_000)
    assert not anna.is_connected
    city.restart("n0")
    city.run(5_000)
    writer = city.client("w", "n2")
    city.run(50)
    city.publish(writer, "a", b"x", 2)
    city.run(50)
    city.admit(anna, "n2")
    city.run(50)
    assert payloads(anna) == [b"x"]


def test_of_two_sessions_after_a_cut_the_one_used_last_stays():
    city = SimulatedCity()
    anna = city.client("anna", "n0", "a")
    city.run(50)
    city.at("n0", lambda node, now: node.drop(anna, now))
    city.crash("n0")
    city.run(10_000)
    city.admit(anna, "n1")
    city.run(50)
    assert anna.is_connected
    assert session_at(city, "n1", "anna") is not None
    city.restart("n0")
    city.run(5_000)
    assert homes_of(city, "anna") == ["n1"]
    assert anna.is_connected


def test_a_client_that_does_not_read_makes_its_home_wait():
    city = SimulatedCity(nodes=2)
    anna = city.client("anna", "n0", "a")
    city.run(50)
    go_to(city, anna, "n1")
    home, gateway = session_at(city, "n0", "anna"), city.nodes["n1"]
    assert home is not None
    write, (way_out,) = gateway._write, relays(city, "n1")

    def write_others(connection: Connection, now: int) -> None:
        if connection is not way_out:
            write(connection, now)

    gateway._write = write_others  # type: ignore[method-assign]
    writer = city.client("w", "n0")
    city.run(50)
    for number in range(60):
        city.publish(writer, "a", b"%04d" % number * 2_000, 1)
        city.run(5)
    assert is_paused(home)
    assert len(home.queue) > 10
    gateway._write = write  # type: ignore[method-assign]
    city.at("n1", lambda node, now: node._write(way_out, now) or node.turn(now))  # type: ignore[func-returns-value]
    city.run(100)
    assert not is_paused(home)
    assert [one[:4] for one in payloads(anna)] == [b"%04d" % number for number in range(60)]


def test_what_waits_for_a_client_that_does_not_read_is_written_once_it_reads():
    city = SimulatedCity(nodes=2)
    anna = city.client("anna", "n0", "a")
    city.run(50)
    go_to(city, anna, "n1")
    mesh = city.nodes["n0"].mesh
    (((name, number), way_in),) = mesh._relay._ways_in.items()
    mesh._relay.paused(mesh.peers[name], TunnelPaused(number, is_paused=True))
    assert (way_in.is_paused, way_in.is_dirty) == (True, False)
    mesh._relay.paused(mesh.peers[name], TunnelPaused(number, is_paused=False))
    assert (way_in.is_paused, way_in.is_dirty) == (False, True)


def is_paused(session: Session) -> bool:
    return session.link is not None and session.link.is_paused


def drop(city: SimulatedCity, name: str, client: SimulatedClient) -> None:
    city.at(name, lambda node, now: node.drop(client, now))


def relays(city: SimulatedCity, name: str) -> list[Connection]:
    return [one for one in city.nodes[name].node.state.connections if one.relay is not None]


@pytest.mark.parametrize("junk", [b"", b"\x10", b"\x10\x05abc", b"\xc0\x00"])
def test_a_relayed_connect_that_is_none_is_counted_and_dropped(junk: bytes):
    node = SimulatedCity(nodes=2).nodes["n1"]
    before = set(node.node.state.sessions)
    part = encode(TunnelOpened(1, junk, None, "somewhere"))
    node.mesh.take_part(node.mesh.peers["n0"], b"T", part)
    assert node.mesh.counts.refused == 1
    assert set(node.node.state.sessions) == before


@settings(max_examples=RUNS)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.05]))
def test_wandering_clients_get_everything_once(seed: int, loss: float):
    """Clients with lasting sessions go from node to node; all of QoS 2 arrives, once, in order."""
    random = Random(seed)
    city = SimulatedCity(nodes=3, seed=seed, link=SimulatedLink(delay=uniform(1, 5), loss=loss))
    wanderers = [city.client(f"c{n}", random.choice(city.names), "a/#") for n in range(3)]
    writer = city.client("w", "n0")
    city.run(3_000)
    sent = []
    for number in range(30):
        sent.append(b"%d" % number)
        if writer.is_connected:
            city.publish(writer, "a/b", sent[-1], 2)
        else:
            city.admit(writer)
            city.run(200)
            sent.pop()
        city.run(random.choice([0, 1, 5, 20]))
        for one in wanderers:
            if random.random() < 0.3:
                go_to(city, one, random.choice(city.names))
    for _ in range(10):  # what is lost on the way ends a connection; clients come again
        city.run(5_000)
        for one in (*wanderers, writer):
            if not one.is_connected:
                city.admit(one)
    city.run(5_000)
    for one in wanderers:
        assert len(homes_of(city, one.name)) == 1
        twice = [payload for payload, count in Counter(payloads(one)).items() if count > 1]
        assert (one.name, twice) == (one.name, [])
        assert payloads(one) == [payload for payload in sent if payload in payloads(one)]
        assert set(sent) <= set(payloads(one)), (one.name, set(sent) - set(payloads(one)))
