"""Rows of live messages: the messages as they are, or decoded by the decoder of the broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Protocol

import numpy as np
import pyarrow as pa

from nearcast.config.schema import SpaceSection
from nearcast.index.topic_filters import topic_matches
from nearcast.model import MISSING, Attribute, MisuseError, Space
from nearcast.model.event_decoder import EventDecoder, Pairs
from nearcast.pipeline.sources.column_types import EVENT_KEY
from nearcast.pipeline.sources.point_decoder import PointDecoder

PROBLEM = "_problem"
PAYLOAD = "payload"
_AREA = "$area"
_MOST_KNOWN = 10_000


@dataclass(frozen=True, slots=True)
class LiveMessage:
    """A message of a live source, with its number there."""

    number: int
    t_ms: int
    topic: str
    payload: bytes
    pairs: Pairs


class BatchReader(Protocol):
    """Makes rows of messages."""

    schema: pa.Schema

    def batch(self, messages: Iterator[LiveMessage]) -> pa.RecordBatch:
        """Return the rows of messages."""


class MessageReader:
    """Returns messages as they came: number, time of arrival, topic, payload, user properties."""

    schema = pa.schema(
        {
            "number": pa.int64(),
            "t": pa.timestamp("us", tz="UTC"),
            "topic": pa.string(),
            "payload": pa.binary(),
            "properties": pa.map_(pa.string(), pa.string()),
        }
    )

    def batch(self, messages: Iterator[LiveMessage]) -> pa.RecordBatch:
        """Return a row for each message; of properties with the same name the last counts."""
        rows = [
            (one.number, one.t_ms * 1000, one.topic, one.payload, list(dict(one.pairs).items()))
            for one in messages
        ]
        columns = list(zip(*rows, strict=True)) or [()] * len(self.schema)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class LiveReader:
    """Decodes the events of one space; messages of other topics are skipped.

    The batches have the columns `event_id`, `t`, `topic`, one per attribute, `_problem` (why the
    message is no event of the space) and, on request, `payload`. O(bytes).
    """

    def __init__(self, section: SpaceSection, *, with_payload: bool) -> None:
        self._space = section.to_space()
        paths = section.paths()
        self._reader = EventDecoder(self._space, section.values, paths)
        self._points = _point_decoder(self._space, paths) if section.values == "json" else None
        self._with_payload = with_payload
        self.schema = live_schema(self._space, with_payload=with_payload)
        self._known: dict[str, bool] = {}

    def batch(self, messages: Iterator[LiveMessage]) -> pa.RecordBatch:
        """Return the events among messages."""
        rows = [
            (one.number, one.t_ms * 1000, one.topic, one.payload, one.pairs) for one in messages
        ]
        numbers, times, topics, payloads, pairs = zip(*rows, strict=True) if rows else ((),) * 5
        return self.decode(
            pa.array(numbers, pa.int64()),
            pa.array(times, self.schema.field("t").type),
            pa.array(topics, pa.string()),
            pa.array(payloads, pa.binary()),
            pairs,
        )

    def decode(
        self,
        numbers: pa.Array,
        times: pa.Array,
        topics: pa.Array,
        payloads: pa.Array,
        pairs: Sequence[Pairs] | None,
    ) -> pa.RecordBatch:
        """Return the events among messages in columns; `pairs` is None if no message has any."""
        keeps = self._mine(topics)
        if keeps is not None:
            numbers, times, topics, payloads = (
                one.filter(keeps) for one in (numbers, times, topics, payloads)
            )
            pairs = None if pairs is None else list(compress(pairs, keeps.to_pylist()))
        problems, columns = self._columns(topics, payloads, pairs)
        kept = [payloads] if self._with_payload else []
        arrays = [numbers, times, topics, *kept, problems, *columns]
        cast = [one.cast(field.type) for one, field in zip(arrays, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(cast, schema=self.schema)

    def _mine(self, topics: pa.Array) -> pa.Array | None:
        """Return which topics are the space's; None if all are."""
        coded = topics.dictionary_encode()
        mine = [self._is_mine(one) for one in coded.dictionary.to_pylist()]
        return None if all(mine) else pa.array(mine, pa.bool_()).take(coded.indices)

    def _columns(
        self, topics: pa.Array, payloads: pa.Array, pairs: Sequence[Pairs] | None
    ) -> tuple[pa.Array, list[pa.Array]]:
        """Return why messages are no events, and the values of each attribute.

        Most events are points, which are decoded together; the others one by one.
        """
        values, is_open = self._decoded(payloads)
        for place, own in enumerate(pairs or ()):
            is_open[place] |= any(name == _AREA for name, _ in own)
        problems: list[str | None] = [None] * len(payloads)
        for place in np.flatnonzero(is_open).tolist():
            own = () if pairs is None else pairs[place]
            payload = payloads[place].as_py() or b""
            values[place], problems[place] = self._judged(topics[place].as_py(), payload, own)
        columns = [
            _column(attribute, values[:, place])
            for place, attribute in enumerate(self._space.attributes)
        ]
        return pa.array(problems, pa.string()), columns

    def _decoded(self, payloads: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """Return the values of points, and which payloads are still to be read one by one."""
        if self._points is not None:
            return self._points.decode(payloads)
        points = [self._reader.point(one or b"") for one in payloads.to_pylist()]
        is_open = np.array([point is None for point in points], np.bool_)
        nothing = (MISSING,) * self._space.dimensions
        values = np.array([point or nothing for point in points], np.float64)
        return values.reshape(len(points), self._space.dimensions), is_open

    def _judged(
        self, topic: str, payload: bytes, pairs: Pairs
    ) -> tuple[tuple[float, ...], str | None]:
        """Return the values of a message, MISSING where it has none, and why it is no event."""
        try:
            if any(name == _AREA for name, _ in pairs):
                raise MisuseError("an event with an extent ($area), which a stream does not match")
            found = self._reader.read(topic, payload, pairs).values
        except MisuseError as refused:
            return (MISSING,) * self._space.dimensions, str(refused)
        return tuple(MISSING if one is None else float(one) for one in found), None  # type: ignore[arg-type]

    def _is_mine(self, topic: str) -> bool:
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[topic] = topic_matches(self._space.topic_filter, topic)
        return known


def _point_decoder(space: Space, paths: Mapping[str, tuple[str, ...]]) -> PointDecoder | None:
    """Return a decoder where attributes are different fields of the payload; else None."""
    found = [paths.get(attribute.name, (attribute.name,)) for attribute in space.attributes]
    is_flat = all(len(path) == 1 for path in found) and len(set(found)) == len(found)
    return PointDecoder(space, [path[0] for path in found]) if is_flat else None


def live_schema(space: Space, *, with_payload: bool) -> pa.Schema:
    """Return the columns of a space's live events."""
    fields: dict[str, pa.DataType] = {
        EVENT_KEY: pa.int64(),
        "t": pa.timestamp("us", tz="UTC"),
        "topic": pa.string(),
    }
    if with_payload:
        fields[PAYLOAD] = pa.binary()
    fields[PROBLEM] = pa.string()
    for attribute in space.attributes:
        if attribute.name in fields:
            raise MisuseError(
                f"an attribute named '{attribute.name}'",
                where=f"space {space.name}",
                expected=f"another name: live events have {', '.join(fields)}",
            )
    kinds = {a.name: pa.string() if a.is_category else pa.float64() for a in space.attributes}
    return pa.schema({**fields, **kinds})


def _column(attribute: Attribute, values: np.ndarray) -> pa.Array:
    """Return the values of an attribute as tables have them: categories by name."""
    is_missing = values == MISSING
    if not attribute.is_category:
        return pa.array(values, pa.float64(), mask=is_missing)
    codes = np.where(is_missing, 0, values).astype(np.int32)
    names = pa.array(attribute.categories, pa.string())
    return names.take(pa.array(codes, pa.int32(), mask=is_missing))
