"""A client that hears a question, goes to another node with clean start, and answers there.

    a ──near── b        `a`: the asker, and the client when it hears the question
    │ ╲      ╱ │        `b` and `m`: where the client goes; nobody subscribes there
    │   near   │        `l`: a listener
    │ ╱      ╲ │
    m ──near── l        a ──far── l: the question takes long, the answer does not

The same question and answer go through a plain space and one with `order = "causal"`. Then it
measures what a claim costs a node that has a causal past to give, in bytes and in processor time.

    python -m benchmarks.causal_moves --quick

`causal_cluster.py` has the cluster, `slow_links.py` the places and the delays between them.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from benchmarks.causal_cluster import CAUSAL, PLAIN, SPACES, Cluster
from benchmarks.slow_links import (
    SlowLinks,
    found_by_hand,
    is_inside,
    measured_inside,
    problem_with_namespaces,
)
from paho.mqtt.enums import CallbackAPIVersion

from nearcast.model.errors import EnvironmentProblem
from nearcast.ordering import DeltaCausal

Row = dict[str, Any]
FAR_MS, LIFETIME_MS = 1_000, 6_000
WAYS = {"one move": ("b",), "two moves": ("b", "m")}
_WAIT_S = 60.0


class Guest:
    """A client with clean start that notes what it hears."""

    def __init__(self, name: str, address: str) -> None:
        self.heard: list[str] = []
        self._news = threading.Condition()
        self._connected, self._subscribed = threading.Event(), threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name)
        self._client.on_connect = lambda *_: self._connected.set()
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = lambda _c, _u, message: self._listen(message)
        began = time.monotonic()
        self._client.connect(address, 1883)
        self._client.loop_start()
        if not self._connected.wait(_WAIT_S):
            raise EnvironmentProblem(f"{address} does not answer")
        self.connect_ms = (time.monotonic() - began) * 1000

    def _listen(self, message: paho.MQTTMessage) -> None:
        with self._news:
            self.heard.append(f"{message.topic.partition('/')[0]} {json.loads(message.payload)[0]}")
            self._news.notify_all()

    def subscribe(self) -> None:
        self._client.subscribe([(f"{space}/#", 1) for space in SPACES])
        if not self._subscribed.wait(_WAIT_S):
            raise EnvironmentProblem("no SUBACK")

    def say(self, text: str) -> None:
        """Publish in both spaces; the events have a place in them."""
        for space in SPACES:
            self._client.publish(f"{space}/talk", json.dumps([text]), qos=1)

    def wait_for(self, *texts: str, most_s: float = _WAIT_S) -> None:
        """Wait until texts are heard in both spaces, or for so long."""
        wanted = {f"{space} {text}" for space in SPACES for text in texts}
        with self._news:
            self._news.wait_for(lambda: wanted <= set(self.heard), most_s)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


class MovingTown:
    """The people at their places, and what the listener heard."""

    def __init__(self, links: SlowLinks) -> None:
        self.address = {name: place.address for name, place in links.places.items()}
        self.asker = Guest("asker", self.address["a"])
        self.listener = Guest("listener", self.address["l"])
        self.listener.subscribe()
        self.connects_ms: list[float] = []

    def round(self, text: str, way: tuple[str, ...]) -> None:
        """Let the client hear a question, go its way and answer."""
        mover = Guest("mover", self.address["a"])
        mover.subscribe()
        self.asker.say(f"question {text}")
        mover.wait_for(f"question {text}")
        for place in way:
            mover.close()
            mover = Guest("mover", self.address[place])
            self.connects_ms.append(mover.connect_ms)
        mover.say(f"answer {text}")
        most_s = 2 * LIFETIME_MS / 1000
        self.listener.wait_for(f"question {text}", f"answer {text}", most_s=most_s)
        mover.close()

    def order(self, space: str, text: str) -> str:
        """Return what the listener heard of a round, for example "question answer"."""
        heard = [one.split(" ") for one in self.listener.heard if one.endswith(f" {text}")]
        return " ".join(one[1] for one in heard if one[0] == space)

    def close(self) -> None:
        self.asker.close()
        self.listener.close()


def talk(links: SlowLinks, rounds: int) -> list[Row]:
    """Let the client move in every round; return how often the answer came first."""
    town = MovingTown(links)
    town.round("warm-up", ("b",))  # until the connections have found their pace
    rows = []
    for name, way in WAYS.items():
        town.connects_ms.clear()
        texts = [f"{name.replace(' ', '-')}-{number}" for number in range(rounds)]
        for text in texts:
            town.round(text, way)
        for space in (PLAIN, CAUSAL):
            orders = Counter(town.order(space, text) for text in texts)
            early, both = orders["answer question"], sum(n for o, n in orders.items() if " " in o)
            rows.append(
                {
                    "name": f"{name}, {space}: answers before their questions, of {both}",
                    "ours": early,
                    "peer": both,
                    "ratio": early / max(1, both),
                    "target": "0" if space == CAUSAL else "> 0",
                    "holds": early == 0 if space == CAUSAL else early > 0,
                    "connect_ms": statistics.median(town.connects_ms),
                }
            )
    town.close()
    return rows


def measure(rounds: int) -> list[Row]:
    """Run both ways; this process has a namespace of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="nearcast-moves-") as directory,
        SlowLinks(["a", "b", "l", "m"]) as links,
        Cluster(links, Path(directory), LIFETIME_MS),
    ):
        links.delay("a", "l", FAR_MS)
        return talk(links, rounds)


