"""Random histories of one broker, and all the bytes that it sends and stores.

    python -m tests.support.core_histories FIRST COUNT

prints a line of JSON for each seed: what every client got, the journal and the counters, hashed.
The compiled core and the Python modules must print the same.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict
from random import Random
from typing import Any

from tests.broker.conftest import V5, V311, Client, World
from tests.support.shop_space import SHOPS

from nearcast.broker import SpaceSettings
from nearcast.compiled_core import is_in_use
from nearcast.mqtt import (
    FilterRequest,
    Properties,
    Publish,
    Subscribe,
    Unsubscribe,
    Will,
    encode_packet,
)

NAMES = ["ann", "bob", "cyd", "dan"]
TOPICS = ["a", "a/b", "a/b/c", "shops/1", "shops/1", "$position", "$SYS/x", "é/ü"]
FILTERS = [
    "a", "a/#", "+/b", "#", "$share/g/a/#", "shops/#", "$where/price<50/shops/#",
    "$near/500m/shops/#", "$area/8.4,47.4,500m/shops/#", "a/#/b", "",
]  # fmt: skip
PAYLOADS = [
    b"", b"x", b"y" * 200, b'{"price": 3, "kind": "food", "lon": 8.5, "lat": 47.5}',
    b'{"price": 70, "lon": 8.5001, "lat": 47.5}', b'{"lon": 8.5, "lat": 47.5}', b"{",
]  # fmt: skip
PAIRS = [
    (),
    (("a", "b"),),
    (("$top", "1"),),
    (("$rank", "nearest"), ("$top", "2")),
    (("$top", "0"),),
]


class History:
    """One broker and its clients, driven by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World(spaces=[SpaceSettings(space=SHOPS)], with_journal=True)
        self.everybody: list[Client] = []

    def run(self, steps: int) -> dict[str, Any]:
        """Take so many steps; return what was sent and stored."""
        often = [self.publish] * 3
        seldom = [self.connect, self.subscribe, self.unsubscribe, self.run_of, self.damaged]
        actions = [*often, *seldom, self.lose, self.pause, self.wait]
        self.connect()
        for _ in range(steps):
            self.random.choice(actions)()
            if self.random.random() < 0.01:
                self.world.crash_and_restart()
        got = hashlib.sha256(b"\0".join(one.all_bytes for one in self.everybody)).hexdigest()
        stored = hashlib.sha256(b"".join(self.world.stored)).hexdigest()
        counters = asdict(self.world.node.counters)
        return {"got": got, "stored": stored, "counters": counters}

    def _anybody(self) -> Client:
        alive = [one for one in self.world.clients if not one.is_closed]
        return self.random.choice(alive) if alive else self.connect()

    def connect(self) -> Client:
        """Connect a client, perhaps in place of one that is there."""
        pick = self.random
        version = pick.choice([V311, V5])
        limits: dict[str, Any] = {}
        if version == V5 and pick.random() < 0.5:
            limits = {
                "session_expiry_interval": pick.choice([0, 30, 3600]),
                "receive_maximum": pick.choice([1, 10, 65_535]),
                "topic_alias_maximum": pick.choice([0, 3]),
            }
        will = (
            Will(pick.choice(TOPICS), b"gone", pick.randrange(3)) if pick.random() < 0.3 else None
        )
        client = self.world.client(
            pick.choice(NAMES), version, answers=pick.random() < 0.8,
            will=will if pick.random() < 0.3 else None,
            clean_start=pick.random() < 0.5, keep_alive_s=pick.choice([0, 5]),
            properties=Properties(**limits),
        )  # fmt: skip
        self.everybody.append(client)
        return client

    def subscribe(self) -> None:
        """Subscribe to some filters."""
        client, pick = self._anybody(), self.random
        filters = pick.sample(FILTERS, pick.randrange(1, 4))
        requests = tuple(FilterRequest(text, pick.randrange(3)) for text in filters)
        client.send(Subscribe(client.next_id(), requests))

    def unsubscribe(self) -> None:
        """Unsubscribe from a filter."""
        client = self._anybody()
        client.send(Unsubscribe(client.next_id(), (self.random.choice(FILTERS),)))

    def _publication(self, client: Client) -> Publish:
        pick = self.random
        qos = pick.randrange(3)
        properties = Properties()
        if client.version == V5 and pick.random() < 0.3:
            properties = Properties(
                user_properties=pick.choice(PAIRS),
                message_expiry_interval=pick.choice([None, 1, 100]),
            )
        return Publish(
            pick.choice(TOPICS), pick.choice(PAYLOADS), qos, pick.random() < 0.2,
            packet_id=client.next_id() if qos else 0, properties=properties,
        )  # fmt: skip

    def publish(self) -> None:
        """Publish one message."""
        client = self._anybody()
        client.send(self._publication(client))

    def run_of(self) -> None:
        """Publish the same many times in one read, cut in two anywhere."""
        client = self._anybody()
        packet = encode_packet(self._publication(client), client.version)
        data = packet * self.random.randrange(1, 30)
        cut = self.random.randrange(len(data) + 1)
        client.send_bytes(data[:cut])
        client.send_bytes(data[cut:])

    def damaged(self) -> None:
        """Send a packet with one byte changed."""
        client = self._anybody()
        data = bytearray(encode_packet(self._publication(client), client.version))
        data[self.random.randrange(len(data))] = self.random.randrange(256)
        client.send_bytes(bytes(data))

    def lose(self) -> None:
        """Lose a connection."""
        self._anybody().lose()

    def pause(self) -> None:
        """Let a client stop reading, or read again."""
        client = self._anybody()
        if client.link.is_paused:
            self.world.resume(client)
        else:
            client.link.is_paused = True

    def wait(self) -> None:
        """Let time pass."""
        self.world.wait(self.random.choice([1, 500, 40_000]))


def main() -> None:
    """Print the outcome of each history."""
    first, count = int(sys.argv[1]), int(sys.argv[2])
    print(json.dumps({"compiled": is_in_use()}))  # noqa: T201
    for seed in range(first, first + count):
        print(json.dumps(History(seed).run(150)))  # noqa: T201


if __name__ == "__main__":
    main()
