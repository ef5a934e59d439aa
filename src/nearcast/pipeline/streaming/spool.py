"""The spool of a live source: numbered messages on disk, so that a stream can read them again.

    checkpoint/spool/
    ├── source.json                      client id and topic filter (`collector.py`)
    ├── end                              how many messages are synced to disk, how many settled
    ├── 00000000000000000000.spool       blocks: a header, then an Arrow batch of messages
    └── 00000000000000065536.spool       the newest segment; blocks are appended here

One process appends (`SpoolWriter`), any number of others read ranges of numbers (`read_spool`). A
block that a crash cut short is truncated when the spool is opened again: `end` never included it.

Messages below a mark are *settled*: the broker has processed our acknowledgements, so it cannot
send them again. `unsettled` returns the messages that a crash left unsettled.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import IO

import msgspec
import pyarrow as pa

from nearcast.model import FileFormatError, KeyInUseError

Pairs = tuple[tuple[str, str], ...]

SEGMENT_BYTES = 8 << 20
_MAGIC = b"NCS1"
_HEADER = Struct("<4sIIQI")  # magic, checksum of all that follows, size, first, count
_REST = Struct("<IQI")
_MARKS = Struct("<QQ")  # end, settled
_SUFFIX = ".spool"
_SCHEMA = pa.schema(
    {
        "t": pa.int64(),
        "topic": pa.string(),
        "payload": pa.binary(),
        "pairs": pa.binary(),
        "packet_id": pa.uint16(),
    }
)
NUMBER = "number"
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Pairs).decode


@dataclass(frozen=True, slots=True)
class Spooled:
    """A message as it arrived; `packet_id` is 0 at QoS 0."""

    topic: str
    payload: bytes
    pairs: Pairs = ()
    packet_id: int = 0
    t_ms: int = 0


@dataclass(frozen=True, slots=True)
class _Block:
    """The position of a block in its segment, and the fields of its header."""

    at: int
    size: int
    first: int
    count: int

    @property
    def behind(self) -> int:
        return self.at + _HEADER.size + self.size


class SpoolWriter:
    """Appends to a spool; a lock allows one writer at a time.

    Contract: when `append` returns, its messages are on disk (synced), numbered from the old `end`,
    and `end` is one more than the last number. `settle` sets the number below which no message can
    come again.

    Complexity: opening O(bytes of the last segments), `append` O(bytes).
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock = _locked(folder / "lock")
        self.end, self._unsettled = self._recover()
        self.settled = min(self.end, _marks(folder)[1])
        self._end_file = os.open(folder / "end", os.O_RDWR | os.O_CREAT, 0o600)
        self._open_segment()
        self._tell_end()

    def append(self, messages: Sequence[Spooled]) -> int:
        """Write messages and sync them to disk; return the number of the first."""
        first = self.end
        if not messages:
            return first
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array([message.t_ms for message in messages], pa.int64()),
                pa.array([one.topic for one in messages], pa.string()),
                pa.array([one.payload for one in messages], pa.binary()),
                pa.array([_pack(one.pairs) if one.pairs else None for one in messages]),
                pa.array([one.packet_id for one in messages], pa.uint16()),
            ],
            schema=_SCHEMA,
        )
        self._write(batch.serialize().to_pybytes(), len(messages))
        self.end += len(messages)
        self._tell_end()
        if self._size >= SEGMENT_BYTES:
            os.close(self._segment)
            self._open_segment()
        return first

    def settle(self, number: int) -> None:
        """Record that no message below a number can come again.

        The record need not survive power loss.
        """
        if number > self.settled:
            self.settled = number
            self._tell_end()

    def unsettled(self) -> list[Spooled]:
        """Return, in order, the messages that a crash before this start left unsettled."""
        return self._unsettled

    @property
    def size_bytes(self) -> int:
        """The size of the spool on disk."""
        return sum(_size_of(path) for path in segments(self._folder))

    def close(self) -> None:
        """Close the files and release the lock."""
        os.close(self._segment)
        os.close(self._end_file)
        self._lock.close()

    def _write(self, body: bytes, count: int) -> None:
        """Append one block, or nothing: on an error the segment is truncated to its old size."""
        rest = _REST.pack(len(body), self.end, count)
        check = zlib.crc32(body, zlib.crc32(rest))
        data = _MAGIC + check.to_bytes(4, "little") + rest + body
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._segment, view) :]
            os.fsync(self._segment)
        except OSError:
            os.ftruncate(self._segment, self._size)
            raise
        self._size += len(data)

    def _tell_end(self) -> None:
        os.pwrite(self._end_file, _MARKS.pack(self.end, self.settled), 0)

    def _open_segment(self) -> None:
        path = self._folder / f"{self.end:020d}{_SUFFIX}"
        newest = segments(self._folder)
        if newest and _size_of(newest[-1]) < SEGMENT_BYTES:
            path = newest[-1]
        self._segment = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._segment).st_size

    def _recover(self) -> tuple[int, list[Spooled]]:
        """Truncate a half-written block; return the next number, and the unsettled messages."""
        settled = _marks(self._folder)[1]
        paths, end, unsettled = segments(self._folder), 0, list[Spooled]()
        for path in paths:
            is_newest = path is paths[-1]
            with path.open("rb") as file:
                found = list(_blocks(file, checked=is_newest))
                for block in found:
                    if block.first + block.count > settled:
                        unsettled += _messages(
                            _read_block(file, block, path), settled - block.first
                        )
            end = found[-1].first + found[-1].count if found else _first_of(path)
            if is_newest:
                os.truncate(path, found[-1].behind if found else 0)
        return end, unsettled


