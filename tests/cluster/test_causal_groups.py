"""Questions and answers over several nodes: nobody hears an answer before its question."""

import pytest
from tests.support.causal_forum import LIFETIME_MS, SPACE, Forum, wrong_order

from nearcast.broker import SpaceSettings
from nearcast.mqtt import Properties, Publish
from nearcast.ordering import DeltaCausal
from nearcast.ordering.layout import table_of
from nearcast.server.metrics.exposition import prometheus_text, sys_topics
from nearcast.simulator.mqtt_node import SimulatedClient, SimulatedNode
from nearcast.simulator.network import SimulatedLink, constant, uniform


def uneven(forum: Forum) -> None:
    """Make some ways long and others short."""
    for sender in forum.names:
        for receiver in forum.names:
            delay = forum.random.choice([2, 10, 150])
            forum.world.network.set_link(sender, receiver, SimulatedLink(delay=constant(delay)))


def test_without_order_answers_overtake_questions_and_with_it_none_does():
    counts = {}
    for order in (None, "causal"):
        forum = Forum(4, 3, order, SimulatedLink(delay=uniform(1, 3)))
        uneven(forum)
        forum.talk(40, qos=1)
        counts[order] = wrong_order(forum)
        everything = {f"{kind}{number}" for kind in "qa" for number in range(40)}
        for name in forum.names:
            assert set(forum.heard(name)) == everything
            assert len(forum.heard(name)) == 80
    assert counts[None] > 5
    assert counts["causal"] == 0


@pytest.mark.parametrize("seed", range(6))
def test_loss_within_the_lifetime_is_made_up_for_and_order_is_kept(seed: int):
    forum = Forum(3, seed, "causal", SimulatedLink(delay=uniform(1, 20), loss=0.1, duplication=0.1))
    forum.talk(30, qos=1)
    for name in forum.names:
        heard = forum.heard(name)
        assert len(heard) == len(set(heard))
    # an answer may come without its question only if that one was discarded as too late
    late = sum(
        sum(node.mesh.causal.discarded.get(reason, 0) for reason in ("late", "waited_too_long"))
        for node in forum.nodes.values()
    )
    missed = sum(60 - len(forum.heard(name)) for name in forum.names)
    assert wrong_order(forum) <= missed + late


def test_what_comes_after_its_lifetime_is_discarded_and_counted():
    forum = Forum(2, 1, "causal", SimulatedLink(delay=uniform(1, 3)))
    forum.world.network.set_link("n0", "n1", SimulatedLink(delay=constant(LIFETIME_MS + 200)))
    forum.say("n0", "late", 1)
    forum.run(3_000)
    assert forum.heard("n0") == ["late"]
    assert forum.heard("n1") == []
    assert forum.nodes["n1"].mesh.causal.discarded == {"late": 1}
    assert forum.nodes["n0"].mesh.causal.sent == 1


def test_a_turn_that_began_before_the_timer_woke_the_node_loses_nothing():
    forum = Forum(2, 1, "causal", SimulatedLink(delay=uniform(1, 3)))
    for node in forum.nodes.values():
        node.mesh._causal.advance(forum.world.now + 7)

    forum.say("n0", "q", 1)
    forum.run(100)

    assert [forum.heard(name) for name in forum.names] == [["q"], ["q"]]


def test_a_message_wants_letting_go_when_its_past_has_had_its_time():
    forum = Forum(3, 1, "causal", SimulatedLink(delay=constant(2)))
    assert [node.mesh.ordered_at() for node in forum.nodes.values()] == [None, None, None]
    forum.world.network.cut("n0", "n2")
    asked_ms = forum.world.now

    forum.say("n0", "q", 0)
    forum.run(10)
    forum.say("n1", "a", 0)
    forum.run(10)

    due_ms = forum.nodes["n2"].mesh.ordered_at()
    assert due_ms is not None
    assert 0 <= due_ms - asked_ms - LIFETIME_MS <= 2
    assert forum.heard("n2") == []
    forum.run(LIFETIME_MS)
    assert forum.heard("n2") == ["a"]


def test_a_node_that_comes_back_says_nothing_until_what_it_forgot_has_expired():
    forum = Forum(3, 1, "causal", SimulatedLink(delay=uniform(1, 3)))
    forum.world.crash("n1")
    forum.world.restart("n1")
    began_ms = forum.world.now
    forum.world.perform("n1", forum.nodes["n1"].restart(began_ms))
    forum.run(LIFETIME_MS - 50)  # links are up again
    client = forum.clients["n1"] = SimulatedClient("cn1")
    forum.world.perform("n1", forum.nodes["n1"].admit(client, forum.world.now))
    forum.run(20)

    forum.say("n1", "early", 1)
    assert forum.nodes["n1"].mesh.ordered_at() == began_ms + LIFETIME_MS + 100
    forum.say("n1", "second", 1)
    forum.run(began_ms + LIFETIME_MS + 99 - forum.world.now)
    assert forum.heard("n0") == []
    forum.run(20)

    assert forum.heard("n0") == forum.heard("n2") == ["early", "second"]


