"""Memory that is given back: by retained messages that expire, and by short connections."""

from __future__ import annotations

import gc
import json
import tracemalloc
from typing import Any

from tests.support.limited_city import city

from nearcast.broker import SpaceSettings
from nearcast.mqtt import Properties


def test_a_retained_message_that_expires_gives_its_place_in_the_space_back(make_world: Any) -> None:
    spaces: list[SpaceSettings] = [city()]
    world = make_world(spaces=spaces)
    publisher, client = world.welcome("p"), world.welcome("c")
    event = json.dumps({"lon": 1, "lat": 1, "price": 2}).encode()
    publisher.publish(
        "city/1", event, retain=True, properties=Properties(message_expiry_interval=1)
    )
    crossing = world.node.state.selections.crossing
    assert crossing.count == 1
    world.wait(2_000)
    client.subscribe("city/#", 1)
    assert client.publications() == []
    assert world.node.state.retained.count == 0
    assert crossing.count == 0


def test_memory_stays_flat_over_short_connections(make_world: Any) -> None:
    world = make_world()

    def come_and_go(first: int) -> None:
        for number in range(first, first + 500):
            client = world.welcome(
                f"c{number}", keep_alive_s=65_535, props={"session_expiry_interval": 0}
            )
            client.subscribe(f"a/{number}/+")
            client.publish("a/b/c")
            client.lose()
            world.clients.clear()
        world.stored.clear()
        gc.collect()

    come_and_go(0)
    tracemalloc.start()
    come_and_go(500)
    before, _ = tracemalloc.get_traced_memory()
    come_and_go(1_000)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 500 * 100
