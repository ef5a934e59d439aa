"""Writes files of map tiles in the format PMTiles 3, to be read by what is tested."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PNG, MVT = 2, 1
Place = tuple[int, int, int]


def numbers_of_zoom(z: int) -> dict[tuple[int, int], int]:
    """Return the number of each tile of a zoom, by drawing the Hilbert curve as it is defined."""

    def curve(order: int) -> list[tuple[int, int]]:
        if order == 0:
            return [(0, 0)]
        small, half = curve(order - 1), 1 << (order - 1)
        return [
            *((y, x) for x, y in small),
            *((x, y + half) for x, y in small),
            *((x + half, y + half) for x, y in small),
            *((2 * half - 1 - y, half - 1 - x) for x, y in small),
        ]

    before = sum(4**one for one in range(z))
    return {place: before + at for at, place in enumerate(curve(z))}


def varint(value: int) -> bytes:
    """Return a number as seven bits a byte."""
    found = b""
    while value > 0x7F:
        found, value = found + bytes((value & 0x7F | 0x80,)), value >> 7
    return found + bytes((value,))


def directory(entries: Sequence[tuple[int, int, int, int]]) -> bytes:
    """Return a directory of entries (number, run, length, offset)."""
    numbers = [one[0] for one in entries]
    deltas = [now - before for now, before in zip(numbers, [0, *numbers], strict=False)]
    offsets, expected = [], -1
    for _, _, length, offset in entries:
        offsets.append(0 if offset == expected else offset + 1)
        expected = offset + length
    runs, lengths = [one[1] for one in entries], [one[2] for one in entries]
    columns = (deltas, runs, lengths, offsets)
    return varint(len(entries)) + b"".join(varint(n) for column in columns for n in column)


def write_tiles(
    path: Path,
    tiles: Mapping[Place, bytes],
    *,
    kind: int = PNG,
    per_leaf: int = 0,
    is_packed: bool = True,
    tiles_packed: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write tiles by zoom, x and y; directories have `per_leaf` entries, 0: there is one."""
    zooms = sorted({z for z, _, _ in tiles})
    by_number = {numbers_of_zoom(z)[x, y]: data for (z, x, y), data in tiles.items()}
    entries: list[tuple[int, int, int, int]] = []
    content = b""
    places: dict[bytes, tuple[int, int]] = {}
    for number, data in sorted(by_number.items()):
        sent = gzip.compress(data) if tiles_packed else data
        if data not in places:
            places[data] = len(content), len(sent)
            content += sent
        offset, length = places[data]
        last = entries[-1] if entries else None
        if last and (last[0] + last[1], last[3]) == (number, offset):
            entries[-1] = (last[0], last[1] + 1, length, offset)
        else:
            entries.append((number, 1, length, offset))
    pack = gzip.compress if is_packed else bytes
    leaves, root = b"", entries
    if per_leaf:
        root = []
        for at in range(0, len(entries), per_leaf):
            leaf = pack(directory(entries[at : at + per_leaf]))
            root.append((entries[at][0], 0, len(leaf), len(leaves)))
            leaves += leaf
    top, about = pack(directory(root)), pack(json.dumps(dict(metadata or {})).encode())
    sections, offset = [], 127
    for section in (top, about, leaves, content):
        sections += [offset, len(section)]
        offset += len(section)
    counts = (len(by_number), len(entries), len(places))
    how = (1, 2 if is_packed else 1, 2 if tiles_packed else 1, kind, zooms[0], zooms[-1])
    head = struct.pack("<7sB11Q6B", b"PMTiles", 3, *sections, *counts, *how)
    head += struct.pack("<4iB2i", -1_800_000_000, -850_000_000, 1_800_000_000, 850_000_000, 0, 0, 0)
    path.write_bytes(head + top + about + leaves + content)
    return path


Line = Sequence[tuple[int, int]]
Feature = tuple[int, Sequence[Line], Mapping[str, str]]


def vector_tile(layers: Mapping[str, Sequence[Feature]], extent: int = 4096) -> bytes:
    """Return a vector tile; a feature is type (1 points, 2 lines, 3 areas), lines and tags."""
    return b"".join(_field(3, _layer(name, some, extent)) for name, some in layers.items())


def _layer(name: str, features: Sequence[Feature], extent: int) -> bytes:
    keys = sorted({key for _, _, tags in features for key in tags})
    values = sorted({value for _, _, tags in features for value in tags.values()})
    found = _field(1, name.encode())
    for kind, lines, tags in features:
        pairs = [(keys.index(key), values.index(value)) for key, value in tags.items()]
        packed = b"".join(varint(number) for pair in pairs for number in pair)
        drawn = b"".join(map(varint, _commands(kind, lines)))
        found += _field(2, _field(2, packed) + b"\x18" + varint(kind) + _field(4, drawn))
    found += b"".join(_field(3, key.encode()) for key in keys)
    found += b"".join(_field(4, _field(1, value.encode())) for value in values)
    return found + b"\x28" + varint(extent) + b"\x78" + varint(2)


def _commands(kind: int, lines: Sequence[Line]) -> list[int]:
    found, last = [], (0, 0)
    for line in lines:
        for at, (x, y) in enumerate(line):
            if at < 2:
                found.append(1 | 1 << 3 if at == 0 else 2 | (len(line) - 1) << 3)
            steps = (x - last[0], y - last[1])
            found += [step << 1 if step >= 0 else -step * 2 - 1 for step in steps]
            last = x, y
        if kind == 3:
            found.append(7 | 1 << 3)
    return found


def _field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content