def cost(nodes: int, active: int, claims: int) -> Row:
    """Measure a claim at a node that knows `active` messages of others, alive and not settled."""
    names = [f"node-{number}" for number in range(nodes)]
    group = {name: DeltaCausal(name, 1.0, skew=0.1) for name in names}
    old, now_s = group[names[0]], 1_000.0
    for number in range(active):
        sender = names[1 + number % (nodes - 2)]
        others = {names[0], names[1 + (number + 1) % (nodes - 1)]} - {sender}
        old.receive(group[sender].send(others, b"x", now_s)[names[0]].encode(), now_s)
        now_s += 0.0001
    new = group[names[-1]]
    sizes, spent = [], []
    for _ in range(claims):
        now_s += 0.0001
        began = time.process_time()
        past = old.send({names[-1]}, b"", now_s)[names[-1]].encode()
        given = time.process_time()
        new.receive(past, now_s)
        spent.append((given - began, time.process_time() - given))
        sizes.append(len(past))
    give_us, take_us = (statistics.median(each) * 1e6 for each in zip(*spent, strict=True))
    return {
        "name": f"a claim among {nodes} nodes, {active} messages under way",
        "bytes": sizes[0],
        "bytes_later": statistics.median(sizes),
        "give_us": give_us,
        "take_us": take_us,
    }


def run(quick: bool = False, rounds: int | None = None) -> dict[str, Any]:
    """Return the rows; where there can be no namespaces, only costs, and why."""
    rounds = rounds or (5 if quick else 50)
    if is_inside():
        return {"rows": measure(rounds)}
    costs = [cost(nodes, active, 2_000) for nodes, active in ((4, 10), (10, 50), (50, 50))]
    problem = problem_with_namespaces()
    if problem:
        return {"rows": [], "costs": costs, "skipped": problem}
    return {**measured_inside("benchmarks.causal_moves", rounds), "costs": costs}


def main() -> None:
    found = found_by_hand(__doc__, run)
    for row in found["rows"]:
        print(
            f"{row['name']:<60} {row['ours']:>4} {row['ratio']:>7.1%} {row['target']:>4} "
            f"{row['holds']}  CONNACK after {row['connect_ms']:.0f} ms (median)"
        )
    for row in found.get("costs", ()):
        print(
            f"{row['name']:<60} {row['bytes']} bytes at first, {row['bytes_later']:.0f} later; "
            f"{row['give_us']:.1f} µs to give, {row['take_us']:.1f} µs to take"
        )


if __name__ == "__main__":
    main()
