"""Fuzz the texts that clients send: expressions, levels, shapes, lengths, durations.

    python fuzz/where.py [seconds] [seed]          random mutation, 10 seconds unless told
    python fuzz/where.py --atheris [libFuzzer options]

The only errors that may escape are NearcastErrors, and what is read must print and read back.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

from nearcast.model import (
    Attribute,
    LimitError,
    NearcastError,
    Space,
    decode_level,
    parse_duration,
    parse_length,
    parse_shape,
    parse_where,
    where_level,
)

SPACE = Space(
    name="fuzz",
    topic_filter="#",
    attributes=[
        Attribute.number("price", 0, 1000),
        Attribute.number("age", 0, 120),
        Attribute.category("kind", ["food", "tools", "two words"]),
    ],
)
SEEDS = [
    b'price < 100 and 20 <= age <= 25 and kind in ("food","tools")',
    b"price<100;age=20..25;kind=food",
    b"not (price = 5 or kind != 'two words') and (age > 3 or age in (1, 2, 20..25))",
    b"price<100;kind%20in(food,%22two%20words%22)",
    b"bbox(170,-20,-170,10)",
    b"circle(2.35,48.85,500m)",
    b"179.9,89.9,2km",
    b'geojson({"type":"Polygon","coordinates":[[[0,0],[10,0],[10,10],[0,10],[0,0]]]})',
    b'{"type":"MultiPolygon","coordinates":[[[[0,0],[1,0],[0,1],[0,0]]],[[[5,5],[6,5],[5,6],[5,5]]]]}',
    b'{"type":"Feature","geometry":{"type":"Polygon","coordinates":[[[0,0],[1,0],[0,1],[0,0]]]}}',
    b"250ms",
]
TOKENS = [
    *b"price|age|kind|food| and | or | not | in |(|)|,|;|..|<|<=|=|!=|1|-1|1e999|nan|inf".split(
        b"|"
    ),
    *b"'|\"|\\|\xff|\xed\xa0\x80|\x00|%20|%|km|[|]|{|}|180|-180|90|0.1".split(b"|"),
]


def check(data: bytes) -> None:
    """Raise anything but a NearcastError only if there is a bug."""
    for target in (check_where, check_level, check_shape, check_quantities):
        with suppress(NearcastError):
            target(data)


def check_where(data: bytes | str) -> None:
    expression = parse_where(data)
    assert parse_where(str(expression)) == expression
    assert parse_where(decode_level(where_level(expression))) == expression
    try:
        boxes = SPACE.boxes(expression)
    except LimitError:
        return
    assert len(boxes) <= 64
    assert boxes == SPACE.boxes(str(expression))


def check_level(data: bytes) -> None:
    check_where(decode_level(data.decode(errors="replace")))


def check_shape(data: bytes) -> None:
    shape = parse_shape(data)
    assert parse_shape(str(shape)) == shape
    assert parse_shape(decode_level(shape.level())) == shape
    for box in shape.boxes():
        lon, lat = box.lows
        shape.contains(lon, lat)
    assert shape.touches(shape)


def check_quantities(data: bytes) -> None:
    text = data.decode(errors="replace")
    for parse in (parse_length, parse_duration):
        with suppress(NearcastError):
            assert parse(text) >= 0


def mutated(data: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.randint(1, 4)):
        at, to = sorted((chance.randint(0, len(data)), chance.randint(0, len(data))))
        to = min(to, at + 8)
        match chance.randrange(6):
            case 0:
                data = data[:at] + data[to:]
            case 1:
                data = data[:at] + chance.choice(TOKENS) + data[at:]
            case 2:
                data = data[:at] + bytes([chance.randrange(256)]) + data[at:]
            case 3:
                data = data[:to] + data[at:]
            case 4:
                data = data[:at] + chance.choice(SEEDS)
            case _:
                data = data[:at] + data[at:to] * chance.choice([2, 3, 50]) + data[to:]
    return data[:5000]


def inputs(seed: int) -> Iterator[bytes]:
    """Yield mutants of a corpus that grows, without end; the same ones for the same seed."""
    chance = random.Random(seed)
    corpus = list(SEEDS)
    while True:
        data = mutated(chance.choice(corpus), chance)
        yield data
        if chance.random() < 0.05 and len(corpus) < 2000:
            corpus.append(data)


def run(seconds: float, seed: int) -> int:
    """Return how many inputs were tried."""
    until = time.monotonic() + seconds
    for tried, data in enumerate(inputs(seed)):
        if time.monotonic() >= until:
            return tried
        try:
            check(data)
        except BaseException:
            print(f"seed {seed}, input {tried}: {data!r}", file=sys.stderr)
            raise
    return 0


def run_atheris(arguments: list[str]) -> None:
    import atheris  # type: ignore[import-untyped]

    atheris.instrument_all()
    atheris.Setup([sys.argv[0], *arguments], check)
    atheris.Fuzz()


if __name__ == "__main__":
    if "--atheris" in sys.argv[1:]:
        run_atheris([each for each in sys.argv[1:] if each != "--atheris"])
    else:
        seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
        seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
        print(f"{run(seconds, seed):,} inputs, seed {seed}: nothing but NearcastErrors")
