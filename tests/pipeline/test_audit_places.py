"""The audit of events with a place between nodes: against a definition, and of real nodes."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.support.log_segments import write_segment
from tests.support.simulated_city import SimulatedCity

from nearcast.broker import SpaceSettings
from nearcast.broker.event_log_hooks import note_start
from nearcast.broker.peers.sessions import PeerSessions
from nearcast.config.schema import SpaceSection
from nearcast.eventlog.records import LIMITED, WAY, Arrival, Dropped, Recorder
from nearcast.pipeline.audit.cross_node_join import audit_here
from nearcast.pipeline.audit.job import audit

CITY = SpaceSection.model_validate(
    {
        "name": "city",
        "topics": "city/#",
        "longitude": "lon",
        "latitude": "lat",
        "attributes": {"lon": {"low": -1, "high": 1}, "lat": {"low": -1, "high": 1}},
    }
)
NEAR, AREA = "$near/1km/city/#", "$area/-0.01,-0.01,0.01,0.01/city/#"
SKEW_MS = 1_000
END_MS = 400_000


def body(number: int, spot: int) -> bytes:
    return json.dumps({"lon": spot * 0.1, "lat": 0, "id": number}).encode()


def write(root: Path, **logs: Recorder) -> list[str]:
    for name, recorder in logs.items():
        recorder.present("late", END_MS, is_there=True)
        write_segment(root, name, recorder)
    return [str(root)]


def kinds(root: Path, **logs: Recorder) -> Counter[str]:
    _, found = audit_here(write(root, **logs), spaces=(CITY,))
    return Counter(one["kind"] for one in found)


class Pair:
    """Nodes a, where somebody publishes, and b, where cyd wants what is near."""

    def __init__(self, wish: str = NEAR, qos: int = 2, since_ms: int = 0) -> None:
        self.a, self.b = Recorder(), Recorder()
        for one, other in ((self.a, "$node/b"), (self.b, "$node/a")):
            one.present("", 0, is_there=True)
            one.present(other, 0, is_there=True)
        self.b.present("cyd", 0, is_there=True)
        self.b.subscription(since_ms, "cyd", wish, qos, is_added=True)

    def publish(self, number: int, spot: int, ms: int, qos: int = 1) -> None:
        self.a.events(1, ms, qos, "ann", b"city/x", body(number, spot), 0)

    def hand(self, number: int, spot: int, ms: int, qos: int = 1) -> None:
        way = Arrival.CHOSEN << WAY
        self.b.events(1, ms, qos | way, "", b"city/x", body(number, spot), 0)
        self.b.delivered(["cyd"], 1, qos)


# --- against the definition ---------------------------------------------------------------------


class Story(NamedTuple):
    """Steps of the client (after how long, where to), events (when, where, QoS, copies handed)."""

    steps: list[tuple[int, int]]
    events: list[tuple[int, int, int, int]]


STORIES = st.builds(
    Story,
    st.lists(st.tuples(st.sampled_from([400, 900, 1_500, 4_000]), st.integers(0, 1)), max_size=12),
    st.lists(
        st.tuples(
            st.integers(20_000, 50_000), st.integers(0, 1), st.integers(0, 2), st.integers(0, 2)
        ),
        max_size=12,
    ),
)


def expected_of(story: Story) -> Counter[str]:
    """Say what is wrong, from where the client was at each millisecond around an event."""
    where: list[tuple[int, int]] = [(1_000, 0)]
    for pause, spot in story.steps:
        where.append((max(where[-1][0], 20_000) + pause, spot))
    found: Counter[str] = Counter()
    for ms, spot, qos, copies in story.events:
        stays = pairwise([*where, (END_MS, 0)])
        around = {
            place
            for (since, place), (until, _) in stays
            if since <= ms + SKEW_MS and ms - SKEW_MS < until
        }
        if around == {spot}:
            found["lost"] += qos > 0 and not copies
        elif spot in around:
            found["unknown"] += not copies
        else:
            found["unasked"] += copies
        if spot in around:
            found["doubled"] += max(copies - 1, 0)
    return +found


@settings(deadline=None)
@given(STORIES)
def test_clients_of_another_node_are_due_what_was_in_range_as_far_as_clocks_tell(
    tmp_path_factory: pytest.TempPathFactory, story: Story
) -> None:
    pair = Pair()
    notes: list[tuple[int, int, int | None]] = [(1_000, 0, None)]
    for pause, spot in story.steps:
        notes.append((max(notes[-1][0], 20_000) + pause, spot, None))
    for number, (ms, spot, _, _) in enumerate(story.events):
        notes.append((ms + 50, spot, number))
    for ms, spot, event in sorted(notes, key=lambda one: one[0]):
        if event is None:
            pair.b.position("cyd", spot * 0.1, 0.0, ms)
        else:
            _, _, qos, copies = story.events[event]
            for _ in range(copies):
                pair.hand(event, spot, ms, qos)
    for number in sorted(range(len(story.events)), key=lambda one: story.events[one]):
        ms, spot, qos, _ = story.events[number]
        pair.publish(number, spot, ms, qos)

    assert kinds(tmp_path_factory.mktemp("log"), a=pair.a, b=pair.b) == expected_of(story)


# --- what is not certain, and what counts -----------------------------------------------------


def stands_there(wish: str = NEAR, **options: Any) -> Pair:
    """Return nodes with a client that has not moved since long before an event at its place."""
    pair = Pair(wish, **options)
    if wish != AREA:
        pair.b.position("cyd", 0.0, 0.0, 1_000)
    return pair


@pytest.mark.parametrize("wish", [NEAR, AREA])
def test_an_event_in_range_that_was_not_handed_over_is_lost(tmp_path: Path, wish: str) -> None:
    pair = stands_there(wish)
    pair.publish(1, 0, 30_000)
    pair.publish(2, 1, 30_000)
    _, found = audit_here(write(tmp_path, a=pair.a, b=pair.b), spaces=(CITY,))

    assert [(one["kind"], one["node"], one["receiver"], one["topic"]) for one in found] == [
        ("lost", "a", "cyd", "city/x")
    ]
    assert "of node b was in range" in found[0]["why"]


def test_a_copy_that_came_another_way_or_was_dropped_will_do(tmp_path: Path) -> None:
    pair = stands_there()
    pair.b.subscription(0, "cyd", "city/#", 1, is_added=True)
    pair.a.subscription(0, "$node/b", "city/#", 2, is_added=True)
    for number, ms in ((1, 30_000), (2, 31_000)):
        pair.publish(number, 0, ms)
        pair.a.delivered(["$node/b"], 1, 1)
        pair.b.events(1, ms + 9, 1 | Arrival.NODE << WAY, "$node/a", b"city/x", body(number, 0), 0)
        if number == 1:
            pair.b.delivered(["cyd"], 1, 1)
        else:
            pair.b.dropped(["cyd"], 1, Dropped.QUOTA, ms, pair.b.number(0))

    assert kinds(tmp_path, a=pair.a, b=pair.b) == {}


def test_a_copy_that_comes_to_the_node_again_is_not_one_for_the_place(tmp_path: Path) -> None:
    pair = stands_there()
    pair.b.subscription(0, "cyd", "city/#", 1, is_added=True)
    pair.a.subscription(0, "$node/b", "city/#", 2, is_added=True)
    pair.publish(1, 0, 30_000)
    pair.a.delivered(["$node/b"], 1, 1)
    for ms in (30_009, 30_900):
        pair.b.events(1, ms, 1 | Arrival.NODE << WAY, "$node/a", b"city/x", body(1, 0), 0)
        pair.b.delivered(["cyd"], 1, 1)

    assert kinds(tmp_path, a=pair.a, b=pair.b) == {"allowed": 1}


def test_what_is_said_alike_is_due_as_often(tmp_path: Path) -> None:
    pair = stands_there()
    for ms in (30_000, 40_000, 50_000):
        pair.publish(1, 0, ms)
    pair.hand(1, 0, 30_050)
    pair.b.events(1, 40_050, 1 | Arrival.CHOSEN << WAY, "", b"city/x", body(1, 0), 0)
    pair.b.dropped(["cyd"], 1, Dropped.QUOTA, 40_050, pair.b.number(0))
    pair.b.events(1, 60_000, 1, "bob", b"city/x", body(1, 0), 0)  # by a client of the same node
    pair.b.delivered(["cyd"], 1, 1)

    assert kinds(tmp_path, a=pair.a, b=pair.b) == {"lost": 1}


@pytest.mark.parametrize("origin", ["a", "b"])
@pytest.mark.parametrize(("copies", "found"), [(0, None), (1, None), (2, "doubled")])
def test_what_a_contest_has_chosen_may_come_back_to_its_own_node(
    tmp_path: Path, origin: str, copies: int, found: str | None
) -> None:
    pair = stands_there()
    log = pair.a if origin == "a" else pair.b
    log.events(1, 30_000, 1 | LIMITED, "ann", b"city/x", body(1, 1), 0)
    for number in range(copies):
        pair.hand(1, 1, 30_050 + number)

    assert kinds(tmp_path, a=pair.a, b=pair.b) == ({found: 1} if found else {})


def test_members_of_share_groups_are_not_due_anything_by_themselves(tmp_path: Path) -> None:
    pair = stands_there("$share/g/" + NEAR)
    pair.publish(1, 0, 30_000)

    assert kinds(tmp_path, a=pair.a, b=pair.b) == {}


def came_back(pair: Pair) -> None:
    pair.b.present("cyd", 29_500, is_there=False)
    pair.b.present("cyd", 29_600, is_there=True)


def said_where_it_is(pair: Pair) -> None:
    pair.b.position("cyd", 0.0, 0.0, 29_500)


def link_is_new(pair: Pair) -> None:
    pair.a.present("$node/b", 10_000, is_there=False)
    pair.a.present("$node/b", 28_000, is_there=True)


@pytest.mark.parametrize("doubt", [came_back, said_where_it_is, link_is_new])
def test_after_a_return_or_a_new_link_nobody_can_tell(tmp_path: Path, doubt: Any) -> None:
    pair = Pair() if doubt is said_where_it_is else stands_there()
    doubt(pair)
    pair.publish(1, 0, 30_000)

    assert kinds(tmp_path, a=pair.a, b=pair.b) == {"unknown": 1}


def test_what_is_published_as_a_subscription_begins_or_with_a_short_life_is_not_certain(
    tmp_path: Path,
) -> None:
    pair = stands_there(since_ms=27_000)
    pair.publish(1, 0, 30_000)
    pair.a.events(1, 50_000, 1, "ann", b"city/x", body(2, 0), 0, 30_000)

    assert kinds(tmp_path, a=pair.a, b=pair.b) == {"unknown": 2}


def test_near_the_end_of_a_log_nobody_can_tell(tmp_path: Path) -> None:
    pair = stands_there()
    pair.publish(1, 0, END_MS - 3_000)
    pair.hand(2, 0, END_MS - 3_000)  # what the log of its node may not have any more

    assert kinds(tmp_path, a=pair.a, b=pair.b) == {"unknown": 2}


def test_contents_are_told_apart_in_a_segment_that_has_a_fault_of_its_own(tmp_path: Path) -> None:
    pair = stands_there()
    pair.a.present("bob", 0, is_there=True)
    pair.a.subscription(0, "bob", "t", 1, is_added=True)
    pair.a.events(1, 20_000, 1, "ann", b"t", b"x", 0)  # due to bob, and not handed over
    for number in range(20):
        pair.publish(number, 0, 30_000 + number)
        pair.hand(number, 0, 30_050 + number)

    assert kinds(tmp_path, a=pair.a, b=pair.b) == {"lost": 1}


# --- real nodes ---------------------------------------------------------------------------------


class LoggedCity(SimulatedCity):
    """Two nodes with event logs: ann publishes at one, cyd moves at the other."""

    def __init__(self) -> None:
        self.logs: dict[str, Recorder] = {}
        super().__init__(2, 5, spaces=[SpaceSettings(space=CITY.to_space())])
        self.run(8_000)
        self.ann, self.cyd = self.client("ann", "n0"), self.client("cyd", "n1")
        self.move(0)
        self.cyd.subscribe(NEAR, 2)
        self.turn(self.cyd)
        self.run(8_000)

    def prepare(self) -> None:
        for name, node in self.nodes.items():
            self.logs[name] = node.node.state.log = Recorder()
            note_start(node.node.state)

    def move(self, spot: int) -> None:
        self.publish(self.cyd, "$position", b'{"lon": %f, "lat": 0}' % (spot * 0.1), 1)
        self.run(3_000)

    def live(self, tmp_path: Path) -> Counter[str]:
        for number in range(12):
            self.move(number // 2 % 2)
            self.publish(self.ann, "city/x", body(number, 0), number % 2 + 1)
            self.run(3_000)
        self.run(10_000)
        assert self.world.now < END_MS - 70_000
        return kinds(tmp_path, **self.logs)


def test_real_nodes_with_a_client_that_comes_and_goes_have_no_fault(tmp_path: Path) -> None:
    city = LoggedCity()

    assert city.live(tmp_path) == {}
    assert [json.loads(one.payload)["id"] for one in city.cyd.received] == [0, 1, 4, 5, 8, 9]


def test_a_node_that_forgets_what_was_found_for_its_client_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = PeerSessions.deliver
    calls = 0

    def forgetful(self: PeerSessions, *arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls != 3:
            inner(self, *arguments)

    monkeypatch.setattr(PeerSessions, "deliver", forgetful)

    assert LoggedCity().live(tmp_path) == {"lost": 1}


@pytest.mark.spark
def test_the_job_finds_it_too(spark: SparkSession, tmp_path: Path) -> None:
    pair = stands_there()
    for number in range(3):
        pair.publish(number, 0, 30_000 + number)
    pair.hand(1, 0, 30_050)
    pair.hand(2, 0, 30_060)
    pair.hand(2, 0, 30_070)
    logs = write(tmp_path, a=pair.a, b=pair.b)
    told = audit(spark, logs, str(tmp_path / "audit"), spaces=(CITY,))

    assert {kind: count for kind, count in told.faults.items() if count} == {
        "lost": 1,
        "doubled": 1,
    }