def segments(folder: Path) -> list[Path]:
    """Return a spool's segments, oldest first."""
    return sorted(folder.glob(f"*{_SUFFIX}"))


def spool_end(folder: Path) -> int:
    """Return how many messages were ever synced to disk, including dropped ones."""
    return _marks(folder)[0]


def spool_start(folder: Path) -> int:
    """Return the number of the oldest message that still exists."""
    paths = segments(folder)
    return _first_of(paths[0]) if paths else 0


def read_spool(folder: Path, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the messages from `start` up to, not including, `end`; column NUMBER has their numbers.

    Raises FileFormatError where messages are missing or damaged. O(bytes of the segments touched).
    """
    expected = start
    paths = segments(folder)
    for path, after in zip(paths, [*paths[1:], None], strict=True):
        if (after is not None and _first_of(after) <= start) or _first_of(path) >= end:
            continue
        with path.open("rb") as file:
            for block in _blocks(file, checked=False):
                if block.first + block.count <= expected or block.first >= end:
                    continue
                if block.first > expected:
                    raise _missing(folder, expected)
                batch = _read_block(file, block, path)
                low, high = expected - block.first, min(end - block.first, block.count)
                numbers = pa.array(range(block.first + low, block.first + high), pa.int64())
                cut = batch.slice(low, high - low)
                yield pa.RecordBatch.from_arrays(
                    [numbers, *cut.columns], names=[NUMBER, *_SCHEMA.names]
                )
                expected = block.first + high
    if expected < end:
        raise _missing(folder, expected)


def pairs_of(packed: bytes | None) -> Pairs:
    """Return the user properties of a message from their packed form in `read_spool`."""
    return _unpack(packed) if packed else ()


def drop_before(folder: Path, number: int) -> None:
    """Remove segments with only settled messages below a number, except the newest segment."""
    paths, needed = segments(folder), min(number, _marks(folder)[1])
    for path, after in itertools.pairwise(paths):
        if _first_of(after) <= needed:
            path.unlink(missing_ok=True)


def _locked(path: Path) -> IO[str]:
    file = path.open("w", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise KeyInUseError(
            "another stream uses this checkpoint",
            where=str(path.parent),
            todo="Stop it, or use another --checkpoint.",
        ) from None
    return file


def _blocks(file: IO[bytes], *, checked: bool) -> Iterator[_Block]:
    """Yield the complete blocks; with `checked`, only up to the first with a wrong checksum."""
    length = os.fstat(file.fileno()).st_size
    at = 0
    while at + _HEADER.size <= length:
        file.seek(at)
        magic, check, size, first, count = _HEADER.unpack(file.read(_HEADER.size))
        block = _Block(at, size, first, count)
        if magic != _MAGIC or block.behind > length:
            return
        if checked:
            rest = _REST.pack(size, first, count)
            if zlib.crc32(file.read(size), zlib.crc32(rest)) != check:
                return
        yield block
        at = block.behind


def _read_block(file: IO[bytes], block: _Block, path: Path) -> pa.RecordBatch:
    file.seek(block.at)
    header = file.read(_HEADER.size)
    body = file.read(block.size)
    if zlib.crc32(body, zlib.crc32(header[8:])) != int.from_bytes(header[4:8], "little"):
        raise FileFormatError(
            f"message {block.first} and those after it are damaged",
            where=str(path),
            todo="Start with an empty checkpoint.",
        )
    return pa.ipc.read_record_batch(pa.py_buffer(body), _SCHEMA)


def _messages(batch: pa.RecordBatch, start: int) -> Iterator[Spooled]:
    for row in batch.slice(max(0, start)).to_pylist():
        pairs = pairs_of(row["pairs"])
        yield Spooled(row["topic"], row["payload"], pairs, row["packet_id"], row["t"])


def _marks(folder: Path) -> tuple[int, int]:
    """Return how many messages are on disk, and how many are settled."""
    try:
        data = (folder / "end").read_bytes()
    except FileNotFoundError:
        return 0, 0
    if len(data) != _MARKS.size:
        return 0, 0
    end, settled = _MARKS.unpack(data)
    return end, settled


def _missing(folder: Path, number: int) -> FileFormatError:
    return FileFormatError(
        f"message {number} is not there",
        where=str(folder),
        todo="The spool was removed or cut. Start with an empty checkpoint.",
    )


def _first_of(path: Path) -> int:
    return int(path.stem)


def _size_of(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):  # removed since it was listed
        return path.stat().st_size
    return 0
