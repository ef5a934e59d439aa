"""Polygons of many shapes over a city."""

import math
from random import Random

from hypothesis import strategies as st

from nearcast.model import (
    Attribute,
    Polygon,
    ShapeError,
    Space,
)

CITY = Space(
    name="city",
    topic_filter="city/#",
    attributes=[
        Attribute.number("price", 0, 9),
        Attribute.number("lon", -180, 180),
        Attribute.number("lat", -90, 90),
    ],
    longitude="lon",
    latitude="lat",
)


def star(lon: float, lat: float, radius: float, corners: int, turn: float = 0.0) -> Polygon:
    """Return a star of `corners` points; with 4 it is a square."""
    ring = []
    for n in range(corners):
        r = radius * (1 if n % 2 else 0.5) if corners > 4 else radius
        angle = turn + 2 * math.pi * n / corners
        ring.append((lon + r * math.cos(angle), lat + r * math.sin(angle)))
    return Polygon((((*ring, ring[0]),),))


small = st.integers(-3, 3).map(float)


def polygon_of(seed: int) -> Polygon:
    """Return a polygon of few small integers, so that points fall on edges, corners and in line."""
    random = Random(seed)
    if seed % 4 == 0:
        hole = ((0, 0), (1, seed // 4 % 2), (0, 2), (0, 0))
        return Polygon(((((-3, -3), (3, -3), (3, 3), (-3, 3), (-3, -3)), hole),))
    while True:
        ring = [(random.randint(-3, 3), random.randint(-3, 3)) for _ in range(3 + seed % 2)]
        part = ((*ring, ring[0]),)
        shifted = tuple((lon + 7, lat) for lon, lat in part[0])
        try:
            return Polygon((part, (shifted,)) if seed % 4 == 2 else (part,))
        except ShapeError:
            continue


polygons = st.integers(0, 9_999).map(polygon_of)
