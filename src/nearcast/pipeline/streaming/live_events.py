"""Rows of live messages: the messages as they are, or decoded by the decoder of the broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from nearcast.config.schema import SpaceSection
from nearcast.index.topic_filters import topic_matches
from nearcast.model import Attribute, MisuseError, Space
from nearcast.model.event_decoder import EventDecoder, Pairs
from nearcast.pipeline.sources.column_types import EVENT_KEY

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
        self._reader = EventDecoder(self._space, section.values, section.paths())
        self._with_payload = with_payload
        self.schema = live_schema(self._space, with_payload=with_payload)
        self._known: dict[str, bool] = {}

    def batch(self, messages: Iterator[LiveMessage]) -> pa.RecordBatch:
        """Return the events among messages."""
        rows = [self._row(message) for message in messages if self._is_mine(message.topic)]
        columns = list(zip(*rows, strict=True)) or [()] * len(self.schema)
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _is_mine(self, topic: str) -> bool:
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[topic] = topic_matches(self._space.topic_filter, topic)
        return known

    def _row(self, message: LiveMessage) -> tuple[object, ...]:
        problem: str | None = None
        values: tuple[object, ...] = (None,) * self._space.dimensions
        try:
            values = self._values(message)
        except MisuseError as refused:
            problem = str(refused)
        payload = (message.payload,) if self._with_payload else ()
        return (message.number, message.t_ms * 1000, message.topic, *payload, problem, *values)

    def _values(self, message: LiveMessage) -> tuple[object, ...]:
        if any(name == _AREA for name, _ in message.pairs):
            raise MisuseError("an event with an extent ($area), which a stream does not match")
        event = self._reader.read(message.topic, message.payload, message.pairs)
        return tuple(map(_named, self._space.attributes, event.values))


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


def _named(attribute: Attribute, value: object) -> object:
    """Return a value as tables have it: a category by its name."""
    return None if value is None else attribute.decode(float(value))  # type: ignore[arg-type]
