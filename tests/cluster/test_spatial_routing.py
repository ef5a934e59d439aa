"""Clients that move, on several real nodes: who was near when it happened hears of it, once."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings
from tests.support.simulated_city import SimulatedCity
from tests.support.town import SPACE, Town, run_town, town_plan

from nearcast.broker import SpaceSettings
from nearcast.cluster import NamedPlan
from nearcast.cluster.spatial_part import SpatialPart
from nearcast.locality.layout.rect import Rect
from nearcast.locality.registration.messages import NodeId
from nearcast.locality.registration.node import LocalityNode
from nearcast.locality.registration.plan_assignment import PlanAssignment
from nearcast.simulator.mqtt_node import SimulatedClient, SimulatedNode

assert settings.default is not None
IS_SOAK = settings.default.max_examples > 50
RUNS = range(2_000) if IS_SOAK else range(10)


@pytest.mark.parametrize("with_plan", [False, True])
def test_who_is_near_hears_of_it_on_whatever_node(with_plan: bool):
    town = Town(4, 7)
    if with_plan:
        town.use_plan(town_plan(town.names, 7, 1))
        town.run(2_000)
        assert {node.mesh.plans for node in town.nodes.values()} == {(1, 0)}
    town.wander(120)
    town.run(5_000)
    assert sum(sum(one.values()) for one in town.due.values()) > 30
    assert town.problems() == []


def test_with_a_plan_registrations_are_handed_over():
    town = Town(4, 9)
    town.use_plan(town_plan(town.names, 9, 1))
    town.run(2_000)
    town.wander(30)
    assert sum(node.mesh.handovers for node in town.nodes.values()) > 5


def test_a_change_of_plan_loses_and_doubles_nothing():
    town = Town(4, 8)
    for version in range(1, 6):
        town.use_plan(town_plan(town.names, version, version), steps_between=3)
        town.wander(10)
    town.run(5_000)
    assert {node.mesh.plans for node in town.nodes.values()} == {(5, 0)}
    assert town.problems() == []


@pytest.mark.timeout(36_000)
def test_faults_and_plans_lose_nothing_acknowledged_and_double_nothing():
    reports = [run_town(seed, most_nodes=16 if IS_SOAK else 6) for seed in RUNS]
    assert [(one.seed, one.problems) for one in reports if one.problems] == []
    assert sum(one.due for one in reports) > 5 * len(reports)
    assert sum(one.crashes for one in reports) > len(reports)
    assert sum(one.plan_version for one in reports) > len(reports)
    assert sum(one.has_left for one in reports) > len(reports) // 2


def test_a_holder_that_comes_back_empty_knows_all_within_moments() -> None:
    city, reader, writer = city_with(3, held_by(["n0", "n1", "n2"], "n2"))
    city.crash("n2")
    city.run(500)  # nobody has missed it yet
    city.restart("n2")
    city.run(1_000)
    city.publish(writer, "city/news", HERE)  # at QoS 0 nothing is said twice
    city.run(100)
    assert len(reader.received) == 1


def test_the_node_of_publication_hears_nothing_of_its_own_event() -> None:
    city, reader, writer = city_with(3, held_by(["n0", "n1", "n2"], "n2"))
    city.publish(writer, "$position", HERE, 1)
    writer.subscribe("$near/50000m/city/#")
    city.turn(writer)
    city.run(500)
    before = sum(node.mesh.counts.messages_sent for node in city.nodes.values())
    city.publish(writer, "city/news", HERE, 1)
    city.run(500)

    assert [len(one.received) for one in (reader, writer)] == [1, 1]
    said = sum(node.mesh.counts.messages_sent for node in city.nodes.values()) - before
    assert said == 4  # to the holder, from there to the reader's node, and an answer to each


def test_the_same_seed_is_the_same_town() -> None:
    digests = [run_town(seed, most_nodes=5, keep_digest=True).digest for seed in (3, 3, 4)]
    assert digests[0] == digests[1] != digests[2]


def leaves_the_old_plan_at_once(node: LocalityNode, now: int) -> None:
    if node.plans.upcoming is not None:
        node.plans.commit()
        node._plans_changed(now)


def last_holder(layout: PlanAssignment, plan: NamedPlan, name: str) -> Iterator[NodeId]:
    *_, last = HOLDERS(layout, plan, name)
    yield last


HOLDERS = PlanAssignment._holders
MISTAKES = [
    (LocalityNode, "_commit_if_all_use_it", leaves_the_old_plan_at_once),
    (PlanAssignment, "_holders", last_holder),  # a stand-in instead of a lost node, not beside it
]


@pytest.mark.parametrize(("owner", "name", "mistake"), MISTAKES)
def test_towns_see_a_mistake_in_a_node(
    owner: type, name: str, mistake: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, mistake)
    assert any(run_town(seed, most_nodes=5).problems for seed in range(40))


def held_by(names: list[str], holder: str) -> NamedPlan:
    """Return a plan by which one node holds everything."""
    plan = town_plan(names, 1, 1).plan
    return NamedPlan(plan.with_brokers([names.index(holder)] * len(plan.leaves)), tuple(names))


def city_with(
    nodes: int, plan: NamedPlan, start: bytes = b'{"lon": 0.1, "lat": 0.1}', radius_m: int = 50_000
) -> tuple[SimulatedCity, SimulatedClient, SimulatedClient]:
    """Return a city with a plan, a client who wants to hear of what is near, and a writer."""
    city = SimulatedCity(nodes, spaces=[SpaceSettings(space=SPACE)])
    for name in city.names:
        city.at(name, lambda node, now: node.use_plan(plan, now))
    city.run(2_000)
    reader, writer = city.client("reader", "n0"), city.client("writer", "n1")
    city.run(100)
    city.publish(reader, "$position", start, 1)
    reader.subscribe(f"$near/{radius_m}m/city/#")
    city.turn(reader)
    city.run(500)
    return city, reader, writer


HERE = b'{"lon": 0.1, "lat": 0.1}'


@pytest.mark.parametrize("qos", [0, 1])
def test_when_a_holder_dies_another_one_stands_in_within_five_seconds(qos: int):
    city, reader, writer = city_with(4, held_by(["n0", "n1", "n2", "n3"], "n3"))
    city.crash("n3")
    died = city.world.now
    heard_at: list[int] = []
    for _ in range(100):
        city.publish(writer, "city/news", HERE, qos)
        city.run(100)
        heard_at += [city.world.now - died] * (len(reader.received) - len(heard_at))
    assert heard_at[0] < 5_000
    if qos:
        assert len(heard_at) == 100  # what was published meanwhile has come too
    city.restart("n3")
    city.run(5_000)
    city.publish(writer, "city/news", HERE, qos)
    city.run(1_000)
    assert len(reader.received) == len(heard_at) + 1


def test_the_leaves_of_a_node_that_has_left_are_held_by_another():
    city, reader, writer = city_with(3, held_by(["n0", "n1", "n2", "gone"], "gone"))
    city.publish(writer, "city/news", HERE)
    city.run(500)
    assert len(reader.received) == 1


def test_what_happens_outside_the_plan_still_finds_those_near_it() -> None:
    town = Town(4, 2)
    town.use_plan(town_plan(town.names, 2, 1))
    town.run(5_000)
    outside = (0.995, 0.995)
    walkers = [name for name in town.clients if name in town._places]
    for name in walkers:
        town.move(name, outside)
    town.run(1_000)
    town.publish_at(outside, 1)
    town.heal()
    assert all(town.due[name].total() == 1 for name in walkers)
    assert town.problems() == []


def at(longitude: float) -> bytes:
    return f'{{"lon": {longitude:.6f}, "lat": 0}}'.encode()


def cut_off(city: SimulatedCity, one: str, other: str) -> None:
    city.world.network.cut(one, other)
    city.world.network.cut(other, one)


@pytest.mark.parametrize("jumps", [3, 8, 12])
def test_what_was_near_on_the_way_is_heard_however_often_one_moved_unheard(jumps: int):
    plan = held_by(["n0", "n1", "n2"], "n2")
    city, reader, writer = city_with(3, plan, at(-0.9), 5_000)
    cut_off(city, "n0", "n2")
    city.publish(reader, "$position", at(-0.8), 1)
    city.run(200)
    city.publish(writer, "city/news", at(-0.8), 1)
    city.run(200)
    for number in range(jumps - 1):
        city.publish(reader, "$position", at(-0.7 + 0.1 * number), 1)
        city.run(400)
    city.world.network.heal()
    city.run(30_000)
    assert len(reader.received) == 1


@pytest.mark.parametrize("rest_ms", [10_000, 57_000, 65_000])
def test_a_step_that_a_crash_kept_from_the_holder_is_made_good(rest_ms: int):
    """The node remembers fewer steps than it had seen, and tells of other room around them."""
    plan = held_by(["n0", "n1", "n2"], "n2")
    city, reader, writer = city_with(3, plan, at(-0.5), 5_000)
    for number in range(1, 8):
        city.run(5_000)
        city.publish(reader, "$position", at(-0.5 + 0.04 * number), 1)
    city.run(rest_ms)
    cut_off(city, "n0", "n2")
    city.publish(reader, "$position", at(-0.23), 1)
    city.run(50)
    city.publish(writer, "city/news", at(-0.2745), 1)
    city.run(50)
    assert reader.unsettled == writer.unsettled == 0
    city.crash("n0")
    city.run(500)
    city.world.network.heal()
    city.restart("n0")
    city.run(200)
    city.admit(reader)
    city.run(30_000)
    assert len(reader.received) == 1


@pytest.mark.parametrize("qos", [1, 2])
def test_an_event_that_the_holder_has_not_heard_of_survives_a_crash_of_its_node(qos: int):
    city, reader, writer = city_with(3, held_by(["n0", "n1", "n2"], "n2"))
    cut_off(city, "n1", "n2")
    city.publish(writer, "city/news", HERE, qos)
    city.run(50)
    assert writer.unsettled == 0
    city.crash("n1")
    city.run(500)
    city.world.network.heal()
    city.restart("n1")
    city.run(10_000)

    assert len(reader.received) == 1


def lives_and_numbers(node: SimulatedNode, now: int) -> tuple[int, int]:
    """Return a node's life and the number of an event that is published in it."""
    spatial = node.mesh._spatial
    assert isinstance(spatial, SpatialPart)
    geography = spatial.routing
    event, _ = geography.locality.outbox.publish(Rect.at(0.0, 0.0), now, qos=1)
    return geography.locality.retry.life, int(event.event_id[1])


