"""A bridge between a network of brokers and peers, with stock clients on both sides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.real_cluster import Got, PahoClient, RealCluster
from tests.support.real_peers import SHOPS, RealPeers, offer
from tests.support.waiting import wait_for

pytestmark = pytest.mark.server

SPACE = SHOPS.partition("\n[[space]]")[2]
QUICK = 'beat = "500ms"'


class Federation:
    """Two brokers over NATS, two peers, and bridges between them."""

    def __init__(self, directory: Path) -> None:
        self.network = RealCluster(directory, f"[[space]]{SPACE}")
        self.peers = RealPeers(directory, peer=QUICK)
        self.network.start("n1", "n2")
        self.network.join("n1", "n2")
        self.peers.start("p1")
        self.peers.start("p2", "p1")

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self.peers.__exit__()
        self.network.__exit__()

    def begin_bridge(self, name: str) -> None:
        config = self.peers.directory / f"{name}.toml"
        config.write_text(
            f'[node]\nname = "{name}"\ndata = "{self.peers.directory / name}"\n'
            f'[network]\njoin = ["{self.network.address}"]\n'
            f"[peer]\n{QUICK}\n[[space]]{SPACE}"
        )
        self.peers.begin(name, "p1", config=config)

    def start_bridge(self, name: str = "b1") -> None:
        self.begin_bridge(name)
        self.peers.wait_until_ready(name)
        self.network.join("n1", "n2", name)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(tmp_path_factory.mktemp("bridge")) as federation:
        federation.start_bridge()
        yield federation


def _until_heard(publisher: PahoClient, listener: PahoClient, price: float, lon: float = 0) -> None:
    """Publish until a listener on the other side gets it: then each side knows its wishes."""

    def reaches() -> bool:
        publisher.publish("shops/test", offer(price, lon, test=1))
        return bool(listener.rest(0.5))

    wait_for(reaches)
    listener.rest(1.0)


def _take(client: PahoClient, count: int) -> list[Got]:
    return sorted(client.take(count) + client.rest())


def test_events_cross_both_ways_once_and_only_where_they_are_wanted(both):
    cheap = both.network.client("n1")
    near = both.network.client("n2")
    local = both.peers.client("b1")
    edge, other = both.peers.client("p1"), both.peers.client("p2")
    cheap.subscribe("$where/price<20/shops/#", 1)
    near.subscribe("$area/bbox(40,-10,60,10)/shops/#", 1)
    local.subscribe("$where/price=50..60/shops/#", 1)
    edge.subscribe("$where/price>90/shops/#", 1)
    _until_heard(other, cheap, 1)
    _until_heard(other, near, 30, 50)
    _until_heard(cheap, edge, 99)
    for client in (cheap, near, local, edge):
        client.rest()
    for qos in (0, 1):
        other.publish("shops/1", offer(10, n=qos), qos)  # for `cheap`
        edge.publish("shops/2", offer(30, 50, n=qos), qos)  # for `near`
        other.publish("shops/3", offer(55, n=qos), qos)  # for `local`
        cheap.publish("shops/4", offer(95, n=qos), qos)  # for `edge`
        local.publish("shops/5", offer(96, n=qos), qos)  # for `edge`
        near.publish("shops/6", offer(70, n=qos), qos)  # for nobody
        edge.publish("shops/7", offer(15, 50, n=qos), qos)  # for `cheap` and `near`
    assert _take(cheap, 4) == [
        *(("shops/1", offer(10, n=qos), qos) for qos in (0, 1)),
        *(("shops/7", offer(15, 50, n=qos), qos) for qos in (0, 1)),
    ]
    assert _take(near, 4) == [
        *(("shops/2", offer(30, 50, n=qos), qos) for qos in (0, 1)),
        *(("shops/7", offer(15, 50, n=qos), qos) for qos in (0, 1)),
    ]
    assert _take(local, 2) == [("shops/3", offer(55, n=qos), qos) for qos in (0, 1)]
    assert _take(edge, 4) == [
        *(("shops/4", offer(95, n=qos), qos) for qos in (0, 1)),
        *(("shops/5", offer(96, n=qos), qos) for qos in (0, 1)),
    ]


def test_a_bridge_that_is_killed_goes_on_where_it_was(both):
    centre, edge = both.network.client("n1"), both.peers.client("p2")
    centre.subscribe("$where/price<20/shops/#", 1)
    edge.subscribe("$where/price>90/shops/#", 1)
    _until_heard(centre, edge, 99)
    _until_heard(edge, centre, 1)
    both.peers.kill("b1")
    for number in range(5):
        centre.publish("shops/away", offer(95, n=number), 1)  # waits at n1 for the bridge
    both.begin_bridge("b1")
    both.peers.wait_until_ready("b1")
    got = edge.take_all([("shops/away", offer(95, n=number)) for number in range(5)])
    assert len([one for one in got if one[0] == "shops/away"]) == 5
    _until_heard(edge, centre, 1)
    edge.publish("shops/back", offer(2), 1)
    assert ("shops/back", offer(2)) in [
        one[:2] for one in centre.take_all([("shops/back", offer(2))])
    ]


def test_of_two_bridges_one_works_and_the_other_takes_its_place(both):
    """Clients of both sides want the same: what crosses again, or twice, is seen here."""
    centre, edge = both.network.client("n2"), both.peers.client("p1")
    speaker, talker = both.network.client("n1"), both.peers.client("p2")
    for client in (centre, edge):
        client.subscribe("$where/price<20/shops/#", 1)
    both.start_bridge("b2")
    try:
        _until_heard(speaker, edge, 9)
        _until_heard(talker, centre, 9)
        for client in (centre, edge):
            client.rest(1.0)
        for number in range(5):
            for qos in (0, 1):
                speaker.publish("shops/out", offer(5, n=number, qos=qos), qos)
                talker.publish("shops/in", offer(5, n=number, qos=qos), qos)
        for client in (centre, edge):
            got = client.take(20) + client.rest(1.5)
            assert len({payload for _, payload, _ in got}) == 10
            assert len(got) == 20
        both.peers.kill("b1")
        for topic, publisher, listener in (
            ("shops/out", speaker, edge),
            ("shops/in", talker, centre),
        ):
            _until_heard(publisher, listener, 9)
            listener.rest(1.0)
            publisher.publish(topic, offer(6), 1)
            assert listener.take(1) + listener.rest() == [(topic, offer(6), 1)]
    finally:
        both.begin_bridge("b1")
        both.peers.wait_until_ready("b1")
