"""Three nodes with slow links."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.simulated_city import SimulatedCity
from tests.support.town import SPACE, town_plan

from nearcast.broker import SpaceSettings
from nearcast.cluster import NamedPlan
from nearcast.locality.registration.redirect_policy import RedirectRules
from nearcast.simulator.mqtt_node import SimulatedClient
from nearcast.simulator.network import SimulatedLink, uniform

SLOW_MS = 20


def slow_city() -> tuple[SimulatedCity, SimulatedClient, list[SimulatedClient]]:
    """Return three nodes, of which n2 holds everything, ann at n0, and a writer at each node."""
    city = SimulatedCity(
        3,
        link=SimulatedLink(delay=uniform(SLOW_MS, SLOW_MS)),
        spaces=[SpaceSettings(space=SPACE)],
        redirect=RedirectRules(),
    )
    plan = town_plan(city.names, 1, 1).plan
    named = NamedPlan(plan.with_brokers([2] * len(plan.leaves)), tuple(city.names))
    for name in city.names:
        city.at(name, lambda node, now: node.use_plan(named, now))
    city.run(2_000)
    writers = [city.client(f"writer {name}", name) for name in city.names]
    ann = city.client("ann", "n0")
    city.run(200)
    city.publish(ann, "$position", b'{"lon": 0.1, "lat": 0.1}', 1)
    ann.subscribe("$near/50000m/city/#")
    city.turn(ann)
    city.run(500)
    return city, ann, writers


def send_to_n1(city: SimulatedCity) -> None:
    node = city.nodes["n0"]
    session = node.node.session_of("ann")
    assert session is not None
    assert session.link is not None
    node.mesh._redirects.offer(session, session.link, "n1", "n1:1883", city.world.now)
    city.at("n0", lambda node, now: node.turn(now))


def go_on_until(city: SimulatedCity, is_so: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if is_so():
            return
        city.run(1)
    raise AssertionError("waited too long")


def has(city: SimulatedCity, name: str) -> bool:
    return city.nodes[name].node.session_of("ann") is not None
