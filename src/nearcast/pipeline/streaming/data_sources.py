"""Spark's Python data sources of live events: over a spool, and over a cluster's JetStream.

`mqtt_format.py` has the one that fills its spool itself. All have whole numbers as offsets, and any
range can be read again: the numbers of the spool (`spool.py`), or the sequence numbers of JetStream
(`jetstream.py`).

Spark's own Python processes also import this module; they ask for offsets and read ranges.
"""

from __future__ import annotations

import contextlib
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from nearcast.config.schema import NetworkSection, SpaceSection
from nearcast.model import FileFormatError
from nearcast.pipeline.streaming.addresses import NATS, parse_address
from nearcast.pipeline.streaming.jetstream import FeedAddress, FeedWatch, read_feed
from nearcast.pipeline.streaming.live_events import (
    BatchReader,
    LiveMessage,
    LiveReader,
    MessageReader,
)
from nearcast.pipeline.streaming.read_limits import ReadLimit, ReadMaxRows, StopsWhereItIs
from nearcast.pipeline.streaming.spool import (
    NUMBER,
    drop_before,
    pairs_of,
    read_spool,
    spool_end,
    spool_start,
)
from nearcast.pipeline.tables.transaction import spark_schema

MOST_A_BATCH = 200_000
_MOST_A_PART = 50_000
_FEWEST_A_PART = 2_000
_NEXT = "next"
_PLANNED = "planned"


@dataclass(frozen=True, slots=True)
class Numbers(InputPartition):
    """A range of messages for one task: from `start` up to, not including, `end`."""

    start: int
    end: int


class LiveSource(DataSource):
    """Base of the sources of messages.

    Options: `space` (its section as JSON; without it the rows are messages, not events), `payload`,
    `parts`, `most` (messages a batch), and `once` for a query that ends.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(dict(options))
        self.events: BatchReader = MessageReader()
        if "space" in options:
            section = SpaceSection.model_validate_json(options["space"])
            self.events = LiveReader(section, with_payload=options.get("payload") == "true")
        self.parts = int(options.get("parts", "2"))
        most = int(options.get("most", str(MOST_A_BATCH)))
        self.most = None if options.get("once") == "true" else most

    def schema(self) -> StructType:
        """Return the columns."""
        return spark_schema(self.events.schema)


class SpoolSource(LiveSource):
    """Live events from a spool; the option `spool` is its folder."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "nearcast-spool"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Return the reader."""
        return SpoolReader(Path(self.options["spool"]), self.events, self.parts, self.most)


class FeedSource(LiveSource):
    """Messages or events from a cluster's JetStream.

    Options: `address`, nats://host:port/NETWORK; or `secret_feed`, with all settings as JSON.
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "nearcast-feed"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Return the reader."""
        return FeedReader(self._feed(), self.events, self.parts, self.most)

    def _feed(self) -> FeedAddress:
        if "secret_feed" in self.options:
            return FeedAddress.from_text(self.options["secret_feed"])
        address = parse_address(address_of(self.options), "nearcast-feed", NATS)
        return FeedAddress.of(address, NetworkSection())


def address_of(options: Mapping[str, str]) -> str:
    """Return the address of a source or sink: its option `address`, or what `load` was given."""
    return options.get("address") or options.get("path") or ""


