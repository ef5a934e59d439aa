"""Event logs made up for an audit: two nodes, clean or with faults planted at known places.

Written by columns, so that ten million deliveries take seconds; what is planted is returned. Node
n1 and n2 publish by turns; every topic has subscribers at both, so each message crosses. A part of
the messages has a lifetime and waits in a queue, a part belongs to a causal group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nearcast.eventlog import LOG_TABLES
from nearcast.eventlog.segments import VERSION, VERSION_KEY

Longs = NDArray[np.int64]
Fault = tuple[str, str, int, str]  # kind, node, number, receiver

START_MS = 1_714_557_600_000
_DELTA_US = 400_000
_TIME_STEP_MS = 20
_LAST_MS = 10_000
_NODES = ("n1", "n2")
_ROWS_A_SEGMENT = 500_000


@dataclass(frozen=True, slots=True)
class SampleSize:
    """How large a log is to be: messages of each node, topics, subscribers of a topic at a node."""

    messages: int = 300
    topics: int = 7
    subscribers: int = 3
    faults: int = 0  # of each kind

    @property
    def deliveries(self) -> int:
        """How many deliveries the log has: at both nodes, and from node to node."""
        return 2 * self.messages * (2 * self.subscribers + 1)


def write_sample(directory: Path, size: SampleSize, seed: int) -> set[Fault]:
    """Write a log; return the faults that are in it: `size.faults` of each kind.

    Lost at a node and between nodes, doubled at a node, late out of a queue, misordered in a causal
    group; none in the last ten seconds, where an audit cannot tell what is still under way. Hence
    it takes eight messages a fault, and five hundred more.
    """
    random = np.random.default_rng(seed)
    sides = [_Side(name, size) for name in _NODES]
    faults: set[Fault] = set()
    for side, other in ((sides[0], sides[1]), (sides[1], sides[0])):
        side.publish(other)
    _plant(sides, size, random, faults)
    for side in sides:
        side.write(directory)
    return faults


class _Side:
    """One node's log by columns: records have an instant, numbers are given at the end."""

    def __init__(self, name: str, size: SampleSize) -> None:
        self.name = name
        self.size = size
        self.other = _NODES[1 - _NODES.index(name)]
        self.index = np.arange(size.messages, dtype=np.int64)
        self.sent_ms = START_MS + 60_000 + self.index * _TIME_STEP_MS + _NODES.index(name) * 5
        self.came_ms = np.zeros(0, np.int64)
        self.topic = self.index % size.topics
        self.is_causal = self.index % 4 == 1
        self.is_mortal = self.index % 4 == 2
        self.first = 2 + 2 * size.topics * size.subscribers + 1 + size.topics
        self.lost_own: set[tuple[int, int]] = set()
        self.twice_own: set[tuple[int, int]] = set()
        self.lost_hop: set[int] = set()  # sent by the other node; they never came
        self.late: set[int] = set()

    def publish(self, other: _Side) -> None:
        """Let everything arrive at the other node a little later."""
        other.came_ms = self.sent_ms + 2

    def numbers(self) -> tuple[Longs, Longs]:
        """Return the numbers of this node's own events and of those that came."""
        kept = np.ones(len(self.came_ms), np.bool_)
        kept[list(self.lost_hop)] = False
        every = np.concatenate([self.sent_ms, self.came_ms[kept]])
        place = np.empty(len(every), np.int64)
        place[np.argsort(every, kind="stable")] = np.arange(len(every))
        came = np.full(len(kept), -1, np.int64)
        came[kept] = place[len(self.sent_ms) :] + self.first
        return place[: len(self.sent_ms)] + self.first, came

    def clients(self, topic: int) -> list[str]:
        """Return who wants a topic at this node."""
        return [f"{self.name}-c{topic}-{one}" for one in range(self.size.subscribers)]

    # --- tables -----------------------------------------------------------------------------

    def write(self, directory: Path) -> None:
        own, came = self.numbers()
        here = came >= 0
        tables = {
            "presence": self._presence(),
            "subscriptions": self._subscriptions(),
            "events": self._events(own, came, here),
            "deliveries": self._deliveries(own, came, here),
            "sent": self._sent(own),
            "causal": self._causal(own, came, here),
        }
        _write_segments(directory, self.name, tables)

    def _presence(self) -> dict[str, Any]:
        names = [c for t in range(self.size.topics) for c in self.clients(t)]
        everyone = ["", *names, f"$node/{self.other}"]
        return {
            "sequence": np.arange(1, len(everyone) + 1),
            "t": np.full(len(everyone), START_MS),
            "client": everyone,
            "there": [True] * len(everyone),
        }

    def _subscriptions(self) -> dict[str, Any]:
        topics = range(self.size.topics)
        pairs = [(client, f"t/{topic}") for topic in topics for client in self.clients(topic)]
        pairs += [(f"$node/{self.other}", f"t/{topic}") for topic in topics]
        count = len(pairs)
        return {
            "sequence": np.arange(self.first - count, self.first),
            "t": np.full(count, START_MS),
            "client": [client for client, _ in pairs],
            "filter": [text for _, text in pairs],
            "qos": np.full(count, 2),
            "added": [True] * count,
            "no_local": [False] * count,
            "restored": [False] * count,
        }

    def _events(self, own: Longs, came: Longs, here: NDArray[np.bool_]) -> dict[str, Any]:
        topic = np.concatenate([self.topic, self.topic[here]])
        causal = np.concatenate([self.is_causal, self.is_causal[here]])
        is_own = np.arange(len(topic)) < len(own)
        lifetime = np.where(self.is_mortal, 2_000, 0)
        names = np.array([f"t/{one}" for one in range(self.size.topics)], dtype=object)
        way = np.where(is_own, "client", np.where(causal, "causal", "node"))
        publisher = np.where(is_own, "writer", np.where(causal, "", f"$node/{self.other}"))
        payloads = [_payload(self.name, one) for one in self.index.tolist()]
        payloads += [_payload(self.other, one) for one in self.index[here].tolist()]
        return {
            "sequence": np.concatenate([own, came[here]]),
            "t": np.concatenate([self.sent_ms, self.came_ms[here]]),
            "publisher": publisher,
            "topic": names[topic],
            "qos": np.full(len(topic), 2),
            "retain": np.zeros(len(topic), np.bool_),
            "payload": payloads,
            "lifetime_ms": pa.array(
                np.concatenate([lifetime, lifetime[here]]),
                mask=np.concatenate([lifetime, lifetime[here]]) == 0,
            ),
            "limited": np.zeros(len(topic), np.bool_),
            "way": way,
        }

    def _deliveries(self, own: Longs, came: Longs, here: NDArray[np.bool_]) -> dict[str, Any]:
        topic = np.concatenate([self.topic, self.topic[here]])
        number = np.concatenate([own, came[here]])
        source = np.concatenate([self.index, self.index[here] + len(own)])
        many = self.size.subscribers
        who = np.array([self.clients(t) for t in range(self.size.topics)], dtype=object)
        rows = np.repeat(number, many)
        receivers = who[topic].reshape(-1)
        copies = np.ones(len(rows), np.int64)
        keys = {
            (int(s), k): i * many + k for i, s in enumerate(source.tolist()) for k in range(many)
        }
        for planted, times in ((self.lost_own, 0), (self.twice_own, 2)):
            for one in planted:
                copies[keys[one]] = times
        crossing = own[~self.is_causal]
        return {
            "sequence": np.concatenate([np.repeat(rows, copies), crossing]),
            "receiver": np.concatenate(
                [np.repeat(receivers, copies), np.full(len(crossing), f"$node/{self.other}")]
            ),
            "qos": np.full(int(copies.sum()) + len(crossing), 2),
        }

    def _sent(self, own: Longs) -> dict[str, Any]:
        chosen = np.flatnonzero(self.is_mortal)
        deadline = self.sent_ms[chosen] + 2_000
        late = np.isin(chosen, list(self.late))
        first = np.array([self.clients(t)[0] for t in range(self.size.topics)], dtype=object)
        return {
            "sequence": own[chosen],
            "t": np.where(late, deadline + 7, deadline - 1_500),
            "receiver": first[self.topic[chosen]],
            "deadline": deadline,
        }

    def _causal(self, own: Longs, came: Longs, here: NDArray[np.bool_]) -> dict[str, Any]:
        mine = np.flatnonzero(self.is_causal)
        theirs = np.flatnonzero(self.is_causal & here)
        theirs_ms = self.sent_ms + _lag_ms(self.other)
        count = len(mine) + len(theirs)
        return {
            "sequence": np.concatenate([own[mine], came[theirs]]),
            "t": np.concatenate([self.sent_ms[mine], self.came_ms[theirs]]),
            "step": ["sent"] * len(mine) + ["delivered"] * len(theirs),
            "group": ["talk"] * count,
            "sender": [self.name] * len(mine) + [self.other] * len(theirs),
            "stamp_us": np.concatenate([self.sent_ms[mine], theirs_ms[theirs]]) * 1000,
            "lifetime_us": np.full(count, _DELTA_US),
            "detail": [""] * count,
        }


