"""The management address of a node in a cluster: what it knows of the other nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.http.conftest import PASSWORD, SHOPS, Mover
from tests.support.http_caller import Caller
from tests.support.real_cluster import RealCluster, forked_nodes
from tests.support.waiting import wait_for

from nearcast.model.errors import EnvironmentProblem
from nearcast.server.http.operators import set_operator
from nearcast.server.local_cluster import ChildProcess, find_nats_server, free_port

pytestmark = pytest.mark.server

_SPACE = """
[[space]]
name = "shops"
topics = "shops/#"
longitude = "lon"
latitude = "lat"
order = "causal"
[space.attributes]
lon = {{ low = -180, high = 180 }}
lat = {{ low = -90, high = 90 }}
[http]
address = "127.0.0.1:{port}"
operators = "{operators}"
"""


class ManagedCluster(RealCluster):
    """Nodes with management addresses and one file of operators."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.http: dict[str, int] = {}
        self.operators = directory / "operators.txt"
        set_operator(self.operators, "ann", "operator", PASSWORD.encode())
        set_operator(self.operators, "vic", "viewer", PASSWORD.encode())

    def begin(
        self, name: str, prelude: str = "", config: Path | None = None, address: str = ""
    ) -> ChildProcess:
        port = self.http.setdefault(name, free_port())
        config = self.directory / f"{name}.toml"
        config.write_text(_SPACE.format(port=port, operators=self.operators))
        return super().begin(name, prelude, config, address)

    def operator(self, name: str) -> Caller:
        return Caller(self.http[name]).log_in("ann", PASSWORD)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagedCluster]:
    try:
        find_nats_server()
    except EnvironmentProblem:
        pytest.skip("nats-server is not installed (make setup)")
    with forked_nodes(), ManagedCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.start("one", "two")
        cluster.join("one", "two")
        yield cluster


def test_a_page_at_one_node_sees_the_clients_of_all(cluster: ManagedCluster):
    here = Mover(cluster.ports["one"], "here").connect((1.0, 1.0))
    there = Mover(cluster.ports["two"], "there").connect((2.0, 2.0))
    ann = cluster.operator("one")
    page = Mover(cluster.http["one"], "page-cluster", transport="websockets")
    page.client.ws_set_options(path="/mqtt", headers={"Cookie": ann.cookie})
    page.connect().subscribe("$nearcast/live/positions/+")
    try:

        def seen() -> set[str]:
            frames = [json.loads(one.payload) for one in page.got]
            return {row[0] for frame in frames for row in frame["moved"]}

        wait_for(lambda: {"here", "there"} <= seen())
        assert {one.topic.rpartition("/")[2] for one in page.got} == {"one", "two"}
    finally:
        for one in (here, there, page):
            one.end()


def test_the_chosen_of_all_nodes_are_shown(cluster: ManagedCluster):
    places = {"c1": (1.0, 1.0), "c2": (1.001, 1.0), "c3": (1.002, 1.0), "c4": (1.003, 1.0)}
    couriers = [
        Mover(cluster.ports[("one", "two")[number % 2]], name).connect(place)
        for number, (name, place) in enumerate(places.items())
    ]
    for one in couriers:
        one.subscribe("$near/5km/shops/orders")
    ann = cluster.operator("one")
    page = Mover(cluster.http["one"], "page-chosen", transport="websockets")
    page.client.ws_set_options(path="/mqtt", headers={"Cookie": ann.cookie})
    page.connect().subscribe("$nearcast/live/deliveries/+")
    try:

        def chosen() -> set[str]:
            couriers[0].client.publish("$top/3/$rank/nearest/shops/orders", '{"lon": 1, "lat": 1}')
            events = [event for one in page.got for event in json.loads(one.payload)["events"]]
            return {name for event in events if event["chosen"] for name in event["to"]}

        wait_for(lambda: {"c1", "c2", "c3"} <= chosen())  # a node learns that somebody looks
        assert "c4" not in chosen()
    finally:
        for one in (*couriers, page):
            one.end()


def test_every_node_tells_its_figures_while_somebody_looks(cluster: ManagedCluster):
    page = Mover(cluster.http["one"], "page-figures", transport="websockets")
    page.client.ws_set_options(path="/mqtt", headers={"Cookie": cluster.operator("one").cookie})
    page.connect().subscribe("$nearcast/live/figures/+")
    viewer = Mover(cluster.ports["two"], "viewer").connect()
    try:

        def told() -> dict[str, Any]:
            return {one.topic.rpartition("/")[2]: json.loads(one.payload) for one in page.got}

        wait_for(lambda: set(told()) == {"one", "two"})
        for name, one in told().items():
            assert one["figures"]["name"] == one["node"]["name"] == name
            assert one["figures"]["cpu_seconds"] > 0
            assert [(link["to"], link["up"]) for link in one["node"]["links"]] == [
                ({"one": "two", "two": "one"}[name], True)
            ]
        assert viewer.subscribe("$nearcast/live/figures/+").is_failure
    finally:
        page.end()
        viewer.end()