class NumberedReader(DataSourceStreamReader, StopsWhereItIs):
    """A reader whose offsets are `{"next": n}`: the next message to read has the number n.

    Spark 4.1 asks for the end of a batch without its start. The reader then remembers where the
    last batch ended. Where it does not know that, as when a query over a feed continues from its
    checkpoint, the first batch has all messages. `most` is the size of a batch that Spark sets no
    limit for.
    """

    def __init__(self, events: BatchReader, parts: int, most: int | None = MOST_A_BATCH) -> None:
        self._section_reader = events
        self._parts = parts
        self._most = most
        self._until: int | None = None
        self._last: dict[str, int] | None = None
        self._oldest = 0  # when Spark last asked for an end

    @abstractmethod
    def marks(self) -> tuple[int, int]:
        """Return the number of the oldest message, and one more than that of the newest."""

    @abstractmethod
    def messages(self, start: int, end: int) -> Iterator[Iterator[LiveMessage]]:
        """Yield the messages of a range, in portions."""

    @property
    @abstractmethod
    def place(self) -> str:
        """The source as readable text."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the offset of the oldest message."""
        self._last = {_NEXT: self.marks()[0]}
        return self._last

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the largest number of messages per batch."""
        return ReadMaxRows(MOST_A_BATCH)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Limit the query to the messages that exist now."""
        self._until = self.marks()[1]

    def latestOffset(  # noqa: N802
        self, start: dict[str, int] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, int]:
        """Return the end of the next batch.

        Raise FileFormatError if messages to read are missing.
        """
        oldest, end = self.marks()
        self._oldest = oldest
        start = start or self._last
        if start is None:
            return {_NEXT: end}
        first = start[_NEXT]
        self._check(first, oldest, end)
        if self._until is not None:
            end = min(end, max(first, self._until))
        asked = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        most = self._most if limit is None else asked
        return {_NEXT: end if most is None else min(end, first + most)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Numbers]:
        """Cut a range into parts of about the same size."""
        first, behind = start[_NEXT], end[_NEXT]
        self._last = end
        count = behind - first
        self._check(first, self._oldest, behind)
        if not count:
            return []
        parts = max(min(self._parts, -(-count // _FEWEST_A_PART)), -(-count // _MOST_A_PART))
        cuts = [first + count * place // parts for place in range(parts + 1)]
        return [Numbers(cuts[place], cuts[place + 1]) for place in range(parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a part; runs in a worker."""
        assert isinstance(partition, Numbers)
        for portion in self.messages(partition.start, partition.end):
            yield self._section_reader.batch(portion)

    def _check(self, first: int, oldest: int, end: int) -> None:
        if end < first:
            raise self._gone(f"{end} messages, fewer than the {first} that were read")
        if oldest > first:
            raise self._gone(f"messages from number {oldest} on, and {first} is the next")

    def _gone(self, found: str) -> FileFormatError:
        return FileFormatError(
            found,
            where=self.place,
            expected="the messages that this checkpoint continues with",
            todo="Start with an empty checkpoint.",
        )


class SpoolReader(NumberedReader):
    """Reads a spool, and removes committed messages."""

    def __init__(
        self, folder: Path, events: BatchReader, parts: int, most: int | None = MOST_A_BATCH
    ) -> None:
        super().__init__(events, parts, most)
        self._folder = folder

    @property
    def place(self) -> str:
        """The folder."""
        return str(self._folder)

    def marks(self) -> tuple[int, int]:
        """Return the numbers of the oldest message and behind the newest in the spool."""
        return spool_start(self._folder), spool_end(self._folder)

    def latestOffset(  # noqa: N802
        self, start: dict[str, int] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, int]:
        """Return the end of the next batch.

        Spark 4.1 does not say where a query goes on: it is where the last planned batch ended.
        """
        if start is None and self._last is None:
            self._last = _planned(self._folder)
        return super().latestOffset(start, limit)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Numbers]:
        """Cut a range into parts, and record where it ends: a hint, which may fail."""
        parts = super().partitions(start, end)
        draft = self._folder / f"{_PLANNED}.new"
        with contextlib.suppress(OSError):
            draft.write_text(json.dumps(end), encoding="utf-8")
            draft.replace(self._folder / _PLANNED)
        return parts

    def messages(self, start: int, end: int) -> Iterator[Iterator[LiveMessage]]:
        """Yield the messages of a range that the collector has written."""
        for batch in read_spool(self._folder, start, end):
            yield _messages(batch)

    def commit(self, end: dict[str, int]) -> None:
        """Remove messages that no batch will read again."""
        drop_before(self._folder, end[_NEXT])


class FeedReader(NumberedReader):
    """Reads a JetStream stream, whose own limits remove old messages."""

    def __init__(
        self, feed: FeedAddress, events: BatchReader, parts: int, most: int | None = MOST_A_BATCH
    ) -> None:
        super().__init__(events, parts, most)
        self._feed = feed
        self._watch: FeedWatch | None = None  # only in the process that computes offsets

    @property
    def place(self) -> str:
        """The address of the stream."""
        return self._feed.place

    def marks(self) -> tuple[int, int]:
        """Return the numbers of the oldest message and behind the newest in the stream."""
        if self._watch is None:
            self._watch = FeedWatch(self._feed)
        return self._watch.marks()

    def messages(self, start: int, end: int) -> Iterator[Iterator[LiveMessage]]:
        """Yield the messages of a range that the nodes have published."""
        for portion in read_feed(self._feed, start, end):
            yield iter(portion)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: JetStream removes old messages itself."""


def _planned(folder: Path) -> dict[str, int] | None:
    """Return the end of the last batch that was planned; None if that is not known."""
    try:
        return {_NEXT: int(json.loads((folder / _PLANNED).read_text(encoding="utf-8"))[_NEXT])}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _messages(batch: pa.RecordBatch) -> Iterator[LiveMessage]:
    names = (NUMBER, "t", "topic", "payload", "pairs")
    columns: list[list[Any]] = [batch.column(name).to_pylist() for name in names]
    for number, t_ms, topic, payload, pairs in zip(*columns, strict=True):
        yield LiveMessage(number, t_ms, topic, payload, pairs_of(pairs))
