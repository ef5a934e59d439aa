"""What moves on the map: frames while somebody looks, and nothing while nobody does."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.http.conftest import ManagedBroker, Mover
from tests.support.waiting import wait_for

from nearcast.broker import Broker
from nearcast.server.http.live import LiveFeed
from nearcast.server.http.log_tail import LogTail

pytestmark = pytest.mark.server


def frames(one: Mover, kind: str) -> list[Any]:
    topic = f"$nearcast/live/{kind}/nearcast"
    return [json.loads(message.payload) for message in one.got if message.topic == topic]


def test_a_viewer_of_the_map_gets_a_full_frame_then_what_changes(
    site: ManagedBroker, page: Callable[..., Mover], mover: Callable[..., Mover]
):
    still, moving = mover("still", (1.0, 1.0)), mover("moving", (2.0, 2.0))
    look = page(site.operator(), "page-map")
    look.subscribe("$nearcast/live/positions/+")
    wait_for(lambda: frames(look, "positions"))
    full = frames(look, "positions")[0]
    assert full["full"]
    assert {tuple(one) for one in full["moved"]} >= {("still", 1.0, 1.0), ("moving", 2.0, 2.0)}

    moving.move(2.5, 2.5)
    wait_for(lambda: len(frames(look, "positions")) > 1)
    later = frames(look, "positions")[1]
    assert (later["full"], later["moved"]) == (False, [["moving", 2.5, 2.5]])

    still.end()
    wait_for(lambda: ["still"] in [one["gone"] for one in frames(look, "positions")])


def test_deliveries_are_shown_with_their_receivers(
    site: ManagedBroker, page: Callable[..., Mover], mover: Callable[..., Mover]
):
    for name, lon in (("first", 30.0), ("second", 30.001), ("third", 30.002)):
        mover(name, (lon, 40.0)).subscribe("$near/1km/shops/#")
    look = page(site.operator(), "page-events")
    look.subscribe("$nearcast/live/deliveries/+")
    shop = mover("shop")
    event = {"lon": 30.0, "lat": 40.0, "price": 5, "kind": "food"}

    def shown(count: int) -> list[Any]:
        return [one for frame in frames(look, "deliveries") for one in frame["events"]][:count]

    def sent() -> bool:
        shop.client.publish("shops/1", json.dumps(event))
        return bool(shown(1))

    wait_for(sent)
    one = shown(1)[0]
    assert (one["topic"], one["publisher"], one["lon"], one["lat"]) == ("shops/1", "shop", 30, 40)
    assert sorted(one["to"]) == ["first", "second", "third"]
    assert (one["matched"], one["chosen"]) == (3, 0)
    assert json.loads(one["payload"]) == event
    shop.client.publish("$top/2/$rank/nearest/shops/2", json.dumps(event))
    wait_for(lambda: [one for one in shown(1_000) if one["topic"] == "shops/2"])
    best = next(one for one in shown(1_000) if one["topic"] == "shops/2")
    assert (sorted(best["to"]), best["chosen"]) == (["first", "second"], 2)


def test_a_page_takes_the_place_of_no_client(
    site: ManagedBroker, page: Callable[..., Mover], mover: Callable[..., Mover]
):
    look = page(site.operator(), "page-place")
    look.move(50.0, 50.0)
    look.subscribe("$near/9km/shops/#")
    assert look.subscribe("$share/couriers/shops/#").is_failure
    mover("courier", (50.01, 50.0)).subscribe("$near/9km/shops/#")
    bot = site.program()
    body = {"topic": "shops/1", "payload": {"lon": 50, "lat": 50, "price": 1, "kind": "food"}}
    found = bot.post("/api/match", {**body, "top": 1, "rank": "nearest"}).json["matches"]
    assert [one["client"] for one in found] == ["courier"]
    assert bot.get("/api/clients?search=page-place").json["items"] == []
    assert len(bot.get("/api/clients?search=page-place&pages=true").json["items"]) == 1
    positions = bot.get("/api/positions?west=49&east=51&south=49&north=51").json["clients"]
    assert [one[0] for one in positions] == ["courier"]


def test_new_log_lines_are_shown(
    site: ManagedBroker, page: Callable[..., Mover], mover: Callable[..., Mover]
):
    look = page(site.operator(), "page-log")
    look.subscribe("$nearcast/live/log/+")
    bot = site.program()

    def said() -> bool:
        bot.post("/api/publish", {"topic": "live/log"})
        return "live/log" in json.dumps(frames(look, "log"))

    wait_for(said)


def test_a_page_is_told_that_the_broker_stops(start_site: Callable[..., ManagedBroker]):
    site = start_site()
    look = Mover(site.port, "page-stop", transport="websockets")
    look.client.ws_set_options(path="/mqtt", headers={"Cookie": site.operator().cookie})
    look.connect()
    site.broker.end()
    wait_for(lambda: look.ended)
    assert look.ended[0].value == 0x8B  # the server is shutting down
    look.end()


class FakeTurns:
    """A loop batch that writes nothing."""

    class Clock:
        @staticmethod
        def now_ms() -> int:
            return 1_000

    clock = Clock()

    def schedule(self) -> None:
        pass


def test_without_a_viewer_nothing_is_watched_or_published():
    node = Broker()
    feed = LiveFeed(node, FakeTurns(), LogTail(), "alone", lambda: True)  # type: ignore[arg-type]
    before = node.counters.publish_sent
    for _ in range(3):
        feed._publish_frames()
    assert node.state.watch is None
    assert node.counters.publish_sent == before

    node.inspection.watch_with(feed)
    feed._is_watching = True
    feed._publish_frames()  # the viewer is gone
    assert node.state.watch is None


def test_a_client_that_moves_often_is_in_a_frame_once():
    feed = LiveFeed(Broker(), FakeTurns(), LogTail(), "alone", lambda: True)  # type: ignore[arg-type]
    from nearcast.broker.session.session import Session

    one = Session("one", 1)
    for _ in range(100):
        feed.moved(one)
    assert len(feed._moved) == 1


def test_events_beyond_ten_a_frame_are_counted():
    feed = LiveFeed(Broker(), FakeTurns(), LogTail(), "alone", lambda: True)  # type: ignore[arg-type]
    feed._has_events = True
    from nearcast.model import Attribute, Event, Space

    space = Space(
        name="s",
        topic_filter="s/#",
        attributes=(Attribute.number("lon", -180, 180), Attribute.number("lat", -90, 90)),
        longitude="lon",
        latitude="lat",
    )
    for number in range(25):
        if feed.wants_event():
            feed.event("s/1", b"", None, Event("s/1", space, (1.0, float(number))), [], 0)
    assert (len(feed._events), feed._left_out) == (10, 15)