def _lag_ms(other: str) -> int:
    """Return how much later than this node the other one publishes its message of a number."""
    return 5 if other == _NODES[1] else -5


def _payload(node: str, number: int) -> bytes:
    return f"{node}/{number:012d}".encode().ljust(48, b".")


def _plant(
    sides: list[_Side], size: SampleSize, random: np.random.Generator, faults: set[Fault]
) -> None:
    """Choose messages, each for one fault at most, and spoil them."""
    side, other = sides
    early = side.index < size.messages - _LAST_MS // _TIME_STEP_MS
    plain = random.permutation(np.flatnonzero(early & (side.index % 4 == 0)))
    mortal = random.permutation(np.flatnonzero(early & side.is_mortal))
    causal = random.permutation(np.flatnonzero(early & (side.index % 8 == 1)))
    half = (size.faults + 1) // 2
    lost, hop, twice = plain[:half], plain[half : size.faults], plain[size.faults : 2 * size.faults]
    other.lost_hop = {int(one) for one in hop}
    side.lost_own = {(int(one), 0) for one in lost}
    side.twice_own = {(int(one), size.subscribers - 1) for one in twice}
    side.late = {int(one) for one in mortal[: size.faults]}
    for one in causal[: size.faults]:  # it comes after the next message of the group
        other.came_ms[one] = other.came_ms[one + 4] + 1
    own, _ = side.numbers()
    _, came = other.numbers()
    topic = side.topic
    for one in lost.tolist():
        faults.add(("lost", side.name, int(own[one]), side.clients(topic[one])[0]))
    for one in hop.tolist():
        faults.add(("lost", side.name, int(own[one]), f"$node/{other.name}"))
    for one in twice.tolist():
        faults.add(("doubled", side.name, int(own[one]), side.clients(topic[one])[-1]))
    for one in sorted(side.late):
        faults.add(("late", side.name, int(own[one]), side.clients(topic[one])[0]))
    for one in causal[: size.faults].tolist():
        faults.add(("misordered", other.name, int(came[one]), f"$node/{other.name}"))


