r"""The byte format of the journal: batches whose damage, loss or repetition is detectable.

    file   = "nearcast journal 2\n"  mark (8)  end of the snapshot (8)  CRC-32 of these (4)  batch …
    batch  = mark (8)  size (4)  number (8)  CRC-32 of these and of the records (4)  records

Batches are numbered from 1, and none is empty. The mark is random for each file: behind damage it
shows where a batch may start, and no client can forge it in a payload. A file gets its name only
once its snapshot is written, so that a crash truncates nothing before the snapshot's end.

Files of format 1 are read, too: batches of size, CRC-32 and records, without numbers.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from nearcast.broker.persistence.journal import HEADER as RECORD
from nearcast.model.errors import FileFormatError

MAGIC = b"nearcast journal 2\n"
OLD_MAGIC = b"nearcast journal 1\n"
MARK_BYTES = 8
_FILE = Struct("<8sQ")
_CHECKSUM = Struct("<I")
FILE_HEADER_BYTES = len(MAGIC) + _FILE.size + _CHECKSUM.size
_BATCH = Struct("<8sIQ")
BATCH_HEADER_BYTES = _BATCH.size + _CHECKSUM.size
_OLD_BATCH = Struct("<II")
_WRONG_SIZE = "a batch whose size is damaged; its records are whole, and used"
_MOST_KINDS = 64  # of records: above what any version has


@dataclass(frozen=True, slots=True)
class JournalBatch:
    """Records written at once; `position` is their offset in the file."""

    number: int
    position: int
    records: bytes


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a file that are not a valid batch, from `position` to `end`.

    `lost` is the number of missing batches, None if unknown. `is_tail`: the last batch is
    truncated, as a crash does; none of its records was acknowledged.
    """

    position: int
    end: int
    reason: str
    lost: int | None = None
    is_tail: bool = False


def new_mark() -> bytes:
    """Return the random mark of a new file."""
    return os.urandom(MARK_BYTES)


def file_header(mark: bytes, snapshot_end: int) -> bytes:
    """Return the header of a file."""
    fixed = MAGIC + _FILE.pack(mark, snapshot_end)
    return fixed + _CHECKSUM.pack(zlib.crc32(fixed))


def batch_header(mark: bytes, number: int, records: bytes) -> bytes:
    """Return the header of a batch."""
    fixed = _BATCH.pack(mark, len(records), number)
    return fixed + _CHECKSUM.pack(zlib.crc32(records, zlib.crc32(fixed)))


def read_journal(data: bytes, where: str) -> Iterator[JournalBatch | Damage]:
    """Yield the batches of a file in order, and between them what is damaged or missing.

    Raises FileFormatError if nothing in it is recognisable as a journal. Complexity: O(bytes); for
    format 1 at worst O(bytes · size of a batch) behind damage.
    """
    if data.startswith(OLD_MAGIC):
        return _read_old(data)
    mark, snapshot_end, problem = _read_file_header(data)
    if mark is None:
        raise FileFormatError(
            f"{len(data)} bytes that begin with {data[:20]!r}",
            where=where,
            expected=repr(MAGIC),
            todo="Restore the file from a copy, or move it away and lose what it held.",
        )
    return _read(data, mark, snapshot_end, problem)


def format_of(data: bytes) -> int:
    """Return the format of a file that `read_journal` reads."""
    return 1 if data.startswith(OLD_MAGIC) else 2


def record_starts(data: bytes, damage: Damage) -> list[int]:
    """Return where records may start within damaged bytes: behind each former batch header."""
    if format_of(data) == 1:
        return [damage.position + _OLD_BATCH.size]
    mark = _read_file_header(data)[0] or b""
    starts = [damage.position + BATCH_HEADER_BYTES]
    at = data.find(mark, damage.position + 1, damage.end)
    while at >= 0:
        starts.append(at + BATCH_HEADER_BYTES)
        at = data.find(mark, at + 1, damage.end)
    return starts


def _read_file_header(data: bytes) -> tuple[bytes | None, int, str]:
    """Return mark, end of the snapshot (0: unknown), and the problem with the header."""
    fixed = data[: FILE_HEADER_BYTES - _CHECKSUM.size]
    if len(data) >= FILE_HEADER_BYTES and data.startswith(MAGIC):
        mark, snapshot_end = _FILE.unpack_from(data, len(MAGIC))
        if _CHECKSUM.pack(zlib.crc32(fixed)) == data[len(fixed) : FILE_HEADER_BYTES]:
            return mark, snapshot_end, ""
    # Every batch has the mark: the first intact one provides it, too.
    mark = data[FILE_HEADER_BYTES : FILE_HEADER_BYTES + MARK_BYTES]
    if _batch_at(data, FILE_HEADER_BYTES, mark) is not None:
        return mark, 0, "the file's header is damaged"
    return None, 0, ""


