"""The story on the page: its steps as messages, plans as GeoJSON, and when a browser is opened."""

import json
from typing import Any

import pytest

from nearcast.demo import telling
from nearcast.demo.city import BOUNDS
from nearcast.demo.quadrants import quadrant_plan
from nearcast.demo.telling import StoryTeller, open_browser, plan_features
from nearcast.locality import Rect
from nearcast.mqtt import Publish


class _Listener:
    def __init__(self) -> None:
        self.said: list[Publish] = []

    def say(self, message: Publish) -> None:
        self.said.append(message)


def small_plan() -> Any:
    track = [(-122.41 + step * 1e-4, 37.785 + step * 1e-4) for step in range(60)]
    return quadrant_plan(Rect(*BOUNDS), [track, track[::-1]], 10, 2)


def test_a_step_is_a_retained_message_with_its_plans():
    teller, listener = StoryTeller(), _Listener()
    teller._client = listener  # type: ignore[assignment]
    teller.step(6, "Compared", "One line.", plans=[("Quadrants", small_plan(), ["north", "east"])])
    [message] = listener.said
    step = json.loads(message.payload)
    assert message.retain
    assert message.topic == telling.TOPIC
    assert (step["number"], step["of"], step["lines"]) == (6, telling.STEPS, ["One line."])
    assert step["plans"][0]["title"] == "Quadrants"


def test_the_leaves_of_a_plan_are_closed_rings_with_the_name_of_their_node():
    plan = small_plan()
    features = plan_features(plan, ["north", "east"])
    assert len(features) == len(plan.leaves) > 4
    for feature in features:
        [ring] = feature["geometry"]["coordinates"]
        assert ring[0] == ring[-1]
        assert len(ring) == 5
        named = feature["properties"]
        assert named["node"] == ["north", "east"][named["broker"]]


def test_without_a_page_nothing_is_told():
    StoryTeller().step(1, "Nobody listens")


def test_no_browser_is_opened_where_nobody_would_see_it(monkeypatch: pytest.MonkeyPatch):
    opened: list[str] = []

    def remember(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr("webbrowser.open", remember)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert not open_browser("http://127.0.0.1/")
    monkeypatch.setenv("DISPLAY", ":0")
    assert open_browser("http://127.0.0.1/")
    assert opened == ["http://127.0.0.1/"]
    monkeypatch.setattr("sys.stdout.isatty", lambda: False, raising=False)
    assert not open_browser("http://127.0.0.1/")
