"""Who may do what: every endpoint with every role, and what a viewer must never see."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import quote

import pytest
from tests.http.conftest import ManagedBroker, Mover
from tests.support.broker_process import BrokerProcess
from tests.support.http_caller import Caller
from tests.support.waiting import wait_for

from nearcast.server.http import endpoints
from nearcast.server.http.endpoint import ENDPOINTS, Endpoint, Role

pytestmark = pytest.mark.server
endpoints.load()

SECRET = (12.345678901, 56.789012345)
BODIES = {
    "log_in": {"user": "vic", "password": "wrong"},
    "check_subscription": {"filter": "shops/#"},
    "explain": {"client": "secretive", "topic": "shops/1", "payload": {"lon": 1, "lat": 1}},
    "match": {"topic": "shops/1", "payload": {"lon": SECRET[0], "lat": SECRET[1]}},
    "publish": {"topic": "roles/1", "payload": "x"},
    "check_configuration": {"text": ""},
}
QUERIES = {"retained_message": "?topic=roles/none", "delete_retained": "?topic=roles/none"}
ALLOWED = {200, 204, 404, 409}  # the thing itself may be missing


def path_of(one: Endpoint) -> str:
    return one.path.replace("{client}", quote("secretive", safe="")) + QUERIES.get(one.name, "")


@pytest.fixture
def callers(site: ManagedBroker) -> dict[Role, Caller]:
    return {
        Role.NOBODY: site.nobody(),
        Role.VIEWER: site.viewer(),
        Role.OPERATOR: site.operator(),
    }


def test_every_endpoint_answers_the_roles_that_it_is_for_and_no_other(
    callers: dict[Role, Caller], site: ManagedBroker
):
    told = []
    for one in ENDPOINTS:
        for role, caller in callers.items():
            if one.name in ("log_in", "log_out"):
                continue
            status = caller.ask(one.method, path_of(one), BODIES.get(one.name)).status
            refused = 401 if role is Role.NOBODY else 403
            is_right = status in ALLOWED if role >= one.role else status == refused
            if not is_right:
                told.append((one.name, role.name, status))
    assert told == []
    assert len(ENDPOINTS) > 25
    changing = {one.name for one in ENDPOINTS if one.changes and one.name != "log_out"}
    assert all(one.role is Role.OPERATOR for one in ENDPOINTS if one.name in changing)


def test_a_viewer_sees_no_position_in_any_answer(
    site: ManagedBroker, mover: Callable[..., Mover], callers: dict[Role, Caller]
):
    secretive = mover("secretive", SECRET)
    secretive.subscribe("$near/500m/shops/#")
    seen = dict.fromkeys(callers, "")
    for role, caller in callers.items():
        for one in ENDPOINTS:
            if one.name != "openapi" and (one.method == "GET" or one.name in ("match", "explain")):
                seen[role] += caller.ask(
                    one.method, path_of(one), BODIES.get(one.name)
                ).body.decode()
    for number in SECRET:
        assert str(number) in seen[Role.OPERATOR]
        assert str(number) not in seen[Role.VIEWER]
        assert str(number) not in seen[Role.NOBODY]
    assert "secretive" not in seen[Role.NOBODY]
    assert "distance_m" not in seen[Role.VIEWER]


def test_positions_can_be_hidden_from_operators_too(start_site: Callable[..., ManagedBroker]):
    site = start_site({"positions": False})
    ann = site.operator()
    client = Mover(site.broker.port, "secretive").connect(SECRET)
    client.subscribe("$near/500m/shops/#")
    try:
        text = ""
        for one in ENDPOINTS:
            if one.name not in ("log_in", "log_out", "disconnect_client"):
                text += ann.ask(one.method, path_of(one), BODIES.get(one.name)).body.decode()
        assert str(SECRET[0]) not in text.replace(json.dumps(BODIES["match"]), "")
        assert ann.get("/api/session").json["positions"] is False
        assert ann.get("/api/positions").status == 403
        assert ann.post("/api/match", BODIES["match"]).status == 403
        assert ann.get("/api/clients/secretive").json["client"]["position"] is None
        page = Mover(site.port, "page-1", transport="websockets")
        page.client.ws_set_options(path="/mqtt", headers={"Cookie": ann.cookie})
        page.connect()
        assert page.subscribe("$nearcast/live/positions/+").is_failure
        assert page.subscribe("$nearcast/live/#").is_failure
        assert not page.subscribe("$nearcast/live/log/+").is_failure
        page.end()
    finally:
        client.end()


def test_without_operators_this_machine_is_a_viewer_and_is_told_so(
    start_broker: Callable[..., BrokerProcess],
):
    broker = start_broker(http={"address": "127.0.0.1:0"})
    anyone = Caller(broker.ports["http"])
    session = anyone.get("/api/session").json
    assert (session["role"], session["login"], session["positions"]) == ("viewer", False, False)
    assert "no operators" in session["notice"]
    assert anyone.get("/api/clients").status == 200
    assert anyone.get("/api/positions").status == 403
    assert anyone.post("/api/publish", {"topic": "a"}).status == 403
    assert anyone.post("/api/session", {"user": "a", "password": "b"}).status == 409


def test_somebody_without_a_name_sees_what_the_rules_show_such_a_client(
    start_broker: Callable[..., BrokerProcess],
):
    rules = [{"topic": "secret/#", "allow": False, "action": "subscribe"}, {"topic": "#"}]
    broker = start_broker(http={"address": "127.0.0.1:0"}, auth={"rules": rules})
    writer = Mover(broker.port, "writer")
    writer.connect()
    for topic in ("secret/1", "open/1"):
        writer.client.publish(topic, "x", qos=1, retain=True).wait_for_publish(10)
    anyone = Caller(broker.ports["http"])
    page = Mover(broker.ports["http"], "page-anyone", transport="websockets")
    page.client.ws_set_options(path="/mqtt")
    page.connect()
    assert not page.subscribe("open/#").is_failure
    assert page.subscribe("secret/#").is_failure
    assert page.subscribe("#").is_failure
    found = anyone.get("/api/retained").json["items"]
    assert [one["topic"] for one in found] == ["open/1"]
    assert anyone.get("/api/retained/message?topic=open/1").status == 200
    assert anyone.get("/api/retained/message?topic=secret/1").status == 404
    writer.end()
    page.end()


def test_where_clients_need_a_name_nobody_sees_anything_without_operators(
    start_broker: Callable[..., BrokerProcess],
):
    broker = start_broker(http={"address": "127.0.0.1:0"}, auth={"anonymous": "never"})
    anyone = Caller(broker.ports["http"])
    session = anyone.get("/api/session").json
    assert (session["role"], session["mqtt"]) == (None, None)
    assert "nobody sees anything" in session["notice"]
    assert anyone.get("/api/clients").status == 401


def test_a_page_subscribes_and_publishes_as_its_role_allows(
    site: ManagedBroker, page: Callable[..., Mover], mover: Callable[..., Mover]
):
    listener = mover("listener")
    listener.subscribe("roles/page/#")
    vic, ann = page(site.viewer(), "page-vic"), page(site.operator(), "page-ann")
    for hidden in ("$nearcast/live/positions/+", "$nearcast/live/log/+", "$nearcast/#"):
        assert vic.subscribe(hidden).is_failure
        assert not ann.subscribe(hidden).is_failure
        assert mover("stranger").subscribe(hidden).is_failure
    assert not vic.subscribe("#").is_failure
    vic.client.publish("roles/page/vic", "no")
    vic.move(1, 1)  # its own position is its own
    ann.client.publish("roles/page/ann", "yes", qos=1)
    wait_for(lambda: [one for one in listener.got if one.topic == "roles/page/ann"])
    wait_for(lambda: [one for one in vic.got if one.topic == "roles/page/ann"])
    assert {one.topic for one in listener.got} == {"roles/page/ann"}
    lines = [one["text"] for one in site.program().get("/api/log").json["items"]]
    said = "client 'page-ann' (user 'page:operator:ann') publishes to 'roles/page/ann'"
    assert said in lines


def test_a_page_has_a_name_of_its_own_and_no_session_that_lasts(
    site: ManagedBroker, mover: Callable[..., Mover]
):
    mover("victim")
    ann = site.operator()

    def login(name: str, **options: object) -> object:
        one = Mover(site.port, name, transport="websockets")
        one.client.ws_set_options(path="/mqtt", headers={"Cookie": ann.cookie})
        one.connect(**options)  # type: ignore[arg-type]
        one.end()
        return one.codes[0]

    assert login("victim").is_failure  # type: ignore[attr-defined]
    assert login("page-9", SessionExpiryInterval=60).is_failure  # type: ignore[attr-defined]
    assert not login("page-9").is_failure  # type: ignore[attr-defined]


def test_the_page_of_a_login_that_ends_is_disconnected(
    site: ManagedBroker, page: Callable[..., Mover]
):
    ann = site.operator()
    one = page(ann, "page-leaving")
    assert ann.ask("DELETE", "/api/session").status == 204
    wait_for(lambda: one.ended)
    assert ann.get("/api/session").json["role"] is None


def test_a_changed_line_of_the_operators_file_ends_the_login(
    start_site: Callable[..., ManagedBroker],
):
    import os
    import signal
    from pathlib import Path

    from nearcast.server.http.operators import set_operator

    site = start_site()
    ann, vic = site.operator(), site.viewer()
    path = Path(site.broker.sections["http"]["operators"])
    set_operator(path, "ann", "viewer", b"another")
    Path(site.broker.reload_path).write_text(json.dumps(site.broker.sections))
    os.kill(site.broker.pid, signal.SIGHUP)
    wait_for(lambda: ann.get("/api/session").json["role"] is None)
    assert vic.get("/api/session").json["role"] == "viewer"
    assert Caller(site.port).log_in("ann", "another").get("/api/positions").status == 403
