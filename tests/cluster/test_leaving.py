"""Events with a place when plans change slowly, links are cut and nodes leave or begin anew."""

import pytest
from tests.support.simulated_city import SimulatedCity
from tests.support.town import SPACE, town_plan

from nearcast.broker import SpaceSettings
from nearcast.cluster import NamedPlan
from nearcast.cluster.spatial_part import SpatialPart
from nearcast.locality import Timing
from nearcast.simulator.mqtt_node import SimulatedClient

HERE, THERE = b'{"lon": 0.1, "lat": 0.1}', b'{"lon": -0.8, "lat": -0.8}'
AWAY_MS = 6_000
"""By then a node that is not heard is away, and another one stands in for it."""
NEVER = Timing(retry_ms=1_000_000, most_retry_ms=1_000_000, horizon_ms=2_000_000)


def held_by(names: list[str], holder: str, version: int = 1) -> NamedPlan:
    """Return a plan by which one node holds everything."""
    plan = town_plan(names, version, version).plan
    return NamedPlan(plan.with_brokers([names.index(holder)] * len(plan.leaves)), tuple(names))


class Affair:
    """A reader at n0 who wants to hear of what is near, a writer at n1, and others."""

    def __init__(self, nodes: int, holder: str | None, patience: Timing | None = None) -> None:
        self.city = SimulatedCity(nodes, spaces=[SpaceSettings(space=SPACE)], patience=patience)
        self.gone: set[str] = set()
        if holder is not None:
            for name in self.city.names:
                self.teach(name, held_by(self.city.names, holder))
        self.run(2_000)
        self.reader = self.city.client("reader", "n0")
        self.writer = self.city.client("writer", "n1")
        self.run(100)
        self.move(HERE)
        self.reader.subscribe("$near/50000m/city/#")
        self.city.turn(self.reader)
        self.run(500)

    def run(self, ms: int) -> None:
        self.city.run(ms)

    def teach(self, name: str, plan: NamedPlan) -> None:
        self.city.at(name, lambda node, now: node.use_plan(plan, now))

    def move(self, place: bytes) -> None:
        self.city.publish(self.reader, "$position", place, 1)

    def tell(self, place: bytes, qos: int) -> None:
        self.city.publish(self.writer, "city/news", place, qos)

    def tell_while_cut(self, moves: bool, cut_ms: int) -> bytes:
        """Publish where the reader is, or has gone, while its node and the writer's are cut off."""
        self.cut("n1", "n0")
        place = THERE if moves else HERE
        self.move(place)
        self.run(cut_ms)
        self.tell(place, 1)
        return place

    def cut(self, one: str, other: str) -> None:
        self.city.world.network.cut(one, other)
        self.city.world.network.cut(other, one)

    def heal(self) -> None:
        self.city.world.network.heal()

    def has_left(self, who: str = "n1", within_ms: int = 3_000) -> bool:
        """Let a node leave for good once it may; tell whether it may within some time."""
        nodes, city = self.city.nodes, self.city
        city.at(who, lambda node, now: node.leave(now))
        for _ in range(within_ms // 50):
            if not nodes[who].mesh.has_unsettled():
                break
            self.run(50)
        else:
            return False
        city.crash(who)
        self.gone.add(who)
        for name in city.names:
            if name not in self.gone:
                city.at(name, lambda node, now: node.part(who, now))
        return True

    @property
    def heard(self) -> list[bytes]:
        return [one.payload for one in self.reader.received]


@pytest.mark.parametrize("late", ["n0", "n1"])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_new_plan_that_has_not_reached_everybody_yet_delays_nothing(late: str, qos: int) -> None:
    affair = Affair(4, "n2")
    plan = held_by(affair.city.names, "n3", version=2)
    for name in affair.city.names:
        if name != late:
            affair.teach(name, plan)
    affair.run(5_000)
    affair.tell(HERE, qos)
    affair.run(100)
    assert affair.heard == [HERE]
    affair.teach(late, plan)
    affair.run(5_000)
    assert {node.mesh.plans for node in affair.city.nodes.values()} == {(2, 0)}
    affair.tell(HERE, qos)
    affair.run(5_000)
    assert affair.heard == [HERE, HERE]


@pytest.mark.parametrize("told_ms_before", [0, AWAY_MS])
def test_who_leaves_waits_for_a_holder_that_it_alone_has_lost(told_ms_before: int) -> None:
    affair = Affair(4, "n3")
    affair.cut("n1", "n3")
    affair.run(AWAY_MS - told_ms_before)
    affair.tell(HERE, 1)
    affair.run(told_ms_before)
    assert affair.heard == []
    assert not affair.has_left()
    affair.heal()
    affair.run(1_000)
    assert affair.has_left()
    affair.run(5_000)
    assert affair.heard == [HERE]


@pytest.mark.parametrize("holder", ["n1", None])
@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("cut_ms", [50, AWAY_MS])
def test_who_leaves_takes_no_event_along_that_it_held_alone(
    holder: str | None, moves: bool, cut_ms: int
) -> None:
    affair = Affair(4, holder)
    place = affair.tell_while_cut(moves, cut_ms)
    if not affair.has_left():
        affair.heal()
        affair.run(1_000)
        assert affair.has_left()
    affair.heal()
    affair.run(8_000)
    assert affair.heard == [place]


def test_nobody_waits_for_a_node_of_the_plan_that_has_left_before() -> None:
    affair = Affair(4, "n3")
    assert affair.has_left("n3")
    affair.run(1_000)
    affair.tell(HERE, 1)
    affair.run(100)
    assert affair.heard == [HERE]
    assert affair.has_left("n1")


@pytest.mark.parametrize("moves", [False, True])
def test_the_last_but_one_to_leave_waits_for_the_last(moves: bool) -> None:
    affair = Affair(2, None)
    place = affair.tell_while_cut(moves, AWAY_MS)
    assert not affair.has_left()
    affair.heal()
    assert affair.has_left(within_ms=10_000)
    affair.run(5_000)
    assert affair.heard == [place]


def test_who_leaves_does_not_wait_for_those_who_hear_of_events_of_others() -> None:
    affair = Affair(4, "n1")
    other = affair.city.client("other", "n2")
    affair.run(100)
    affair.cut("n1", "n0")
    affair.city.publish(other, "city/news", HERE, 1)
    affair.run(100)
    assert affair.heard == []
    assert affair.has_left()
    affair.run(8_000)
    assert affair.heard == [HERE]


def test_who_leaves_does_not_wait_when_everybody_has_everything() -> None:
    affair = Affair(4, "n3")
    affair.tell(HERE, 1)
    affair.run(100)
    begun = affair.city.world.now
    assert affair.has_left()
    assert affair.city.world.now - begun <= 100


def test_after_a_restart_events_are_not_taken_for_those_before() -> None:
    affair = Affair(3, "n2")
    affair.tell(HERE, 0)
    affair.run(100)
    affair.city.crash("n1")
    affair.writer.lose()
    affair.run(100)
    affair.city.restart("n1")
    affair.city.admit(affair.writer)
    affair.run(6_000)
    affair.tell(HERE, 1)
    affair.run(1_000)
    assert affair.heard == [HERE, HERE]


def cut_for_a_moment(affair: Affair, one: str, other: str) -> None:
    """Cut a link for less time than makes a node away, and let both sides notice."""
    affair.heal()
    for name, peer in ((one, other), (other, one)):
        affair.city.nodes[name].mesh.neighbours.begin_anew(peer, "test")
        affair.city.at(name, lambda node, now: node.turn(now))


def test_an_event_is_offered_again_as_soon_as_its_holder_is_back() -> None:
    affair = Affair(3, "n2", patience=NEVER)
    affair.cut("n1", "n2")
    affair.tell(HERE, 1)
    affair.run(100)
    cut_for_a_moment(affair, "n1", "n2")
    affair.run(1_000)
    assert affair.heard == [HERE]


def test_a_registration_is_told_again_as_soon_as_its_holder_is_back() -> None:
    affair = Affair(3, "n2", patience=NEVER)
    affair.cut("n0", "n2")
    affair.move(THERE)
    affair.run(100)
    cut_for_a_moment(affair, "n0", "n2")
    affair.run(1_000)
    affair.tell(THERE, 1)
    affair.run(1_000)
    assert affair.heard == [THERE]


def test_a_client_that_moves_to_other_holders_is_a_handover() -> None:
    affair = Affair(3, "n2")
    gateway = affair.city.nodes["n0"].mesh
    near = b'{"lon": -0.1, "lat": -0.1}'
    for place, handovers in ((near, 0), (THERE, 1), (THERE, 1), (HERE, 2)):
        affair.move(place)  # there it reaches out of the plan, and that is the first node's
        affair.run(100)
        assert gateway.handovers == handovers
    for name in affair.city.names:
        affair.teach(name, held_by(affair.city.names, "n1", version=2))
    affair.run(1_000)
    assert gateway.handovers == 2  # a new plan is none


def test_who_leaves_soon_after_another_one_need_not_wait_for_it() -> None:
    affair = Affair(4, "n2")
    other = affair.city.client("other", "n2")
    affair.run(200)
    affair.city.crash("n0")  # with the reader's registration, and gone for good
    affair.run(2_000)
    for name in ("n1", "n2", "n3"):
        affair.city.at(name, lambda node, now: node.part("n0", now))
    affair.run(1_000)
    affair.city.publish(other, "city/news", HERE, 1)
    affair.run(300)
    affair.city.at("n2", lambda node, now: node.leave(now))
    affair.run(1_000)
    assert not affair.city.nodes["n2"].mesh.has_unsettled()


def test_a_holder_that_has_left_is_told_nothing_more() -> None:
    affair = Affair(3, "n2")
    affair.city.crash("n2")
    affair.run(500)
    affair.move(THERE)
    affair.run(100)
    for name in ("n0", "n1"):
        affair.city.at(name, lambda node, now: node.part("n2", now))
    affair.run(1_000)
    assert not affair.city.nodes["n0"].mesh.has_unsettled()


def test_holders_forget_who_did_not_come_back_with_its_node() -> None:
    affair = Affair(3, "n2")
    city = affair.city
    guest = SimulatedClient("guest", 0, is_clean=True)
    city.homes[guest.name] = "n0"
    city.admit(guest)
    affair.run(100)
    city.publish(guest, "$position", HERE, 1)
    guest.subscribe("$near/50000m/city/#")
    city.turn(guest)
    affair.run(500)
    spatial = city.nodes["n2"].mesh._spatial
    assert isinstance(spatial, SpatialPart)
    geography = spatial.routing
    assert set(geography.locality.holder.loads().values()) == {2}

    city.crash("n0")
    affair.run(500)
    city.restart("n0")
    affair.run(3_000)
    assert set(geography.locality.holder.loads().values()) == {
        1
    }  # the reader's session has lived on
