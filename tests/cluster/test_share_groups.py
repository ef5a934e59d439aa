"""Share groups over several nodes: each member has its turn, and who is connected goes first."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.simulated_city import SimulatedCity

from nearcast.broker import SpaceSettings
from nearcast.broker.publish.share_groups import ShareGroup
from nearcast.broker.session.connection import Connection
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.cluster import subscription_gossip
from nearcast.cluster.messages import Interest, decode, encode
from nearcast.cluster.subscription_gossip import SubscriptionGossip
from nearcast.model import Attribute, Space
from nearcast.simulator.mqtt_node import SimulatedClient

SPACE = Space(name="work", topic_filter="job/#", attributes=(Attribute.number("size", 0, 9),))
PLAIN, CHOOSY = "$share/g/job/#", "$share/g/$where/size >= 0/job/#"


class Workshop:
    """Members of one group at three nodes, so many at each; somebody publishes at n0."""

    def __init__(self, *counts: int, wish: str = PLAIN) -> None:
        self.city = SimulatedCity(3, spaces=[SpaceSettings(space=SPACE)] if wish == CHOOSY else [])
        self.members = {
            name: [self.city.client(f"{name}m{number}", name, wish) for number in range(count)]
            for name, count in zip(self.city.names, counts, strict=True)
        }
        self.city.run(200)
        self.writer = self.city.client("writer", "n0")
        self.city.run(50)

    def work(self, jobs: int, qos: int = 1) -> Counter[str]:
        """Publish some jobs; return how many each member got."""
        everybody = [one for some in self.members.values() for one in some]
        before = {one.name: len(one.received) for one in everybody}
        for number in range(jobs):
            self.city.publish(self.writer, "job/x", b'{"size": %d}' % (number % 9), qos)
            self.city.run(5)
        self.city.run(200)
        got = {one.name: len(one.received) - before[one.name] for one in everybody}
        return Counter({name: count for name, count in got.items() if count})

    def lose(self, client: SimulatedClient) -> None:
        """Let a member be away; its session goes on."""
        home = self.city.homes[client.name]
        self.city.at(home, lambda node, now: node.drop(client, now))
        self.city.run(100)


@pytest.mark.parametrize("wish", [PLAIN, CHOOSY])
@pytest.mark.parametrize("qos", [0, 1])
def test_every_member_gets_as_much_as_any_other_wherever_it_is(wish: str, qos: int) -> None:
    workshop = Workshop(1, 4, 2, wish=wish)
    shares = workshop.work(70, qos)

    assert len(shares) == 7
    assert set(shares.values()) == {10}


@pytest.mark.parametrize("wish", [PLAIN, CHOOSY])
def test_a_node_whose_members_are_all_away_gets_nothing_while_others_are_there(wish: str) -> None:
    workshop = Workshop(1, 2, 1, wish=wish)
    for one in workshop.members["n1"]:
        workshop.lose(one)
    shares = workshop.work(20)
    assert shares == {"n0m0": 10, "n2m0": 10}

    back = workshop.members["n1"][0]
    workshop.city.admit(back)
    workshop.city.run(200)
    assert workshop.work(21) == {"n0m0": 7, "n1m0": 7, "n2m0": 7}
    assert workshop.members["n1"][1].received == []


def test_members_that_their_node_only_remembers_do_not_count_until_they_are_back() -> None:
    workshop = Workshop(1, 1, 0)
    workshop.city.crash("n1")
    workshop.city.run(100)
    workshop.city.restart("n1")
    workshop.city.run(3_000)
    assert workshop.work(10) == {"n0m0": 10}
    workshop.city.admit(workshop.members["n1"][0])
    workshop.city.run(200)
    assert workshop.work(10) == {"n0m0": 5, "n1m0": 5}


def test_where_everybody_is_away_work_waits_for_somebody() -> None:
    workshop = Workshop(0, 1, 1)
    for name in ("n1", "n2"):
        workshop.lose(workshop.members[name][0])
    assert workshop.work(4) == {}
    for name in ("n1", "n2"):
        workshop.city.admit(workshop.members[name][0])
    workshop.city.run(500)
    got = [len(workshop.members[name][0].received) for name in ("n1", "n2")]
    assert sum(got) == 4


def test_a_member_that_leaves_the_group_does_not_count_any_longer() -> None:
    workshop = Workshop(1, 3, 0)
    for one in workshop.members["n1"][:2]:
        one.unsubscribe(PLAIN)
        workshop.city.turn(one)
    workshop.city.run(100)
    assert workshop.work(10) == {"n0m0": 5, "n1m2": 5}


@pytest.mark.parametrize("wish", [PLAIN, CHOOSY])
@pytest.mark.parametrize("others", [(0, 1, 1), (1, 1, 0)])
def test_what_is_under_way_to_members_that_leave_goes_to_others(
    wish: str, others: tuple[int, int, int]
) -> None:
    workshop = Workshop(*others, wish=wish)
    (leaver,) = workshop.members["n1"]
    for number in range(20):
        workshop.city.publish(workshop.writer, "job/x", b'{"size": %d}' % (number % 9), 1)
    leaver.unsubscribe(wish)  # before any of it has come there
    workshop.city.turn(leaver)
    workshop.city.run(500)
    assert sum(len(one.received) for some in workshop.members.values() for one in some) == 20
    assert len(leaver.received) == 0


# --- what is told -----------------------------------------------------------------------------


def member(name: str, *, is_there: bool = True) -> SessionSubscription:
    session = Session(name, 1)
    session.link = Connection() if is_there else None
    one = SessionSubscription(session, PLAIN, "g", "job/#", 1)
    session.subscriptions[PLAIN] = one
    return one


def test_of_few_members_each_is_news_and_of_many_every_eighth() -> None:
    subscription_gossip = SubscriptionGossip()
    told = []
    for number in range(100):
        subscription_gossip.came(member(f"m{number}"))
        change = subscription_gossip.take_change()
        if change is not None:
            told += [count for _, count in change.ready]
    assert told[:8] == [2, 3, 4, 5, 6, 7, 8, 10]  # one is what others begin with
    assert len(told) < 30
    assert told[-1] >= 88


@given(st.lists(st.tuples(st.integers(0, 11), st.booleans()), max_size=60))
@settings(deadline=None)
def test_what_others_believe_is_never_far_from_the_truth(steps: list[tuple[int, bool]]) -> None:
    """Clients join the group or leave it, and come and go."""
    subscription_gossip = SubscriptionGossip()
    clients: dict[int, SessionSubscription] = {}
    believed = 1
    for number, is_about_link in steps:
        one = clients.get(number)
        if one is None:
            one = clients[number] = member(str(number), is_there=is_about_link)
            subscription_gossip.came(one)
        elif is_about_link:
            one.session.link = None if one.session.link else Connection()
            subscription_gossip.there(one.session)
        else:
            subscription_gossip.went(clients.pop(number))
        change = subscription_gossip.take_change()
        if change is not None and PLAIN in dict(change.added):
            believed = 1
        believed = dict(() if change is None else change.ready).get(PLAIN, believed)
        connected = sum(one.session.link is not None for one in clients.values())
        if clients:
            assert bool(believed) == bool(connected)
            assert 8 * abs(believed - connected) <= believed
            assert subscription_gossip.whole().ready == [(PLAIN, connected)]
        else:
            assert subscription_gossip.whole().ready == []


def test_a_node_of_before_that_says_nothing_of_members_counts_as_one() -> None:
    said = Interest(3, [(PLAIN, 1)], [])
    data = msgspec.msgpack.encode(["i", 3, [[PLAIN, 1]], [], False])
    assert decode(data) == said
    assert decode(encode(said)) == said
    assert SessionSubscription(Session("$node/x", 1), PLAIN, "g", "job/#", 1).members == 1


def test_turns_go_round_however_many_each_has() -> None:
    group = ShareGroup()
    for name, count in (("a", 1), ("b", 3), ("c", 2)):
        group.members[name] = one = member(name)
        one.members = count
    names = [group.pick(0).session.client_id for _ in range(12)]  # type: ignore[union-attr]
    assert names == list("abbbcc" * 2)

    for _ in "ab":
        group.pick(0)
    group.members["b"].members = 0  # in the middle of its turns
    names = [group.pick(0).session.client_id for _ in range(6)]  # type: ignore[union-attr]
    assert names == list("ccacca")


def test_of_groups_without_members_only_the_last_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscription_gossip, "_MOST_LEFT", 3)
    mine = SubscriptionGossip()
    for number in range(5):
        mine.want(f"$share/g{number}/jobs", (f"g{number}", "jobs"))
        mine.forgo(f"$share/g{number}/jobs")

    found = [mine.group(number) for number in range(1, 6)]
    assert found == [None, None, ("g2", "jobs"), ("g3", "jobs"), ("g4", "jobs")]
