"""A space of places in a broker with limits."""

from __future__ import annotations

from nearcast.broker import SpaceSettings
from nearcast.model import Attribute, Space


def city() -> SpaceSettings:
    return SpaceSettings(
        space=Space(
            name="city",
            topic_filter="city/#",
            attributes=(
                Attribute.number("lon", -180, 180),
                Attribute.number("lat", -90, 90),
                Attribute.number("price", 0, 1_000),
            ),
            longitude="lon",
            latitude="lat",
        )
    )
