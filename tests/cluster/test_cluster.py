"""Real nodes in a simulated network: plain MQTT works as on one node, whatever the network does."""

from collections import Counter
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.simulated_city import SimulatedCity

from nearcast.broker import Broker, SpaceSettings
from nearcast.cluster.messages import decode_greeting
from nearcast.cluster.peer_handshake import PeerTerms
from nearcast.cluster.peer_registry import PeerWire
from nearcast.cluster.session_relay import PATIENCE_MS
from nearcast.model import Attribute, Space
from nearcast.mqtt import FilterRequest, Publish, encode_packet
from nearcast.server.metrics.exposition import prometheus_text, sys_topics
from nearcast.simulator.mqtt_node import SimulatedClient, SimulatedNode
from nearcast.simulator.network import SimulatedLink, uniform
from nearcast.simulator.world import Send

assert settings.default is not None
RUNS = max(2, settings.default.max_examples // 5)
TALK = Space(name="talk", topic_filter="talk/#", attributes=(Attribute.number("price", 0, 9),))


def payloads(client: SimulatedClient) -> list[bytes]:
    return [one.payload for one in client.received]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_reaches_subscribers_on_every_node_once(qos: int):
    city = SimulatedCity()
    readers = [city.client(f"r{name}", name, "road/+/ice", "road/#") for name in city.names]
    bystander = city.client("by", "n1", "sea/#")
    city.run(50)
    writer = city.client("w", "n0")
    for number in range(20):
        city.publish(writer, "road/7/ice", b"%d" % number, qos)
    city.run(100)
    expected = [b"%d" % number for number in range(20)]
    for reader in readers:
        assert payloads(reader) == expected
        assert {one.qos for one in reader.received} == {qos}
    assert bystander.received == []
    assert writer.unsettled == 0


def test_a_subscription_is_acknowledged_when_every_node_knows_of_it():
    city = SimulatedCity(link=SimulatedLink(delay=uniform(20, 20)))
    reader = city.client("r", "n1")
    city.run(50)  # the others are asked whether they know it
    reader.subscribe("a")
    city.turn(reader)
    assert reader.subacks == []
    city.run(39)
    assert reader.subacks == []
    city.run(2)
    assert len(reader.subacks) == 1
    writer = city.client("w", "n2")
    city.run(50)
    city.publish(writer, "a", b"x")
    city.run(30)
    assert payloads(reader) == [b"x"]


@pytest.mark.parametrize("away_ms", [100, 3_100, 5_000])
def test_an_acknowledged_subscription_misses_nothing_of_a_node_that_was_lost_for_a_moment(
    away_ms: int,
):
    city = SimulatedCity(nodes=2)
    reader, writer = city.client("r", "n1"), city.client("w", "n0")
    city.run(50)
    _cut(city, "n0", "n1")
    city.run(away_ms - 50)  # links go down after three seconds of silence
    reader.subscribe("a")
    city.turn(reader)
    city.run(50)
    assert reader.subacks == []  # n0 has not heard of it
    city.world.network.heal()
    while not reader.subacks:
        city.run(1)
    city.publish(writer, "a", b"x", 2)
    city.run(50)

    assert payloads(reader) == [b"x"]


@pytest.mark.parametrize("away_ms", [0, 3_100, 60_000])
def test_a_subscription_does_not_wait_for_a_node_that_is_gone(away_ms: int):
    city = SimulatedCity(nodes=3)
    reader, writer = city.client("r", "n1"), city.client("w", "n0")
    city.run(50)
    city.crash("n2")
    city.run(away_ms)
    reader.subscribe("a")
    city.turn(reader)
    city.run(3_000 + PATIENCE_MS + 100 - min(away_ms, 6_000))

    assert len(reader.subacks) == 1
    city.publish(writer, "a", b"x", 2)
    city.run(50)
    assert payloads(reader) == [b"x"]


def _cut(city: SimulatedCity, one: str, other: str) -> None:
    city.world.network.cut(one, other)
    city.world.network.cut(other, one)


def test_what_nobody_elsewhere_wants_does_not_travel():
    city = SimulatedCity()
    reader = city.client("r", "n0", "a")
    writer = city.client("w", "n0")
    city.run(50)
    before = city.nodes["n0"].mesh.counts.bytes_sent
    for _ in range(50):
        city.publish(writer, "a", bytes(100))
    assert city.nodes["n0"].mesh.counts.bytes_sent - before < 100
    assert len(reader.received) == 50


def test_an_unsubscribed_filter_is_sent_no_more():
    city = SimulatedCity()
    reader = city.client("r", "n1", "a")
    writer = city.client("w", "n0")
    city.run(50)
    reader.unsubscribe("a")
    city.turn(reader)
    city.run(50)
    before = city.nodes["n0"].mesh.counts.bytes_sent
    city.publish(writer, "a", bytes(1_000))
    city.run(50)
    assert reader.received == []
    assert city.nodes["n0"].mesh.counts.bytes_sent - before < 1_000


def test_a_share_group_is_the_whole_networks():
    city = SimulatedCity()
    members = [city.client(f"m{name}", name, "$share/g/job") for name in city.names]
    other = city.client("other", "n2", "$share/h/job")
    city.run(50)
    writer = city.client("w", "n0")
    for number in range(30):
        city.publish(writer, "job", b"%d" % number, qos=number % 3)
        city.run(10)
    got = [payload for one in members for payload in payloads(one)]
    assert sorted(got, key=int) == [b"%d" % number for number in range(30)]
    assert all(one.received for one in members)
    assert len(other.received) == 30


def test_retained_messages_are_everywhere_and_forgotten_everywhere():
    city = SimulatedCity()
    writer = city.client("w", "n0")
    city.publish(writer, "state", b"on", 1, retain=True)
    city.run(50)
    newcomer = city.client("late", "n2", "state")
    city.run(50)
    assert [(one.payload, one.retain) for one in newcomer.received] == [(b"on", True)]
    city.publish(writer, "state", b"", 1, retain=True)
    city.run(50)
    assert payloads(city.client("later", "n1", "state")) == []


def test_of_two_retained_messages_all_nodes_keep_the_same():
    city = SimulatedCity(link=SimulatedLink(delay=uniform(5, 40)))
    writers = [city.client(f"w{name}", name) for name in city.names]
    for number in range(30):
        for writer in writers:
            city.publish(writer, "state", f"{writer.name}{number}".encode(), retain=True)
    city.run(200)
    kept = [city.nodes[name].node.state.retained.get("state") for name in city.names]
    assert len({one and one.payload for one in kept}) == 1


def retained_at(city: SimulatedCity, name: str) -> dict[str, bytes]:
    stored = city.nodes[name].node.state.retained.all()
    return {one.topic_text(): bytes(one.payload) for one in stored}


@pytest.mark.parametrize("wiped", [("n2",), ("n1", "n2")])
def test_nodes_that_lost_their_data_have_all_retained_messages_again(wiped: tuple[str, ...]):
    city = SimulatedCity()
    writer = city.client("w", "n0")
    written = {f"state/{number}": b"%d" % number for number in range(500)}
    for topic, payload in written.items():
        city.publish(writer, topic, payload, 1, retain=True)
    city.run(10_000)  # the others surely have them by now, and n0 knows that
    for name in wiped:
        city.crash(name)
        city.nodes[name]._disk.clear()
    city.run(5_000)
    for name in wiped:
        city.restart(name)
        assert city.nodes[name].mesh.without_retained(["n0"]) == ["n0"]
    city.run(1_000)

    assert [retained_at(city, name) for name in city.names] == [written] * 3
    assert [city.nodes[name].mesh.without_retained(city.names) for name in wiped] == [
        [name]
        for name in wiped  # it does not know itself as another node
    ]


def test_a_node_asks_for_all_retained_messages_until_it_has_had_them_whole():
    city = SimulatedCity(nodes=2)
    joining = city.nodes["n1"].mesh.peers["n0"]
    assert not decode_greeting(joining.link.greeting).wants_retained
    joining.has_sent_retained = False
    city.at("n1", lambda node, now: _break_off(node, "n0", now))
    assert decode_greeting(joining.link.greeting).wants_retained

    city.run(1_000)
    assert joining.has_sent_retained
    assert not decode_greeting(joining.link.greeting).wants_retained


def _break_off(node: SimulatedNode, name: str, now: int) -> list[Send]:
    node.mesh.neighbours.begin_anew(name, "test")
    return node.turn(now)


def test_a_link_that_begins_anew_greets_in_the_same_turn_and_only_that_node():
    city = SimulatedCity()
    mesh = city.nodes["n0"].mesh
    mesh.take_frames()
    mesh.neighbours.begin_anew("n1", "test")

    assert [name for name, _ in mesh.take_frames()] == ["n1"]
    assert mesh.neighbours._grown == {}  # a turn costs only those that have something to say


def test_what_was_subscribed_and_unsubscribed_without_a_link_is_known_once_it_is_up():
    city = SimulatedCity(nodes=2)
    reader, writer = city.client("r", "n1", "old"), city.client("w", "n0")
    city.run(50)
    for pair in (("n0", "n1"), ("n1", "n0")):
        city.world.network.cut(*pair)
    city.run(5_000)
    reader.subscribe("new")
    reader.unsubscribe("old")
    city.turn(reader)
    city.world.network.heal()
    city.run(1_000)
    before = city.nodes["n0"].mesh.counts.bytes_sent
    city.publish(writer, "old", bytes(10_000))
    city.publish(writer, "new", b"x")
    city.run(50)

    assert payloads(reader) == [b"x"]
    assert city.nodes["n0"].mesh.counts.bytes_sent - before < 10_000


@pytest.mark.parametrize("is_new", [False, True])
def test_exactly_once_deliveries_of_a_node_that_forgot_them_stay_forgotten_after_a_crash(
    is_new: bool,
):
    node = Broker(with_journal=True)
    link = node.peering.attach("b", "first", 1)
    node.receive(link, encode_packet(Publish("t", b"x", 2, packet_id=7)), 2)
    node.peering.detach(link, 3)
    node.peering.attach("b", "second" if is_new else "first", 4)
    again = Broker(with_journal=True)
    again.restore([node.take_journal()], 5)

    assert list(again.peering.session("b").incoming) == ([] if is_new else [7])


def test_a_node_with_its_data_is_sent_only_what_is_newer_after_a_short_break():
    city = SimulatedCity(nodes=2)
    writer = city.client("w", "n0")
    for number in range(50):
        city.publish(writer, f"state/{number}", bytes(1_000), 1, retain=True)
    city.run(20_000)
    before = city.nodes["n0"].mesh.counts.bytes_sent
    city.at("n0", lambda node, now: _break_off(node, "n1", now))
    city.run(1_000)

    assert city.nodes["n0"].mesh.peers["n1"].link.is_up
    assert city.nodes["n0"].mesh.counts.bytes_sent - before < 5_000


def test_nobody_waits_for_the_retained_messages_of_a_node_that_is_refused_or_of_an_older_one():
    city = SimulatedCity(nodes=2)
    mesh = city.nodes["n0"].mesh
    peer = mesh.peers["n1"]
    assert mesh.without_retained(["n1", "unknown"]) == ["unknown"]

    peer.has_sent_retained = False
    assert mesh.without_retained(["n1"]) == ["n1"]
    peer.version = 2
    assert mesh.without_retained(["n1"]) == []
    peer.connection = None  # its version may be another one when it is back
    assert mesh.without_retained(["n1"]) == ["n1"]
    peer.problem = "other spaces"
    assert mesh.without_retained(["n1"]) == []


def test_a_node_that_was_away_hears_of_retained_messages():
    city = SimulatedCity()
    city.crash("n2")
    writer = city.client("w", "n0")
    city.publish(writer, "state", b"on", 1, retain=True)
    city.run(10_000)
    city.restart("n2")
    city.run(3_000)
    newcomer = city.client("late", "n2", "state")
    city.run(50)
    assert payloads(newcomer) == [b"on"]


@pytest.mark.parametrize("qos", [1, 2])
def test_acknowledged_messages_wait_for_a_node_that_is_away(qos: int):
    city = SimulatedCity()
    reader = city.client("r", "n1", "a")
    city.run(50)
    writer = city.client("w", "n0")
    city.crash("n1")
    city.run(20)
    for number in range(10):
        city.publish(writer, "a", b"%d" % number, qos)
    city.run(5_000)
    assert writer.unsettled == 0
    city.restart("n1")
    city.admit(reader)
    city.run(3_000)
    assert payloads(reader) == [b"%d" % number for number in range(10)]


def test_clients_may_not_call_themselves_nodes():
    city = SimulatedCity(1)
    assert not city.client("$node/n1", "n0").is_connected


def test_nodes_with_other_spaces_are_refused_by_name():
    city = SimulatedCity(2)
    mesh = city.nodes["n0"].mesh
    mesh._terms = PeerTerms("another")
    mesh.peers["n1"].link.greeting = mesh.greeting("n1")
    city.run(1)
    mesh.neighbours.begin_anew("n1", "")
    city.world.perform("n0", city.nodes["n0"].turn(city.world.now))
    city.run(2_000)
    assert "other spaces" in city.nodes["n1"].mesh.peers["n0"].problem
    assert "n0" in city.nodes["n1"].mesh.peers["n0"].problem


def disturb(city: SimulatedCity, random: Random, readers: list[SimulatedClient]) -> None:
    """Let one thing go wrong, and right again some time later."""
    name = random.choice(city.names)
    kind = random.choice(["crash", "cut", "client"])
    if kind == "crash" and city.world.alive(name):
        city.crash(name)
        city.run(random.randint(1, 4_000))
        city.restart(name)
        for one in readers:
            if city.homes[one.name] == name and not one.is_connected:
                city.admit(one)
    elif kind == "cut":
        other = random.choice([one for one in city.names if one != name])
        city.world.network.cut(name, other)
        city.world.network.cut(other, name)
        city.run(random.randint(1, 5_000))
        city.world.network.heal()
    else:
        reader = random.choice(readers)
        if reader.is_connected:
            city.at(city.homes[reader.name], lambda node, now: node.drop(reader, now))
            city.run(random.randint(1, 500))
            city.admit(reader)


@settings(max_examples=RUNS)
@given(st.integers(0, 100_000), st.sampled_from([0.0, 0.1, 0.3]))
def test_faults_lose_nothing_acknowledged_and_double_nothing_at_qos_2(seed: int, loss: float):
    random = Random(seed)
    city = SimulatedCity(
        random.randint(2, 4),
        seed,
        SimulatedLink(delay=uniform(1, 10), loss=loss, duplication=loss / 3),
    )
    city.run(3_000)
    readers = [city.client(f"r{n}", random.choice(city.names), "a/#") for n in range(3)]
    writer = city.client("w", "n0")
    city.run(6_000)
    while not all(one.subacks for one in readers):
        city.run(10)
    sent: Counter[bytes] = Counter()
    for number in range(40):
        if writer.is_connected:
            payload, qos = b"%d" % number, random.choice([1, 2])
            city.publish(writer, f"a/{number % 3}", payload, qos)
            sent[payload] = qos
        city.run(random.randint(1, 60))
        if random.random() < 0.15:
            disturb(city, random, [*readers, writer])
    city.world.network.link = SimulatedLink(delay=uniform(1, 3))
    city.run(60_000)
    for one in [*readers, writer]:
        if not one.is_connected:
            city.admit(one)
    city.run(20_000)
    assert writer.unsettled == 0
    for reader in readers:
        got = Counter(payloads(reader))
        assert set(got) == set(sent), f"{reader.name} at {city.homes[reader.name]}"
        assert all(got[one] == 1 for one, qos in sent.items() if qos == 2)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_link_that_begins_anew_brings_again_what_was_not_taken(qos: int, monkeypatch):
    city = SimulatedCity(2)
    reader, writer = city.client("r", "n1", "a"), city.client("w", "n0")
    city.run(50)
    mesh = city.nodes["n1"].mesh
    with monkeypatch.context() as broken:  # the frame counts as come, its content is lost
        broken.setattr(mesh, "take_part", lambda *_: None)
        city.publish(writer, "a", b"x", qos)
        city.run(50)
    assert payloads(reader) == []

    mesh.neighbours.begin_anew("n0", "a mistake")
    mesh.neighbours.begin_anew("a stranger", "nothing happens")
    city.run(2_000)

    assert payloads(reader) == [b"x"]


def test_what_was_written_to_a_link_before_it_began_anew_does_not_reach_the_new_one():
    city = SimulatedCity(2)
    city.run(50)
    mesh = city.nodes["n1"].mesh
    peer = mesh.peers["n0"]
    before = peer.connection
    assert before is not None
    mesh.neighbours.begin_anew("n0", "a mistake")
    city.run(2_000)
    assert peer.connection not in (None, before)
    restarts, sent = peer.link.restarts, mesh.counts.messages_sent

    wire = before.transport
    assert isinstance(wire, PeerWire)
    wire.write([b"\xd0\x00"])
    wire.finish()

    assert (peer.link.restarts, mesh.counts.messages_sent) == (restarts, sent)
    assert peer.link.is_up


@pytest.mark.parametrize("crashes", [False, True])
def test_a_node_that_left_in_the_middle_of_an_exchange_and_comes_again_repeats_nothing_at_qos_2(
    crashes: bool,
):
    city = SimulatedCity(2)
    reader, writer = city.client("r", "n1", "a"), city.client("w", "n0")
    city.run(50)
    city.world.network.cut("n1", "n0")  # its answers are lost
    city.publish(writer, "a", b"x", 2)
    city.run(50)
    assert payloads(reader) == [b"x"]
    assert city.nodes["n0"].mesh.has_unsettled()

    city.nodes["n1"].mesh.part("n0", city.world.now)
    city.at("n1", lambda node, now: node.turn(now))
    city.crash("n0")
    city.restart("n0")
    city.world.network.heal()
    if crashes:
        city.crash("n1")
        city.restart("n1")
        city.admit(reader)
    city.at("n1", lambda node, now: node.meet(["n0"], now))
    city.run(5_000)

    assert payloads(reader) == [b"x"]
    assert not city.nodes["n0"].mesh.has_unsettled()
    again = city.client("w2", "n0")
    city.run(3_000)
    city.publish(again, "a", b"y", 2)
    city.run(50)
    assert payloads(reader) == [b"x", b"y"]


def test_a_node_has_something_unsettled_while_a_contest_or_a_place_is_open(
    monkeypatch: pytest.MonkeyPatch,
):
    city = SimulatedCity(2)
    city.run(50)
    mesh = city.nodes["n0"].mesh
    assert not mesh.has_unsettled()
    with monkeypatch.context() as open_contest:
        open_contest.setattr(mesh._top_k, "_open", {1: None})
        assert mesh.has_unsettled()
    for is_pursuing in (True, False):
        spatial = SimpleNamespace(is_pending=is_pursuing)
        monkeypatch.setattr(mesh, "parts", (mesh._relay, spatial))
        assert mesh.has_unsettled() == is_pursuing


@pytest.mark.parametrize("also", ["", "$where/price<5/talk/#"])
def test_the_retain_flag_crosses_for_who_asks_for_it_in_a_space_too(also: str):
    city = SimulatedCity(2, spaces=[SpaceSettings(space=TALK)])
    reader = city.client("reader", "n1", *([also] if also else []))
    reader.ask(FilterRequest("talk/#", 1, retain_as_published=True, retain_handling=2))
    city.turn(reader)
    other = city.client("other", "n1", "$where/price<5/talk/#")
    city.run(500)
    writer = city.client("writer", "n0")
    writer.publish(Publish("talk/x", b'{"price": 1}', 1, retain=True))
    city.turn(writer)
    city.run(500)
    assert [one.retain for one in reader.received] == [True]
    assert [one.retain for one in other.received] == [False]


def test_what_went_over_the_links_is_shown():
    city = SimulatedCity(2)
    city.client("reader", "n1", "road/#")
    city.run(500)
    writer = city.client("writer", "n0")
    writer.publish(Publish("road/1", b"ice", 1))
    city.turn(writer)
    city.run(500)
    node = city.nodes["n0"]
    counts = node.mesh.counts
    topics = dict(sys_topics(node.node, uptime_s=1))
    page = prometheus_text(node.node, uptime_s=1)
    assert int(topics["network/messages/sent"]) == counts.messages_sent > 0
    assert int(topics["network/bytes/received"]) == counts.bytes_received > 0
    assert f"\nnearcast_network_frames_sent_total {counts.frames_sent}\n" in page
    assert "\nnearcast_network_handovers_total 0\n" in page


def test_what_is_retained_reaches_a_node_whose_link_was_slow_before_it_broke():
    """Frames are under way for longer than silence may last: they were sent, and never arrived."""
    city = SimulatedCity(nodes=2, link=SimulatedLink(delay=uniform(4_500, 4_500)))
    city.run(30_000)
    writer = city.client("w", "n0")
    city.run(20_000)
    city.publish(writer, "kept", b"1", 1, retain=True)
    city.run(4_000)
    for name, other in (("n0", "n1"), ("n1", "n0")):
        city.nodes[name].mesh.neighbours.begin_anew(other, "cut")
    city.run(60_000)
    assert [one.payload for one in city.nodes["n1"].node.state.retained.all()] == [b"1"]