def _write_segments(directory: Path, node: str, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Write tables as segments of many rows, cut at the same numbers in all of them."""
    numbers = np.asarray(tables["events"]["sequence"])
    last = int(numbers.max(initial=0)) + 1
    rows = sum(len(table["sequence"]) for table in tables.values())
    cuts = np.linspace(0, last, max(1, rows // _ROWS_A_SEGMENT) + 1).astype(np.int64)
    cuts[-1] = 1 << 62
    for name, columns in tables.items():
        schema = LOG_TABLES[name]
        order = np.argsort(np.asarray(columns["sequence"]), kind="stable")
        where = np.searchsorted(np.asarray(columns["sequence"])[order], cuts)
        data = {"node": pa.array([node]).take(pa.array(np.zeros(len(order), np.int64)))}
        for column, values in columns.items():
            kind = schema.field(column).type
            array = values if isinstance(values, pa.Array) else pa.array(values)
            data[column] = array.cast(kind)
        table = pa.table(data).select(schema.names).take(order).cast(schema)
        (directory / name).mkdir(parents=True, exist_ok=True)
        for number in range(len(cuts) - 1):
            part = table.slice(where[number], where[number + 1] - where[number])
            if part.num_rows:
                path = directory / name / f"part-{node}-{number + 1:08d}.parquet"
                pq.write_table(part.replace_schema_metadata({VERSION_KEY: VERSION}), path)
