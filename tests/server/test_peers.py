"""Peers as processes with stock MQTT clients: what they deliver, and what they refuse."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import settings
from tests.support.commands import nearcast
from tests.support.real_cluster import PahoClient
from tests.support.real_peers import RealPeers, offer
from tests.support.waiting import wait_for

from nearcast.overlay.live.acknowledged import AckTiming

pytestmark = pytest.mark.server

QUICK = 'beat = "500ms"'
HOLD_S = AckTiming().hold_ms / 1_000


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealPeers]:
    with RealPeers(tmp_path_factory.mktemp("peers"), peer=QUICK) as peers:
        peers.start("a")
        peers.start("b", "a")
        peers.start("c", "b", "a")
        yield peers


def test_clients_of_all_peers_get_what_they_subscribed_to(three):
    ann, bob, cyd = (three.client(name) for name in "abc")
    ann.subscribe("$where/price<20/shops/#", 1)
    bob.subscribe("$area/bbox(0,0,10,10)/shops/#", 1)
    cyd.subscribe("shops/north", 1)
    wait_for(lambda: three.is_whole("a", 3))
    for qos, price in ((0, 10), (1, 11)):
        cyd.publish("shops/1", offer(price, 50, 50, qos=qos), qos)
        ann.publish("shops/2", offer(90, 5, 5, qos=qos), qos)
        bob.publish("shops/north", offer(90, 70, 70, qos=qos), qos)
    got = {
        name: sorted(one.take(2) + one.rest()) for name, one in (("a", ann), ("b", bob), ("c", cyd))
    }
    assert got == {
        "a": [("shops/1", offer(10 + qos, 50, 50, qos=qos), qos) for qos in (0, 1)],
        "b": [("shops/2", offer(90, 5, 5, qos=qos), qos) for qos in (0, 1)],
        "c": [("shops/north", offer(90, 70, 70, qos=qos), qos) for qos in (0, 1)],
    }


def test_the_boxes_of_near_subscriptions_follow_their_client(three):
    walker, shop = three.client("b", "walker"), three.client("c")
    walker.publish("$position", b'{"lon": 100, "lat": 10}', 1)
    walker.subscribe("$near/100km/shops/#", 1)
    for step in range(4):
        lon = 100 + 2.0 * step
        walker.publish("$position", b'{"lon": %f, "lat": 10}' % lon, 1)
        here = offer(50, lon, 10, step=step)

        def reaches(here: bytes = here) -> bool:
            shop.publish("shops/far", offer(50, lon - 8, 10), 1)  # noqa: B023 - called at once
            shop.publish("shops/near", here, 1)
            return any(one[1] == here for one in walker.rest(0.5))

        wait_for(reaches)
    assert all(topic == "shops/near" for topic, _, _ in walker.rest(0.1))


def test_what_a_peer_cannot_keep_is_refused(three, tmp_path):
    client = three.client("a")
    client.subscribe("shops/#")
    client.publish("$top/1/shops/1", offer(1))  # QoS 0: dropped
    client.publish("shops/1", offer(2))
    assert client.take(1)[0][1] == offer(2)
    for line, told in (
        ('order = "causal"', "peers keep none between them"),
        ("top = 3", "no peer knows the subscribers of all others"),
    ):
        config = tmp_path / "other.toml"
        config.write_text(
            three.config.read_text().replace('topics = "shops/#"', f'topics = "shops/#"\n{line}')
        )
        done = nearcast("peer", "--config", str(config), "--listen", "127.0.0.1:0")
        assert (done.returncode != 0, told in done.stderr) == (True, True), done.stderr
    done = nearcast("peer", "--no-config", "--listen", "127.0.0.1:0")
    assert "no [[space]]" in done.stderr


def test_the_tree_is_shown_as_text_as_json_and_as_a_picture(three, tmp_path):
    wait_for(lambda: three.is_whole("a", 3))
    picture = tmp_path / "tree.svg"
    config = ["--config", str(three.config)]
    done = nearcast("peers", "--contact", three.addresses["b"], *config, "--picture", str(picture))
    assert not done.returncode, done.stderr
    assert "Space shops: 3 peers" in done.stdout
    assert sum(address in done.stdout for address in three.addresses.values()) == 3
    drawn = (tmp_path / "tree-shops.svg").read_text()
    assert all(address in drawn for address in three.addresses.values())
    found = three.tree("c")
    assert {state["peer"].partition("/")[0] for state in found["peers"]} == set(
        three.addresses.values()
    )


def test_the_founder_dies_and_the_rest_goes_on(tmp_path):
    with RealPeers(tmp_path, peer=QUICK) as peers:
        for place, name in enumerate("abcdef"):
            peers.start(name, *"abcdef"[:place])
        clients = {name: peers.client(name) for name in "bcdef"}
        for client in clients.values():
            client.subscribe("$where/price<50/shops/#", 1)
        wait_for(lambda: peers.is_whole("b", 6))
        peers.kill("a")
        clients["b"].publish("shops/1", offer(7), 1)  # while nobody knows yet
        for client in clients.values():
            assert client.take(1)[0][1] == offer(7)
        peers.start("a", "c")
        wait_for(lambda: peers.is_whole("b", 6))


def test_half_of_the_peers_die_at_once_and_all_join_at_the_same_second(tmp_path):
    names = [f"p{number}" for number in range(8)]
    with RealPeers(tmp_path, peer=QUICK) as peers:
        peers.start(names[0])
        for name in names[1:]:
            peers.begin(name, names[0])
        for name in names[1:]:
            peers.wait_until_ready(name)
        wait_for(lambda: peers.is_whole(names[0], 8))
        clients = {name: peers.client(name) for name in names[4:]}
        for client in clients.values():
            client.subscribe("shops/#", 1)
        for name in names[:4]:
            peers.kill(name)
        wait_for(lambda: peers.is_repaired(names[5], 4))
        clients["p6"].publish("shops/1", offer(3), 1)
        for client in clients.values():
            assert client.take(1)[0][1] == offer(3)


def test_ten_peers_under_random_kills_deliver_as_the_model_says(tmp_path):
    """Four times at least, or for an hour in `make soak`, peers are killed and come back.

    The model: an event must reach every client that wants it, if its peer had its boxes in the tree
    before and lives until the end, and the publisher's peer lives as long as events are held.
    """
    is_soak = settings.default is not None and settings.default.max_examples > 50
    random = Random(5)
    names = [f"p{number}" for number in range(10)]
    with RealPeers(tmp_path, peer=QUICK) as peers:
        for place, name in enumerate(names):
            peers.begin(name, *names[:place][:3])
            peers.wait_until_ready(name)
        clients, ranges = {}, {}

        def come(name: str) -> None:
            clients[name] = peers.client(name)
            ranges[name] = low, high = sorted(random.sample(range(101), 2))
            clients[name].subscribe(f"$where/price={low}..{high}/shops/#", 1)

        for name in names:
            come(name)
        wait_for(lambda: peers.is_whole(names[0], 10))
        due: dict[str, set[bytes]] = {name: set() for name in names}
        sent, kills, alive = 0, 0, set(names)
        published: dict[str, list[tuple[float, bytes]]] = {name: [] for name in names}
        until_s = time.monotonic() + (3_600 if is_soak else 60)
        while time.monotonic() < until_s or kills < 4:
            victim = random.choice(sorted(alive))
            for place in range(12):
                if place == 4:
                    peers.kill(victim)
                    alive.discard(victim)
                    due[victim].clear()
                    kills += 1
                    # What only its peer has still to repeat may be lost with it.
                    recent = time.monotonic() - 2 * HOLD_S
                    lost = {payload for at, payload in published.pop(victim) if at > recent}
                    published[victim] = []
                    for name in alive:
                        due[name] -= lost
                publisher = random.choice(sorted(alive - {victim}))
                price, sent = random.randint(0, 100), sent + 1
                payload = offer(price, n=sent)
                clients[publisher].publish("shops/1", payload, 1)
                published[publisher].append((time.monotonic(), payload))
                for name in alive - {victim}:
                    if ranges[name][0] <= price <= ranges[name][1]:
                        due[name].add(payload)
            _check(clients[victim], due[victim], ranges[victim], is_gone=True)
            peers.start(victim, min(alive))
            come(victim)
            wait_for(lambda: peers.is_repaired(min(alive), len(alive) + 1))
            alive.add(victim)
        for name in sorted(alive):
            _check(clients[name], due[name], ranges[name])
        assert sent >= 48


def _check(
    client: PahoClient, due: set[bytes], limits: list[int], *, is_gone: bool = False
) -> None:
    """Compare what a client got with the model; one whose peer was killed may lack some."""
    taken = client.rest() if is_gone else client.take_all(("shops/1", one) for one in due)
    got = [payload for _, payload, _ in taken]
    assert len(got) == len(set(got))
    assert is_gone or due <= set(got)
    low, high = limits
    assert all(low <= json.loads(one)["price"] <= high for one in got)