def test_what_was_said_too_soon_after_a_start_to_be_of_use_later_is_discarded():
    forum = Forum(2, 1, "causal", SimulatedLink(delay=uniform(1, 3)))
    groups = forum.nodes["n0"].mesh._causal
    groups._began_ms = forum.world.now
    forum.say("n0", "at once", 1)
    forum.run(50)
    forum.say("n0", "a little later", 1)
    forum.run(60)
    forum.say("n0", "late enough", 1)
    forum.run(LIFETIME_MS + 100)

    assert forum.heard("n1") == ["late enough"]
    assert groups.counts.discarded == {"late": 2}
    assert groups.counts.sent == 1


def test_what_had_to_wait_goes_before_what_is_published_later(monkeypatch: pytest.MonkeyPatch):
    forum = Forum(2, 1, "causal", SimulatedLink(delay=uniform(1, 3)))
    groups = forum.nodes["n0"].mesh._causal
    groups._began_ms = forum.world.now
    forum.run(300)
    with monkeypatch.context() as late:  # the timer is late
        late.setattr(groups, "advance", lambda _: None)
        late.setattr(groups, "wake_at", lambda: None)
        forum.say("n0", "first", 1)
        forum.run(250)
        forum.say("n0", "second", 1)
    forum.run(50)

    assert forum.heard("n1") == ["first", "second"]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_may_have_been_here_before_a_crash_is_not_taken_again_at_qos_2(qos: int):
    forum = Forum(2, 1, "causal", SimulatedLink(delay=constant(5)))
    groups = forum.nodes["n1"].mesh._causal
    forum.say("n0", "x", qos)
    groups._began_ms = forum.world.now + 1  # as if it had started while the message was under way
    forum.run(100)

    assert forum.heard("n1") == (["x"] if qos == 1 else [])
    assert groups.counts.discarded == ({} if qos == 1 else {"unsure": 1})


# --- membership (trap T2.5) -----------------------------------------------------------------


def open_at(forum: Forum, name: str) -> set[str]:
    """Return the nodes at which messages that a node knows of may not have been delivered."""
    group = forum.nodes[name].mesh._causal._groups["talk"]
    names = group._names.table
    bits = [int(entry[2]) for entry in table_of(group._state)]
    return {one for number, one in enumerate(names) if any(each >> number & 1 for each in bits)}


def test_t2_5_a_node_that_has_left_is_in_no_destination_set():
    forum = Forum(3, 1, "causal", SimulatedLink(delay=constant(2)))
    forum.say("n0", "q", 0)
    assert open_at(forum, "n0") == {"n1", "n2"}
    forum.world.perform("n0", forum.nodes["n0"].part("n2", forum.world.now))
    assert open_at(forum, "n0") == {"n1"}


def test_t2_5_nothing_is_left_of_what_has_expired():
    forum = Forum(3, 1, "causal", SimulatedLink(delay=constant(2)))
    forum.say("n0", "q", 0)
    forum.run(10)
    groups = [node.mesh._causal._groups["talk"] for node in forum.nodes.values()]
    assert all(group.footprint for group in groups)
    forum.run(LIFETIME_MS + 100 + 1_000)  # by the ticks of the node alone: nobody says anything
    assert [group.footprint for group in groups] == [0, 0, 0]


# --- clocks ---------------------------------------------------------------------------------


def with_clocks_apart(ahead_ms: int) -> tuple[SimulatedNode, SimulatedNode]:
    """Two nodes, 5 ms from each other, that exchange beats for three seconds."""
    spaces = [SpaceSettings(space=SPACE, order="causal", lifetime_ms=LIFETIME_MS)]
    nodes = {name: SimulatedNode(name, 1, spaces=spaces) for name in ("a", "b")}
    offset_ms = {"a": 0, "b": ahead_ms}
    under_way: list[tuple[int, str, str, bytes]] = []
    for name, node in nodes.items():
        node.mesh.meet("b" if name == "a" else "a", 1_000 + offset_ms[name])
    for now in range(1_000, 4_000, 5):
        arrived, under_way = under_way, []
        for _, sender, to, data in arrived:
            nodes[to].mesh.receive(sender, data, now + offset_ms[to])
        for name, node in nodes.items():
            node.mesh.advance(now + offset_ms[name])
            node.mesh.settle()
            under_way += [(now, name, to, data) for to, data in node.mesh.take_frames()]
    return nodes["a"], nodes["b"]


def test_clocks_further_apart_than_allowed_are_counted_on_both_sides():
    for node in with_clocks_apart(300):
        assert node.mesh.causal.skew_violations >= 1


def test_clocks_within_the_bound_are_not_counted():
    for ahead_ms in (0, 90, -90):
        for node in with_clocks_apart(ahead_ms):
            assert node.mesh.causal.skew_violations == 0


