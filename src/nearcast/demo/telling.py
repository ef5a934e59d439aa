"""The story on the page: each step is a retained message that the page shows beside its map."""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from nearcast.demo.city import EAST, NEAR_M, NORTH, SOUTH, WEST
from nearcast.demo.history import HOURS
from nearcast.demo.inhabitants import TIMES_FASTER, Inhabitant
from nearcast.demo.opening import SLOW_S, TOP, WITHIN_M, OrderOfArrival
from nearcast.mqtt import Publish

if TYPE_CHECKING:
    from nearcast.demo.page import PageTable
    from nearcast.locality import Plan

TOPIC = "nearcast-demo/story"
STEPS = 7
_CITY = {"west": WEST, "south": SOUTH, "east": EAST, "north": NORTH}
_STREETS = {"west": -122.4150, "south": 37.7820, "east": -122.4010, "north": 37.7930}
_STEPS_IN_STREETS = 3  # whose clients are near each other


NEAR = (
    f"Ana and Ben are clients of two nodes. Both subscribe to what happens within {WITHIN_M} m.",
    "A bakery publishes. Ana is near and gets the message; Ben is too far away.",
)
NEAREST = (
    (
        f"An order says: only the {TOP} nearest. The couriers are clients of several nodes, which "
        "choose together."
    ),
)
CAUSAL = (
    (
        "Dan asks in the north, Eve in the east answers at once. What the north sends to the west "
        f"is slow here: {SLOW_S:g} s. So the answer is in the west before its question."
    ),
    'The topic has order = "causal": in the west the answer waits for its question.',
)
_FOLLOWS = (
    "People walk about in seven districts; cars and buses drive between them. Each is an MQTT "
    f"client and gets what happens within {NEAR_M} m of it; its subscription moves with it. Their "
    f"clock runs {TIMES_FASTER} times as fast."
)
CITY = (_FOLLOWS, "Click one: its subscriptions, and why it got a message or did not.")
_PLAN = (
    "From this it makes a plan: which node serves which part of the city. And policies: when it "
    "pays to send retained messages. Nobody moves meanwhile, so that nothing is disturbed."
)
LEARNING = (
    (
        f"Spark reads where everybody was in the last {HOURS} hours, a record made by the same "
        "simulation, and the nodes' logs."
    ),
    _PLAN,
)
LEARNED = (
    (
        "The running nodes have taken the plan. The colours show which node "
        "serves what. Everybody connects to the node of the first place; the same people make the "
        "same moves, and the same happens."
    ),
)
COMPARED = (
    (
        "The table says what the nodes sent to each other. In both plans an area has as many "
        "people at most, and each node about as many. This page watches everything, and what it "
        "watches counts as well."
    ),
)


def order_table(found: OrderOfArrival) -> PageTable:
    """Return what arrived in the west, and when."""
    from nearcast.demo.page import PageTable

    rows = [
        (name, *(f"{word}, {after_s:.2f} s" for word, after_s in arrived))
        for name, arrived in (("plain topic", found.plain), ("causal order", found.causal))
    ]
    return PageTable("In the west", ("", "first", "then"), tuple(rows))


class StoryTeller:
    """Tells the page what happens; without a page it does nothing."""

    def __init__(self) -> None:
        self._client: Inhabitant | None = None

    async def come(self, port: int) -> None:
        """Connect to the node that has the page."""
        self._client = Inhabitant("storyteller", lambda _: None)
        await self._client.come(port)

    def step(
        self,
        number: int,
        title: str,
        *lines: str,
        table: PageTable | None = None,
        plans: Iterable[tuple[str, Plan, Sequence[str]]] = (),
    ) -> None:
        """Show a step: sentences, a table, and plans side by side, each with its nodes' names."""
        if self._client is None:
            return
        step: dict[str, Any] = {"number": number, "of": STEPS, "title": title, "lines": lines}
        step["view"] = _STREETS if number <= _STEPS_IN_STREETS else _CITY
        if table is not None:
            step["table"] = {"headings": table.headings, "rows": table.rows}
        step["plans"] = [
            {"title": name, "features": plan_features(plan, names)} for name, plan, names in plans
        ]
        self._client.say(Publish(TOPIC, json.dumps(step).encode(), 1, retain=True))

    async def go(self) -> None:
        """Disconnect."""
        if self._client is not None:
            await self._client.go()


def plan_features(plan: Plan, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the leaves of a plan as GeoJSON features; `names[n]` is the node of broker n."""
    return [
        {
            "type": "Feature",
            "properties": {"broker": broker, "node": names[broker] if names else None},
            "geometry": {"type": "Polygon", "coordinates": [_corners(*leaf.rect)]},
        }
        for leaf in sorted(plan.leaves, key=lambda leaf: leaf.kind)  # q, then r above them
        for broker in [plan.broker_of(leaf.number)]
    ]


def _corners(west: float, south: float, east: float, north: float) -> list[list[float]]:
    return [[west, south], [east, south], [east, north], [west, north], [west, south]]


def open_browser(address: str) -> bool:
    """Open the page where somebody can see it: at a terminal, on a machine with a screen."""
    has_screen = sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    return sys.stdout.isatty() and has_screen and webbrowser.open(address)
