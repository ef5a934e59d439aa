"""Questions and answers over a NATS cluster of three servers, far from each other.

    a ──near── b ──near── c        each place: a NATS server, a node, a client that asks
    └───────── far ───────┘        questions and answers those of the others

A query from `a` reaches `b` long before it reaches `c`; the answer that `b` gives at once is at
`c` first, unless the space has `order = "causal"`. Both kinds of space carry the same traffic in
one run. Then the far link becomes slower than the lifetime: what comes too late is discarded and
counted, and answers wait for it no longer than its lifetime.

    python -m benchmarks.causal_cluster --quick

`slow_links.py` makes the places (network namespaces) and the delays between them.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from benchmarks.slow_links import (
    Place,
    SlowLinks,
    found_by_hand,
    is_inside,
    measured_inside,
    problem_with_namespaces,
)
from paho.mqtt.enums import CallbackAPIVersion

from nearcast.config import NetworkSection
from nearcast.model.errors import EnvironmentProblem
from nearcast.server.cluster.nats_admin import look
from nearcast.server.local_cluster import ChildProcess, find_nats_server

Row = dict[str, Any]
NAMES = ("a", "b", "c")
LIFETIME_MS = 250
PAUSE_S = 0.02
NEAR_MS, FAR_MS, TOO_FAR_MS = 5, 80, 400
PLAIN, CAUSAL = "plain", "causal"
SPACES = (PLAIN, CAUSAL)
_COMMAND = "import sys; from nearcast.cli import main; sys.argv[0] = 'nearcast'; main()"
_START_S = 180.0
_SETTLE_S = 30.0
_COUNTERS = re.compile(r'^nearcast_causal_(\w+?)_total(?:\{reason="\w+"\})? (\d+)', re.MULTILINE)

_CONFIG = """
[auth]
anonymous = "always"
[[listener]]
host = "0.0.0.0"
port = 1883
[durability]
mode = "off"
[network]
insecure = true
join = ["nats://127.0.0.1:4222"]
[log]
metrics_port = 9000
[[space]]
name = "plain"
topics = "plain/#"
[space.attributes]
number = { low = 0, high = 1000000 }
[[space]]
name = "causal"
topics = "causal/#"
order = "causal"
lifetime = "%d ms"
[space.attributes]
number = { low = 0, high = 1000000 }
"""


class Cluster:
    """NATS servers that are one, a node at each place. A context manager."""

    def __init__(self, links: SlowLinks, directory: Path, lifetime_ms: int = LIFETIME_MS) -> None:
        self.links = links
        self._directory = directory
        self._children: list[ChildProcess] = []
        self._program = find_nats_server()
        (directory / "nearcast.toml").write_text(_CONFIG % lifetime_ms)

    def __enter__(self) -> Cluster:
        try:
            servers = [self._start_server(place) for place in self.links.places.values()]
            self._wait_for(lambda: any(one.has_said("metadata leader") for one in servers))
            nodes = [self._start_node(place) for place in self.links.places.values()]
            self._wait_for(lambda: all(one.has_said("Ready.") for one in nodes))
            self._wait_for(self._is_linked)
        except BaseException:
            for one in self._children:
                print(f"{one.name}: {one.last_words()}", file=sys.stderr)
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for child in reversed(self._children):
            child.ask_to_end()
        for child in reversed(self._children):
            child.end(5)

    def _start_server(self, place: Place) -> ChildProcess:
        others = [name for name in self.links.places if name != place.name]
        routes = ",".join(f"nats://{self.links.address(place.name, one)}:6222" for one in others)
        store = self._directory / f"nats-{place.name}"
        words = ["-js", "-sd", str(store), "-p", "4222", "-n", place.name]
        words += ["-cluster_name", "slow", "-cluster", "nats://0.0.0.0:6222", "-routes", routes]
        return self._start(place, f"nats-{place.name}", self._program, *words)

    def _start_node(self, place: Place) -> ChildProcess:
        words = ["serve", "--name", place.name, "--data", str(self._directory / place.name)]
        words += ["--config", str(self._directory / "nearcast.toml")]
        return self._start(place, f"node-{place.name}", sys.executable, "-c", _COMMAND, *words)

    def _start(self, place: Place, name: str, *words: str) -> ChildProcess:
        child = ChildProcess(name, 0, place.command(*words), self._directory / f"{name}.log")
        self._children.append(child)
        return child

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_S
        while not condition():
            if time.monotonic() > deadline or not all(one.is_alive for one in self._children):
                raise EnvironmentProblem("the cluster does not start")
            time.sleep(0.05)

    def _is_linked(self) -> bool:
        address = f"nats://{self.links.places['a'].address}:4222"
        count = len(self.links.places)
        try:
            members = asyncio.run(look(NetworkSection(join=[address], insecure=True)))
        except EnvironmentProblem:
            return False
        links = [link for one in members for link in one.links.values()]
        return len(links) == count * (count - 1) and all(link.is_up for link in links)

    def settled(self) -> Counter[str]:
        """Return the same once every copy has been delivered or discarded, or after a while."""
        deadline = time.monotonic() + _SETTLE_S
        while True:
            found = self.counted()
            is_over = found["delivered"] + found["discarded"] >= 2 * found["sent"]
            if is_over or time.monotonic() > deadline:
                return found
            time.sleep(0.2)

    def counted(self) -> Counter[str]:
        """Return what happened in the causal group, summed over the nodes."""
        found: Counter[str] = Counter()
        for place in self.links.places.values():
            page = "http://127.0.0.1:9000/metrics"
            code = f"import urllib.request as u; print(u.urlopen({page!r}).read().decode())"
            command = place.command(sys.executable, "-c", code)
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            for name, count in _COUNTERS.findall(said):
                found[name] += int(count)
        return found


@dataclass(slots=True)
class Heard:
    """What a client saw of one kind of space: which texts, when, and what came too early."""

    at: dict[str, float] = field(default_factory=dict)
    unasked: set[str] = field(default_factory=set)
    delays_ms: list[float] = field(default_factory=list)

    def overtaken(self) -> int:
        """Return how many answers came before a query that did come."""
        asked = [text.split("/")[1:3] for text in self.unasked]
        return sum(f"query/{asker}/{number}" in self.at for asker, number in asked)


class Person:
    """A client that asks, answers every query of others at once, and notes what it hears."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.heard = {space: Heard() for space in SPACES}
        self._lock = threading.Lock()
        self._subscribed = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name)
        self._client.on_message = self._listen
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.connect(address, 1883)
        self._client.loop_start()
        self._client.subscribe([(f"{space}/#", 0) for space in SPACES])
        if not self._subscribed.wait(_START_S):
            raise EnvironmentProblem(f"node {name} does not answer")

    def ask(self, space: str, number: int) -> None:
        self._say(space, f"query/{self.name}/{number}")

    def _say(self, space: str, text: str) -> None:
        self._client.publish(f"{space}/talk", json.dumps([text, time.time()]), qos=1)

    def _listen(self, _client: object, _user: object, message: paho.MQTTMessage) -> None:
        space = message.topic.partition("/")[0]
        text, sent_s = json.loads(message.payload)
        kind, asker, number = text.split("/")[:3]
        heard = self.heard[space]
        with self._lock:
            heard.at[text] = time.time()
            heard.delays_ms.append((time.time() - sent_s) * 1000)
            if kind == "answer" and f"query/{asker}/{number}" not in heard.at:
                heard.unasked.add(text)
        if kind == "query" and asker != self.name:
            self._say(space, f"answer/{asker}/{number}/{self.name}")

    def take(self) -> dict[str, Heard]:
        """Return what was heard since the last time."""
        with self._lock:
            heard, self.heard = self.heard, {space: Heard() for space in SPACES}
        return heard

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def _wait_until_quiet(people: list[Person], rounds: int, pause_s: float) -> None:
    """Wait until nothing is missing in the plain space, and nobody has heard anything for long."""
    due = rounds * len(NAMES) ** 3  # each hears every query and its two answers
    deadline = time.monotonic() + _SETTLE_S
    while sum(len(one.heard[PLAIN].at) for one in people) < due and time.monotonic() < deadline:
        time.sleep(0.05)
    before = -1
    while (count := sum(len(h.at) for one in people for h in one.heard.values())) != before:
        before = count
        time.sleep(pause_s)