@pytest.mark.parametrize("ahead_ms", [60_000, -60_000])
def test_a_clock_off_by_a_minute_is_refused_by_name_on_both_sides(ahead_ms: int):
    words = ["ahead of", "behind"] if ahead_ms > 0 else ["behind", "ahead of"]
    for node, other, way in zip(with_clocks_apart(ahead_ms), "ba", words, strict=True):
        peer = node.mesh.peers[other]
        assert peer.problem == f"the clock of {other} is 60.0 s {way} ours: set both clocks"
        assert peer.connection is None
        assert peer.link.is_up  # and goes on to measure
        assert node.mesh.counts.refused == 1


def test_a_clock_off_by_seconds_is_told_of_and_not_refused():
    for node in with_clocks_apart(5_000):
        assert [peer.problem for peer in node.mesh.peers.values()] == [""]
        assert all(peer.connection is not None for peer in node.mesh.peers.values())


def test_each_measurement_is_counted_once_and_only_if_certain():
    groups = with_clocks_apart(0)[0].mesh._causal
    groups.clock("b", 300.0, 5.0)
    groups.clock("b", 300.0, 5.0)
    assert groups.counts.skew_violations == 1
    groups.clock("b", 300.0, 250.0)  # it may be 50 ms
    groups.clock("b", 300.0, float("inf"))
    assert groups.counts.skew_violations == 1


def test_a_message_from_the_future_counts_as_a_violation():
    node = with_clocks_apart(0)[0]
    fast = DeltaCausal("b", LIFETIME_MS / 1000, skew=0.1)
    message = fast.send({"a"}, b"", 5.0)["a"].encode()
    node.mesh._causal.receive("talk", message, 4_000)
    assert node.mesh.causal.discarded == {"future": 1}
    assert node.mesh.causal.skew_violations == 1


def test_holds_discards_and_violations_are_among_the_figures():
    forum = Forum(2, 1, "causal", SimulatedLink(delay=uniform(1, 3)))
    forum.world.network.set_link("n0", "n1", SimulatedLink(delay=constant(LIFETIME_MS + 200)))
    forum.say("n0", "late", 1)
    forum.run(3_000)
    topics = dict(sys_topics(forum.nodes["n1"].node, uptime_s=1))
    assert topics["causal/messages/discarded"] == "1"
    assert topics["causal/messages/held"] == topics["causal/skew/violations"] == "0"
    page = prometheus_text(forum.nodes["n1"].node, uptime_s=1.0)
    assert '\nnearcast_causal_discarded_total{reason="late"} 1\n' in page
    assert "\nnearcast_causal_held_total 0\n" in page
    assert "\nnearcast_causal_skew_violations_total 0\n" in page
    assert '\nnearcast_clock_ahead_seconds{node="n0"} ' in page
    assert "\nnearcast_causal_sent_total 1\n" in prometheus_text(
        forum.nodes["n0"].node, uptime_s=1.0
    )


def overheard(client: SimulatedClient, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list to which all that a client receives from now on is appended."""
    heard: list[bytes] = []
    receive = client.receive

    def overhear(data: bytes) -> None:
        heard.append(data)
        receive(data)

    monkeypatch.setattr(client, "receive", overhear)
    return heard


@pytest.mark.parametrize("lifetime", ["0s", "-5ms", "soon"])
def test_a_lifetime_that_is_none_is_told_and_harms_nobody(
    lifetime: str, monkeypatch: pytest.MonkeyPatch
):
    forum = Forum(2, 1, "causal", SimulatedLink(delay=constant(1)))
    asker = forum.clients["n0"]
    heard = overheard(asker, monkeypatch)
    wish = Properties(user_properties=(("$lifetime", lifetime),))
    asker.publish(Publish("talk/x", b'{"price": 1, "say": "bad"}', 1, properties=wish))
    forum.turn("n0")
    forum.say("n0", "good", 1)
    forum.run(1_000)
    assert b"$lifetime" in b"".join(heard)
    assert forum.heard("n1") == ["good"]
    assert asker.unsettled == 0


@pytest.mark.parametrize(("order", "is_told"), [(None, True), ("causal", False)])
def test_who_asks_for_causal_order_where_there_is_none_is_told_and_still_heard(
    order: str | None, is_told: bool, monkeypatch: pytest.MonkeyPatch
):
    forum = Forum(2, 1, order, SimulatedLink(delay=constant(1)))
    asker = forum.clients["n0"]
    heard = overheard(asker, monkeypatch)
    wish = Properties(user_properties=(("$order", "causal"),))
    asker.publish(Publish("talk/x", b'{"price": 1, "say": "so"}', 1, properties=wish))
    forum.turn("n0")
    forum.run(1_000)
    assert (b"$order: space talk has no causal group" in b"".join(heard)) is is_told
    assert forum.heard("n1") == ["so"]