def _batch_at(
    data: bytes, position: int, mark: bytes, size: int | None = None
) -> JournalBatch | None:
    """Return the intact batch at an offset, if there is one; `size` overrides its own size."""
    start = position + BATCH_HEADER_BYTES
    if start > len(data):
        return None
    found, own_size, number = _BATCH.unpack_from(data, position)
    size = own_size if size is None else size
    if found != mark or not 0 < size <= len(data) - start:
        return None
    records = data[start : start + size]
    (checksum,) = _CHECKSUM.unpack_from(data, start - _CHECKSUM.size)
    if zlib.crc32(records, zlib.crc32(_BATCH.pack(mark, size, number))) != checksum:
        return None
    return JournalBatch(number, start, records)


def _read(
    data: bytes, mark: bytes, snapshot_end: int, problem: str
) -> Iterator[JournalBatch | Damage]:
    if problem:
        yield Damage(0, FILE_HEADER_BYTES, problem, 0)
    position, expected = FILE_HEADER_BYTES, 1
    while position < len(data):
        batch = _batch_at(data, position, mark)
        if batch is None:
            end, following = _next_batch(data, position, mark, expected)
            kept = _batch_at(data, position, mark, end - position - BATCH_HEADER_BYTES)
            missing = None if following is None else following.number - expected
            if kept is not None and kept.number == expected:
                yield Damage(position, end, _WRONG_SIZE, 0)
                yield kept
                expected += 1
            elif missing is None and _is_cut(data, position, mark, expected, snapshot_end):
                yield Damage(position, end, "a last batch that was cut short", 1, is_tail=True)
            else:
                yield Damage(position, end, _what(data[position:end]), missing)
                expected = expected if following is None else following.number
            position = end
            continue
        begin, position = position, batch.position + len(batch.records)
        if batch.number < expected:
            yield Damage(begin, position, f"batch {batch.number} again, or out of its order", 0)
            continue
        if batch.number > expected:
            reason = f"batch {expected} is expected, {batch.number} is here"
            yield Damage(begin, begin, reason, batch.number - expected)
        yield batch
        expected = batch.number + 1
    if position < snapshot_end:
        yield Damage(position, position, f"the snapshot ends at byte {snapshot_end:,}")


def _next_batch(
    data: bytes, position: int, mark: bytes, expected: int
) -> tuple[int, JournalBatch | None]:
    """Return the offset of the next intact batch, and it; or the end of the data, and None."""
    at = data.find(mark, position + 1)
    while at >= 0:
        batch = _batch_at(data, at, mark)
        if batch is not None and batch.number >= expected:
            return at, batch
        at = data.find(mark, at + 1)
    return len(data), None


def _is_cut(data: bytes, position: int, mark: bytes, expected: int, snapshot_end: int) -> bool:
    """Return whether the data ends within a batch that starts here and is valid so far."""
    if position < snapshot_end:
        return False
    head = data[position : position + _BATCH.size]
    if len(head) < _BATCH.size:
        right = _BATCH.pack(mark, 0, expected)
        return head[:MARK_BYTES] == right[: min(len(head), MARK_BYTES)]
    found, size, number = _BATCH.unpack(head)
    is_short: bool = position + BATCH_HEADER_BYTES + size > len(data)
    return is_short and (found, number) == (mark, expected)


def _what(damaged: bytes) -> str:
    return "zeros" if not damaged.strip(b"\0") else "bytes that are no whole batch"


# --- format 1 ---------------------------------------------------------------------------------


def _read_old(data: bytes) -> Iterator[JournalBatch | Damage]:
    position, number, end = len(OLD_MAGIC), 1, len(data)
    while position < end:
        batch = _old_batch_at(data, position, number)
        if batch is not None:
            yield batch
            position = batch.position + len(batch.records)
            number += 1
            continue
        following = next(
            (at for at in range(position + 1, end) if _old_batch_at(data, at, 1) is not None), end
        )
        kept = data[position + _OLD_BATCH.size : following]
        if kept and _OLD_BATCH.unpack_from(data, position)[1] == zlib.crc32(kept):
            yield Damage(position, following, _WRONG_SIZE, 0)
            yield JournalBatch(number, position + _OLD_BATCH.size, kept)
            number, position = number + 1, following
            continue
        is_tail = following == end and _is_cut_old(data, position)
        reason = "a last batch that was cut short" if is_tail else _what(data[position:following])
        yield Damage(position, following, reason, 1 if is_tail else None, is_tail=is_tail)
        position = following


def _old_batch_at(data: bytes, position: int, number: int) -> JournalBatch | None:
    start = position + _OLD_BATCH.size
    if start + RECORD.size > len(data):
        return None
    size, checksum = _OLD_BATCH.unpack_from(data, position)
    kind, record_size = RECORD.unpack_from(data, start)
    if not RECORD.size + record_size <= size <= len(data) - start or not 0 < kind < _MOST_KINDS:
        return None
    records = data[start : start + size]
    return JournalBatch(number, start, records) if zlib.crc32(records) == checksum else None


def _is_cut_old(data: bytes, position: int) -> bool:
    if position + _OLD_BATCH.size > len(data):
        return True
    size: int = _OLD_BATCH.unpack_from(data, position)[0]
    return size > len(data) - position - _OLD_BATCH.size