def talk(people: list[Person], rounds: int, far_ms: int) -> dict[str, list[Heard]]:
    """Let everybody ask, in both spaces alike; return what each of them heard."""
    for one in people:
        one.take()
    for number in range(rounds):
        for person in people:
            for space in SPACES:
                person.ask(space, number)
        time.sleep(PAUSE_S)
    _wait_until_quiet(people, rounds, 0.5 + 3 * far_ms / 1000)
    taken = [one.take() for one in people]
    return {space: [one[space] for one in taken] for space in SPACES}


def rows_of(
    phase: str, rounds: int, heard: dict[str, list[Heard]], counted: Counter[str]
) -> list[Row]:
    """Return a row for each kind of space."""
    rows = []
    for space in SPACES:
        delays = [ms for one in heard[space] for ms in one.delays_ms]
        answers = sum(text.startswith("answer") for one in heard[space] for text in one.at)
        early = sum(one.overtaken() for one in heard[space])
        rows.append(
            {
                "name": f"{phase}, {space}: answers before their questions, of {answers}",
                "ours": early,
                "peer": answers,
                "ratio": early / max(1, answers),
                "target": "0" if space == CAUSAL else "> 0",
                "holds": early == 0 if space == CAUSAL else early > 0,
                "questions_heard": sum(len(one.at) for one in heard[space]) - answers,
                "questions_due": rounds * len(NAMES) * len(NAMES),
                "p50_ms": statistics.median(delays),
                "p99_ms": statistics.quantiles(delays, n=100)[98],
                "most_ms": max(delays),
                **({"counted": dict(counted)} if space == CAUSAL else {}),
            }
        )
    return rows


