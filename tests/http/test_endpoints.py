"""What the endpoints answer about a broker with clients, and what their orders do."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.http.conftest import ManagedBroker, Mover
from tests.support.http_caller import Caller
from tests.support.waiting import wait_for

from nearcast.config import example, read
from nearcast.config.http_section import HttpSection
from nearcast.model.errors import EnvironmentProblem
from nearcast.server.http.management import take_management_port

pytestmark = pytest.mark.server


@pytest.fixture
def bot(site: ManagedBroker) -> Caller:
    return site.program()


def pages(bot: Caller, path: str, size: int) -> list[Any]:
    """Return all rows of a list, page by page."""
    found: list[Any] = []
    cursor = ""
    while True:
        reply = bot.get(f"{path}limit={size}{cursor}").json
        assert len(reply["items"]) <= size
        found += reply["items"]
        if reply["next"] is None:
            return found
        cursor = f"&cursor={quote(str(reply['next']), safe='')}"


def test_the_overview_counts_what_happens(
    bot: Caller, site: ManagedBroker, mover: Callable[..., Mover]
):
    before = bot.get("/api/overview").json
    one = mover("counted")
    one.subscribe("overview/#", 1)
    one.client.publish("overview/1", "x", qos=1).wait_for_publish(10)
    wait_for(lambda: one.got)
    after = bot.get("/api/overview").json
    assert after["connected"] == before["connected"] + 1
    assert after["subscriptions"] == before["subscriptions"] + 1
    assert after["received"] > before["received"]
    assert after["sent"] > before["sent"]
    assert after["name"] == "nearcast"
    assert after["rss_bytes"] > 1 << 20
    assert set(after["dropped"]) >= {"slow", "quota", "expired", "forbidden"}
    assert bot.get("/api/nodes").json["nodes"][0]["connected"] == after["connected"]


def test_clients_are_found_in_pages_by_their_names(bot: Caller, mover: Callable[..., Mover]):
    names = [f"found/{n:02}" for n in range(7)]
    for name in names:
        mover(name, (1.0, 2.0))
    rows = pages(bot, "/api/clients?search=FOUND/&", 3)
    assert [one["id"] for one in rows] == names
    assert bot.get("/api/clients?search=found/&limit=2").json["total"] == 7
    row = rows[0]
    assert row["connected"]
    assert row["position"] == [1.0, 2.0]
    assert row["protocol"] == "MQTT 5"
    assert row["address"].startswith("127.0.0.1:")
    assert {one["id"] for one in pages(bot, "/api/clients?connected=true&", 1_000)} >= set(names)
    assert bot.get("/api/clients?search=found/&connected=false").json["items"] == []


def test_a_client_is_shown_with_its_subscriptions(bot: Caller, mover: Callable[..., Mover]):
    one = mover("shown/1", (2.0, 48.0), SessionExpiryInterval=60)
    one.subscribe("plain/#", 1)
    one.subscribe("$where/price%20<%2050/$near/500m/shops/#")
    one.subscribe("$area/2,48,3,49/shops/#")
    one.subscribe("$share/workers/jobs/#")
    detail = bot.get("/api/clients/shown%2F1").json
    assert detail["expiry_s"] == 60
    by_filter = {one["text"]: one for one in detail["subscriptions"]["items"]}
    near = by_filter["$where/price<50/$near/500m/shops/#"]
    assert (near["filter"], near["where"], near["near_m"]) == ("shops/#", "price < 50", 500.0)
    area = next(one for one in by_filter.values() if one["area"])
    assert area["area"]["coordinates"][0][0] == [2.0, 48.0]
    assert by_filter["$share/workers/jobs/#"]["group"] == "workers"
    rows = pages(bot, "/api/clients/shown%2F1/subscriptions?", 1)
    assert len(rows) == 4
    groups = pages(bot, "/api/share-groups?", 1)
    assert next(one for one in groups if one["group"] == "workers")["members"] == ["shown/1"]
    assert bot.get("/api/clients/nobody").status == 404


def test_a_queue_shows_what_waits_for_a_client(
    bot: Caller, site: ManagedBroker, mover: Callable[..., Mover]
):
    one = mover("away", SessionExpiryInterval=600)
    one.subscribe("waiting/#", 1)
    one.end()
    wait_for(lambda: not bot.get("/api/clients/away").json["client"]["connected"])
    for number in range(3):
        bot.post("/api/publish", {"topic": f"waiting/{number}", "payload": "abc", "qos": 1})
    rows = pages(bot, "/api/clients/away/queue?", 2)
    assert [(one["topic"], one["bytes"], one["qos"], one["state"]) for one in rows] == [
        (f"waiting/{number}", 3, 1, "queued") for number in range(3)
    ]
    assert bot.post("/api/clients/away/disconnect").status == 409


def test_an_operator_disconnects_a_client(bot: Caller, mover: Callable[..., Mover]):
    one = mover("kicked")
    assert bot.post("/api/clients/kicked/disconnect").status == 204
    wait_for(lambda: one.ended)
    assert one.ended[0].value == 0x98  # administrative action


def test_retained_messages_are_listed_looked_at_and_deleted(
    bot: Caller, mover: Callable[..., Mover]
):
    for number in range(5):
        body = {"topic": f"kept/{number}", "payload": {"n": number}, "retain": True}
        assert bot.post("/api/publish", body).status == 200
    rows = pages(bot, "/api/retained?filter=kept/%23&", 2)
    assert [one["topic"] for one in rows] == [f"kept/{number}" for number in range(5)]
    assert rows[3]["preview"] == '{"n":3}'
    assert bot.get("/api/retained/message?topic=kept/3").json["text"] == '{"n":3}'
    listener = mover("kept-listener")
    listener.subscribe("kept/3")
    assert bot.ask("DELETE", "/api/retained/message?topic=kept/3").status == 204
    assert bot.get("/api/retained/message?topic=kept/3").status == 404
    wait_for(lambda: [one for one in listener.got if not one.payload])
    assert bot.get("/api/retained?filter=a/%23/b").status == 422


def test_topics_are_counted_by_filter(bot: Caller, mover: Callable[..., Mover]):
    for number in range(3):
        mover(f"counter {number}").subscribe("counted/+/x")
    mover("counter near", (1.0, 1.0)).subscribe("$near/5km/shops/counted")
    rows = {one["filter"]: one for one in pages(bot, "/api/topics?", 2)}
    assert rows["counted/+/x"]["subscribers"] == 3
    assert rows["shops/counted"] == {
        "filter": "shops/counted",
        "subscribers": 1,
        "with_conditions": 1,
        "share_groups": 0,
    }


def test_positions_and_shapes_are_those_in_view(bot: Caller, mover: Callable[..., Mover]):
    mover("east", (100.0, 10.0)).subscribe("$near/1km/shops/#")
    mover("west", (-100.0, 10.0)).subscribe("$area/-101,9,-99,11/shops/#")
    mover("line", (179.9, -17.0))
    view = "west=90&east=110&south=0&north=20"
    assert bot.get(f"/api/positions?{view}").json["clients"] == [["east", 100.0, 10.0]]
    crossing = bot.get("/api/positions?west=170&east=-170&south=-20&north=-10").json
    assert crossing["clients"] == [["line", 179.9, -17.0]]
    shapes = bot.get(f"/api/shapes?{view}").json
    assert [(one["client"], one["radius_m"]) for one in shapes["near"]] == [("east", 1000.0)]
    shapes = bot.get("/api/shapes?west=-105&east=-95&south=0&north=20").json
    assert [one["client"] for one in shapes["areas"]] == ["west"]
    assert bot.get("/api/positions?limit=1").json["left_out"] >= 2
    assert bot.get("/api/positions?west=abc").status == 400
    assert bot.get("/api/positions?nonsense=1").status == 400


def test_match_and_explain_say_who_gets_a_message(bot: Caller, mover: Callable[..., Mover]):
    mover("matching near", (10.0, 50.0)).subscribe("$near/2km/shops/#")
    mover("matching far", (10.01, 50.0)).subscribe("$near/2km/shops/#")
    mover("matching away", (20.0, 50.0)).subscribe("$near/2km/shops/#")
    event = {"lon": 10.0, "lat": 50.0, "price": 5, "kind": "food"}
    body = {"topic": "shops/1", "payload": event, "rank": "nearest"}
    found = bot.post("/api/match", body).json
    assert [one["client"] for one in found["matches"]] == ["matching near", "matching far"]
    assert found["matches"][0]["distance_m"] < 1 < found["matches"][1]["distance_m"]
    assert bot.post("/api/match", body | {"top": 1}).json["count"] == 1
    assert bot.post("/api/match", body | {"limit": 1}).json["more"]
    why = bot.post("/api/explain", {**body, "client": "matching away"} | {}).status
    assert why == 400  # `rank` is no part of a question
    question = {"client": "matching away", "topic": "shops/1", "payload": event}
    why = bot.post("/api/explain", question).json
    assert not why["delivered"]
    assert why["steps"][-1]["step"] == "position"
    plain = mover("matching plain")
    plain.subscribe("elsewhere/#")
    plain_match = bot.post("/api/match", {"topic": "elsewhere/1"}).json
    assert [one["client"] for one in plain_match["matches"]] == ["matching plain"]
    assert bot.post("/api/match", {"topic": "a/#"}).status == 422
    assert bot.post("/api/publish", {"topic": "$SYS/x"}).status == 409


def test_a_subscription_is_checked_before_it_is_made(site: ManagedBroker):
    vic = site.viewer()
    check = lambda body: vic.post("/api/subscriptions/check", body).json  # noqa: E731
    good = check({"filter": "shops/#", "where": "price < 50 and kind = food", "near": 500})
    assert good["ok"]
    assert good["text"].startswith("$where/")
    assert good["spaces"] == ["shops"]
    drawn = {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1], [0, 0]]]}
    assert check({"filter": "shops/#", "area": drawn})["ok"]
    wrong = check({"filter": "shops/#", "where": "price < "})
    assert (wrong["ok"], wrong["position"]) == (False, 8)
    assert "prise" in check({"filter": "shops/#", "where": "prise < 5"})["problem"]
    assert not check({"filter": "a/#/b"})["ok"]
    assert not check({"filter": "other/#", "near": 5})["ok"]
    assert check({"filter": "other/#"}) | {"spaces": []} == {
        **check({"filter": "other/#"}),
        "text": "other/#",
    }


def test_the_configuration_is_shown_without_secrets_and_checked(bot: Caller):
    settings = bot.get("/api/configuration").json["settings"]
    assert settings["space"][0]["name"] == "shops"
    check = lambda text: bot.post("/api/configuration/check", {"text": text}).json  # noqa: E731
    wrong = check("[limits]\nqueue = 5\nquue = 6\n")
    assert not wrong["ok"]
    assert wrong["problems"][0]["line"] == 3
    fine = check("[limits]\nqueue = 5\npacket = 7000\n")
    assert fine["ok"]
    assert "limits.queue" in fine["by_reload"]
    assert "limits.packet" in fine["by_restart"]


def test_an_unchanged_answer_is_not_sent_again(bot: Caller):
    first = bot.get("/api/spaces")
    again = bot.get("/api/spaces", **{"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert bot.get("/", **{"Accept-Encoding": "gzip"}).status in (200, 404)
    head = bot.ask("HEAD", "/api/spaces")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(first.body))


def test_probes_and_metrics_need_no_login(site: ManagedBroker):
    anyone = site.nobody()
    assert anyone.get("/healthz").body == b"ok\n"
    assert anyone.get("/readyz").status == 200
    metrics = anyone.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b"nearcast_connections" in metrics.body


def test_runs_audits_policies_and_plans_of_the_data_directory_are_found(
    start_site: Callable[..., ManagedBroker], tmp_path: Path
):
    site = start_site()
    nightly = site.broker.directory / "nightly"
    nightly.mkdir()
    steps = [
        {"name": "regions", "seconds": 1.0, "summary": {"regions": 3}, "skipped": None},
        {"name": "audit", "seconds": 2.0, "summary": {"faults": 0}, "skipped": None},
    ]
    (nightly / "run.json").write_text(json.dumps({"format": "nearcast-run", "steps": steps}))
    ring = [[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]
    polygon = {"type": "Polygon", "coordinates": [ring]}
    features = [
        {"type": "Feature", "properties": {"kind": kind}, "geometry": polygon}
        for kind in ("Q leaf", "slow region")
    ]
    collection = {"type": "FeatureCollection", "features": features}
    (nightly / "plan.geojson").write_text(json.dumps(collection))
    (site.broker.directory / "policies.json").write_text("not json")
    bot = site.program()
    learned = bot.get("/api/learning").json
    assert learned["runs"][0]["folder"] == "nightly"
    assert learned["audits"] == [
        {"folder": "nightly", "at": learned["runs"][0]["at"], "summary": {"faults": 0}}
    ]
    assert learned["plan"] is None
    assert bot.get("/api/regions").json["features"] == features[1:]
    assert bot.get("/api/plan").json["features"] == []


async def test_a_broker_whose_default_port_is_taken_goes_on_without_and_says_so(
    caplog: pytest.LogCaptureFixture,
):
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", 8080)):
        with caplog.at_level(logging.INFO, "nearcast.server"):
            assert await take_management_port(HttpSection()) is None
            written = read(example(), {}).configuration  # as `nearcast init` writes it
            assert written is not None
            assert await take_management_port(written.http) is None
        assert "goes on without the page" in caplog.text


async def test_an_address_that_was_chosen_and_is_taken_ends_the_start():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        section = HttpSection(address=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(EnvironmentProblem, match="cannot be opened"):
            await take_management_port(section)
    assert await take_management_port(HttpSection(address="off")) is None


@pytest.mark.parametrize(
    "section",
    [
        {"address": "0.0.0.0:8080"},
        {"address": "nonsense"},
        {"hosts": ["http://a"]},
        {"tiles": "javascript:alert(1)//{z}"},
        {"tiles": "https://a; script-src *//{z}"},
        {"certificate": "a.pem"},
    ],
)
def test_a_section_that_would_open_too_much_is_refused(section: dict[str, Any]):
    with pytest.raises(ValueError, match=r"operators|HOST:PORT|name|address|key"):
        HttpSection.model_validate(section)
