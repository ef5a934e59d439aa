"""Counts retained publishes by node, topic and interval of time, where a worker reads the log.

A task sums into arrays as large as its result; only these partial sums are shuffled. Texts arrive
dictionary-encoded and stay numbers until the end, so a topic is inspected once and not once per
event. `topic_rates.py` uses the sums; "stretch" is the number of an interval.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nearcast.pipeline.tables.worker_writes import Batches, gathered

COLUMNS = ("node", "topic", "t", "retain", "way")
CODED = ("node", "topic", "way")
TALLY = "node string, topic string, stretch bigint, n bigint, first bigint, last bigint"
_SCHEMA = pa.schema(
    [
        ("node", pa.string()),
        ("topic", pa.string()),
        ("stretch", pa.int64()),
        ("n", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
    ]
)
_ROWS_AT_ONCE = 65_536
_MOST_HELD = 2_000_000  # partial sums that a task holds before it emits them
_TOPIC_BITS, _STRETCH_BITS = 28, 25  # intervals of ten minutes for six hundred years
_MOST_NODES = 1 << (63 - _TOPIC_BITS - _STRETCH_BITS)

Sums = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Keys, counts, first and last timestamps (ms)."""


def tally_topics(stretch_ms: int, batches: Batches) -> Batches:
    """Yield partial sums of a log's events; the schema is TALLY.

    A row with a topic has the retained publishes by clients of this node in one interval. A row
    without a topic has the number of all events of the node, and the time of the first and last
    publish by a client.
    """
    tally = TopicTally(stretch_ms)
    for batch in gathered(batches, _ROWS_AT_ONCE):
        tally.add(batch)
        if tally.is_full:
            yield tally.rows()
            tally = TopicTally(stretch_ms)
    yield tally.rows()


def tally_nodes(batches: Batches) -> Batches:
    """Yield the number of rows per node; the schema is TALLY, in rows without a topic."""
    for batch in gathered(batches, _ROWS_AT_ONCE):
        counts = pc.value_counts(batch.column("node")).flatten()
        nodes, n = counts[0].cast(pa.string()), counts[1]
        nothing = pa.nulls(len(n), pa.int64())
        yield pa.RecordBatch.from_arrays(
            [nodes, pa.nulls(len(n), pa.string()), nothing, n, nothing, nothing], schema=_SCHEMA
        )


class TopicTally:
    """Partial sums of one task. O(n log n) for a batch of n events."""

    def __init__(self, stretch_ms: int) -> None:
        self._stretch_ms = stretch_ms
        self._nodes, self._topics = Codes(), Codes()
        self._sums: list[Sums] = []
        self._by_node: list[Sums] = []

    @property
    def is_full(self) -> bool:
        """Whether the task should emit its sums and start again."""
        if sum(len(keys) for keys, *_ in self._sums) > _MOST_HELD:
            self._sums = [_added(self._sums)]
        held = sum(len(keys) for keys, *_ in self._sums)
        many = len(self._nodes) >= _MOST_NODES // 2 or len(self._topics) >= 1 << 20
        return many or held > _MOST_HELD // 2

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the events of a batch."""
        node = self._nodes.of(batch.column("node"))
        ms = _milliseconds(batch.column("t"))
        is_client = _truths(pc.equal(batch.column("way").cast(pa.string()), "client"))
        self._by_node.append(_added([(node, np.ones_like(node), *_none(len(node)))]))
        self._by_node.append(_single(node[is_client], ms[is_client], counts=0))
        chosen = is_client & _truths(batch.column("retain"))
        topic = self._topics.of(batch.column("topic"))
        chosen &= topic != self._topics.code_of("")
        key = (node << _TOPIC_BITS | topic) << _STRETCH_BITS | ms // self._stretch_ms
        self._sums.append(_single(key[chosen], ms[chosen]))

    def rows(self) -> pa.RecordBatch:
        """Return the sums as a batch of TALLY."""
        keys, n, first, last = _added(self._sums)
        nodes, n_by_node, begin, end = _added(self._by_node)
        place = keys >> _STRETCH_BITS
        topics = self._topics.texts(place & ((1 << _TOPIC_BITS) - 1))
        stretch = pa.array(keys & ((1 << _STRETCH_BITS) - 1))
        none = len(nodes)
        columns = [
            _joined(self._nodes.texts(place >> _TOPIC_BITS), self._nodes.texts(nodes)),
            _joined(topics, pa.nulls(none, pa.string())),
            _joined(stretch, pa.nulls(none, pa.int64())),
            pa.array(np.concatenate([n, n_by_node])),
            _joined(pa.array(first), pa.array(begin, mask=begin == _LATE)),
            _joined(pa.array(last), pa.array(end, mask=end == _EARLY)),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


class Codes:
    """Assigns numbers to texts, the same across batches."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._seen: tuple[pa.Array, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self._numbers)

    def of(self, column: pa.Array) -> np.ndarray:
        """Return the number of each text of a column."""
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        if self._seen is None or not self._seen[0].equals(coded.dictionary):
            numbers = [self.code_of(text) for text in coded.dictionary.to_pylist()]
            self._seen = coded.dictionary, np.array(numbers, np.int64)
        found: np.ndarray = self._seen[1][coded.indices.to_numpy()]
        return found

    def code_of(self, text: str) -> int:
        """Return the number of a text; a new text gets the next number."""
        return self._numbers.setdefault(text, len(self._numbers))

    def texts(self, numbers: np.ndarray) -> pa.Array:
        """Return the texts of some numbers."""
        return pa.array(list(self._numbers), pa.string()).take(pa.array(numbers, pa.int64()))


_LATE, _EARLY = np.iinfo(np.int64).max, np.iinfo(np.int64).min


def _none(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return first and last timestamps for rows that have none."""
    return np.full(rows, _LATE), np.full(rows, _EARLY)


def _single(keys: np.ndarray, ms: np.ndarray, counts: int = 1) -> Sums:
    return _added([(keys, np.full(len(keys), counts, np.int64), ms, ms)])


def _added(parts: list[Sums]) -> Sums:
    """Sum the rows with equal keys; keys come out in ascending order."""
    keys, n, first, last = (
        np.concatenate([part[at] for part in parts] or [np.empty(0, np.int64)]) for at in range(4)
    )
    if not len(keys):
        return keys, n, first, last
    order = np.argsort(keys)
    keys = keys[order]
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    return (
        keys[starts],
        np.add.reduceat(n[order], starts),
        np.minimum.reduceat(first[order], starts),
        np.maximum.reduceat(last[order], starts),
    )


def _milliseconds(instants: pa.Array) -> np.ndarray:
    whole = pc.floor_temporal(instants, unit="millisecond")
    found: np.ndarray = whole.cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()).to_numpy()
    return found


def _truths(column: pa.Array) -> np.ndarray:
    found: np.ndarray = column.to_numpy(zero_copy_only=False)
    return found


def _joined(*parts: pa.Array) -> pa.Array:
    return pa.concat_arrays(list(parts))