def measure(rounds: int) -> list[Row]:
    """Run all phases; this process has a namespace of its own."""
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="nearcast-cluster-") as directory,
        SlowLinks(list(NAMES)) as links,
        Cluster(links, Path(directory)) as cluster,
    ):
        people = [Person(name, links.places[name].address) for name in NAMES]
        links.delay("a", "b", NEAR_MS)
        links.delay("b", "c", NEAR_MS)
        for far_ms in (FAR_MS, TOO_FAR_MS):
            links.delay("a", "c", far_ms)
            talk(people, 50, far_ms)  # until the connections have found their pace
            before = cluster.settled()
            heard = talk(people, rounds, far_ms)
            rows += rows_of(f"far link {far_ms} ms", rounds, heard, cluster.settled() - before)
        for one in people:
            one.close()
        for row in rows:
            row["way"] = links.way
    return rows


def run(quick: bool = False, rounds: int | None = None) -> dict[str, Any]:
    """Return the rows; where there can be no namespaces, none, and why."""
    rounds = rounds or (100 if quick else 1_500)
    problem = problem_with_namespaces()
    if problem:
        return {"rows": [], "skipped": problem}
    if is_inside():
        return {"rows": measure(rounds)}
    return measured_inside("benchmarks.causal_cluster", rounds)


def main() -> None:
    for row in found_by_hand(__doc__, run)["rows"]:
        print(
            f"{row['name']:<70} {row['ours']:>6,} {row['ratio']:>7.1%} {row['target']:>4} "
            f"{row['holds']}  p50 {row['p50_ms']:.0f} p99 {row['p99_ms']:.0f} "
            f"most {row['most_ms']:.0f} ms, questions {row['questions_heard']:,} of "
            f"{row['questions_due']:,}  {row.get('counted', '')} by {row['way']}"
        )


if __name__ == "__main__":
    main()
