"""Reads map tiles out of one file in the format PMTiles 3: a header, directories, tiles.

A tile has a number: those of smaller zooms first, in one zoom along a Hilbert curve. A directory
has runs of numbers with the bytes where their tile is, or with those of another directory. What was
read of directories is kept, so that a tile costs one read of the file.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from nearcast.model.errors import EnvironmentProblem, FileFormatError

MOST_ZOOM = 26
_HEADER = struct.Struct("<7sB11Q6B4i")  # to the corners of what the file covers
_HEADER_BYTES = 127
_NONE, _GZIP = 1, 2
_KINDS = {1: "application/vnd.mapbox-vector-tile", 2: "image/png", 3: "image/jpeg", 4: "image/webp"}
_KINDS[5] = "image/avif"
_DEEPEST = 4  # directories in directories
_MOST_DIRECTORY_BYTES = 8 << 20
_MOST_TILE_BYTES = 4 << 20
_KEPT_DIRECTORIES = 64
Numbers = NDArray[np.uint64]


def tile_number(z: int, x: int, y: int) -> int:
    """Return the number of a tile. O(z).

    >>> [tile_number(*one) for one in ((0, 0, 0), (1, 0, 0), (1, 0, 1), (1, 1, 1), (1, 1, 0))]
    [0, 1, 2, 3, 4]
    """
    before, along, size = (1 << 2 * z) // 3, 0, 1 << z  # before: 1 + 4 + 16 + …
    half = size >> 1
    while half:
        right, low = bool(x & half), bool(y & half)
        along += half * half * ((3 * right) ^ low)
        if not low:
            if right:
                x, y = size - 1 - x, size - 1 - y
            x, y = y, x
        half >>= 1
    return before + along


@dataclass(frozen=True, slots=True)
class Tile:
    """The bytes of a tile; `is_packed`: with gzip."""

    data: bytes
    kind: str
    is_packed: bool


@dataclass(frozen=True, slots=True)
class _Directory:
    first: Numbers
    runs: Numbers
    lengths: Numbers
    offsets: Numbers

    def find(self, number: int) -> tuple[int, int, int] | None:
        """Return run, offset and length of the entry of a tile; run 0 is another directory."""
        at = int(np.searchsorted(self.first, np.uint64(number), side="right")) - 1
        if at < 0:
            return None
        run = int(self.runs[at])
        if run and number >= int(self.first[at]) + run:
            return None
        return run, int(self.offsets[at]), int(self.lengths[at])


class TileArchive:
    """An open file of tiles; safe to be read by several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as problem:
            raise EnvironmentProblem(
                str(problem.strerror), where=str(path), todo="Correct [http] tiles."
            ) from None
        self._directories: OrderedDict[tuple[int, int], _Directory] = OrderedDict()
        self._read_header()

    def __del__(self) -> None:
        if getattr(self, "_file", -1) >= 0:
            os.close(self._file)

    def _read_header(self) -> None:
        raw = os.pread(self._file, _HEADER_BYTES, 0)
        if len(raw) < _HEADER_BYTES or raw[:7] != b"PMTiles" or raw[7] != 3:
            raise self._damage("another format", "PMTiles, version 3")
        fields = _HEADER.unpack_from(raw)
        self._root, self._metadata = fields[2:4], fields[4:6]
        self._leaves, self._tiles = fields[6], fields[8]
        self._inner, self._packing, kind = fields[14:17]
        self.min_zoom, self.max_zoom = fields[17:19]
        if self._inner not in (_NONE, _GZIP) or self._packing not in (_NONE, _GZIP):
            raise self._damage("another compression", "none or gzip")
        if kind not in _KINDS or not self.min_zoom <= self.max_zoom <= MOST_ZOOM:
            raise self._damage("tiles of an unknown kind", "images or vector tiles")
        self.kind = _KINDS[kind]

    def _damage(self, found: str, expected: str) -> FileFormatError:
        return FileFormatError(found, where=str(self.path), expected=expected)

    @property
    def is_vector(self) -> bool:
        """Whether tiles are shapes, not images."""
        return not self.kind.startswith("image/")

    def attribution(self) -> str:
        """Return whom the map is from, as the file says; "" where it does not."""
        try:
            found: Any = msgspec.json.decode(self._section(*self._metadata))
        except (FileFormatError, msgspec.DecodeError, UnicodeDecodeError):
            return ""
        text = found.get("attribution") if isinstance(found, dict) else None
        return text[:300] if isinstance(text, str) else ""

    def tile(self, z: int, x: int, y: int) -> Tile | None:
        """Return a tile, None where the file has none."""
        if not (self.min_zoom <= z <= self.max_zoom and 0 <= x < 1 << z and 0 <= y < 1 << z):
            return None
        number = tile_number(z, x, y)
        offset, length = self._root
        for _ in range(_DEEPEST):
            found = self._directory(offset, length).find(number)
            if found is None:
                return None
            run, offset, length = found
            if run:
                data = self._bytes(self._tiles + offset, length, _MOST_TILE_BYTES)
                return Tile(data, self.kind, self._packing == _GZIP)
            offset += self._leaves
        raise self._damage("directories that lead nowhere", "a tile")

    def _directory(self, offset: int, length: int) -> _Directory:
        key = offset, length
        known = self._directories.get(key)
        if known is None:
            known = self._directories[key] = self._decode(self._section(offset, length))
            if len(self._directories) > _KEPT_DIRECTORIES:
                self._directories.popitem(last=False)
        return known

    def _decode(self, raw: bytes) -> _Directory:
        numbers = _varints(raw)
        count = int(numbers[0]) if len(numbers) else 0
        if not count > 0 or len(numbers) != 1 + 4 * count:
            raise self._damage("a directory that is cut off", "four numbers for each entry")
        deltas, runs, lengths, given = numbers[1:].reshape(4, count)
        if not given[0]:
            raise self._damage("a first entry without a place", "its place")
        placed = np.maximum.accumulate(np.where(given > 0, np.arange(count), 0))
        before = np.cumsum(lengths, dtype=np.uint64) - lengths
        offsets = given[placed] - np.uint64(1) + before - before[placed]  # 0: after the one before
        return _Directory(np.cumsum(deltas, dtype=np.uint64), runs, lengths, offsets)

    def _section(self, offset: int, length: int) -> bytes:
        """Return a directory or the metadata, unpacked."""
        raw = self._bytes(offset, length, _MOST_DIRECTORY_BYTES)
        if self._inner == _NONE:
            return raw
        unpacking = zlib.decompressobj(31)
        try:
            data = unpacking.decompress(raw, _MOST_DIRECTORY_BYTES)
        except zlib.error:
            raise self._damage("bytes that are no gzip", "a directory") from None
        if not unpacking.eof:
            raise self._damage("a directory that is cut off or too large", "a whole one")
        return data

    def _bytes(self, offset: int, length: int, most: int) -> bytes:
        if length > most or offset > 1 << 62:
            raise self._damage(f"{length} bytes", f"at most {most}")
        try:
            data = os.pread(self._file, length, offset)
        except OSError as problem:
            raise EnvironmentProblem(str(problem.strerror), where=str(self.path)) from None
        if len(data) != length:
            raise self._damage("a file that is cut off", f"{length} bytes at {offset}")
        return data


def _varints(raw: bytes) -> Numbers:
    """Return the numbers of a directory: seven bits a byte, the lowest first.

    >>> _varints(bytes((5, 0x80, 1, 0xFF, 0x7F))).tolist()
    [5, 128, 16383]
    """
    data = np.frombuffer(raw, np.uint8)
    ends = np.flatnonzero(data < 0x80)
    if not len(ends):
        return np.zeros(0, np.uint64)
    data = data[: int(ends[-1]) + 1]
    starts = np.concatenate(([0], ends[:-1] + 1))
    places = np.arange(len(data)) - np.repeat(starts, ends - starts + 1)
    parts = (data & 0x7F).astype(np.uint64) << (
        np.uint64(7) * np.minimum(places, 9).astype(np.uint64)
    )
    return np.add.reduceat(parts, starts)