def test_nodes_and_causal_groups_are_shown(cluster: ManagedCluster):
    ann = cluster.operator("two")
    nodes = ann.get("/api/nodes").json
    assert nodes["network"] == "nearcast"
    assert [(one["name"], one["here"]) for one in nodes["nodes"]] == [("two", True), ("one", False)]
    assert nodes["nodes"][0]["links"][0]["up"]
    groups = ann.get("/api/causal-groups").json["items"]
    assert [(one["group"], one["topics"]) for one in groups] == [("shops", SHOPS["topics"])]
    assert groups[0]["waiting"] == 0


def test_a_node_is_ready_once_it_has_joined(cluster: ManagedCluster):
    assert Caller(cluster.http["one"]).get("/readyz").status == 200


def test_a_client_of_another_node_is_shown_explained_and_disconnected(cluster: ManagedCluster):
    there = Mover(cluster.ports["two"], "far away").connect((2.0, 2.0))
    there.subscribe("$near/1km/shops/bread")
    ann, path = cluster.operator("one"), "/api/clients/far%20away"
    try:
        found = ann.get(path).json
        assert found["client"]["node"] == "two"
        assert found["client"]["position"] == [2.0, 2.0]
        assert [one["near_m"] for one in found["subscriptions"]["items"]] == [1000]
        near, far = ({"lon": lon, "lat": 2.0} for lon in (2.001, 3.0))
        question = {"client": "far away", "topic": "shops/bread"}
        assert ann.post("/api/explain", {**question, "payload": near}).json["delivered"]
        told = ann.post("/api/explain", {**question, "payload": far}).json
        assert not told["delivered"]
        assert "there is no session" not in told["because"]
        assert ann.post(f"{path}/disconnect").status == 204
        wait_for(lambda: there.ended)
        assert ann.get("/api/clients/nobody").status == 404
    finally:
        there.end()


def test_lists_shapes_and_matches_are_those_of_all_nodes(cluster: ManagedCluster):
    movers = [
        Mover(cluster.ports[node], f"at {node}").connect((place, 1.0))
        for node, place in (("one", 1.0), ("two", 1.001))
    ]
    for one in movers:
        one.subscribe("$near/5km/shops/all")
    ann = cluster.operator("one")
    try:
        rows = ann.get("/api/clients?search=at%20&connected=true").json
        assert [(one["id"], one["node"]) for one in rows["items"]] == [
            ("at one", "one"),
            ("at two", "two"),
        ]
        assert rows["total"] == 2
        first = ann.get("/api/clients?search=at%20&connected=true&limit=1").json
        rest = ann.get(
            f"/api/clients?search=at%20&connected=true&limit=1&cursor={first['next']}"
        ).json
        pages = [*first["items"], *rest["items"]]
        assert ([one["id"] for one in pages], rest["next"]) == (["at one", "at two"], None)
        assert {one["client"] for one in ann.get("/api/shapes").json["near"]} == {
            "at one",
            "at two",
        }
        message = {"topic": "shops/all", "payload": {"lon": 1.0011, "lat": 1.0}}
        matches = ann.post("/api/match", message).json["matches"]
        assert {one["client"] for one in matches} == {"at one", "at two"}
        best = ann.post("/api/match", {**message, "top": 1, "rank": "nearest"}).json["matches"]
        assert [one["client"] for one in best] == ["at two"]
    finally:
        for one in movers:
            one.end()


def test_a_viewer_sees_no_place_at_another_node_and_changes_nothing_there(cluster: ManagedCluster):
    there = Mover(cluster.ports["two"], "shy").connect((2.25, 2.5))
    there.subscribe("$near/1km/shops/bread")
    vic, path = Caller(cluster.http["one"]).log_in("vic", PASSWORD), "/api/clients/shy"
    try:
        found = vic.get(path)
        assert found.json["client"]["node"] == "two"
        assert found.json["client"]["position"] is None
        assert b"2.25" not in found.body
        assert vic.post(f"{path}/disconnect").status == 403
        assert vic.post("/api/explain", {"client": "shy", "topic": "shops/bread"}).status == 403
        assert Caller(cluster.http["one"]).get(path).status == 401
        assert not there.ended
    finally:
        there.end()
