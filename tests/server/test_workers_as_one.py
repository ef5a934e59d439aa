"""`$SYS`, metrics and the HTTP API: the same from two workers as from one process."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.http_caller import Caller
from tests.support.real_cluster import PahoClient
from tests.support.waiting import wait_for
from tests.support.worker_processes import kill_worker, name_at

from nearcast.server.http.operators import set_operator

pytestmark = pytest.mark.server

_SAME = (
    *("clients/total", "clients/connected", "subscriptions/count", "shared_subscriptions/count"),
    *("retained messages/count", "publish/messages/received", "publish/messages/sent"),
    *("messages/received", "bytes/received"),
)


@dataclass
class Scene:
    """A broker with clients that have subscribed and published."""

    broker: BrokerProcess
    caller: Caller
    clients: dict[str, PahoClient] = field(default_factory=dict)
    overview: Any = None
    """Before anybody has looked at `$SYS`, which has topics of its own with workers."""
    metrics: str = ""

    def sys(self) -> dict[str, str]:
        """Return the values on `$SYS`, of a time after all that was done."""
        time.sleep(1.2)  # the workers have written their figures
        looker = PahoClient(self.broker.port, "looker")
        looker.subscribe("$SYS/broker/#")
        found = {
            topic.removeprefix("$SYS/broker/"): payload.decode()
            for topic, payload, _ in looker.rest()
        }
        looker.close()
        return found

    def get(self, path: str) -> Any:
        reply = self.caller.ask("GET", f"/api/{path}")
        assert reply.status == 200, reply.body
        return reply.json


@contextlib.contextmanager
def scene(directory: Path, workers: int) -> Iterator[Scene]:
    directory.mkdir()
    operators = directory / "operators.txt"
    token = set_operator(operators, "program", "operator", None)
    broker = BrokerProcess(
        directory,
        node={"data": str(directory), "workers": workers},
        durability={"mode": "process"},
        http={"address": "127.0.0.1:0", "operators": str(operators)},
    )
    broker.start()
    caller = Caller(broker.ports["http"], headers={"Authorization": f"Bearer {token}"})
    made = Scene(broker, caller)
    try:
        for number in range(6):
            name = name_at(number % 2, 2, f"c{number}")
            one = made.clients[name] = PahoClient(broker.port, name, lasting=True)
            one.subscribe("all/#", 1)
            one.subscribe(f"own/{number}", 1)
            one.subscribe("$share/team/work", 1)
        for number, one in enumerate(made.clients.values()):
            one.publish(f"all/{number}", b"x" * 10, 1)
            one.publish(f"own/{(number + 1) % 6}", b"y", 1)
        next(iter(made.clients.values())).publish("kept", b"z", 1, retain=True)
        for one in made.clients.values():
            one.take(7)
        time.sleep(1.2)  # the workers have written their figures
        made.overview = made.get("overview")
        made.metrics = caller.ask("GET", "/metrics").body.decode()
        yield made
    finally:
        for one in made.clients.values():
            one.close()
        broker.end()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Scene]]:
    folder = tmp_path_factory.mktemp("one-and-two")
    with scene(folder / "one", 1) as one, scene(folder / "two", 2) as two:
        yield {1: one, 2: two}


def test_the_figures_are_those_of_one_broker(both: dict[int, Scene]) -> None:
    found = {count: one.sys() for count, one in both.items()}
    assert {name: found[2].get(name) for name in _SAME} == {
        name: found[1].get(name) for name in _SAME
    }
    assert found[1].keys() == found[2].keys()


def test_the_metrics_are_those_of_one_broker(both: dict[int, Scene]) -> None:
    texts = {count: one.metrics for count, one in both.items()}
    form = re.compile(r"^(nearcast_\S+) (\S+)$", re.MULTILINE)
    pages = {count: dict(form.findall(text)) for count, text in texts.items()}
    for name in ("sessions", "connections", "subscriptions", "retained_messages"):
        assert pages[1][f"nearcast_{name}"] == pages[2][f"nearcast_{name}"], name
    for name in ("publish_received", "publish_sent", "publish_bytes_sent", "dropped"):
        lines = [key for key in pages[1] if key.startswith(f"nearcast_{name}_total")]
        assert [pages[1][one] for one in lines] == [pages[2][one] for one in lines], name


def test_the_overview_counts_all_workers(both: dict[int, Scene]) -> None:
    found = {count: one.overview for count, one in both.items()}
    for name in ("name", "clients", "connected", "subscriptions", "retained", "queued"):
        assert found[1][name] == found[2][name], name
    assert found[1]["received"] == found[2]["received"]
    assert found[1]["sent"] == found[2]["sent"]
    nodes = {count: one.get("nodes")["nodes"] for count, one in both.items()}
    assert nodes[1] == nodes[2]


def test_clients_are_listed_page_by_page_whatever_their_worker(both: dict[int, Scene]) -> None:
    two, names = both[2], []
    cursor: int | None = 0
    while cursor is not None:
        page = two.get(f"clients?limit=2&cursor={cursor}")
        assert page["total"] == 6
        names += [one["id"] for one in page["items"]]
        cursor = page["next"]
    assert sorted(names) == sorted(two.clients)
    assert len(two.get("clients")["items"]) == 6


def test_a_client_is_shown_and_disconnected_at_whichever_worker(both: dict[int, Scene]) -> None:
    two = both[2]
    for name in two.clients:
        shown = two.get(f"clients/{name}")
        assert shown["client"]["id"] == name
        assert shown["subscriptions"]["total"] == 3
        assert two.get(f"clients/{name}/queue")["total"] == 0
    assert two.caller.ask("GET", "/api/clients/nobody").status == 404
    name = list(two.clients)[-1]
    since = two.get(f"clients/{name}")["client"]["since"]
    assert two.caller.ask("POST", f"/api/clients/{name}/disconnect").status == 204
    wait_for(lambda: two.get(f"clients/{name}")["client"]["since"] > since)  # paho comes back
    two.clients[name].subscribe("all/#", 1)


def test_topics_and_groups_are_those_of_all_clients(both: dict[int, Scene]) -> None:
    found = {count: one.get("topics") for count, one in both.items()}
    assert [row["filter"] for row in found[1]["items"]] == [
        row["filter"] for row in found[2]["items"]
    ]
    assert found[2]["items"][0] == {
        "filter": "all/#",
        "subscribers": 6,
        "with_conditions": 0,
        "share_groups": 0,
    }
    groups = both[2].get("share-groups")["items"]
    assert [(one["group"], one["filter"]) for one in groups] == [("team", "work")]
    assert set(groups[0]["members"]) <= set(both[2].clients)
    assert groups[0]["member_count"] == len(groups[0]["members"]) >= 5


def test_questions_about_a_message_are_answered_for_all_clients(both: dict[int, Scene]) -> None:
    two = both[2]
    reply = two.caller.ask("POST", "/api/match", {"topic": "all/1"})
    assert sorted(one["client"] for one in reply.json["matches"]) == sorted(two.clients)
    for name in two.clients:
        reply = two.caller.ask("POST", "/api/explain", {"client": name, "topic": "all/1"})
        assert (reply.status, reply.json["delivered"]) == (200, True)
    reply = two.caller.ask("POST", "/api/publish", {"topic": "all/9", "payload": "!", "qos": 1})
    assert reply.status == 200
    for one in two.clients.values():
        assert ("all/9", b"!") in [got[:2] for got in one.take(1)]


def test_what_a_worker_has_passed_on_is_acknowledged_without_more_traffic(
    both: dict[int, Scene],
) -> None:
    two = both[2]
    sender, receiver = (two.clients[name] for name in list(two.clients)[:2])
    for number in range(5):
        sender.publish("own/1", b"%d" % number, 1)
        receiver.take(1)
        wait_for(lambda: two.get("overview")["held_bytes"] == 0, 5)


def test_the_api_goes_on_while_a_worker_is_started_again(both: dict[int, Scene]) -> None:
    two = both[2]
    kill_worker(two.broker, 1)
    for _ in range(20):
        assert two.caller.ask("GET", "/api/overview").status == 200
        assert two.caller.ask("GET", "/api/clients").status == 200
        assert two.caller.ask("GET", "/metrics").status == 200
    wait_for(lambda: two.get("overview")["connected"] == 6)
    assert two.caller.ask("GET", "/api/log").status == 200
