"""A node's figures count clients; other nodes, which have sessions as well, are none."""

import pytest
from tests.support.simulated_city import SimulatedCity

from nearcast.server.metrics.exposition import prometheus_text, sys_topics


def clients(city: SimulatedCity, name: str) -> dict[str, str]:
    """Return what a node says of its clients in both ways; both must agree."""
    node = city.nodes[name].node
    figures = {
        topic.removeprefix("clients/"): value
        for topic, value in sys_topics(node, uptime_s=1)
        if topic.startswith("clients/")
    }
    page = prometheus_text(node, uptime_s=1.0).splitlines()
    assert f"nearcast_sessions {figures['total']}" in page
    assert f"nearcast_connections {figures['connected']}" in page
    assert figures["active"] == figures["connected"]
    assert figures["inactive"] == figures["disconnected"]
    return {name: figures[name] for name in ("total", "connected", "disconnected")}


def counts(total: int, connected: int) -> dict[str, str]:
    figures = {"total": total, "connected": connected, "disconnected": total - connected}
    return {name: str(value) for name, value in figures.items()}


@pytest.fixture
def city() -> SimulatedCity:
    return SimulatedCity(3)


def test_other_nodes_are_no_clients_whether_they_are_there_or_away(city: SimulatedCity):
    assert clients(city, "n0") == counts(0, 0)
    city.client("ann", "n0", "news/#")
    bob = city.client("bob", "n0", "news/#")
    city.run(100)
    assert clients(city, "n0") == counts(2, 2)
    assert clients(city, "n1") == counts(0, 0)

    city.at("n0", lambda node, now: node.drop(bob, now))
    city.crash("n1")
    city.run(5_000)
    assert clients(city, "n0") == counts(2, 1)


def test_other_nodes_are_no_clients_in_what_comes_back_from_the_journal(city: SimulatedCity):
    city.client("ann", "n0", "news/#")
    city.run(100)
    city.crash("n0")
    city.run(100)
    city.restart("n0")
    assert clients(city, "n0") == counts(1, 0)