def test_a_life_after_a_clock_was_set_back_is_a_later_one():
    node = SimulatedNode("n0", 1, spaces=[SpaceSettings(space=SPACE)])
    lives = []
    for now in (1_000_000, 500_000, 500_000, 2_000_000):
        node.restart(now)
        lives.append(lives_and_numbers(node, now))

    assert lives == sorted(set(lives))
    assert [number for _, number in lives] == sorted({number for _, number in lives})


def test_only_the_places_of_the_last_while_are_kept_of_a_client_that_moves():
    city, reader, _ = city_with(2, held_by(["n0", "n1"], "n1"))
    spatial = city.nodes["n0"].mesh._spatial
    assert isinstance(spatial, SpatialPart)
    geography = spatial.routing
    horizon_ms = geography._timing.horizon_ms
    for step in range(30):
        city.publish(reader, "$position", at(0.01 * step), 1)
        city.run(horizon_ms // 10)

    (places,) = geography._places.values()
    assert 10 <= len(places) <= 12
    assert places[1][0] > city.world.now - horizon_ms - horizon_ms // 10


def test_a_plan_that_is_left_for_the_next_one_does_not_come_back_with_a_crash() -> None:
    city, _, _ = city_with(3, town_plan(["n0", "n1", "n2"], 1, 1))
    second = town_plan(city.names, 2, 2)
    for name in city.names:
        city.at(name, lambda node, now: node.use_plan(second, now))
    city.run(2_000)
    assert [city.nodes[name].mesh.plans for name in city.names] == [(2, 0)] * 3
    for name in city.names:
        city.crash(name)
        city.restart(name)
        assert city.nodes[name].mesh.plans == (2, 0)


def test_a_holder_that_is_away_when_a_node_starts_has_another_one_stand_in_for_it_there() -> None:
    city, reader, writer = city_with(3, held_by(["n0", "n1", "n2"], "n2"))
    for name in ("n1", "n2"):
        city.crash(name)
    city.run(10_000)
    city.restart("n1")  # it knows n2 from its journal and from the list, and hears nothing of it
    city.run(3_000)
    city.admit(writer)
    city.run(2_000)
    city.publish(writer, "city/news", HERE)
    city.run(500)

    assert len(reader.received) == 1


@pytest.mark.parametrize("wish", ["$near/50000m/city/#", "$area/bbox(0,0,0.2,0.2)/city/#"])
def test_what_happened_before_a_subscription_does_not_come_after_a_crash_either(wish: str) -> None:
    city, _, writer = city_with(3, held_by(["n0", "n1", "n2"], "n2"))
    city.publish(writer, "city/news", HERE, 1)
    city.run(500)
    late = city.client("late", "n0")
    city.publish(late, "$position", HERE, 1)
    late.subscribe(wish)
    city.turn(late)
    city.run(500)
    city.crash("n0")
    city.restart("n0")
    city.run(500)
    city.admit(late)
    city.run(5_000)
    assert late.received == []

    city.publish(writer, "city/news", HERE, 1)
    city.run(500)
    assert len(late.received) == 1


def test_a_node_wakes_to_let_another_one_stand_in_for_one_that_it_cannot_hear() -> None:
    city = SimulatedCity(2, spaces=[SpaceSettings(space=SPACE)])
    spatial = city.nodes["n0"].mesh._spatial
    assert isinstance(spatial, SpatialPart)
    geography = spatial.routing
    city.run(2_000)
    before, now = geography.wake_at(), city.world.now
    geography.lost("n1", now)

    assert before is None or before > now + 1_000
    assert geography.wake_at() == now + 1_000


@pytest.mark.parametrize("key", [b"c", b"u", b"en1/7"])
def test_a_plan_or_an_event_in_the_journal_that_cannot_be_read_is_set_aside(key: bytes) -> None:
    node = SimulatedNode("n0", 1, spaces=[SpaceSettings(space=SPACE)])
    node.node.state.set_note(key, b"\xc1 is no plan and no event", 1 << 62)
    node.turn(1)
    node.restart(2)

    assert key not in node.node.state.notes
    assert node.mesh.plans == (0, 0)
